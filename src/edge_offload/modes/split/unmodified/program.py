"""Installs the virtual device of mode ``split`` in a program that ``edge-offload exec`` has started."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
from typing import Any, Dict, Tuple

import torch

from edge_offload import background
from edge_offload.companion.half import CompanionPlace
from edge_offload.companion.process import ExecutorProcess
from edge_offload.device import connect, installation
from edge_offload.device.remotes.executor import WorkerRemote
from edge_offload.errors import BadInput
from edge_offload.execute.fingerprint import two_torches
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.connection import Timings
from edge_offload.link.transport.prober import Prober
from edge_offload.link.transport.replies import LinkState
from edge_offload.mode import Mode
from edge_offload.modes.split.robot.runner import SplitRunner
from edge_offload.modes.split.unmodified.in_process import InProcessHandler, InProcessSession, in_process_remote
from edge_offload.modes.split.unmodified.recorded import RecordedSource
from edge_offload.modes.split.unmodified.strategy import SplitStrategy
from edge_offload.notices import Once
from edge_offload.replay.dispatcher import SegmentDispatcher
from edge_offload.replay.recorder import Recorder
from edge_offload.split.model.network import TracedNetwork


def install_from_environment() -> installation.Installed:
    """Install the device with the launcher's settings, which are environment variables; torch has been imported.

    Raises:
        BadInput: no server is named, or its key is not known.
    """
    settings = connect.ExecSettings.from_environment(os.environ)
    if not settings.server:
        raise BadInput("mode split needs a server", remedy="name one with --server, or use mode lazy")
    libraries = installation.built_libraries()
    keys = KeyStore(settings.keys) if settings.keys else None
    notified, once = "", Once()

    def notify_link(state: LinkState, cause: str) -> None:
        """Notify the user, once each, of another release of torch on the server, or why there is no server."""
        nonlocal notified
        if state is LinkState.READY:
            notified = two_torches({"torch": torch.__version__}, client.welcome.get("fingerprint"))
            if notified:
                once.notify(notified)
        elif state is LinkState.REFUSED or (state is LinkState.LOST and not client.welcome):
            once.notify(f"this process computes alone, since {settings.server} is not connected: {cause}")

    # seconds between probes of an idle link, and between its heartbeats: both take processor time from the program
    idle_s = 1.0
    client = Client(settings.server, keys=keys, timings=Timings(idle_s=idle_s), on_state=notify_link)
    client.start()
    prober = Prober(client, idle_s).start()
    in_process = libraries is not None and settings.device == "cpu"
    if in_process and settings.threads:
        torch.set_num_threads(settings.threads)
    session = InProcessSession() if in_process else None
    if settings.device != "cpu":
        # results of the device are checked against recorded ones, and TF32 differs by more than rounding
        os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")
    remote = WorkerRemote(settings.device, settings.threads) if session is None else in_process_remote(session)
    executor = ExecutorProcess(settings.device, settings.threads) if settings.device != "cpu" else None

    def open_split(network: TracedNetwork, **plans: Any) -> SplitRunner:
        place = None if executor is None else CompanionPlace(executor, recorded=True)
        return SplitRunner(RecordedSource(network), client, settings.slowdown, place=place, **plans)

    def make_strategy(_mode: Mode, dispatcher: SegmentDispatcher) -> SplitStrategy:
        return SplitStrategy(dispatcher, open_split, settings.slowdown, session)

    def make_recorder(native: Any, remote: Any, mode: Mode) -> Tuple[Any, Recorder]:
        recorder = Recorder(native, remote, mode, make_strategy)
        return recorder if session is None else InProcessHandler(recorder, session, settings.slowdown), recorder

    installed = installation.install_device(libraries, remote, Mode.SPLIT, make_recorder)
    strategy: SplitStrategy = installed.recorder.strategy

    def end() -> None:
        if settings.tally:
            installed.write_tally(settings.tally)
            split = {**dataclasses.asdict(strategy.splits), "state": strategy.state()}
            _add_to_tally(settings.tally, {"split": split, **({"two_torches": notified} if notified else {})})
        background.end()
        strategy.close()
        prober.close()
        client.close()
        if executor is not None:
            executor.close()

    atexit.register(end)
    return installed


def _add_to_tally(path: str, facts: Dict[str, Any]) -> None:
    """Add to the tally that :meth:`.Installed.write_tally` wrote."""
    with contextlib.suppress(OSError, ValueError):  # it was not written: its figures were printed instead
        with open(path, encoding="utf-8") as stream:
            tally = json.load(stream)
        installation.write_tally_file(path, {**tally, **facts})
