"""Access control of the dashboard: listening address, accepted Host headers, token and sessions.

On loopback no token is needed. Any other address needs one, which a browser exchanges for a session cookie. The Host
header is always checked: else a foreign web page could rebind its name to 127.0.0.1 and read the pictures through the
visitor's browser.
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

HEADERS: Dict[str, str] = {
    # everything comes from this server, nothing is inline, no page frames this one or learns its address
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
"""Headers of every response."""


def is_loopback(host: str) -> bool:
    """Return whether the listening address ``host`` is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: str = "", environment: Optional[Mapping[str, str]] = None) -> str:
    """Read the token from a file or the environment variable; empty where neither is given.

    Raises:
        BadInput: the file cannot be read, or the token is too short.
    """
    environment = os.environ if environment is None else environment
    token = environment.get(TOKEN_VARIABLE, "").strip()
    where = TOKEN_VARIABLE
    if path:
        try:
            token, where = places.expand(path).read_text(encoding="utf-8").strip(), path
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot read the token in {path}: {error}") from error
    least = 16
    if (path or token) and len(token) < least:
        # an error shows no more of a secret than its length
        raise BadInput(
            f"the token in {where} has {len(token)} characters, it needs {least}",
            remedy="make one: python3 -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    return token


class Access:
    """Admits or rejects requests.

    Args:
        host: the listening address.
        token: secret of the visitors; empty: none.
        names: further host names of this machine.

    Raises:
        BadInput: other machines reach ``host``, and there is no token.
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
            hostname = socket.gethostname().lower()
            self._names |= {hostname, f"{hostname.split('.')[0]}.local", host.lower()}
        self._sessions: OrderedDict[str, None] = OrderedDict()

    def is_host_allowed(self, header: str) -> bool:
        """Return whether the Host ``header`` names this machine."""
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
        # an IP address cannot be rebound
        return self._open_to_all or address.is_loopback

    def open_session(self, token: str) -> Optional[str]:
        """Return a new session's id if the token is right, else None; the oldest sessions above 64 end."""
        if not self._token or not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        while len(self._sessions) > 64:
            self._sessions.popitem(last=False)
        return session

    def is_admitted(self, session: Optional[str], authorization: str = "") -> bool:
        """Return whether the session cookie, or ``Authorization: Bearer TOKEN``, admits a request."""
        if not self._token:
            return True
        if session is not None and session in self._sessions:
            return True
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode())
