"""Keys for the link: make them, list them, trust a robot or a server, take trust back.

on the server:
  edge-offload keys new                      make this machine's key pairs; prints what to run on the other machine
  edge-offload keys trust -- robot1 'KEY'    let the robot with this client key in (quote the key)
  edge-offload keys revoke robot1            shut it out; a running server cuts its connection at once
on the robot:
  edge-offload keys new
  edge-offload keys trust --server -- 10.0.0.5:5700 'KEY'   believe only a server that has this server key
on both:
  edge-offload keys list                     public keys of this machine, trusted robots, known servers

to replace a robot's key without an interruption:
  edge-offload keys rotate client            on the robot: makes and prints the next key; the present one stays in use
  edge-offload keys trust --also -- robot1 'KEY'   on the server: both keys are good
  edge-offload keys rotate client --finish   on the robot: from its next connection on it uses the new key
  edge-offload keys trust -- robot1 'KEY'    on the server: the old key is shut out
A server's key is replaced with 'rotate server', '--finish', a restart, and 'trust --server' on every robot, which are
without the server (and compute locally) in between.

Between processes of one user on one machine (loopback) nothing has to be done: keys are made on first use.
Keys are kept in $EDGE_OFFLOAD_KEYS, else in $XDG_CONFIG_HOME/edge_offload/keys, else in ~/.config/edge_offload/keys.
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
    new = actions.add_parser("new", help="make key pairs on purpose (a server that others can reach needs this)")
    new.add_argument("role", nargs="?", choices=("client", "server"), help="only this pair (default: both)")
    new.add_argument("--force", action="store_true", help="replace a pair: every peer must be told the new public key")
    actions.add_parser("list", help="show public keys and whom this machine trusts")
    trust = actions.add_parser("trust", help="let a robot in, or (--server) know a server's key")
    trust.add_argument("--server", action="store_true", help="NAME is the host:port of a server")
    trust.add_argument("--also", action="store_true", help="keep the robot's earlier keys, too")
    trust.add_argument("name", metavar="NAME", help="what to call the robot, or host:port with --server")
    trust.add_argument("key", metavar="KEY", help="its public key: 40 characters, in single quotes")
    rotate = actions.add_parser("rotate", help="make the key that will replace the present one, or (--finish) use it")
    rotate.add_argument("role", choices=("client", "server"))
    rotate.add_argument("--finish", action="store_true", help="put the next key in the place of the present one")
    revoke = actions.add_parser("revoke", help="take a robot off the allow-list")
    revoke.add_argument("name", metavar="NAME", help="its name or its public key")


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
