"""Steering a running emulator from outside its process: JSON lines over a loopback TCP socket.

Each line is an object with ``do`` (one of :data:`COMMANDS`) and that method's arguments; each answer is one line: the
emulator's statistics, or ``{"error": ...}``. Bound to loopback only; whoever can log in here may steer it.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from typing import Any, Callable, Dict, Optional

from edge_offload.errors import BadInput, EdgeOffloadError, LinkLost
from edge_offload.link.emulate.emulator import Emulator
from edge_offload.link.emulate.trace import Link, load_trace, named_link
from edge_offload.link.security.keys import is_loopback, split_address

MAX_LINE = 64 << 10


def _link(emulator: Emulator, name: str = "", trace: str = "") -> None:
    emulator.set_link(Link.of(trace, load_trace(trace)) if trace else named_link(name))


COMMANDS: Dict[str, Callable[..., None]] = {
    "stats": lambda emulator: None,
    "set": Emulator.set,
    "link": _link,
    "cut": Emulator.cut,
    "restore": Emulator.restore,
    "corrupt": Emulator.corrupt,
    "replay": Emulator.replay,
    "stalls": Emulator.stalls,
}


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while True:
            line = self.rfile.readline(MAX_LINE)
            if not line:
                return
            self.wfile.write(json.dumps(self._do(line)).encode("ascii") + b"\n")

    def _do(self, line: bytes) -> Dict[str, Any]:
        emulator: Emulator = self.server.emulator  # type: ignore[attr-defined]
        try:
            command = json.loads(line)
            name = command.pop("do")
            COMMANDS[name](emulator, **command)
        except EdgeOffloadError as error:
            return {"error": str(error)}
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            return {"error": f"not understood ({error}); commands: {', '.join(COMMANDS)}"}
        return emulator.stats()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


class ControlServer:
    """Serves one emulator's control socket at ``address`` (loopback ``host:port``; port 0 takes a free one)."""

    def __init__(self, emulator: Emulator, address: str = "127.0.0.1:0") -> None:
        host, port = split_address(address)
        if not is_loopback(host):
            raise BadInput(f"the control socket cannot listen on {host}", remedy="use 127.0.0.1:PORT")
        try:
            self._server = _Server((host, port), _Handler)
        except OSError as error:
            raise BadInput(f"cannot listen on {address}: {error.strerror}", remedy="choose another port") from error
        self._server.emulator = emulator  # type: ignore[attr-defined]
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class Control:
    """The other end: ``Control("127.0.0.1:5799").do("cut", how="blackhole")``."""

    def __init__(self, address: str, timeout_s: float = 2.0) -> None:
        self._address = address
        try:
            self._socket: Optional[socket.socket] = socket.create_connection(split_address(address), timeout_s)
        except OSError as error:
            raise LinkLost(f"no emulator control at {address}: {error}") from error
        self._reader = self._socket.makefile("rb")

    def do(self, command: str, **arguments: Any) -> Dict[str, Any]:
        """Run one command; returns the statistics after it.

        Raises:
            BadInput: the emulator did not accept it.
            LinkLost: the emulator has gone.
        """
        if self._socket is None:
            raise LinkLost(f"the control connection to {self._address} is closed")
        try:
            self._socket.sendall(json.dumps({"do": command, **arguments}).encode("ascii") + b"\n")
            line = self._reader.readline()
        except OSError as error:
            raise LinkLost(f"the emulator at {self._address} does not answer: {error}") from error
        if not line:
            raise LinkLost(f"the emulator at {self._address} has gone")
        answer: Dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BadInput(f"emulator: {answer['error']}")
        return answer

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._reader.close()
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
