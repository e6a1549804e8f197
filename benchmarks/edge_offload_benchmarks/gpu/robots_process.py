"""Some robots of phase ``robots``, without torch: each has a key, a connection, and a thread while a row is measured.

Usage: python -m edge_offload_benchmarks.gpu.robots_process --address A --root DIR --names a,b

Standard input has a JSON object per line: ``{"open": model, "robots": n}``, ``{"prepare": model}`` or ``{"way": …}``
(:class:`Row`). Standard output has an answer per line, ``answer N …`` for the N-th of them, from 0 on.
"""

from __future__ import annotations

import argparse
import functools
import json
import pathlib
import re
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional, Tuple

from edge_offload.errors import Refused
from edge_offload.link.security.keys import KeyStore
from edge_offload.link.transport.client import Client
from edge_offload.link.transport.connection import Timings
from edge_offload.link.transport.replies import LinkState
from edge_offload.manager.promise import HABITS, PromisePolicy
from edge_offload.protocol.promises import PromiseRequest
from edge_offload.runtime.promise import Promise

#: Seconds that a robot waits for an answer, and for a model or for tables of batches.
WAIT_S, OPEN_S = 10.0, 120.0
#: Many robots open one model at once on a machine that they share: a silence is not a fault.
PATIENT = Timings(connect_s=5.0, handshake_s=20.0, silence_s=20.0)
#: The first frame of each robot, which is sent without a promise, is one of these.
FIRST_FRAMES = 9
#: A bound that a server that is full names, and by how much more is then asked for.
OFFER, MARGIN = re.compile(r"([0-9.e-]+) could be promised now"), 1.05
#: What carried results lose with age: a line, so that intervals follow from the bound alone.
LINE = replace(HABITS["people"], intercept=0.0, lasting=0.0)


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        model: name.
        way: ``answered``: the next frame leaves when a result is there; ``turns``: a frame per interval, of which those
            leave that have a slot of the server's promise.
        robots: of this process that take part.
        begin_s: when they begin (monotonic seconds).
        settle_s, seconds: frames count that were taken in ``seconds`` from ``settle_s`` after the beginning on.
        interval_s: between two frames of a camera.
        bound: of the promise.
    """

    model: str
    way: str
    robots: int
    begin_s: float
    settle_s: float
    seconds: float
    interval_s: float = 0.1
    bound: float = 1.0

    def counts(self, captured_s: float) -> bool:
        """Return whether a frame that was taken then counts."""
        return self.settle_s <= captured_s - self.begin_s < self.settle_s + self.seconds

    @property
    def ends_s(self) -> float:
        """The end of the measurement (monotonic seconds)."""
        return self.begin_s + self.settle_s + self.seconds


class Frames:
    """Packed frames of one model, and what it is opened with, from files that the phase wrote."""

    def __init__(self, folder: pathlib.Path) -> None:
        facts = json.loads((folder / "frames.json").read_text("utf-8"))
        data = memoryview((folder / "frames.bin").read_bytes())
        self.opened: Dict[str, Any] = facts["opened"]
        self.packed: List[Tuple[List[Any], List[memoryview]]] = []
        position = 0
        for descriptors, sizes in facts["frames"]:
            buffers = []
            for size in sizes:
                buffers.append(data[position : position + size])
                position += size
            self.packed.append((descriptors, buffers))


class Robot:
    """One robot.

    Args:
        name: of its key.
        share: its place among all robots, 0 to 1, by which cameras differ in phase.
    """

    def __init__(self, name: str, share: float, address: str, root: pathlib.Path) -> None:
        self.name, self._share = name, share
        self._handles: Dict[str, int] = {}
        self._promise: Optional[Promise] = None
        self._started = False
        self._client = Client(
            address,
            keys=KeyStore(root / name),
            timings=PATIENT,
            on_notify=self._note_message,
            on_state=self._note_state,
        )

    def _note_message(self, kind: str, body: Dict[str, Any], buffers: List[memoryview]) -> None:
        if self._promise is not None:
            self._promise.notified(kind, body, buffers)

    def _note_state(self, state: LinkState, cause: str) -> None:
        if self._promise is not None:
            self._promise.link_changed(state, cause)

    def open_model(self, model: str, frames: Frames) -> None:
        """Connect, and open a model once."""
        if not self._started:
            self._client.start()
            self._started = True
        if model not in self._handles:
            self._client.wait_ready(OPEN_S)
            reply = self._client.request("open_model", frames.opened, timeout_s=OPEN_S).result(OPEN_S + 1)
            self._handles[model] = reply.body["handle"]

    def prepare_batches(self, model: str) -> Dict[str, Any]:
        """Have the server measure its batches, by a promise that is given back."""
        request = PromiseRequest(self._handles[model], 1.0, 0.1, True, 0, 0.0, 0.0)
        reply = self._client.request("promise", request.to_wire(), timeout_s=OPEN_S).result(OPEN_S + 1)
        self._client.request("give_back", timeout_s=OPEN_S).result(OPEN_S + 1)
        return dict(reply.body)

    def measure_row(self, row: Row, frames: Frames) -> Dict[str, Any]:
        """Measure one row: what came of the frames that count."""
        facts: Dict[str, Any] = {"seconds": [], "server": [], "captured": 0, "refused": 0, "alone": 0}
        facts.update(failed={}, refusals={})
        time.sleep(max(0.0, row.begin_s - time.monotonic()))
        (self._send_answered if row.way == "answered" else self._follow_schedule)(row, frames, facts)
        return facts

    def _send_answered(self, row: Row, frames: Frames, facts: Dict[str, Any]) -> None:
        number = 0
        while (captured_s := time.monotonic()) < row.ends_s:
            number += 1
            facts["captured"] += row.counts(captured_s)
            future = self._request(row, frames, number, {})
            try:
                future.result(WAIT_S + 1)
            except Exception:
                time.sleep(0.01)
            _note_answer(row, captured_s, future, facts)

    def _follow_schedule(self, row: Row, frames: Frames, facts: Dict[str, Any]) -> None:
        promise = self._ask_promise(row, row.bound)
        under_way: List[Future[Any]] = []
        number = 0
        while (captured_s := row.begin_s + (number + self._share) * row.interval_s) < row.ends_s:
            time.sleep(max(0.0, captured_s - time.monotonic()))
            number += 1
            facts["captured"] += row.counts(captured_s)
            reason = promise.fallback_reason
            if reason and row.begin_s + 1.5 < captured_s:
                facts["refusals"][reason[:160]] = facts["refusals"].get(reason[:160], 0) + 1
            offer = OFFER.search(reason)
            if offer:  # as somebody would who reads it
                promise = self._ask_promise(row, min(1.0, MARGIN * float(offer[1])))
            due = promise.wants_frame(captured_s)
            turn = promise.describe_slot(captured_s) if due else {}
            under_way = [one for one in under_way if not one.done()]
            # without a promise, the next frame leaves when a result is there; a single one while all ask for theirs,
            # from which the robot knows how long frames travel
            alone = row.counts(captured_s) or number == 1 + int(FIRST_FRAMES * self._share)
            if not turn and (under_way or not due or not alone):
                continue
            facts["alone"] += not turn and row.counts(captured_s)
            future = self._request(row, frames, number, turn)
            under_way.append(future)
            future.add_done_callback(functools.partial(_note_turn, row, captured_s, facts, promise))
        for future in under_way:
            future.exception(WAIT_S + 1)
        facts["missed"], facts["bound"] = promise.policy.missed, promise.policy.bound
        self._client.request("give_back", timeout_s=WAIT_S).result(WAIT_S + 1)
        self._promise = None

    def _ask_promise(self, row: Row, bound: float) -> Promise:
        self._promise = Promise(PromisePolicy(bound, habits=LINE), self._client, lambda: self._handles[row.model])
        return self._promise

    def _request(self, row: Row, frames: Frames, number: int, turn: Dict[str, Any]) -> Future[Any]:
        descriptors, buffers = frames.packed[number % len(frames.packed)]
        handle = self._handles[row.model]
        body = {"handle": handle, "inputs": descriptors, "codec": "raw", "wait_s": WAIT_S, "meta": {}, **turn}
        return self._client.request("infer", body, buffers, timeout_s=2 * WAIT_S)

    def close(self) -> None:
        """Disconnect."""
        if self._started:
            self._client.close()


def _note_turn(row: Row, captured_s: float, facts: Dict[str, Any], promise: Promise, done: Future[Any]) -> None:
    """Note one answer, and how long it travelled."""
    if done.exception() is None:
        promise.add_transfer_times(captured_s, done.result().transfer)
    _note_answer(row, captured_s, done, facts)


def _note_answer(row: Row, captured_s: float, done: Future[Any], facts: Dict[str, Any]) -> None:
    """Note one answer, if its frame counts."""
    error = done.exception()
    if error is None:
        reply = done.result()
        if row.counts(captured_s):
            facts["seconds"].append(round(time.monotonic() - captured_s, 6))
            parts = [reply.body[key] for key in ("queue_s", "decode_s", "compute_s", "encode_s")]
            batch = reply.body["engine"].rpartition("batch ")[2]
            up_s = reply.transfer.server_received_s - captured_s
            facts["server"].append([int(batch) if batch.isdigit() else 1, up_s, *parts])
    elif row.counts(captured_s):
        facts["refused"] += isinstance(error, Refused)
        text = f"{type(error).__name__}: {str(error)[:80]}"
        facts["failed"][text] = facts["failed"].get(text, 0) + 1


class Robots:
    """The robots of this process, and the lines that tell them what to do."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._root = pathlib.Path(args.root)
        self._robots = []
        for entry in args.names.split(","):
            name, _, share = entry.partition(":")
            self._robots.append(Robot(name, float(share), args.address, self._root))
        self._frames: Dict[str, Frames] = {}
        self._threads = ThreadPoolExecutor(len(self._robots))

    def answer_line(self, line: str) -> Any:
        """Do what a line says."""
        order = json.loads(line)
        if "prepare" in order:
            return self._robots[0].prepare_batches(order["prepare"])
        if "open" in order:
            frames = self._frames_of(order["open"])
            list(self._threads.map(lambda one: one.open_model(order["open"], frames), self._robots[: order["robots"]]))
            return {}
        row = Row(**order)
        frames = self._frames_of(row.model)
        robots = self._robots[: row.robots]
        return dict(
            zip((one.name for one in robots), self._threads.map(lambda one: one.measure_row(row, frames), robots))
        )

    def _frames_of(self, model: str) -> Frames:
        if model not in self._frames:
            self._frames[model] = Frames(self._root / f"frames.{model}")
        return self._frames[model]

    def close(self) -> None:
        """Disconnect all."""
        for robot in self._robots:
            robot.close()


def main() -> None:
    """Answer lines until standard input ends."""
    parser = argparse.ArgumentParser()
    for name in ("--address", "--root", "--names"):
        parser.add_argument(name, required=True)
    robots = Robots(parser.parse_args())
    for number, line in enumerate(sys.stdin):
        try:
            answer = robots.answer_line(line)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(f"answer {number} {json.dumps(answer)}", flush=True)
    robots.close()


if __name__ == "__main__":
    main()
