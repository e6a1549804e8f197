"""A real browser without a window, steered by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import pytest
import tornado.websocket

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 60.0


def find() -> str:
    """The browser's program; skips the test when there is none."""
    for name in (os.environ.get("EDGE_OFFLOAD_BROWSER", ""), *NAMES):
        path = shutil.which(name) if name else None
        if path:
            return path
    pytest.skip(f"no browser to test with: none of {', '.join(NAMES)} (apt-get install chromium-headless-shell)")


class Browser:
    """One process, from which tabs are opened. Its window is ``width`` by ``height`` px."""

    def __init__(self, width: int = 1440, height: int = 1180) -> None:
        self._folder = tempfile.mkdtemp(prefix="edge_offload-browser-")
        options = [
            "--headless", "--remote-debugging-port=0", f"--user-data-dir={self._folder}", "--no-first-run",
            "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},{height}", "--hide-scrollbars",
        ]  # fmt: skip
        # its sandbox refuses to run as root, as everything does in a bare container
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen([find(), *options, "about:blank"], start_new_session=True, **quiet)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        port_file = pathlib.Path(self._folder) / "DevToolsActivePort"
        ends = time.monotonic() + TIMEOUT_S
        while not (port_file.is_file() and len(port_file.read_text().split()) == 2):
            assert self._process.poll() is None, f"the browser ended with {self._process.returncode}"
            assert time.monotonic() < ends, "the browser did not start"
            time.sleep(0.05)
        port, path = port_file.read_text().split()
        self._socket = self.wait(self._connect(f"ws://127.0.0.1:{port}{path}"))
        self._answers = {}
        self._number = 0
        self._tabs = {}
        asyncio.run_coroutine_threadsafe(self._read(), self._loop)

    def wait(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)

    @staticmethod
    async def _connect(url: str):
        return await tornado.websocket.websocket_connect(url, max_message_size=1 << 28)

    async def _read(self) -> None:
        while True:
            text = await self._socket.read_message()
            if text is None:
                return
            message = json.loads(text)
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
            elif message.get("sessionId") in self._tabs:
                self._tabs[message["sessionId"]].notify_page(message["method"], message["params"])

    def call(self, method: str, session: str = "", **params):
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}

        async def sent():
            self._answers[number] = answer = self._loop.create_future()
            await self._socket.write_message(json.dumps(message))
            return await answer

        answer = self.wait(sent())
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def tab(self, url: str, dark: bool = False) -> Tab:
        # of its own: cookies are not shared with other tabs
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{domain}.enable")
        scheme = "dark" if dark else "light"
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.go(url)
        return tab

    def close(self) -> None:
        # the program may be a shell script: the browser itself is asked, and its whole group goes if it does not
        with contextlib.suppress(Exception):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        shutil.rmtree(self._folder, ignore_errors=True)


class Tab:
    """One page. ``complaints``: what the console holds against it; ``requested``: every address it fetched."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target
        self.complaints = []
        self.requested = []

    def notify_page(self, method: str, params) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            # reading pixels back is the test's doing
            if not params["entry"]["text"].startswith("Canvas2D: Multiple readback"):
                self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    def call(self, method: str, **params):
        return self._browser.call(method, self._session, **params)

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, expression: str):
        """What a JavaScript expression is, now."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression: str, what: str = ""):
        """The first true value of an expression."""
        ends = time.monotonic() + TIMEOUT_S
        while time.monotonic() < ends:
            try:
                value = self.value(expression)
            except AssertionError:
                # the page is being loaded
                value = None
            if value:
                return value
            time.sleep(0.05)
        page_text = self.value("document.body.innerText")[:800]
        pytest.fail(f"{what or expression} did not come true; the page says: {page_text}")

    def text(self, selector: str) -> str:
        return self.value(f"document.querySelector({json.dumps(selector)}).textContent")

    def inked(self, selector: str, color: str) -> int:
        """Pixels of a canvas that have this colour, '#rrggbb'."""
        red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
        return self.value(
            f"""(() => {{
              const c = document.querySelector({json.dumps(selector)});
              const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
              const near = (i, value) => Math.abs(d[i] - value) < 4;
              let n = 0;
              for (let i = 0; i < d.length; i += 4)
                if (near(i, {red}) && near(i + 1, {green}) && near(i + 2, {blue}) && d[i + 3] > 250) n++;
              return n; }})()"""
        )

    def picture(self, path: pathlib.Path) -> None:
        """A screenshot of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
