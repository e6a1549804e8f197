"""The robot of a chaos run, a process of its own: a camera, the managed network, one line of JSON per result.

Started by :mod:`edge_offload_benchmarks.chaos.rig`. Lines on standard output: ``{"ready": ...}`` once frames flow, one
per result, and ``{"summary": ...}`` when standard input closes. Times are of the machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

from edge_offload.manager.drop import Habits
from edge_offload.nodes.inference.latest_frame_queue import Lanes, LatestFrameQueue, Steps
from edge_offload.runtime.carrying import NONE, WAITING, Along, Carrying, Events, FrameLoop
from edge_offload_benchmarks.chaos import wall_clock

MODEL = "edge_offload_benchmarks.chaos.net:factory"
#: Modes that frames may be sent to the server in; results of ``split`` agree with the local ones within its tolerance.
REMOTE = ("server", "split", "replay")
#: Largest difference of a result of ``split``, as a share of the largest value.
TOLERANCE = 1e-5
#: Of the camera.
FPS = 20.0
#: What results of a robot that asks for a promise lose with age: its pictures stand still, so that it would learn that
#: nothing is lost.
LOSES = Habits(0.0, 1e-6, 0.5, 1e-6, alike=1e12, mean_gain=0.0)
#: Planning a split takes the time of a busy machine.
READY_S = 120.0


class Held:
    """Carries results as they are: the pictures of a chaos run stand still."""

    degraded = ""

    def carry(self, result: Any, source: int, target: int) -> Any:
        """See :class:`~edge_offload.perception.carry.carrier.Carrier`."""
        return result

    def steps(self, result: Any, source: int, target: int) -> Iterator[None]:
        """Likewise: none."""
        return iter(())


class Carried:
    """Every frame leaves at once with the newest result there is, as in a node with ``carry``.

    Args:
        slot: of the frames for the network.
        period_s: between frames.
        right: whether the outputs are those of the frame.
    """

    def __init__(self, slot: LatestFrameQueue[int], period_s: float, right: Callable[[Any, int], bool]) -> None:
        self._slot, self._period_ns, self._right = slot, round(period_s * 1e9), right
        self.received_s: Dict[int, float] = {}
        self.frames: LatestFrameQueue[int] = LatestFrameQueue(capacity=WAITING)
        self.left: List[Dict[str, Any]] = []
        self.failed: List[str] = []
        self.loop: FrameLoop[int, Any] = FrameLoop(Carrying(Held(), lambda *_: 0.0), self._leave)
        self.events = Events(lambda: self.loop.due_s, self.loop.flush, lambda error: self.failed.append(repr(error)))

    def put(self, number: int) -> bool:
        """A frame comes."""
        received_s = time.monotonic()
        taken = self.frames.put(number)
        self.events.post(lambda: self._take(received_s), first=True)
        return taken

    def _take(self, received_s: float) -> None:
        number = self.frames.take(0.0)
        if number is None:
            return
        self.received_s[number] = received_s
        self._slot.put(number)
        self.loop.arrived(number, self._stamp(number), received_s)

    def came(self, number: int, outputs: Any, taken_s: float) -> None:
        """The network's result for a frame that it took at ``taken_s``."""
        self.events.post(lambda: self.loop.came(outputs, self._stamp(number), taken_s))

    def _stamp(self, number: int) -> int:
        return (number + 1) * self._period_ns

    def _leave(self, number: int, along: Along[Any]) -> None:
        seen = along.source // self._period_ns - 1
        self.left.append(
            {
                "frame": number,
                "origin": along.origin,
                "late_s": time.monotonic() - self.received_s.pop(number),
                "equal": along.origin == NONE or (seen <= number and self._right(along.result, seen)),
            }
        )


class Camera:
    """Puts a frame number into a slot at a fixed rate."""

    def __init__(self, fps: float, slot: Union[LatestFrameQueue[int], Carried]) -> None:
        self._period_s = 1 / fps
        self._slot = slot
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="camera", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """No more frames; what waits is still taken."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due = time.monotonic()
        for number in itertools.count():
            if self._stop.is_set():
                return
            self._slot.put(number)
            # frames that a suspended robot did not take are not taken later
            due = max(due + self._period_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))


def say(**record: Any) -> None:
    """One line."""
    print(json.dumps(record), flush=True)


def _sleep(seconds: float) -> None:
    """As time.sleep, in another way: libfaketime breaks clock_nanosleep until a time of the monotonic clock."""
    threading.Event().wait(seconds)


def main() -> int:
    """Run until standard input closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True)
    parser.add_argument("--keys", required=True)
    parser.add_argument("--fps", type=float, default=FPS)
    parser.add_argument("--slowdown", type=float, default=30.0)
    parser.add_argument("--size", type=int, help="pixels of a picture's side")
    parser.add_argument("--mode", choices=REMOTE, default=REMOTE[0])
    parser.add_argument("--managers", type=int, default=1, help="2: another one asks for other modes, frame by frame")
    parser.add_argument("--in-flight", type=int, default=1)
    parser.add_argument("--carry", action="store_true", help="every frame leaves at once, with the newest result")
    parser.add_argument("--accuracy", type=float, help="asks for a promise of this bound; with --carry")
    args = parser.parse_args()
    if wall_clock.faked():
        time.sleep = _sleep  # type: ignore[assignment]

    import torch

    from edge_offload.execute.threads import pin
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client
    from edge_offload.link.transport.prober import Prober
    from edge_offload.manager.policy import FixedPolicy, LatencyPolicy, Manager, chooses
    from edge_offload.manager.promise import PromisePolicy
    from edge_offload.mode import Mode
    from edge_offload.modes.device import DeviceModule, DeviceRunner, installed_device
    from edge_offload.modes.server import CAPTURED
    from edge_offload.runtime.module import OffloadedModule
    from edge_offload.runtime.promise import Promise
    from edge_offload_benchmarks.chaos import net

    pin(threads=1)
    pictures = net.inputs(args.size or net.SIZE)
    module = net.factory()
    promise: Optional[Promise] = None

    def changed(*state: Any) -> None:
        offloaded.link_changed(*state)
        if promise is not None:
            promise.link_changed(*state)

    def notified(*told: Any) -> None:
        if promise is not None:
            promise.notified(*told)

    client = Client(args.server, keys=KeyStore(args.keys), on_state=changed, on_notify=notified)
    remote = Mode(args.mode)
    offloaded = OffloadedModule(
        MODEL,
        module,
        client,
        robot_slowdown=args.slowdown,
        example=[pictures[0]] if remote is Mode.SERVER else None,
        candidates=(Mode.LOCAL, remote),
        in_flight=args.in_flight,
    )
    if remote is Mode.REPLAY:
        device = installed_device()
        assert device is not None, "the rig starts this mode by 'edge-offload exec'"
        offloaded.add_runner(DeviceRunner(remote, DeviceModule(device, module, client)))
    client.start()
    prober = Prober(client).start()
    expected: List[Tuple[torch.Tensor, ...]] = []
    local_s: List[float] = []
    for turn in range(3):
        expected = []
        for picture in pictures:
            outputs, report = offloaded.run([picture], Mode.LOCAL)
            expected.append(outputs)
            if turn:  # the first ones choose kernels and take memory
                local_s.append(report.total_s)
    ends = time.monotonic() + READY_S
    while offloaded.unavailable_reason(remote, [pictures[0]]) is not None and time.monotonic() < ends:
        time.sleep(0.02)
    managers = [Manager(LatencyPolicy())]
    if args.managers > 1:
        managers += [Manager(FixedPolicy(Mode.LOCAL, "another manager")), Manager(FixedPolicy(remote, "a third"))]
    for turn in range(20):  # until everything has run once
        offloaded.run([pictures[turn % len(pictures)]], remote)
    asked, failed = [remote], []

    def work(number: int, place: int) -> Steps:
        picture = pictures[number % len(pictures)]
        taken = time.monotonic()
        situation = offloaded.situation([picture])
        decision = managers[number % len(managers)].decide(situation)
        told: Dict[str, Any] = {}
        if promise is not None:
            told[CAPTURED] = captured.pop(number)
            if not promise.alone:
                decision = promise.policy.decide(situation)
        asked[0] = decision.mode
        forecast, reading = situation.forecasts.get(decision.mode), offloaded.reading(taken)
        yield
        began = time.monotonic()
        outputs, report = offloaded.run(
            [picture], decision.mode, None, told, refresh=chooses(decision.policy), place=place
        )
        yield
        # results leave in their order: the wait for that is part of the frame's time
        total_s = max(report.total_s, time.monotonic() - began)
        offloaded.pace.note(report)
        exact = report.mode is not Mode.SPLIT
        if carried is not None:
            carried.came(number, outputs, taken)
        say(
            frame=number,
            t=taken,
            total_s=total_s,
            mode=report.mode.value,
            asked=decision.mode.value,
            why=decision.reason,
            hedged=report.hedged,
            round_trips=report.round_trips,
            way_s=[report.stages_s["uplink"], report.stages_s["downlink"]],
            behind_s=report.behind_s,
            equal=right(outputs, number, exact),
            compute_s=report.stages_s["compute_robot"],
            reason=report.fallback_reason,
            forecast_s=forecast.latency_s if forecast is not None and forecast.known else None,
            forecast_error_s=forecast.error_s if forecast is not None and forecast.known else None,
            worst_s=max((other.latency_s for other in situation.forecasts.values() if other.known), default=None),
            uplink=reading.uplink,
            downlink=reading.downlink,
            scheduling_s=client.scheduling_s,
        )
        results.append(number)

    def right(outputs: Any, number: int, exact: bool = remote is not Mode.SPLIT) -> bool:
        wanted = expected[number % len(pictures)]
        if len(outputs) != len(wanted):
            return False
        if exact:
            return all(torch.equal(one, other) for one, other in zip(outputs, wanted))
        return all(
            bool((one - other).abs().max() <= TOLERANCE * other.abs().max()) for one, other in zip(outputs, wanted)
        )

    slot: LatestFrameQueue[int] = LatestFrameQueue()
    carried: Optional[Carried] = Carried(slot, 1 / args.fps, right) if args.carry else None
    results: List[int] = []
    captured: Dict[int, float] = {}
    if args.accuracy is not None:
        assert carried is not None, "--accuracy needs --carry"
        promise = offloaded.follow(PromisePolicy(args.accuracy, habits=LOSES))

        def wanted(number: int) -> bool:
            assert carried is not None
            assert promise is not None
            captured[number] = carried.received_s[number]
            if promise.wants(captured[number]):
                return True
            del captured[number]
            return False

        slot.wanted = wanted
    lanes = Lanes(
        slot, work, lambda number, error: failed.append(f"frame {number}: {error!r}"), offloaded.row,
        lambda taken_s: offloaded.pace.wait_s(time.monotonic(), asked[0], taken_s), args.in_flight, "frames",
        lambda: pin(threads=1),
    )  # fmt: skip
    camera = Camera(args.fps, carried or slot)
    say(ready=True, local_s=local_s, t=time.monotonic())
    lanes.start()
    if carried is not None:
        carried.events.start()
    camera.start()
    sys.stdin.read()
    camera.stop()
    drained, found = lanes.drain(READY_S), slot.counts
    counts = {
        "published": found.offered, "taken": found.taken, "superseded": found.superseded, "results": len(results),
    }  # fmt: skip
    if carried is not None:
        drained = carried.events.drain(READY_S) and drained
        came = carried.frames.counts
        say(carried=carried.left, offered=came.offered, taken=came.taken, superseded=came.superseded)
        failed += carried.failed
    followed = 0 if promise is None else promise.policy.followed
    say(summary=counts, probes=prober.sent, clock=client.clock.warning, followed=followed)
    prober.close()
    client.close()
    offloaded.close()
    print("\n".join(failed), file=sys.stderr)
    return 0 if drained and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
