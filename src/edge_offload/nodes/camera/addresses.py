"""Addresses of cameras: hides passwords in messages, reads them from ``~/.netrc``, and finds the cause of a failure."""

from __future__ import annotations

import netrc
import os
import re
import socket
from typing import Dict
from urllib.parse import SplitResult, quote, urlsplit

from edge_offload.errors import BadInput

HIDDEN = "***"
PORTS: Dict[str, int] = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443, "rtmp": 1935, "rtmps": 443}
"""Schemes of servers that are reached over TCP, and their usual ports."""
PROBE_S = 3.0
_LOGIN = re.compile(r"(?<=://)[^\s\"']*@")
_QUERY = re.compile(r"(://[^\s\"'?]*\?)[^\s\"']+")
_NAMED = re.compile(
    r"(?i)([\w-]*(?:pw|pass|pwd|user|login|secret|token|key|auth)[\w-]*\s*=\s*)(\"[^\"]*\"|'[^']*'|[^\s&;,/]+)"
)


def hide_secrets(text: str) -> str:
    """``text`` without what may be a user's name or a password: before @, behind ?, or named so (``user-pw=…``)."""
    text = _QUERY.sub(rf"\1{HIDDEN}", _LOGIN.sub(f"{HIDDEN}@", text))
    return _NAMED.sub(rf"\1{HIDDEN}", text)


def split_url(url: str) -> SplitResult:
    """The parts of ``url``.

    Raises:
        BadInput: it names no host although its scheme needs one, or no port that exists.
    """
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname or parts.scheme not in PORTS) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise BadInput(f"{hide_secrets(url)} is no address", remedy="write it like rtsp://192.168.1.64:554/stream1")
    return parts


def with_login(url: str) -> str:
    """``url`` with the user and password that ``~/.netrc`` (or ``$NETRC``) has of its host; its own if it has some.

    Raises:
        BadInput: that file cannot be read.
    """
    parts = split_url(url)
    if parts.username is not None or not parts.hostname:
        return url
    try:
        entry = netrc.netrc(os.environ.get("NETRC") or None).hosts.get(parts.hostname)
    except FileNotFoundError:
        return url
    except netrc.NetrcParseError as error:
        # its message quotes what it does not understand, which may be the password
        raise BadInput(
            f"{error.filename}, line {error.lineno}, is not understood, or others may read the file",
            remedy="write 'machine HOST login USER password PASSWORD'; chmod 600",
        ) from None
    except OSError as error:
        raise BadInput(f"cannot read netrc: {error.strerror}") from None
    if entry is None:
        return url
    login = f"{quote(entry[0], safe='')}:{quote(entry[2] or '', safe='')}@"
    return parts._replace(netloc=login + parts.netloc).geturl()


def probe_url(url: str) -> str:
    """Ask the server of ``url`` why a reader gets nothing; empty: it answers as it should.

    It takes :data:`PROBE_S` twice at most.
    """
    parts = split_url(url)
    if parts.scheme not in PORTS:
        return ""
    port = parts.port or PORTS[parts.scheme]
    server = f"{parts.hostname}:{port}"
    try:
        with socket.create_connection((str(parts.hostname), port), PROBE_S) as peer:
            if parts.scheme not in ("rtsp", "http"):
                return ""
            peer.sendall(_build_request(parts, server))
            status = peer.recv(256).split(b"\r\n")[0].decode("latin-1")
    except socket.gaierror:
        return f"the name {parts.hostname} has no address"
    except socket.timeout:
        return f"{server} does not answer"
    except OSError as error:
        return f"{server}: {(error.strerror or str(error)).lower()}"
    return _explain_status(server, re.sub(r"[^ -~]", "?", status))


def _build_request(parts: SplitResult, server: str) -> bytes:
    """A request without a password: that belongs to whoever can encrypt it."""
    if parts.scheme == "rtsp":
        target = parts._replace(netloc=server).geturl()
        return f"DESCRIBE {target} RTSP/1.0\r\nCSeq: 1\r\nAccept: application/sdp\r\n\r\n".encode()
    target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    return f"GET {target} HTTP/1.0\r\nHost: {server}\r\n\r\n".encode()


def _explain_status(server: str, status: str) -> str:
    code = re.match(r"(?:RTSP|HTTP)/\d\.\d (\d{3})", status)
    if code is None:
        return f"{server} is no server of streams"
    if code.group(1) == "401":
        return f"{server}: 401 Unauthorized: check user and password"
    if code.group(1) == "200":
        return ""
    return f"{server}: {hide_secrets(status[9:60].strip())}"
