"""Who may see the dashboard: which address it listens on, which Host it answers to, and the token.

On loopback the machine's users see it without more. Any other address needs a token, which a browser gives once and
then holds a session cookie. The Host header is checked always: else a web page elsewhere could rebind its own name to
127.0.0.1 and read the pictures through the visitor's browser.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
from collections import OrderedDict
from typing import Dict, Iterable, Mapping, Optional, Set

from edge_offload import places
from edge_offload.errors import BadInput

TOKEN_VARIABLE = "EDGE_OFFLOAD_DASHBOARD_TOKEN"
MIN_TOKEN = 16
MAX_SESSIONS = 64

HEADERS: Dict[str, str] = {
    # everything comes from this server, nothing is inline, nobody frames the page or learns where it is
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Sent with every answer."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``, the address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: str = "", environment: Optional[Mapping[str, str]] = None) -> str:
    """The token in a file, or in the environment variable; empty when there is neither.

    Raises:
        BadInput: the file cannot be read, or what it holds is too short to be a secret.
    """
    environment = os.environ if environment is None else environment
    token = environment.get(TOKEN_VARIABLE, "").strip()
    where = TOKEN_VARIABLE
    if path:
        try:
            token, where = places.expand(path).read_text(encoding="utf-8").strip(), path
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot read the token in {path}: {error}") from error
    if (path or token) and len(token) < MIN_TOKEN:
        # its length is all that is said of a secret
        raise BadInput(
            f"the token in {where} has {len(token)} characters, it needs {MIN_TOKEN}",
            remedy="make one: python3 -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return token


class Access:
    """Decides on requests.

    Args:
        host: the address to listen on.
        token: what a visitor must know; empty: nothing.
        names: host names by which visitors may call this machine, besides its own and IP addresses.

    Raises:
        BadInput: others could reach ``host``, and there is no token.
    """

    def __init__(self, host: str, token: str = "", names: Iterable[str] = ()) -> None:
        self._open_to_all = not is_loopback(host)
        if self._open_to_all and not token:
            raise BadInput(
                f"other machines reach {host}, and no token protects the dashboard",
                remedy=f"set {TOKEN_VARIABLE} or give a token file; or listen on 127.0.0.1 and forward it by ssh -L",
            )
        self._token = token
        self._names: Set[str] = {"localhost", *(name.lower() for name in names)}
        if self._open_to_all:
            own = socket.gethostname().lower()
            self._names |= {own, f"{own.split('.')[0]}.local", host.lower()}
        self._sessions: OrderedDict[str, None] = OrderedDict()

    @property
    def needs_token(self) -> bool:
        """Whether a visitor has to know the token."""
        return bool(self._token)

    def host_allowed(self, header: str) -> bool:
        """Whether a request whose Host is ``header`` is meant for this machine."""
        name = header.strip().lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        else:
            name = name.partition(":")[0]
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # a number is not a name that could be rebound
        return self._open_to_all or address.is_loopback

    def enter(self, token: str) -> Optional[str]:
        """A new session for someone who knows the token; None for anyone else."""
        if not self._token or not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def admitted(self, session: Optional[str], authorization: str = "") -> bool:
        """Whether a request with this session cookie, or ``Authorization: Bearer TOKEN``, may see anything."""
        if not self._token:
            return True
        if session is not None and session in self._sessions:
            return True
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode())
