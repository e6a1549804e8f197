"""Opens a program's session on a server: the launcher's settings, the connection, and notices for the user."""

from __future__ import annotations

import time
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple

from edge_offload.errors import EdgeOffloadError, LinkLost
from edge_offload.notices import notify

if TYPE_CHECKING:
    from edge_offload.device.remotes.link import LinkRemote
    from edge_offload.device.remotes.sent import Weights
    from edge_offload.link.transport.client import Client

ENVIRONMENT = "EDGE_OFFLOAD_EXEC"
FAIL, LOCAL, LATER = "fail", "local", "later"
#: What the program does without a server at its start, in this order: it ends with an error; an executor process on
#: this machine computes; it starts, and connects later by itself.
ABSENT: Tuple[str, ...] = (FAIL, LOCAL, LATER)

#: Setting that chooses a lossless codec for each array.
AUTO = "auto"

END = "end"
#: What happens when the server is lost for longer than the program waits: it goes on with an executor process on this
#: machine until the server is back, or it ends with an error.
LOST: Tuple[str, ...] = (LOCAL, END)

EXACT, NEVER_DERIVE = "known", "ask"
#: Where shapes of results come from: derived here where that is exact, or requested from the server for each call.
SHAPES: Tuple[str, ...] = (EXACT, NEVER_DERIVE)

#: Keys of a fingerprint whose values depend on the release of torch.
TORCH = ("torch", "torch_build")


@dataclass(frozen=True)
class ExecSettings:
    """Settings that the launcher hands to the program, in environment variables.

    Attributes:
        mode: value of a :class:`~edge_offload.mode.Mode`.
        server: ``tcp://host:port``, several with commas, or empty for an executor process on this machine.
        keys: key directory; empty: the user's.
        codec: payload codec; ``auto`` is lossless.
        absent: one of :data:`ABSENT`.
        lost: one of :data:`LOST`.
        wait_s: timeout of the first connection (seconds).
        resume_s: how long a broken connection may take to come back (seconds).
        device, threads: device and CPU threads of the executor on this machine; 0 threads: torch's default.
        tally: file for what the run cost, written when the program ends; empty: none.
        slowdown: factor by which mode split emulates a slower robot; 1: none.
        shapes: one of :data:`SHAPES`.
    """

    mode: str = "replay"
    server: str = ""
    keys: str = ""
    codec: str = AUTO
    absent: str = FAIL
    wait_s: float = 5.0
    resume_s: float = 30.0
    device: str = "cpu"
    threads: int = 0
    tally: str = ""
    slowdown: float = 1.0
    lost: str = "local"
    shapes: str = "known"

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> ExecSettings:
        """Reads what :meth:`to_environment` wrote."""
        values: Dict[str, Any] = {}
        for name, default in ExecSettings().__dict__.items():
            text = environment.get(f"{ENVIRONMENT}_{name.upper()}")
            if text is not None:
                values[name] = type(default)(text)
        return ExecSettings(**values)

    def to_environment(self) -> Dict[str, str]:
        """Writes the settings as environment variables."""
        return {f"{ENVIRONMENT}_{name.upper()}": str(value) for name, value in self.__dict__.items()}


def check_settings(settings: ExecSettings) -> None:
    """Checks the settings before anything is started.

    Raises:
        BadInput: the address is malformed, no key is known for the server, or there is no such codec.
    """
    from edge_offload.errors import BadInput
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.fronts import parse_addresses

    if settings.codec != AUTO:
        from edge_offload.link import codecs

        codec_choices = (AUTO, *codecs.codec_names(), *codecs.codec_names(lossless=False))
        if settings.codec not in codec_choices:
            raise BadInput(f"no codec {settings.codec!r}", remedy=f"use one of {', '.join(codec_choices)}")
    if settings.server:
        keys = KeyStore(settings.keys) if settings.keys else KeyStore()
        for address in parse_addresses(settings.server):
            keys.server_public(address)


#: Client that :func:`dial_server` has started, until :func:`connect` takes it over.
_dialled: Optional[Client] = None


def dial_server(settings: ExecSettings) -> None:
    """Starts the client that :func:`connect` takes over, unless the settings need no connection at the start.

    The server then starts an executor while this process imports torch.

    Raises:
        BadInput: no key is known for the server.
    """
    global _dialled
    if settings.server and settings.mode not in ("split", "local") and settings.absent != LATER:
        _dialled = _start_client(settings)


def _start_client(settings: ExecSettings) -> Client:
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client

    keys = KeyStore(settings.keys) if settings.keys else None
    return Client(settings.server, keys=keys, hello={"device": True}).start()


def connect(settings: ExecSettings) -> LinkRemote:
    """Opens a session on the server.

    Raises:
        BadInput: no key is known for the server.
        Refused: the server refuses the session.
        LinkLost: no server answered in time.
        ProtocolError: the server sent no valid list of its operators.
        TimeoutError: that list did not come in time (:class:`concurrent.futures.TimeoutError`).
    """
    global _dialled
    client, _dialled = _dialled or _start_client(settings), None
    from edge_offload.device.remotes.link import LinkRemote

    try:
        refused = _open_session(client, time.monotonic() + settings.wait_s)
    except (EdgeOffloadError, FutureTimeout):
        client.close()
        raise
    report_differences(client.welcome, settings.threads)
    return LinkRemote(
        client, resume_s=settings.resume_s, codec=settings.codec, on_weights=UploadProgress(), refused=refused
    )


def _open_session(client: Client, deadline_s: float) -> Dict[str, str]:
    """Wait for the server and compare operators; a connection that breaks meanwhile is made again until the deadline.

    Returns:
        What :func:`other_operators` returns; raises as that and :meth:`Client.wait_ready`.
    """
    while True:
        client.wait_ready(max(0.0, deadline_s - time.monotonic()))
        try:
            return other_operators(client)
        except LinkLost:
            if time.monotonic() >= deadline_s:
                raise


def report_differences(welcome: Mapping[str, Any], threads: int = 0) -> None:
    """Notifies the user why results of this server may differ from this machine's, with a remedy, if they may.

    Args:
        welcome: the server's first message, with its fingerprint.
        threads: CPU threads of an executor on this machine; 0: those of this process.
    """
    from edge_offload.execute.fingerprint import fingerprint_of, list_differences, two_torches

    ours, theirs = fingerprint_of("cpu"), welcome.get("fingerprint", {})
    if threads:
        ours["threads"] = threads
    torches = two_torches(ours, theirs)
    if torches:
        notify(torches)
        ours, theirs = ({key: facts[key] for key in facts if key not in TORCH} for facts in (ours, theirs))
    different = list_differences(ours, theirs)
    if different:
        notify(f"results may differ from this machine's in the last bits: {'; '.join(different)}")


def other_operators(client: Client) -> Dict[str, str]:
    """Operators that the server's torch lacks or defines differently, each with the reason why it is refused.

    Raises:
        LinkLost: the connection broke.
        ProtocolError: the server sent no valid list of its operators.
    """
    import torch

    from edge_offload.errors import ProtocolError
    from edge_offload.ir.trace import checksums
    from edge_offload.protocol.remote import SCHEMAS

    server_torch = client.welcome.get("fingerprint", {}).get("torch")
    if server_torch == str(torch.__version__):
        return {}

    def request_checksums(**body: Any) -> Dict[str, int]:
        reply = client.request(SCHEMAS, body, timeout_s=30.0).result(31.0)
        if len(reply.buffers) != 1:
            raise ProtocolError("the server did not say which operators it has")
        return checksums.unpack_table(bytes(reply.buffers[0]))

    ours, theirs = checksums.checksum_table(), request_checksums()
    differing = checksums.differing_operators(ours, theirs)
    if differing:  # some may differ only in arguments with defaults, which the server's torch has appended
        older = request_checksums(older=differing)
        theirs.update({name: older[name] for name in differing if older.get(name) == ours[name]})
    return checksums.refused_operators(ours, theirs, str(server_torch))


class UploadProgress:
    """Notifies the user every ``every_s`` seconds while weights are uploaded."""

    def __init__(self, every_s: float = 2.0) -> None:
        self._every_s = every_s
        self._reported_s = 0.0

    def __call__(self, weights: Weights) -> None:
        """Reports the progress, at most every ``every_s`` seconds."""
        now = time.monotonic()
        if now - max(self._reported_s, weights.started_s) < self._every_s:
            return
        self._reported_s = now
        rate = weights.sent / max(now - weights.started_s, 1e-3)
        cached = f", {weights.cached / 1e6:.1f} MB were there already" if weights.cached else ""
        notify(f"uploading weights: {weights.sent / 1e6:.1f} MB sent, {rate / 1e6:.1f} MB/s{cached}")
