"""Hostile messages against a server process: it lives, does not grow, other robots compute on, strangers get nothing.

Robots that are trusted and mean no good send, by turns drawn from --seed:

  raw       multipart messages with broken, mangled or absurd headers, below the client
  requests  good headers, bodies that no robot would send, for every service of the server
  infer     pictures for a model, with a description or a payload that was tampered with (mode server)
  garbled   messages of the virtual device (edge-offload exec) with bits flipped
  calls     calls that fit their operator's schema, with arguments that need not make sense
  courses   what the server is to run ahead, for sizes that depend on data, with parts of it replaced

and strangers open connections: bytes that are no protocol, handshakes with an unknown key or without one. Meanwhile two
honest sessions of another robot, a virtual device and a model, check every result bit by bit.

  edge-offload bench fuzz                       2,000 messages and 200 connections, about a minute
  edge-offload bench fuzz --full                100,000 messages and 10,000 connections
  edge-offload bench fuzz --seed 7 --json fuzz.json

An executor that a call crashes ends its own session, with an error that names the operator; the crashes are listed. An
error in the executor's own code counts as a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import random
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Sequence, Union

from edge_offload.outputs import add_output

if TYPE_CHECKING:
    from edge_offload.link.transport.client import Client
    from edge_offload_benchmarks.processes import Process

MESSAGES, CONNECTIONS = 2000, 200
FULL, FULL_CONNECTIONS = 100_000, 10_000
#: Share of each kind of message.
SHARES = {"raw": 0.57, "requests": 0.20, "infer": 0.10, "garbled": 0.03, "calls": 0.05, "courses": 0.05}
CHECK_EVERY_S = 0.5
REPORT_EVERY_S = 30.0
#: Bytes that a session of the device may hold, and that one answer may bring back at most.
DEVICE_MEMORY = 64 << 20
#: Bytes that the server may have grown since a tenth of all this: a few of the largest messages and answers.
MORE_MEMORY = 256 << 20
#: Samples of the server's memory that are kept of a run, and that are shown.
SAMPLES, SHOWN = 100, 10
#: Connections of a trusted robot in a row that may be cut before the first message.
MOST_IN_VAIN = 10
#: A call that computes for longer ends its session.
CALL_LIMIT_S = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--messages", type=int, default=MESSAGES, metavar="N", help=f"how many ({MESSAGES})")
    parser.add_argument(
        "--connections", type=int, default=CONNECTIONS, metavar="N", help=f"of strangers ({CONNECTIONS})"
    )
    parser.add_argument("--full", action="store_true", help=f"{FULL} messages, {FULL_CONNECTIONS} connections")
    parser.add_argument("--seed", type=int, default=0, help="of what is sent (0)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record fuzz here")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records

    messages, connections = (FULL, FULL_CONNECTIONS) if args.full else (args.messages, args.connections)
    record = fuzz_server(messages, connections, args.seed)
    for key in ("messages", "connections", "seconds", "checks", "failures"):
        print(f"{key}: {record[key]}")
    for key in ("sent", "outcomes", "crashes", "strangers"):
        print(f"{key}: " + ", ".join(f"{name} {count}" for name, count in record[key].items()))
    for key in ("server_begin", "server_end"):
        print(f"{key}: " + ", ".join(f"{name} {count}" for name, count in record[key].items()))
    for sample in thin_items(record["memory_over_time"], SHOWN):
        print("memory after {messages} messages, {connections} connections: {megabytes:.0f} MB".format(
            **sample, megabytes=sample["memory"] / 1e6))  # fmt: skip
    if args.json is not None:
        records.write(args.json, "fuzz", record)
    return 1 if record["failures"] else 0


def fuzz_server(messages: int, connections: int, seed: int) -> Dict[str, Any]:
    """Send so many messages and open so many connections; what came of them."""
    from edge_offload.link.transport.client import Client
    from edge_offload.link.transport.connection import Timings
    from edge_offload_benchmarks.chaos.robot import MODEL
    from edge_offload_benchmarks.processes import Server, introduce_robots

    # what is measured is not how fast a busy machine is
    patient = Timings(connect_s=30.0, handshake_s=60.0, silence_s=60.0)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        public, robots = introduce_robots(root, ("honest", "hostile"))
        options = ["--keys", str(root / "server"), "--weights-cache", str(root / "blobs"), "--allow", MODEL]
        options += [
            "--device-memory-mb",
            str(DEVICE_MEMORY >> 20),
            "--device-seconds",
            str(CALL_LIMIT_S),
            "--lease",
            "1",
        ]
        options += ["--promises"]
        server = Server(*options)
        try:
            address = server.address
            for keys in robots.values():
                keys.trust_server(address, public)
            with contextlib.ExitStack() as stack:
                honest, *hostile = (
                    stack.enter_context(Client(address, keys=robots[name], timings=patient))
                    for name in ("honest", "hostile", "hostile")
                )
                for client in (honest, *hostile):
                    client.wait_ready(60.0)
                attack = _Attack(address, public, robots["hostile"], hostile, messages, connections, seed)
                return {"messages": messages, "connections": connections, "seed": seed,
                        **_watch_attack(attack, server, honest, messages + connections)}  # fmt: skip
        finally:
            server.kill()


class _Attack:
    """All that is hostile, in three threads."""

    def __init__(self, address: str, public: str, keys: Any, clients: Sequence[Client], messages: int,
                 connections: int, seed: int) -> None:  # fmt: skip
        from edge_offload_benchmarks.chaos import net
        from edge_offload_benchmarks.chaos.robot import MODEL
        from edge_offload_benchmarks.fuzzing.calls import Caller
        from edge_offload_benchmarks.fuzzing.peers import Babbler, Requester, Strangers
        from edge_offload_benchmarks.fuzzing.trace_graphs import TraceGraphSender

        self.caller = Caller(clients[0], random.Random(seed))
        self.courses = TraceGraphSender(clients[0], random.Random(seed + 6))
        self.requester = Requester(clients[1], MODEL, net.make_pictures()[0].numpy(), random.Random(seed + 1))
        self.babbler = Babbler(address, public, keys.pair("client"), random.Random(seed + 2))
        self.strangers = Strangers(address, public, random.Random(seed + 3))
        self.sent = dict.fromkeys(SHARES, 0)
        self.opened = 0
        self.problems: List[str] = []
        quota = {name: round(share * messages) for name, share in SHARES.items()}
        quota["raw"] += messages - sum(quota.values())
        self._threads = [
            threading.Thread(target=self._run_guarded, args=(work, *arguments))
            for work, *arguments in (
                (
                    self._send_calls,
                    {kind: quota[kind] for kind in ("garbled", "calls", "courses")},
                    random.Random(seed + 4),
                ),
                (self._send_requests, quota["requests"], quota["infer"], random.Random(seed + 5)),
                (self._send_rubbish, quota["raw"], connections),
            )
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    @property
    def goes_on(self) -> bool:
        """Return whether the attack still runs."""
        return any(thread.is_alive() for thread in self._threads)

    def count_sent(self) -> Dict[str, int]:
        """Messages sent and connections opened."""
        return {"messages": sum(self.sent.values()), "connections": self.opened}

    def _run_guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            self.problems.append(f"the attack broke off: {type(error).__name__}: {error}")

    def _send_calls(self, counts: Dict[str, int], draw: random.Random) -> None:
        send = {"garbled": self.caller.send_garbled, "calls": self.caller.send_call, "courses": self.courses.send}
        for kind in _shuffle_kinds(counts, draw):
            send[kind]()
            self.sent[kind] += 1
        self.caller.drain()
        self.courses.drain()

    def _send_requests(self, requests: int, infers: int, draw: random.Random) -> None:
        for kind in _shuffle_kinds({"requests": requests, "infer": infers}, draw):
            (self.requester.send_nonsense if kind == "requests" else self.requester.infer)()
            self.sent[kind] += 1
        self.requester.drain()

    def _send_rubbish(self, raw: int, connections: int) -> None:
        from edge_offload_benchmarks.fuzzing.peers import BATCH

        in_vain = 0
        while self.sent["raw"] < raw or self.opened < connections:
            # a batch may be cut short by the server: then there is one more
            sent = self.babbler.send_batch(min(BATCH, raw - self.sent["raw"]))
            self.sent["raw"] += sent
            in_vain = 0 if sent or self.sent["raw"] == raw else in_vain + 1
            if in_vain == MOST_IN_VAIN:
                raise ConnectionError(f"{in_vain} connections of a trusted robot in a row took no message")
            share = self.sent["raw"] / raw if raw else 1.0
            while self.opened < round(share * connections):
                self.strangers.connect()
                self.opened += 1
        self.babbler.close()
        self.strangers.close()


def _shuffle_kinds(counts: Dict[str, int], draw: random.Random) -> Sequence[str]:
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    draw.shuffle(kinds)
    return kinds


def thin_items(items: Sequence[Dict[str, Any]], most: int) -> Sequence[Dict[str, Any]]:
    """Select at most ``most`` items (two or more), evenly spaced, the first and the last included."""
    if len(items) <= most:
        return items
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def _watch_attack(attack: _Attack, server: Process, honest: Client, total: int) -> Dict[str, Any]:
    """Let it happen while an honest robot computes; the facts and what did not hold."""
    from edge_offload_benchmarks.chaos.usage import read_usage
    from edge_offload_benchmarks.fuzzing.calls import DeviceWitness

    pid = server.pid
    witnesses: List[Union[DeviceWitness, ModelWitness]] = [DeviceWitness(honest), ModelWitness(honest)]
    failures: List[str] = []
    started_at = reported_at = time.monotonic()
    seen: List[Dict[str, Any]] = []
    attack.start()
    while attack.goes_on and server.alive and not failures:
        failures += [problem for witness in witnesses for problem in witness.check_answer()]
        seen.append({**attack.count_sent(), **read_usage(pid)})
        if time.monotonic() - reported_at > REPORT_EVERY_S:
            reported_at = time.monotonic()
            print(
                f"after {reported_at - started_at:.0f} s: {attack.sent}, {attack.opened} connections",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(CHECK_EVERY_S)
    failures += attack.problems
    if not server.alive:
        failures.append(f"the server died: {server.read_stderr()[-500:]}")
    else:
        failures += [problem for witness in witnesses for problem in witness.check_answer()]
        seen.append({**attack.count_sent(), **read_usage(pid)})
        untold = honest.request("status", timeout_s=60.0).exception(61.0)
        if untold is not None:
            failures.append(f"the server does not tell its status any more: {untold}")
    early = [item for item in seen if item["messages"] + item["connections"] >= 0.1 * total]
    begin, end = (
        {name: count for name, count in moment.items() if name not in ("messages", "connections")}
        for moment in ((early or seen)[0], seen[-1])
    )
    peak = max(item["memory"] for item in seen)
    if peak > begin["memory"] + MORE_MEMORY:
        failures.append(f"the server's memory grew from {begin['memory']} to {peak} bytes")
    strangers = attack.strangers
    from edge_offload_benchmarks.fuzzing.peers import HANDSHAKE_BYTES

    if strangers.admitted:
        failures.append(f"{strangers.admitted} strangers were let in")
    if strangers.most_bytes > HANDSHAKE_BYTES:
        failures.append(f"a stranger was told {strangers.most_bytes} bytes")
    caller, courses = attack.caller, attack.courses
    for sender in (caller, courses):
        failures += [f"an executor's end names no operator: {error}" for error in sender.unnamed[:5]]
        failures += sender.failed[:5]
    outcomes = {f"call: {name}": count for name, count in caller.outcomes.items()}
    outcomes.update({f"course: {name}": count for name, count in courses.outcomes.items()})
    outcomes["course: steps run ahead"] = courses.ran
    outcomes.update({f"request: {name}": count for name, count in attack.requester.outcomes.items()})
    outcomes.update({"raw: read": attack.babbler.read, "raw: connections cut": attack.babbler.cut})
    return {
        "seconds": time.monotonic() - started_at,
        "sent": attack.sent,
        "outcomes": outcomes,
        "crashes": dict(caller.crashes + courses.crashes),
        "strangers": {**strangers.kinds, "let in": strangers.admitted, "most bytes told": strangers.most_bytes},
        "checks": sum(witness.checks for witness in witnesses),
        "server_begin": begin,
        "server_end": end,
        "memory_peak": peak,
        "memory_over_time": [
            {name: item[name] for name in ("messages", "connections", "memory")} for item in thin_items(seen, SAMPLES)
        ],
        "failures": failures,
    }


class ModelWitness:
    """An honest robot in mode server: asks for a picture of the chaos runs again and again, and knows the answer."""

    def __init__(self, client: Client) -> None:
        from edge_offload.execute.tensors import TensorSpec
        from edge_offload.execute.threads import pin
        from edge_offload_benchmarks.chaos import net
        from edge_offload_benchmarks.chaos.robot import MODEL

        pin(threads=1)  # as the server does: for the same bits
        self.checks = 0
        self._client = client
        self._pictures = net.make_pictures()
        module = net.factory()
        self._expected = [module(picture) for picture in self._pictures]
        body = {"name": MODEL, "inputs": [TensorSpec.of(self._pictures[0]).to_dict()]}
        self._handle = client.request("open_model", body, timeout_s=60.0).result(61.0).body["handle"]

    def check_answer(self) -> List[str]:
        """One picture; what was wrong with the answer."""
        import torch

        from edge_offload.errors import EdgeOffloadError
        from edge_offload.execute.tensors import pack_tensors, unpack_tensors

        turn = self.checks % len(self._pictures)
        self.checks += 1
        inputs, buffers = pack_tensors([self._pictures[turn]])
        body = {"handle": self._handle, "inputs": inputs, "codec": "auto", "wait_s": None, "meta": {}}
        try:
            reply = self._client.request("infer", body, buffers, timeout_s=60.0).result(61.0)
            outputs = unpack_tensors(reply.body["outputs"], reply.buffers)
        except EdgeOffloadError as error:
            return [f"the honest robot's picture was not answered: {error}"]
        good = all(torch.equal(one, other) for one, other in zip(outputs, self._expected[turn]))
        return [] if good and len(outputs) == 2 else ["the honest robot got a wrong result"]
