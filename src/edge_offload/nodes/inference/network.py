"""Network of a node: its model, its device, and the link to the server."""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar, Dict, Mapping, Optional, Sequence, Tuple

import rospy

from edge_offload.companion.process import choose_device
from edge_offload.errors import BadInput
from edge_offload.execute.engines.base import EAGER
from edge_offload.execute.engines.table import engine_for_model
from edge_offload.execute.module import ByEngine
from edge_offload.execute.threads import pin
from edge_offload.link.estimate.estimator import LinkReading
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.replies import LinkState
from edge_offload.manager.lateness import TimeoutLimits
from edge_offload.manager.policy import CANDIDATES, POLICIES, EnergyPolicy, chooses
from edge_offload.manager.promise import PromisePolicy
from edge_offload.mode import BRIDGE, BRIDGED, Mode, parse_mode
from edge_offload.models.onnxfile.reading import is_onnx
from edge_offload.models.registry import build_estimator, name_on_wire, options_on_wire, state_hash
from edge_offload.models.video import synthetic_frame
from edge_offload.modes.device import DeviceModule, DeviceRunner, installed_device
from edge_offload.nodes.common.cores import resolve_cores
from edge_offload.nodes.common.health import Health
from edge_offload.nodes.common.params import Param
from edge_offload.power.states import powers_of
from edge_offload.runtime.module import OffloadedModule
from edge_offload.runtime.promise import Promise
from edge_offload.runtime.results import report_result
from edge_offload.split.model.objective import Objective
from edge_offload.timing import InferenceReport

#: Modes of a program that was started by ``edge-offload exec``.
DEVICE_MODES = (Mode.PER_OP, Mode.CACHED, Mode.LAZY, Mode.REPLAY)

#: Modes that may be among the candidates of a robot that cannot run them.
USUAL = (*CANDIDATES, BRIDGED, Mode.SPLIT)
#: Says why a program that was to have a virtual device has none (``edge-offload exec --optional``).
NO_DEVICE = "EDGE_OFFLOAD_NO_DEVICE"
#: Of the parameter of nodes that run ONNX files.
DECODER = "format of an ONNX file's outputs: yolov5, yolov8, rtdetr, ...; none: recognised by the outputs"
#: Seconds from which on a first inference is not much slower than any later one.
SLOW_S = 3.0


class Network:
    """A person estimator whose module runs here or on a server, and what it says on /diagnostics.

    A subclass builds another kind of model.

    Attributes:
        module: runs it; called in one thread.
        client: the link; None: no server.
        powers: watts of this machine by state; None: they are not known.
        absent: modes that cannot run as this node was started, and what each of them lacks, in words.
        name, options: what a server is asked for.
    """

    #: What random weights mean for the results.
    untrained: ClassVar[str] = "it finds nobody"
    #: Whether results that the server did not compute are told to it.
    report_results: ClassVar[bool] = True
    #: Bounds on the wait for a reply; None: those of a network that takes well below a second.
    patience: ClassVar[Optional[TimeoutLimits]] = None
    #: Whether the start waits while plans for mode split are being made, too.
    waits_for_plans: ClassVar[bool] = True
    declared: ClassVar[Tuple[Param, ...]] = (
        Param("model", "movenet", "name of the model ('edge-offload models list'), package.module:factory or net.onnx"),
        Param("model_options", {}, "options of the model, such as {size: 512}"),
        Param(
            "server",
            "",
            "address of the server, tcp://host:port, several with commas; none: everything runs on the robot",
        ),
        Param("keys", "", "key directory; none: the user's"),
        Param("candidates", [mode.value for mode in CANDIDATES], "modes that a policy may choose among"),
        Param(
            "exact",
            False,
            "allow only results with the robot's own bits: no split, no server with another fingerprint",
        ),
        Param("codec", "auto", "codec of transferred tensors; auto is lossless"),
        Param("device", "auto", "device of this machine: auto (the GPU if there is one), cpu, cuda or cuda:n"),
        Param("engine", "eager", "engine of this machine: eager (torch), auto, or a name from 'edge-offload engines'"),
        Param("slowdown", 1.0, "factor by which compute on this machine is slowed on purpose (emulation)", low=1.0),
        Param("threads", 0, "compute threads; 0: torch's default", low=0),
        Param("cores", "any", "CPU cores to stay on: 0, 2-3, first, second or any"),
    )

    def __init__(self, params: Mapping[str, Any], health: Health) -> None:
        self._params = params
        self.powers = powers_of(params.get("power", {}))
        self._health = health
        self.pin_threads()
        self.name, self.options = name_on_wire(str(params["model"])), self._model_options()
        self.estimator = self.build()
        self.weights_sha256 = state_hash(self.estimator.module)
        candidates = [parse_mode(str(name)) for name in params["candidates"]]
        if params["exact"]:
            candidates = [mode for mode in candidates if mode is not Mode.SPLIT]
        self.client: Optional[Client] = None
        self._promise: Optional[Promise] = None
        if params["server"]:
            keys = KeyStore(params["keys"]) if params["keys"] else None
            self.client = Client(
                params["server"], keys=keys, on_state=self._link_changed, on_notify=self._on_notification
            )
        engine = EAGER if params["exact"] else engine_for_model(params["engine"], self.name)
        device, companion = choose_device(params["device"], engine, params["threads"])
        self.module = OffloadedModule(
            self.name,
            self.estimator.module,
            self.client,
            options=self.options,
            device=device,
            codec=params["codec"],
            engine=params["engine"],
            exact=params["exact"],
            robot_slowdown=params["slowdown"],
            patience=self.patience,
            report_results=self.report_results,
            candidates=candidates,
            powers=self.powers,
            in_flight=params["in_flight"],
            companion=companion,
        )
        self._by_engine = isinstance(self.estimator.module, ByEngine)
        virtual = installed_device()
        if self.client is not None and virtual is not None and not self._by_engine:
            on_device = DeviceModule(
                virtual, self.estimator.module, self.client, params["codec"],
                self.module.fingerprint if params["exact"] else None,
            )  # fmt: skip
            for mode in DEVICE_MODES:
                self.module.add_runner(DeviceRunner(mode, on_device))
        self.absent = {mode: why for mode in Mode for why in [self._missing_for(mode)] if why}
        for mode in candidates:
            # a robot may well be started without a server or a compiler: it makes do with what is left, and says so
            if mode in self.absent and mode not in USUAL:
                raise BadInput(f"mode {mode} is a candidate and cannot run here: {self.absent[mode]}")
        choice = _describe_choice(candidates, self.absent)
        health.value("chooses among", choice)
        rospy.loginfo(f"modes that can run here: {choice}")
        if self.client is not None:
            self.client.start()
        health.value("model", self.estimator.name)
        if self._by_engine:
            rospy.loginfo(self.estimator.module.describe())
        if not self.estimator.trained:
            health.warn("weights", f"model {self.estimator.name} has random weights: {self.untrained}")

    def _missing_for(self, mode: Mode) -> str:
        if mode is Mode.SPLIT and self._params["exact"]:
            return "its results agree within a tolerance, not to the bit; start with exact:=false"
        if self.module.offers(mode):
            return ""
        if self._by_engine and self.client is not None:
            return "an ONNX file is computed whole, by an engine: modes local and server"
        if self.client is None:
            device = " virtual_device:=true" if mode in DEVICE_MODES else ""
            return f"it needs a server; start with server:=host:port{device}"
        without = os.environ.get(NO_DEVICE, "")
        if without:
            return f"it needs the virtual CUDA device, which this machine does not have: {without}"
        return "it needs the virtual CUDA device; start with virtual_device:=true ('edge-offload exec' gives it)"

    def build(self) -> Any:
        """Make what prepares, runs and interprets the model: it has ``name``, ``module`` and ``trained``.

        It may set :attr:`name` and :attr:`options`, where a server knows the model by others.
        """
        return build_estimator(self._params["model"], **self._model_options())

    def _model_options(self) -> Dict[str, Any]:
        """Return the options that the model is built with here and on a server."""
        params = self._params
        options = dict(params["model_options"])
        if params.get("decoder"):
            options["decoder"] = params["decoder"]
        elif params.get("detector") and is_onnx(params["model"]):
            options.setdefault("decoder", "none")  # the class interprets what the network returns
        return options_on_wire(params["model"], options)

    def pin_threads(self) -> None:
        """Keep to the threads and cores that were asked for; each thread that computes does so by itself."""
        pin(self._params["threads"] or None, resolve_cores(self._params["cores"]))

    def _link_changed(self, state: LinkState, cause: str) -> None:
        self.module.link_changed(state, cause)
        if self._promise is not None:
            self._promise.link_changed(state, cause)

    def _on_notification(self, kind: str, body: Dict[str, Any], buffers: Any) -> None:
        if self._promise is not None:
            self._promise.notified(kind, body, buffers)

    def request_promise(self, policy: PromisePolicy) -> Promise:
        """Ask the server for a promise from now on.

        Raises:
            BadInput: there is no server.
        """
        self._promise = self.module.follow(policy)
        return self._promise

    def warm_up(self, mode: Mode, width: int, height: int, wait_s: float) -> Any:
        """Compute once with a synthetic image of this size, and wait up to ``wait_s`` until ``mode`` can run it.

        Returns:
            The network's input.
        """
        # not an empty one: mode split measures on it how far images can be coded
        image = self.estimator.prepare(synthetic_frame(height, width))[0]
        self.warm_up_on(mode, image, wait_s)
        return image

    def warm_up_on(self, mode: Mode, image: Any, wait_s: float) -> None:
        """Compute once with this input, and wait up to ``wait_s`` until ``mode`` can run it."""
        ends = time.monotonic() + wait_s
        # opens the model on the server, while it is computed here for the first time
        unavailable_reason = self.module.unavailable_reason(mode, [image])
        for _ in range(2):  # the first one is slower than any later one, and policies must not go by it
            _, report = self.module.run_inference([image], Mode.LOCAL)
            if report.total_s > SLOW_S:
                break
        while unavailable_reason is not None and time.monotonic() < ends and not rospy.is_shutdown():
            connected = self.client is not None and self.client.state is LinkState.READY
            if mode is Mode.SPLIT and connected and not self.waits_for_plans:
                break
            self._health.warn("start", f"waiting for mode {mode}: {unavailable_reason}")
            time.sleep(0.05)
            unavailable_reason = self.module.unavailable_reason(mode, [image])

    def report_result(self, outputs: Sequence[Any], report: InferenceReport, meta: Mapping[str, Any]) -> None:
        """Tell a result to those who watch at the server, if it is there; never waits."""
        report_result(self.client, self.name, outputs, report, meta)

    def aim_plans(self, policy: str, deadline_s: float) -> None:
        """Have plans of mode ``split`` made for what a policy of this name minimises; held modes change nothing."""
        if not chooses(policy):
            return
        saves = policy in POLICIES and POLICIES[policy]().name == EnergyPolicy.name and self.powers is not None
        kind = "latency" if not saves else "deadline" if deadline_s > 0 else "energy"
        self.module.aim(Objective(kind, deadline_s=deadline_s or Objective.deadline_s))

    def adopt_reading(self, reading: LinkReading) -> None:
        """Take over a measurement of the link that is newer than the own ones."""
        if self.client is not None:
            self.client.estimator.adopt_reading(time.monotonic(), reading)

    def close(self) -> None:
        self.module.close()
        if self.client is not None:
            self.client.close()


def _describe_choice(candidates: Sequence[Mode], absent: Mapping[Mode, str]) -> str:
    """Describe what a policy can choose among, and why not among the rest."""
    able = [mode for mode in Mode if mode is Mode.LOCAL or (mode in candidates and mode not in absent)]
    choice = ", ".join(able)
    if BRIDGED in candidates and BRIDGE not in candidates and BRIDGE not in absent:
        choice += f"; {BRIDGE} " + (
            "until replay is ready, and while it is slower" if BRIDGED in able else "for replay"
        )
    missing = [f"{mode}: {absent[mode]}" for mode in candidates if mode in absent]
    return choice + "".join(f"; not {why}" for why in missing)
