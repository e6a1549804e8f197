"""From the launcher's settings to a session on a server, with words for the user on the way."""

from __future__ import annotations

import time
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Mapping, Tuple

from edge_offload.errors import EdgeOffloadError
from edge_offload.notices import notify

if TYPE_CHECKING:
    from edge_offload.device.link_remote import LinkRemote, Weights
    from edge_offload.link.transport.client import Client

ENVIRONMENT = "EDGE_OFFLOAD_EXEC"
FAIL, LOCAL, LATER = "fail", "local", "later"
#: What happens when there is no server at the start: the program ends with an error; an executor process on this
#: machine takes its place; or the program starts, and asks for the connection by itself.
ABSENT: Tuple[str, ...] = (FAIL, LOCAL, LATER)

END = "end"
#: What happens when the server is lost for longer than the program waits: it goes on with an executor process on this
#: machine until the server is back, or it ends with an error.
LOST: Tuple[str, ...] = (LOCAL, END)

KNOWN, ASK = "known", "ask"
#: Whether what results look like is worked out here where that is known to be exact, or the server is asked every time.
SHAPES: Tuple[str, ...] = (KNOWN, ASK)

#: What of a fingerprint is told by the version of torch.
TORCH = ("torch", "torch_build")


@dataclass(frozen=True)
class Settings:
    """What the launcher hands to the program, in environment variables.

    Attributes:
        mode: how calls travel.
        server: ``tcp://host:port``, several with commas, or empty for an executor process on this machine.
        keys: key directory; empty: the user's.
        codec: payload codec; ``auto`` is lossless.
        absent: one of :data:`ABSENT`.
        lost: one of :data:`LOST`.
        wait_s: how long the start waits for the server.
        resume_s: how long a broken connection may take to come back.
        device, threads: of the executor on this machine.
        tally: file for what the run cost, written when the program ends; empty: none.
        slowdown: in mode split, a robot that is so many times slower is emulated.
        shapes: one of :data:`SHAPES`.
    """

    mode: str = "replay"
    server: str = ""
    keys: str = ""
    codec: str = "auto"
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
    def from_environment(environment: Mapping[str, str]) -> Settings:
        """What :meth:`to_environment` wrote."""
        found: Dict[str, Any] = {}
        for name, default in Settings().__dict__.items():
            text = environment.get(f"{ENVIRONMENT}_{name.upper()}")
            if text is not None:
                found[name] = type(default)(text)
        return Settings(**found)

    def to_environment(self) -> Dict[str, str]:
        """As environment variables."""
        return {f"{ENVIRONMENT}_{name.upper()}": str(value) for name, value in self.__dict__.items()}


def check(settings: Settings) -> None:
    """Find out what is wrong before anything is started.

    Raises:
        BadInput: the address is malformed, no key is known for the server, or there is no such codec.
    """
    from edge_offload.errors import BadInput
    from edge_offload.link import codecs
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.fronts import addresses

    known = ("auto", *codecs.codec_names(), *codecs.codec_names(lossless=False))
    if settings.codec not in known:
        raise BadInput(f"no codec {settings.codec!r}", remedy=f"use one of {', '.join(known)}")
    if settings.server:
        keys = KeyStore(settings.keys) if settings.keys else KeyStore()
        for address in addresses(settings.server):
            keys.server_public(address)


def connect(settings: Settings) -> LinkRemote:
    """A session on the server.

    Raises:
        BadInput, Refused, LinkLost: no key is known, the server said no, there is none.
    """
    from edge_offload.device.link_remote import LinkRemote
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client

    keys = KeyStore(settings.keys) if settings.keys else None
    client = Client(settings.server, keys=keys, hello={"device": True}).start()
    try:
        welcome = client.wait_ready(settings.wait_s)
    except EdgeOffloadError:
        client.close()
        raise
    say_differences(welcome, settings.threads)
    try:
        refused = other_operators(client)
    except (EdgeOffloadError, FutureTimeout):
        client.close()
        raise
    return LinkRemote(client, resume_s=settings.resume_s, codec=settings.codec, on_weights=Progress(), refused=refused)


def say_differences(welcome: Mapping[str, Any], threads: int = 0) -> None:
    """Say why results of this server may not be those of this machine, and what to do about it; nothing if they are.

    Args:
        welcome: of the server.
        threads: with which an executor of this machine computes; 0: as this process does.
    """
    from edge_offload.execute.fingerprint import differences, fingerprint, two_torches

    ours, theirs = fingerprint("cpu"), welcome.get("fingerprint", {})
    if threads:
        ours["threads"] = threads
    torches = two_torches(ours, theirs)
    if torches:
        notify(torches)
        ours, theirs = ({key: facts[key] for key in facts if key not in TORCH} for facts in (ours, theirs))
    different = differences(ours, theirs)
    if different:
        notify(f"results may differ from this machine's in the last bits: {'; '.join(different)}")


def other_operators(client: Client) -> Dict[str, str]:
    """The operators of this torch that the server's has otherwise or not at all, each with the reason.

    Raises:
        LinkLost, ProtocolError: the server did not say.
    """
    import torch

    from edge_offload.errors import ProtocolError
    from edge_offload.ir.trace import checksums
    from edge_offload.protocol.remote import SCHEMAS

    there = client.welcome.get("fingerprint", {}).get("torch")
    if there == str(torch.__version__):
        return {}

    def asked(**what: Any) -> Dict[str, int]:
        reply = client.request(SCHEMAS, what, timeout_s=30.0).result(31.0)
        if len(reply.buffers) != 1:
            raise ProtocolError("the server did not say which operators it has")
        return checksums.unpack(bytes(reply.buffers[0]))

    ours, theirs = checksums.table(), asked()
    differing = checksums.differing(ours, theirs)
    if differing:  # of these the server's torch may have but appended arguments
        older = asked(older=differing)
        theirs.update({name: older[name] for name in differing if older.get(name) == ours[name]})
    return checksums.refused(ours, theirs, str(there))


class Progress:
    """Says how the upload of weights goes: at once on a terminal, and in any case when it takes long."""

    def __init__(self, every_s: float = 2.0) -> None:
        self._every_s = every_s
        self._said_s = 0.0

    def __call__(self, weights: Weights) -> None:
        """Say it if it is time to."""
        now = time.monotonic()
        if now - max(self._said_s, weights.began_s) < self._every_s:
            return
        self._said_s = now
        rate = weights.sent / max(now - weights.began_s, 1e-3)
        there = f", {weights.found / 1e6:.1f} MB were there already" if weights.found else ""
        notify(f"uploading weights: {weights.sent / 1e6:.1f} MB sent, {rate / 1e6:.1f} MB/s{there}")
