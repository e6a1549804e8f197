"""Make and list keys for the link; trust a robot or a server, or withdraw that trust.

on the server:
  edge-offload keys new                      make this machine's key pairs; prints the command for the other machine
  edge-offload keys trust -- robot1 'KEY'    admit the robot with this client key (quote the key)
  edge-offload keys revoke robot1            stop admitting it; a running server cuts its connection at once
on the robot:
  edge-offload keys new
  edge-offload keys trust --server -- 10.0.0.5:5700 'KEY'   accept this address only with this server key
on both:
  edge-offload keys list                     public keys of this machine, trusted robots and servers

to replace a robot's key without an interruption:
  edge-offload keys rotate client            on the robot: makes and prints the next key; the present one stays in use
  edge-offload keys trust --also -- robot1 'KEY'   on the server: both keys are valid
  edge-offload keys rotate client --finish   on the robot: uses the new key from its next connection on
  edge-offload keys trust -- robot1 'KEY'    on the server: the old key is no longer valid
To replace a server's key, run 'rotate server' and 'rotate server --finish', restart the server, and run 'trust
--server' on every robot. Robots compute locally in between.

Processes of one user on one machine (loopback) need none of this: keys are made on first use.
Keys are stored in $EDGE_OFFLOAD_KEYS, else in $XDG_CONFIG_HOME/edge_offload/keys, else in ~/.config/edge_offload/keys.
"""

from __future__ import annotations

import argparse
import platform

OTHER_SIDE = {
    "client": "if this is a robot, run on its server",
    "server": "if this is a server, run on every robot (with the host:port by which the robot reaches it)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands new, list, trust, revoke."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="make key pairs (needed before other machines can connect)")
    new.add_argument("role", nargs="?", choices=("client", "server"), help="only this pair (default: both)")
    new.add_argument("--force", action="store_true", help="replace a pair; every peer then needs the new public key")
    actions.add_parser("list", help="show this machine's public keys, and trusted robots and servers")
    trust = actions.add_parser("trust", help="admit a robot, or (--server) store a server's key")
    trust.add_argument("--server", action="store_true", help="NAME is the host:port of a server")
    trust.add_argument("--also", action="store_true", help="keep the robot's earlier keys, too")
    trust.add_argument("name", metavar="NAME", help="name for the robot, or host:port with --server")
    trust.add_argument("key", metavar="KEY", help="its public key: 40 characters, in single quotes")
    rotate = actions.add_parser("rotate", help="make the next key, or (--finish) replace the present one by it")
    rotate.add_argument("role", choices=("client", "server"))
    rotate.add_argument("--finish", action="store_true", help="replace the present key by the next one")
    revoke = actions.add_parser("revoke", help="remove a robot from the list of trusted ones")
    revoke.add_argument("name", metavar="NAME", help="the robot's name or its public key")


def run(args: argparse.Namespace) -> int:
    """Run the chosen action on the default key directory."""
    from edge_offload.errors import BadInput
    from edge_offload.link.security.keys import ROLES, KeyStore, trust_command

    store, host = KeyStore(), platform.node() or "robot"
    if args.action == "new":
        pairs = {role: store.new_pair(role, force=args.force) for role in ([args.role] if args.role else ROLES)}
        for role, pair in pairs.items():
            print(f"{role:7s} {pair.public}")
        print(f"kept in {store.directory}\n")
        for role, pair in pairs.items():
            # a name for the other side to say
            name, server = (f"{host}:5700", True) if role == "server" else (host, False)
            print(f"{OTHER_SIDE[role]}:\n  {trust_command(name, pair.public, server)}")
    elif args.action == "trust":
        if args.server:
            store.trust_server(args.name, args.key)
            print(f"{args.name} must prove to have this key from now on")
        else:
            store.trust_client(args.name, args.key, also=args.also)
            print(f"{args.name} may connect from now on")
    elif args.action == "rotate":
        pair = store.adopt_next(args.role) if args.finish else store.next_pair(args.role)
        print(f"{args.role:7s} {pair.public}{' is in use now' if args.finish else ' is next'}")
    elif args.action == "revoke":
        count = store.revoke_client(args.name)
        if not count:
            raise BadInput(f"no robot {args.name!r} is trusted here", remedy="'edge-offload keys list' shows them")
        print(f"{count} key{'s' if count > 1 else ''} revoked")
    else:
        print(f"keys in {store.directory}")
        for role in ROLES:
            existing = store.pair(role)
            note = " (made on first use: for loopback only)" if existing and existing.automatic else ""
            print(f"  this machine as {role:7s} {existing.public if existing else 'none yet'}{note}")
        for key, name in sorted(store.clients().items(), key=lambda item: item[1]):
            print(f"  trusted robot   {name:20s} {key}")
        for address, key in sorted(store.servers().items()):
            print(f"  known server    {address:20s} {key}")
    return 0
