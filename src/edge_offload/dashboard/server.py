"""The web server of the dashboard: one page, its few files, and a WebSocket per browser that is told what is new.

Every browser is served by a loop of its own which writes, waits until the browser has taken it, and only then looks
for what is new since: a slow browser gets fewer pictures and larger batches, and holds up nobody.
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
from edge_offload.dashboard.source import Source
from edge_offload.errors import BadInput, EdgeOffloadError

STATIC = pathlib.Path(__file__).parent / "static"
DEFAULT_PORT = 8765
MAX_VIEWERS = 32
MAX_BODY = 4096

log = logging.getLogger("edge_offload.dashboard")


class _Guarded(tornado.web.RequestHandler):
    """Checks the Host, then the session; every answer carries the headers that keep other pages out."""

    access: Access
    open_to_strangers = False

    def initialize(self, app: DashboardServer) -> None:
        self.app = app
        self.access = app.access

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in HEADERS.items():
            self.set_header(name, value)

    def prepare(self) -> Any:
        if not self.access.host_allowed(self.request.host or ""):
            raise tornado.web.HTTPError(421, reason="This dashboard does not go by that host name")
        if self.open_to_strangers:
            return
        session = self.get_cookie(self.app.cookie)
        if not self.access.admitted(session, self.request.headers.get("Authorization", "")):
            self._turn_away()

    def _turn_away(self) -> None:
        raise tornado.web.HTTPError(401, reason="The token is needed: open the page")

    def write_error(self, status_code: int, **_: Any) -> None:
        _plain_error(self, status_code)


def _plain_error(handler: tornado.web.RequestHandler, status_code: int) -> None:
    handler.set_header("Content-Type", "text/plain; charset=utf-8")
    handler.finish(f"{status_code} {handler._reason}\n")


class _Page(_Guarded):
    def _turn_away(self) -> None:
        self.redirect("/login")

    def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.finish((STATIC / "index.html").read_bytes())


class _Login(_Guarded):
    open_to_strangers = True
    _waiting = 0

    def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        answer = b'<p class="level-error" role="alert">That is not the token.</p>'
        page = (STATIC / "login.html").read_bytes()
        self.finish(page.replace(b"<!-- answer -->", answer) if self.get_query_argument("wrong", "") else page)

    async def post(self) -> None:
        session = self.access.enter(self.get_body_argument("token", ""))
        if session is None:
            # guessing is slow, whoever guesses
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
    """The page's own files: they are public, the Host is checked all the same."""

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
        if not self.app.access.host_allowed(self.request.host or ""):
            raise tornado.web.HTTPError(421, reason="This dashboard does not go by that host name")


class _Stream(tornado.websocket.WebSocketHandler):
    """What is new, to one browser."""

    def initialize(self, app: DashboardServer) -> None:
        self.app = app
        self._loop: Optional[asyncio.Task[None]] = None

    def prepare(self) -> None:
        access = self.app.access
        if not access.host_allowed(self.request.host or ""):
            raise tornado.web.HTTPError(421, reason="This dashboard does not go by that host name")
        if not access.admitted(self.get_cookie(self.app.cookie), self.request.headers.get("Authorization", "")):
            raise tornado.web.HTTPError(401, reason="The token is needed: open the page")

    # check_origin is Tornado's own: the Origin has to name the Host that was just checked

    def open(self, *_: str, **__: str) -> None:
        if not self.app.enter(self):
            self.close(1013, f"{MAX_VIEWERS} browsers look already")
            return
        self.set_nodelay(True)
        self._loop = asyncio.ensure_future(self._push())

    def on_message(self, message: Any) -> None:
        """Browsers say nothing."""

    def on_close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
        self.app.leave(self)

    async def _push(self) -> None:
        history, shown = self.app.history, 0
        cursor = history.cursor()
        try:
            await self.write_message(_text({"title": self.app.source.title, "reset": True}))
            while True:
                batch, anew = history.read(cursor)
                # returns when the browser has room again: a slow one is asked less often
                await self.write_message(
                    _text(
                        {
                            "status": self.app.source.status(),
                            "reset": anew,
                            "records": batch.records,
                            "events": batch.events,
                            "skipped": batch.skipped,
                        }
                    )
                )
                picture = history.picture
                if anew:
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


def _text(message: Dict[str, Any]) -> str:
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


class DashboardServer:
    """Serves the dashboard from a thread of its own.

    Args:
        history, source: what is shown.
        access: who may see it.
        host, port: where to listen; port 0: any free.
        period_s: time between two looks for something new.
        send_buffer: bytes of the sockets' send buffers; None: the system's.

    Attributes:
        url: where it is, once started.
    """

    def __init__(
        self,
        history: History,
        source: Source,
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
        self._thread = threading.Thread(target=self._run, name="dashboard", daemon=True)

    def start(self) -> DashboardServer:
        """Listen.

        Raises:
            BadInput: the address cannot be listened on.
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
        """Browsers that look now."""
        return len(self._viewers)

    def enter(self, viewer: _Stream) -> bool:
        """A browser begins to look; whether there is room for it. Called in the server's thread, as ``leave`` is."""
        if len(self._viewers) >= MAX_VIEWERS:
            return False
        self._viewers.add(viewer)
        self._tell_source()
        return True

    def leave(self, viewer: _Stream) -> None:
        """A browser is gone."""
        if viewer in self._viewers:
            self._viewers.discard(viewer)
            self._tell_source()

    def _tell_source(self) -> None:
        try:
            self.source.watched(len(self._viewers))
        except Exception:
            # a source that cannot be told must not cost the browser its page
            log.exception("the source of the dashboard failed")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(self._listen())
        except BaseException as error:
            self._problem = error
            self._started.set()
            self._loop.close()
            return
        self._started.set()
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._shut(server))
            self._loop.close()

    async def _listen(self) -> tornado.httpserver.HTTPServer:
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
            application, max_body_size=MAX_BODY, max_header_size=16 << 10, idle_connection_timeout=60, body_timeout=10
        )
        server.add_sockets(sockets)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{shown}:{port}/"
        return server

    async def _shut(self, server: tornado.httpserver.HTTPServer) -> None:
        server.stop()
        for viewer in list(self._viewers):
            viewer.close(1001, "the dashboard ends")
        # what is closed abruptly would be a lost link to the browser, not an end
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
    # neither addresses nor cookies belong in a robot's log; failures do
    if handler.get_status() >= 500:
        log.error("%s %s: %d", handler.request.method, handler.request.path, handler.get_status())
