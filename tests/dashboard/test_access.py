"""Who gets in: the address, the Host header, the Origin, the token."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.parse

import pytest

from edge_offload.dashboard.access import Access, read_token
from edge_offload.errors import BadInput

TOKEN = "a-token-of-enough-characters"


def request_page(url: str, path: str = "/", method: str = "GET", body: str = "", **headers):
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", where.port, timeout=60)
    headers = {"Host": where.netloc, **{name.replace("_", "-"): value for name, value in headers.items()}}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode(errors="replace")
    connection.close()
    return answer, text


def upgrade(url: str, **headers) -> str:
    """The first line of the answer to a WebSocket handshake."""
    where = urllib.parse.urlsplit(url)
    sent = {"Host": where.netloc, "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", **headers}  # fmt: skip
    with socket.create_connection(("127.0.0.1", where.port), 20) as connection:
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        connection.sendall(f"GET /stream HTTP/1.1\r\n{lines}\r\n".encode())
        return connection.recv(4096).decode(errors="replace").splitlines()[0]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "robot", ""])
def test_without_a_token_only_loopback_is_listened_on(host):
    with pytest.raises(BadInput, match=r"no token.*EDGE_OFFLOAD_DASHBOARD_TOKEN"):
        Access(host)
    Access(host, TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_none(host):
    assert not Access(host)._token


@pytest.mark.parametrize(
    ("header", "allowed"),
    [("127.0.0.1:8765", True), ("localhost:8765", True), ("LOCALHOST", True), ("[::1]:8765", True), ("127.0.0.1", True),
     ("evil.example:8765", False), ("127.0.0.1.evil.example", False), ("localhost.evil.example", False),
     ("192.168.1.5", False), ("", False), ("[evil", False)],
)  # fmt: skip
def test_on_loopback_a_host_that_could_be_rebound_is_not_answered(header, allowed):
    assert Access("127.0.0.1").is_host_allowed(header) is allowed


def test_elsewhere_addresses_and_configured_names_are_answered():
    access = Access("0.0.0.0", TOKEN, names=["robot.lab"])
    for header in ("192.168.1.5:8765", "robot.lab:8765", f"{socket.gethostname()}:8765", "localhost"):
        assert access.is_host_allowed(header)
    assert not access.is_host_allowed("evil.example")


def test_another_host_gets_neither_page_nor_files_nor_stream(serve):
    url = serve().url
    for path in ("/", "/login", "/static/dashboard.js", "/nothing"):
        answer, text = request_page(url, path, Host="evil.example")
        assert answer.status == 421
        assert "<" not in text
    assert " 421 " in upgrade(url, Host="evil.example")
    assert " 101 " in upgrade(url)


def test_a_page_elsewhere_cannot_open_the_stream(serve):
    url = serve().url
    assert " 403 " in upgrade(url, Origin="http://evil.example")
    assert " 101 " in upgrade(url, Origin=url.rstrip("/"))


def test_every_response_has_the_headers_that_exclude_other_pages(serve):
    url = serve().url
    for path in ("/", "/static/charts.js", "/nothing"):
        answer, _ = request_page(url, path)
        policy = answer.getheader("Content-Security-Policy")
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        assert answer.getheader("Access-Control-Allow-Origin") is None
    assert request_page(url, "/nothing")[0].status == 404
    assert request_page(url, "/static/..%2f..%2fstream.py")[0].status in (403, 404)
    assert request_page(url, "/static/../../stream.py")[0].status in (403, 404)


def test_with_a_token_nothing_is_shown_before_it_is_given(serve):
    url = serve(access=Access("127.0.0.1", TOKEN)).url
    answer, _ = request_page(url)
    assert (answer.status, answer.getheader("Location")) == (302, "/login")
    assert " 401 " in upgrade(url)
    answer, _ = request_page(url, "/login", "POST", "token=wrong-wrong-wrong-wrong")
    assert (answer.status, answer.getheader("Set-Cookie")) == (303, None)
    answer, _ = request_page(url, "/login", "POST", f"token={TOKEN}", Content_Type="application/x-www-form-urlencoded")
    cookie = answer.getheader("Set-Cookie")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    session = cookie.split(";")[0]
    assert request_page(url, Cookie=session)[0].status == 200
    assert " 101 " in upgrade(url, Cookie=session)
    assert " 101 " in upgrade(url, Authorization=f"Bearer {TOKEN}")
    assert " 401 " in upgrade(url, Authorization="Bearer wrong")
    assert request_page(url, Cookie=session[:-2] + "xx")[0].status == 302


def test_what_visitors_send_is_bounded(serve):
    url = serve(access=Access("127.0.0.1", TOKEN)).url
    try:
        status = request_page(url, "/login", "POST", "token=" + "x" * 100_000)[0].status
    except (http.client.HTTPException, OSError):
        # cut off in the middle of it
        status = 400
    assert status == 400
    assert request_page(url, "/login")[0].status == 200


def test_a_token_comes_from_a_file_or_the_environment_and_is_long_enough(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    assert read_token(str(path), {}) == TOKEN
    assert read_token("", {"EDGE_OFFLOAD_DASHBOARD_TOKEN": TOKEN}) == TOKEN
    assert read_token("", {}) == ""
    path.write_text("short-secret")
    with pytest.raises(BadInput, match="12 characters") as caught:
        read_token(str(path), {})
    assert "short-secret" not in str(caught.value)
    with pytest.raises(BadInput, match="cannot read"):
        read_token(str(tmp_path / "absent"), {})


def test_sessions_are_bounded():
    access = Access("127.0.0.1", TOKEN)
    first = access.open_session(TOKEN)
    for _ in range(200):
        last = access.open_session(TOKEN)
    assert not access.is_admitted(first)
    assert access.is_admitted(last)


def test_a_port_in_use_is_named(serve):
    server = serve()
    port = urllib.parse.urlsplit(server.url).port
    from edge_offload.dashboard.history import History
    from edge_offload.dashboard.server import DashboardServer

    with pytest.raises(BadInput, match=f"port {port}: Address already in use; choose another"):
        DashboardServer(History(), server.source, port=port).start()


def test_status_is_json_that_every_browser_reads(history, serve):
    # a sensor's NaN must not reach JSON.parse
    from types import SimpleNamespace

    from edge_offload.dashboard import messages

    header = SimpleNamespace(stamp=SimpleNamespace(to_sec=lambda: 1.0))
    sent = {"watts": 5.0, "joules": float("inf"), "source": 9, "sensor": "s" * 9999, "state": 77}
    record = messages.convert_power(SimpleNamespace(header=header, host="h", **sent), 1.0)
    json.loads(json.dumps(record, allow_nan=False))
    assert (record["joules"], record["source"], record["state"]) == (0.0, "unknown", "unknown")
    assert len(record["sensor"]) == messages.MAX_TEXT
    nothing = {**sent, "watts": float("nan")}
    assert messages.convert_power(SimpleNamespace(header=header, host="h", **nothing), 1.0) is None, "nobody knows"
