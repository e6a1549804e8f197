"""The faults: each function does harm to a :class:`~edge_offload_benchmarks.chaos.rig.Rig` and makes it good again."""

from __future__ import annotations

import atexit
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple

from edge_offload.errors import Unsupported
from edge_offload_benchmarks.chaos import pooled
from edge_offload_benchmarks.chaos.rig import MBPS, RTT_S, Rig
from edge_offload_benchmarks.chaos.verdict import FAULT_S

HOUR_S = 3600.0
#: Seconds without a result of the server that the loss of a member of a pool may cost.
BACK_S = 2.0


@dataclass(frozen=True)
class Scenario:
    """One fault.

    Attributes:
        what: it does, in a line.
        harm: called with (rig, hold_s); marks ``fault`` and ``restored``.
        outage: whether nothing can be computed remotely meanwhile: then frames must cost no more than local ones.
        allows_s: what a frame in the fault may cost more than a local one (99th percentile).
        stands_still: whether the robot's process does nothing meanwhile: no frame can leave.
        robot_options: of the robot's process.
        server_prefix: makes the words before the server's command; raises Unsupported where it cannot.
        gap_s: seconds that may pass without a result of the server, from the fault on; 0: what counts is the time from
            its end. Such a server has a pool of GPUs.
        isolated: a member of the pool is in a network namespace.
        fronts: two servers share the pool.
        clocks: whether robot and server have wall clocks of their own, that can be stepped.
    """

    what: str
    harm: Callable[[Any, float], None]
    outage: bool = False
    allows_s: float = FAULT_S
    stands_still: bool = False
    robot_options: Tuple[str, ...] = ()
    server_prefix: Callable[[], Sequence[str]] = tuple
    clocks: bool = False
    gap_s: float = 0.0
    isolated: bool = False
    fronts: bool = False

    def make_rig(self, robot_options: Sequence[str], level: str = "tcp") -> Rig:
        """Make the rig that the scenario needs; a pool's has a link of the level tcp."""
        if self.fronts:
            return pooled.FrontsRig(robot_options)
        if self.gap_s:
            return pooled.PooledRig(robot_options, self.isolated)
        return Rig(robot_options, self.server_prefix(), self.clocks, level)


def _cut_link(how: str) -> Callable[[Rig, float], None]:
    def harm(rig: Rig, hold_s: float) -> None:
        rig.mark_time("fault")
        rig.emulator.cut(how)
        if how != "reset":
            time.sleep(hold_s)
            rig.emulator.restore()
        rig.mark_time("restored")

    return harm


def _stall_link(rig: Rig, hold_s: float) -> None:
    rig.mark_time("fault")
    for fraction in (0.01, 0.1):
        rig.emulator.stalls(fraction, 0.2)
        time.sleep(hold_s / 2)
    rig.emulator.stalls(0.0, 0.0)
    rig.mark_time("restored")


def _collapse_bandwidth(rig: Rig, hold_s: float) -> None:
    rig.mark_time("fault")
    rig.emulator.set(mbps=0.0)
    time.sleep(hold_s)
    rig.emulator.set(mbps=MBPS)
    rig.mark_time("restored")


def _lengthen_delay(rig: Rig, hold_s: float) -> None:
    rig.mark_time("fault")
    rig.emulator.set(rtt_s=0.2)
    time.sleep(hold_s)
    rig.emulator.set(rtt_s=RTT_S)
    rig.mark_time("restored")


def _kill_server(rig: Rig, hold_s: float) -> None:
    rig.mark_time("fault")
    rig.server.kill()
    time.sleep(hold_s)
    rig.restart_server()
    rig.mark_time("restored")


def _server_out_of_memory(rig: Rig, hold_s: float) -> None:
    rig.mark_time("fault")
    pid = rig.server.process.pid
    with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
        size = int(stream.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    # not a byte more than it has now
    resource.prlimit(pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    time.sleep(hold_s)
    if rig.server.alive:
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    # as its supervisor would, had the kernel ended it
    rig.restart_server()
    rig.mark_time("restored")


def _suspend_robot(rig: Rig, _hold_s: float) -> None:
    rig.mark_time("fault")
    rig.robot.send_signal(signal.SIGSTOP)
    time.sleep(5.0)
    rig.robot.send_signal(signal.SIGCONT)
    rig.mark_time("restored")


def _corrupt_bytes(rig: Rig, hold_s: float) -> None:
    rig.mark_time("fault")
    for _ in range(4):
        rig.emulator.corrupt(1)
        time.sleep(hold_s / 4)
    rig.mark_time("restored")


def _replay_traffic(rig: Rig, hold_s: float) -> None:
    rig.mark_time("fault")
    for _ in range(4):
        rig.emulator.replay(1)
        time.sleep(hold_s / 4)
    rig.mark_time("restored")


def _step_clocks(rig: Rig, hold_s: float) -> None:
    rig.mark_time("fault")
    for side, offset_s in (("robot", HOUR_S), ("server", HOUR_S), ("robot", -HOUR_S), ("server", -HOUR_S)):
        rig.clocks[side].step(offset_s)
        time.sleep(max(2.0, hold_s / 4))
    rig.mark_time("restored")


def _do_nothing(rig: Rig, hold_s: float) -> None:
    rig.mark_time("fault")
    time.sleep(hold_s)
    rig.mark_time("restored")


def _full_disk() -> Sequence[str]:
    """Words that run a command with a full file system in the place of its cache."""
    place = tempfile.mkdtemp(prefix="edge_offload_full_")
    mount = f"mount -t tmpfs -o size=4k none {place}"
    probe = ["unshare", "-m", "sh", "-c", mount]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        os.rmdir(place)
        raise Unsupported("a full disk needs root and mount namespaces (unshare -m)")
    # the mount is gone with the process; the directory is empty then, and needed for the next start of the server
    atexit.register(os.rmdir, place)
    script = f'{mount}; head -c 4096 /dev/zero >{place}/full; exec "$@"'
    caches = [f"EDGE_OFFLOAD_CACHE={place}", f"XDG_CACHE_HOME={place}"]
    return ["unshare", "-m", "env", *caches, "sh", "-c", script, "sh"]


SCENARIOS: Dict[str, Scenario] = {
    "calm": Scenario("no fault: frames go to the server, few are hedged", _do_nothing),
    "blackhole": Scenario("nothing passes, nobody is told", _cut_link("blackhole"), outage=True),
    "reset": Scenario("every connection is reset", _cut_link("reset")),
    "half_open": Scenario("the server's ends are reset, the robot is not told", _cut_link("half_open"), outage=True),
    "stalls": Scenario(
        "1 % then 10 % of the chunks hold up the link for 0.2 s, as loss does",
        _stall_link,
        allows_s=2 * FAULT_S,  # the link is there between stalls: each is waited for until the frame is late
    ),
    "rate_collapse": Scenario("the bandwidth falls to 0", _collapse_bandwidth, outage=True),
    "rtt": Scenario("the round trip time rises from 2.6 to 200 ms", _lengthen_delay),
    "server_kill": Scenario("the server is killed in mid-inference and comes back", _kill_server, outage=True),
    "server_oom": Scenario("the server gets no more memory, is restarted", _server_out_of_memory),
    "robot_suspended": Scenario("the robot's process stands still for 5 s", _suspend_robot, stands_still=True),
    "corrupt": Scenario("bytes on the way to the server are flipped", _corrupt_bytes),
    "replayed": Scenario("what the robot sent earlier is sent again", _replay_traffic),
    "clock_steps": Scenario(
        "the wall clocks of robot and server jump by an hour and back",
        _step_clocks,
        robot_options=("--slowdown", "160"),  # a clock of its own costs a process time, mode split most
        clocks=True,
    ),
    "disk_full": Scenario("the server's cache is on a full disk", _do_nothing, server_prefix=_full_disk),
    "two_managers": Scenario(
        "three managers ask for different modes in turn", _do_nothing, robot_options=("--managers", "2")
    ),
    "pool_actor": Scenario("a member's process is killed", pooled.kill_actor, gap_s=BACK_S),
    "pool_node": Scenario("a member's raylet is killed", pooled.kill_node, gap_s=BACK_S),
    "pool_frozen": Scenario("all processes of a member stand still", pooled.freeze_node, gap_s=BACK_S),
    "pool_head": Scenario("the head's store (GCS) is killed", pooled.kill_head, gap_s=pooled.HEAD_S),
    "pool_gateway": Scenario("the pool's driver is killed", pooled.kill_driver, gap_s=pooled.HEAD_S),
    "pool_link": Scenario("the link between members is cut", pooled.cut_link, gap_s=BACK_S, isolated=True),
    "pool_sizes": Scenario("a member answers with wrong sizes", pooled.wrong_sizes, gap_s=pooled.HEAD_S),
    "pool_front_killed": Scenario(
        "of two servers in front of a pool, the one in use is killed", pooled.kill_front, gap_s=BACK_S, fronts=True
    ),
    "pool_front_drained": Scenario("… is drained, as for an update", pooled.drain_front, gap_s=BACK_S, fronts=True),
    "pool_front_frozen": Scenario("… stands still", pooled.freeze_front, gap_s=BACK_S, fronts=True),
}


def list_scenarios(mode: str, level: str = "tcp") -> List[str]:
    """Scenarios that a robot in ``mode`` is put through: a pool computes in mode ``server``, over a proxy."""
    return [name for name, each in SCENARIOS.items() if not each.gap_s or (mode == "server" and level == "tcp")]
