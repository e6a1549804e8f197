"""Web server of the dashboard: one page, its files, and a WebSocket per browser for new records.

Each browser has a loop that sends, waits until the browser has received it, and then reads what is new. A slow browser
gets fewer pictures and larger batches, and delays no other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pathlib
import struct
import threading
from typing import Any, Dict, List, Optional, Set

import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket

from edge_offload.dashboard.access import HEADERS, Access
from edge_offload.dashboard.history import History
from edge_offload.dashboard.source import RecordSource
from edge_offload.errors import BadInput, EdgeOffloadError

STATIC = pathlib.Path(__file__).parent / "static"
DEFAULT_PORT = 8765
MAX_VIEWERS = 32

log = logging.getLogger("edge_offload.dashboard")


class _Guarded(tornado.web.RequestHandler):
    """Handler that checks the Host, then the session, and sends the security headers."""

    access: Access
    public = False

    def initialize(self, app: DashboardServer) -> None:
        self.app = app
        self.access = app.access

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> Any:
        if not self.access.is_host_allowed(self.request.host or ""):
            raise tornado.web.HTTPError(421, reason="This dashboard does not go by that host name")
        if self.public:
            return
        session = self.get_cookie(self.app.cookie)
        if not self.access.is_admitted(session, self.request.headers.get("Authorization", "")):
            self._reject_visitor()

    def _reject_visitor(self) -> None:
        raise tornado.web.HTTPError(401, reason="The token is needed: open the page")

    def write_error(self, status_code: int, **_: Any) -> None:
        _plain_error(self, status_code)


def _plain_error(handler: tornado.web.RequestHandler, status_code: int) -> None:
    handler.set_header("Content-Type", "text/plain; charset=utf-8")
    handler.finish(f"{status_code} {handler._reason}\n")


class _Page(_Guarded):
    def _reject_visitor(self) -> None:
        self.redirect("/login")

    def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish((STATIC / "index.html").read_bytes())


class _Login(_Guarded):
    public = True
    _waiting = 0

    def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        answer = b'<p class="level-error" role="alert">That is not the token.</p>'
        page = (STATIC / "login.html").read_bytes()
        self.finish(page.replace(b"<!-- answer -->", answer) if self.get_query_argument("wrong", "") else page)

    async def post(self) -> None:
        session = self.access.open_session(self.get_body_argument("token", ""))
        if session is None:
            # slows the guessing of tokens, by all visitors together
            if _Login._waiting >= 8:
                raise tornado.web.HTTPError(429, reason="Too many tries")
            _Login._waiting += 1
            try:
                await asyncio.sleep(1.0)
            finally:
                _Login._waiting -= 1
            self.redirect("/login?wrong=1", status=303)
            return
        self.set_cookie(self.app.cookie, session, httponly=True, samesite="Strict", path="/", expires_days=None)
        self.redirect("/", status=303)


class _File(tornado.web.StaticFileHandler):
    """The page's own files: public, but the Host is checked."""

    def initialize(self, app: DashboardServer) -> None:  # type: ignore[override]
        super().initialize(str(STATIC))
        self.app = app

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def write_error(self, status_code: int, **_: Any) -> None:
        _plain_error(self, status_code)

    def prepare(self) -> None:
        if not self.app.access.is_host_allowed(self.request.host or ""):
            raise tornado.web.HTTPError(421, reason="This dashboard does not go by that host name")


class _Stream(tornado.websocket.WebSocketHandler):
    """Stream of new records and pictures to one browser."""

    def initialize(self, app: DashboardServer) -> None:
        self.app = app
        self._loop: Optional[asyncio.Task[None]] = None

    def prepare(self) -> None:
        access = self.app.access
        if not access.is_host_allowed(self.request.host or ""):
            raise tornado.web.HTTPError(421, reason="This dashboard does not go by that host name")
        if not access.is_admitted(self.get_cookie(self.app.cookie), self.request.headers.get("Authorization", "")):
            raise tornado.web.HTTPError(401, reason="The token is needed: open the page")

    # check_origin is Tornado's own: the Origin has to name the Host that was just checked

    def open(self, *_: str, **__: str) -> None:
        if not self.app.add_viewer(self):
            self.close(1013, f"{MAX_VIEWERS} browsers look already")
            return
        self.set_nodelay(True)
        self._loop = asyncio.ensure_future(self._push_updates())

    def on_message(self, message: Any) -> None:
        """Ignore it: browsers send nothing."""

    def on_close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
        self.app.remove_viewer(self)

    async def _push_updates(self) -> None:
        history, shown = self.app.history, 0
        cursor = history.open_cursor()
        try:
            await self.write_message(_encode_json({"title": self.app.source.title, "reset": True}))
            while True:
                batch, restarted = history.read(cursor)
                # returns when the browser has room again: a slow one gets fewer, larger updates
                await self.write_message(
                    _encode_json(
                        {
                            "status": self.app.source.status(),
                            "reset": restarted,
                            "records": batch.records,
                            "events": batch.events,
                            "skipped": batch.skipped,
                        }
                    )
                )
                picture = history.picture
                if restarted:
                    shown = 0
                if picture is not None and picture.number != shown:
                    shown = picture.number
                    await self.write_message(struct.pack(">d", picture.t_s) + picture.data, binary=True)
                if not batch.more:
                    await asyncio.sleep(self.app.period_s)
        except tornado.websocket.WebSocketClosedError:
            return
        except (tornado.iostream.StreamClosedError, OSError):
            return


def _encode_json(message: Dict[str, Any]) -> str:
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


class DashboardServer:
    """Serves the dashboard from a thread of its own.

    Args:
        history, source: records to show, and their source.
        access: access control; by default that of ``host`` without a token.
        host, port: listening address; port 0: any free one.
        period_s: seconds between two updates of a browser.

    Attributes:
        url: address of the page, once started.
    """

    def __init__(
        self,
        history: History,
        source: RecordSource,
        access: Optional[Access] = None,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        period_s: float = 0.1,
    ) -> None:
        self.history = history
        self.source = source
        self.access = Access(host) if access is None else access
        self.period_s = period_s
        self.cookie = "edge_offload_dashboard"
        self.url = ""
        self._host, self._port = host, port
        self._viewers: Set[_Stream] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._problem: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run_loop, name="dashboard", daemon=True)

    def start(self) -> DashboardServer:
        """Listen.

        Raises:
            BadInput: the address is in use or not available.
        """
        self._thread.start()
        self._started.wait()
        if isinstance(self._problem, OSError):
            raise BadInput(
                f"cannot listen on {self._host} port {self._port}: {self._problem.strerror}",
                remedy="choose another port, or 0 for any free one",
            ) from self._problem
        if self._problem is not None:
            raise EdgeOffloadError(f"the dashboard cannot start: {self._problem}") from self._problem
        return self

    def close(self) -> None:
        """Close every connection and stop."""
        if self._thread.ident is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5.0)

    @property
    def viewers(self) -> int:
        """Number of connected browsers."""
        return len(self._viewers)

    def add_viewer(self, viewer: _Stream) -> bool:
        """Add a browser unless :data:`MAX_VIEWERS` are connected; call it in the server's thread."""
        if len(self._viewers) >= MAX_VIEWERS:
            return False
        self._viewers.add(viewer)
        self._notify_source()
        return True

    def remove_viewer(self, viewer: _Stream) -> None:
        """Remove a browser; call it in the server's thread."""
        if viewer in self._viewers:
            self._viewers.discard(viewer)
            self._notify_source()

    def _notify_source(self) -> None:
        try:
            self.source.set_viewers(len(self._viewers))
        except Exception:
            # a failing source must not cost the browser its page
            log.exception("the source of the dashboard failed")

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(self._open_server())
        except BaseException as error:
            self._problem = error
            self._started.set()
            self._loop.close()
            return
        self._started.set()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._shut_down(server))
            self._loop.close()

    async def _open_server(self) -> tornado.httpserver.HTTPServer:
        sockets = tornado.netutil.bind_sockets(self._port, self._host)
        port = sockets[0].getsockname()[1]
        # cookies are shared by all ports of a host
        self.cookie = f"edge_offload_dashboard_{port}"
        given = {"app": self}
        handlers: List[Any] = [
            (r"/", _Page, given),
            (r"/login", _Login, given),
            (r"/stream", _Stream, given),
            (r"/static/([A-Za-z0-9_.-]+)", _File, given),
        ]
        application = tornado.web.Application(
            handlers,
            default_handler_class=_Missing,
            default_handler_args=given,
            log_function=_log_request,
            websocket_ping_interval=20,
            websocket_ping_timeout=20,
            websocket_max_message_size=1024,
        )
        server = tornado.httpserver.HTTPServer(
            application, max_body_size=4096, max_header_size=16 << 10, idle_connection_timeout=60, body_timeout=10
        )
        server.add_sockets(sockets)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{shown}:{port}/"
        return server

    async def _shut_down(self, server: tornado.httpserver.HTTPServer) -> None:
        server.stop()
        for viewer in list(self._viewers):
            viewer.close(1001, "the dashboard ends")
        # after an abrupt end the browser would report a lost link
        await asyncio.sleep(0.05)
        await server.close_all_connections()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Missing(_Guarded):
    def prepare(self) -> Any:
        super().prepare()
        raise tornado.web.HTTPError(404)


def _log_request(handler: tornado.web.RequestHandler) -> None:
    # addresses and cookies do not belong in a robot's log; failures do
    if handler.get_status() >= 500:
        log.error("%s %s: %d", handler.request.method, handler.request.path, handler.get_status())
