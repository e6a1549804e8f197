"""CURVE keys: this machine's own pairs, the robots that a server admits, and the servers that a robot trusts.

All files are in one directory, ``$EDGE_OFFLOAD_KEYS`` or ``$XDG_CONFIG_HOME/edge_offload/keys`` (mode 0700, files
0600). ``client.json`` and ``server.json`` are CURVE key pairs. ``clients.json`` is the server's allow-list of client
public keys. ``servers.json`` holds the public keys of servers that this robot knows, by address. ``client.next.json``
and ``server.next.json`` are pairs that a rotation has made but not adopted yet.

On loopback, pairs are made on first use, and the pairs of one directory trust each other. A server that others can
reach needs a pair made on purpose (``edge-offload keys new``).
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import pathlib
import re
import shlex
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Optional, Tuple, Union

import zmq
from zmq.utils import z85

from edge_offload import places
from edge_offload.errors import BadInput

ROLES = ("client", "server")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")


@dataclass(frozen=True)
class KeyPair:
    """A CURVE key pair in Z85 (40 characters each); ``automatic``: made on first use. ``repr`` hides the secret."""

    public: str
    secret: str
    automatic: bool

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r}, secret=hidden, automatic={self.automatic})"


def split_address(address: str) -> Tuple[str, int]:
    """Host and port of ``tcp://host:port`` or ``host:port`` (IPv6 hosts in brackets, such as ``[fe80::1%eth0]:5700``).

    Raises:
        BadInput: it is neither.
    """
    rest = address[len("tcp://") :] if address.startswith("tcp://") else address
    host, colon, port = rest.rpartition(":")
    inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    bare = ":" in host and inner == host
    if bare or not colon or not inner or not port.isdigit() or int(port) > 65535 or set(inner) & set("[]/"):
        remedy = "write host:port or tcp://host:port, an IPv6 address in brackets: [::1]:5700"
        raise BadInput(f"{address!r} is not an address", remedy=remedy)
    return inner, int(port)


def join_address(host: str, port: Union[int, str]) -> str:
    """``host:port``; brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bracket_address(address: str) -> str:
    """Add the brackets that files of earlier versions lack: ``::1:5700`` becomes ``[::1]:5700``."""
    host, _, port = address.rpartition(":")
    return address if host.startswith("[") else join_address(host, port)


def trust_command(name: str, public: str, server: bool = False) -> str:
    """Shell command with which a machine trusts a public key.

    Keys may begin with a dash, so ``--`` ends the options.

    Args:
        name: of the robot; with ``server``, the server's address.
        public: the key, in Z85.
        server: whether the key is a server's.
    """
    command = ["edge-offload", "keys", "trust", *(["--server"] if server else []), "--", name, public]
    return " ".join(map(shlex.quote, command))


def trust_remedy(address: str) -> str:
    """Remedy where the key of the server at ``address`` is missing."""
    command = trust_command(join_address(*split_address(address)), "KEY", server=True)
    return f"{command} (there, 'edge-offload keys list' prints the key; quote it)"


def is_loopback(host: str) -> bool:
    """Tell whether ``host`` names this machine alone (``localhost``, 127.0.0.0/8, ::1)."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_public(key: str) -> str:
    """``key``, if it has the form of a Z85 public key, which secret keys have too.

    Raises:
        BadInput: it has not.
    """
    try:
        if len(key) == 40 and len(z85.decode(key.encode("ascii"))) == 32:
            return key
    except (ValueError, KeyError, UnicodeError):
        pass
    raise BadInput("that is not a public key", remedy="it is the 40 characters that 'edge-offload keys list' prints")


def _make_pair() -> Tuple[str, str]:
    """A new public and secret key."""
    public, secret = zmq.curve_keypair()
    while public.startswith(b"-"):  # a command line would take it for an option
        public, secret = zmq.curve_keypair()
    return public.decode("ascii"), secret.decode("ascii")


class KeyStore:
    """The key directory (see the module). Several processes may use it at once."""

    def __init__(self, directory: Optional[Union[str, os.PathLike[str]]] = None) -> None:
        self.directory = pathlib.Path(directory) if directory is not None else places.keys_folder()

    def pair(self, role: str) -> Optional[KeyPair]:
        """The pair of ``role`` (``client`` or ``server``), None if there is none yet.

        Raises:
            BadInput: its file cannot be read, or holds no pair.
        """
        document = self._load_file(f"{role}.json")
        if not document:
            return None
        try:
            automatic = bool(document.get("automatic", False))
            return KeyPair(check_public(document["public"]), check_public(document["secret"]), automatic)
        except (KeyError, TypeError, BadInput) as error:
            raise BadInput(
                f"{self.directory / (role + '.json')} does not hold a key pair",
                remedy=f"make a new one: edge-offload keys new {role} --force",
            ) from error

    def new_pair(self, role: str, automatic: bool = False, force: bool = False) -> KeyPair:
        """Make and store a pair. With ``automatic``, a pair that exists is returned instead.

        Raises:
            BadInput: a pair made on purpose exists and ``force`` is not set, or there is no such role.
        """
        if role not in ROLES:
            raise BadInput(f"no keys for {role!r}", remedy=f"roles: {', '.join(ROLES)}")
        with self._lock_folder():
            present = None if force else self.pair(role)
            if present is not None and (automatic or not present.automatic):
                if automatic:
                    return present
                raise BadInput(
                    f"{self.directory / (role + '.json')} exists",
                    remedy="--force replaces it; every peer must then be told the new public key",
                )
            made = KeyPair(*_make_pair(), automatic)
            self._store_file(f"{role}.json", {"public": made.public, "secret": made.secret, "automatic": automatic})
            return made

    def ensure_pair(self, role: str) -> KeyPair:
        """The pair of ``role``, made now if there is none (loopback's first use)."""
        return self.pair(role) or self.new_pair(role, automatic=True)

    def server_pair(self, host: str) -> KeyPair:
        """The pair that a server bound to ``host`` uses.

        Raises:
            BadInput: others can reach ``host`` and nobody has made a pair on purpose.
        """
        if is_loopback(host):
            return self.ensure_pair("server")
        pair = self.pair("server")
        if pair is None or pair.automatic:
            raise BadInput(
                f"refusing to listen on {host} without keys made on purpose",
                remedy="run 'edge-offload keys new', then 'edge-offload keys trust -- NAME KEY' for every robot",
            )
        return pair

    def server_public(self, address: str) -> str:
        """The public key that the server at ``address`` must prove to have.

        Raises:
            BadInput: no key is known for it.
        """
        host, port = split_address(address)
        key = self.servers().get(join_address(host, port))
        if key is not None:
            return key
        if is_loopback(host):
            return self.ensure_pair("server").public
        raise BadInput(f"no key is known for the server {join_address(host, port)}", remedy=trust_remedy(address))

    def clients(self) -> Dict[str, str]:
        """The allow-list: name by client public key."""
        return {str(key): str(name) for key, name in self._load_file("clients.json").items()}

    def servers(self) -> Dict[str, str]:
        """Known servers: public key by ``host:port``, IPv6 hosts in brackets."""
        return {_bracket_address(str(address)): str(key) for address, key in self._load_file("servers.json").items()}

    def next_pair(self, role: str) -> KeyPair:
        """The pair that :meth:`adopt_next` will put in the place of the present one, made now if there is none.

        Raises:
            BadInput: there is no pair to replace.
        """
        if self.pair(role) is None:
            raise BadInput(f"there is no {role} key to replace", remedy="make one: edge-offload keys new")
        with self._lock_folder():
            made = self._load_file(f"{role}.next.json")
            if not made:
                public, secret = _make_pair()
                made = {"public": public, "secret": secret, "automatic": False}
                self._store_file(f"{role}.next.json", made)
            return KeyPair(check_public(made["public"]), check_public(made["secret"]), False)

    def adopt_next(self, role: str) -> KeyPair:
        """Replace the present pair by that of :meth:`next_pair`; the present one is deleted.

        Raises:
            BadInput: :meth:`next_pair` has made none.
        """
        with self._lock_folder():
            made = self._load_file(f"{role}.next.json")
            if not made:
                raise BadInput(f"no next {role} key was made", remedy=f"first: edge-offload keys rotate {role}")
            self._store_file(f"{role}.json", made)
            os.unlink(self.directory / f"{role}.next.json")
            return KeyPair(check_public(made["public"]), check_public(made["secret"]), False)

    def trust_client(self, name: str, public: str, also: bool = False) -> None:
        """Admit the robot with this public key. Earlier keys of the same name are removed, unless ``also``.

        Raises:
            BadInput: malformed key or name.
        """
        check_public(public)
        if not _NAME.fullmatch(name):
            raise BadInput(f"{name!r} cannot name a robot", remedy="use letters, digits and _.@-")
        with self._lock_folder():
            clients = {key: owner for key, owner in self.clients().items() if also or owner != name}
            clients[public] = name
            self._store_file("clients.json", clients)

    def revoke_client(self, name_or_key: str) -> int:
        """Remove a robot from the allow-list; running servers close its connections. Returns how many keys it had."""
        with self._lock_folder():
            clients = self.clients()
            remaining = {key: name for key, name in clients.items() if name_or_key not in (key, name)}
            self._store_file("clients.json", remaining)
            return len(clients) - len(remaining)

    def trust_server(self, address: str, public: str) -> None:
        """Store the public key that the server at ``address`` must prove to have.

        Raises:
            BadInput: malformed key or address.
        """
        check_public(public)
        host, port = split_address(address)
        with self._lock_folder():
            self._store_file("servers.json", {**self.servers(), join_address(host, port): public})

    def allow_list_stamp(self) -> Tuple[Any, ...]:
        """Value that changes when the allow-list or this machine's client pair may have changed."""
        stamps = []
        for name in ("clients.json", "client.json"):
            try:
                status = os.stat(self.directory / name)
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                stamps.append((0, 0, 0))
        return tuple(stamps)

    def _load_file(self, name: str) -> Dict[str, Any]:
        """The JSON object in a file; empty if there is no file."""
        path = self.directory / name
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except PermissionError as error:
            remedy = f"set {places.KEYS} to a directory of this user"
            raise BadInput(f"cannot read {path}: {error.strerror}", remedy=remedy) from error
        except (OSError, ValueError) as error:
            raise BadInput(f"cannot read {path}: {error}", remedy="repair it or move it away") from error
        if not isinstance(loaded, dict):
            raise BadInput(f"{path} does not hold a JSON object", remedy="repair it or move it away")
        return loaded

    def _store_file(self, name: str, document: Dict[str, Any]) -> None:
        """Write a file atomically: a reader sees the old or the new one. ``mkstemp`` gives it mode 0600."""
        descriptor, temporary = tempfile.mkstemp(dir=self.directory, prefix=f".{name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(document, stream, indent=1)
            os.replace(temporary, self.directory / name)
        except BaseException:
            os.unlink(temporary)
            raise

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """Make the directory if need be, and lock it against other processes that write."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.directory / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise places.unwritable(self.directory, places.KEYS, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
