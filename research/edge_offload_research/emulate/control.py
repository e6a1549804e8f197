"""Steering a running emulator from outside its process: JSON lines over a loopback TCP socket.

Each line is an object with ``do`` (``stats``, ``link``, or one of the emulator's
:attr:`commands`) and that method's arguments; each answer is one line: the
emulator's statistics, or ``{"error": ...}``. Bound to loopback only; whoever can log in here may steer it.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from typing import Any, Dict, Optional

from edge_offload.errors import BadInput, EdgeOffloadError, LinkLost
from edge_offload.link.security.keys import is_loopback, split_address
from edge_offload_research.emulate.trace import Link, load_trace, named_link

MAX_LINE = 64 << 10


def _link_of(name: str = "", trace: str = "") -> Link:
    return Link.of(trace, load_trace(trace)) if trace else named_link(name)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while True:
            line = self.rfile.readline(MAX_LINE)
            if not line:
                return
            self.wfile.write(json.dumps(self._run_command(line)).encode("ascii") + b"\n")

    def _run_command(self, line: bytes) -> Dict[str, Any]:
        emulator: Any = self.server.emulator  # type: ignore[attr-defined]
        commands = ("stats", "link", *emulator.commands)
        try:
            command = json.loads(line)
            name = command.pop("do")
            if name == "link":
                emulator.set_link(_link_of(**command))
            elif name in emulator.commands:
                getattr(emulator, name)(**command)
            elif name != "stats":
                raise KeyError(name)
        except EdgeOffloadError as error:
            return {"error": str(error)}
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            return {"error": f"not understood ({error}); commands: {', '.join(commands)}"}
        stats: Dict[str, Any] = emulator.stats()
        return stats


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


class ControlServer:
    """Serves the control socket of an emulator of either level at ``address`` (loopback; port 0 takes a free one)."""

    def __init__(self, emulator: Any, address: str = "127.0.0.1:0") -> None:
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
