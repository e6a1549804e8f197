"""A rig whose server has its model computed by a pool of GPUs, and harm to the pool's processes.

Members compute for real, on one thread each; that they are of two classes is this rig's saying, so that the plan has
two stages: one machine has an L4, the other, which is harmed, a P4. What is left is another plan.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time
from typing import Any, Callable, List, Mapping, Sequence

import numpy as np
import psutil

from edge_offload.errors import LinkLost, Unsupported
from edge_offload.server.pool import cluster, profile
from edge_offload_benchmarks.chaos.net import SIZE
from edge_offload_benchmarks.chaos.rig import Rig
from edge_offload_benchmarks.chaos.robot import MODEL
from edge_offload_benchmarks.pool_rig import Pool
from edge_offload_benchmarks.ports import lasting_port
from edge_offload_benchmarks.processes import Process, Server, edge_offload

SLO_S = 0.5
#: What the rig says blocks take, over what they were measured to: each class is good at one half.
GOOD, BAD = 20.0, 60.0
GPUS = {"L4": 1, "P4": 1}
#: Seconds until a plan serves.
SERVES_S = 120.0
#: Seconds in which a head that was killed has to be replaced, with all members.
HEAD_S = 30.0
#: A member that has this file beside its keys answers with too few bytes.
WRONG = "wrong"
_SABOTAGE = """
import os, pathlib
from edge_offload.server.pool import member
_run = member.Member.run
def run(self, *given):
    took, found = _run(self, *given)
    if pathlib.Path(os.environ["EDGE_OFFLOAD_CHAOS_WRONG"]).exists():
        found = [(dtype, shape, order, raw[:-4].copy()) for dtype, shape, order, raw in found]
    return took, found
member.Member.run = run
"""


class PooledRig(Rig):
    """See :class:`~edge_offload_benchmarks.chaos.rig.Rig`.

    Args:
        robot_options: further arguments of the robot.
        apart: put the P4 into a network namespace.

    Raises:
        Unsupported: no Ray, or no network namespaces where they are needed.
    """

    #: Of each class.
    gpus = 1
    pool: Pool
    victim: Process
    wrong: pathlib.Path

    def __init__(self, robot_options: Sequence[str], isolated: bool = False) -> None:
        why = cluster.unavailable_reason()
        if why:
            raise Unsupported(why)
        self._link = Link() if isolated else None
        super().__init__(["--slowdown", "160", *robot_options])
        self.pool = Pool(host=self._link.near if self._link else "127.0.0.1")

    def __enter__(self) -> PooledRig:
        try:
            self.pool.__enter__()
            self._write_profile()
            sabotage = self.pool.root / "sabotage"
            sabotage.mkdir()
            (sabotage / "sitecustomize.py").write_text(_SABOTAGE, encoding="utf-8")
            self.wrong = self.pool.root / WRONG
            path = os.pathsep.join(filter(None, [str(sabotage), os.environ.get("PYTHONPATH", "")]))
            spoilt = {"PYTHONPATH": path, "EDGE_OFFLOAD_CHAOS_WRONG": str(self.wrong)}
            count = ["--gpus", str(self.gpus), "--device", "cpu"]
            self.pool.join_pool("L4", *count, wait=False)
            prefix = self._link.prefix if self._link else []
            keys = self._copy_keys() if self._link else None
            self.victim = self.pool.join_pool("P4", *count, wait=False, environment=spoilt, prefix=prefix, keys=keys)
            self.pool.wait_joined()
            self._server_options = [*self._server_options, *self.pool.server_options(MODEL, SLO_S)]
            super().__enter__()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.ExitStack() as stack:
            if self._link is not None:
                stack.callback(self._link.close)
            stack.callback(self.pool.__exit__)
            stack.callback(super().__exit__)

    def start_server(self, bind: str) -> Server:
        """Start a server with a pool that serves."""
        server = super().start_server(bind)
        self.pool.wait_workers(GPUS, SERVES_S)
        return server

    def set_link_down(self, down: bool) -> None:
        """The link of the member in a namespace."""
        assert self._link is not None
        self._link.set_down(down)

    def _copy_keys(self) -> pathlib.Path:
        """Copy the head's keys for the separate machine, which makes its own certificate."""
        return pathlib.Path(shutil.copytree(self.pool.keys, self.pool.root / "apart"))

    def _write_profile(self) -> None:
        command = ["pool", "profile", MODEL, "--input", f"uint8[3,{SIZE},{SIZE}]", "--batches", "1", "--blocks", "4"]
        command += ["--class", "L4", "--device", "cpu", "--out", str(self.pool.profiles)]
        with Process(edge_offload(*command)) as measured:
            measured.wait_line("", 60.0)
            measured.end(60.0)
        network = profile.load_profiles(self.pool.profiles)[MODEL]
        taken = network.latency_s["L4"][1]
        first = np.arange(len(taken))[:, None] < len(taken) // 2
        tables = {"L4": {1: taken * np.where(first, BAD, GOOD)}, "P4": {1: taken * np.where(first, GOOD, BAD)}}
        profile.save_profiles(self.pool.profiles, {MODEL: profile.BlockProfile(MODEL, tables, network.cut_bytes)})


class FrontsRig(PooledRig):
    """Two servers in front of one pool, with a GPU of each class for each of them.

    No link is emulated: an emulator goes on taking connections to a server that is dead, which no machine does.
    """

    gpus = 2
    second: Server

    def start_server(self, bind: str) -> Server:
        """One of them; the pool is waited for when there are both."""
        return Rig.start_server(self, bind)

    def list_servers(self) -> List[str]:
        """Both, once both serve."""
        self.second = self.start_server(f"tcp://127.0.0.1:{lasting_port()}")
        self.second.wait_line("listening on ")
        self.serve_both()
        return [self.server.address, self.second.address]

    def __exit__(self, *_: Any) -> None:
        if hasattr(self, "second"):
            self.second.send_signal(signal.SIGCONT)
            self.second.kill()
        super().__exit__()

    def serve_both(self) -> None:
        """Until each has its part of the pool.

        Raises:
            LinkLost: one has not.
        """
        ends = time.monotonic() + SERVES_S
        while time.monotonic() < ends:
            serving = [each for each in self.pool.read_statuses() if str(each["why"]).endswith("for 1 L4, 1 P4")]
            if len(serving) == len([stages for each in serving if (stages := _workers_ready(each))]) == 2:
                return
            time.sleep(0.2)
        raise LinkLost(f"two servers do not share the pool: {[each['why'] for each in self.pool.read_statuses()]}")

    def find_used_server(self) -> Server:
        """The one that answers the robot."""
        before = {each["pid"]: each["requests"] for each in self.pool.read_statuses()}
        time.sleep(2.5)
        more = {each["pid"]: each["requests"] - before.get(each["pid"], 0) for each in self.pool.read_statuses()}
        drivers = {each.pid for each in self.pool.list_tree(self.second, "server.pool.gateway")}
        return self.second if max(more, key=lambda pid: more[pid]) in drivers else self.server

    def replace_server(self, server: Server) -> None:
        """Another one in the place of one that has ended."""
        server.kill()
        if server is self.server:
            self.restart_server()
        else:
            self.second = self.start_server(self.second.address)
            self.second.wait_line("listening on ")


def _workers_ready(status: Mapping[str, Any]) -> bool:
    return bool(status["stages"]) and all(stage["workers_there"] == stage["workers"] for stage in status["stages"])


def _harm_front(what: Callable[[FrontsRig, Server], None], mend: Callable[[FrontsRig, Server], None]) -> Any:
    """Harm to the server that the robot uses."""

    def harm(rig: FrontsRig, hold_s: float) -> None:
        rig.serve_both()
        server = rig.find_used_server()
        rig.mark_time("fault")
        what(rig, server)
        time.sleep(hold_s)
        mend(rig, server)
        rig.mark_time("restored")

    return harm


def _drain_server(_: FrontsRig, server: Server) -> None:
    subprocess.run(edge_offload("serve", "--drain", "--bind", server.address), check=True, timeout=60.0)


class Link:
    """A pair of interfaces between this machine and a network namespace.

    Raises:
        Unsupported: not as root, or not here.
    """

    def __init__(self) -> None:
        number = os.getpid() % 250
        self.name = f"eopool{os.getpid()}"
        self.near, self._far = f"10.77.{number}.1", f"10.77.{number}.2"
        self.prefix = ["ip", "netns", "exec", self.name]
        self._device = f"eop{os.getpid()}"[:14]
        if shutil.which("ip") is None or os.geteuid() != 0:
            raise Unsupported("cutting a link between members needs root and network namespaces (ip netns)")
        commands = [
            ["netns", "add", self.name],
            ["link", "add", self._device, "type", "veth", "peer", "name", "eth0", "netns", self.name],
            ["addr", "add", f"{self.near}/24", "dev", self._device],
            ["link", "set", self._device, "up"],
            ["-n", self.name, "addr", "add", f"{self._far}/24", "dev", "eth0"],
            ["-n", self.name, "link", "set", "eth0", "up"],
            ["-n", self.name, "link", "set", "lo", "up"],
        ]
        for each in commands:
            done = subprocess.run(["ip", *each], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self.close()
                raise Unsupported(f"no network namespace can be made here: {done.stderr.strip()}")

    def set_down(self, down: bool) -> None:
        """Cut it, or mend it."""
        subprocess.run(["ip", "link", "set", self._device, "down" if down else "up"], check=True)

    def close(self) -> None:
        """Take namespace and interfaces away."""
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._device], capture_output=True, check=False)


def _kill_process(pool: Pool, process: Process, word: str) -> None:
    processes = pool.list_tree(process, word)
    assert processes, f"nothing runs {word}"
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def _harm_pool(what: Callable[[PooledRig], None], mend: Callable[[PooledRig], None], least_s: float = 0.0) -> Any:
    def harm(rig: PooledRig, hold_s: float) -> None:
        rig.pool.wait_workers(GPUS, SERVES_S)
        time.sleep(1.0)
        rig.mark_time("fault")
        what(rig)
        time.sleep(max(hold_s, least_s))
        mend(rig)
        rig.mark_time("restored")

    return harm


def _mend_nothing(_: PooledRig) -> None:
    """Leave the recovery to the pool."""


def _send_signal(rig: PooledRig, number: signal.Signals) -> None:
    for each in [psutil.Process(rig.victim.process.pid), *rig.pool.list_tree(rig.victim)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(number)


kill_front = _harm_front(lambda _, server: server.kill(), lambda rig, server: rig.replace_server(server))
drain_front = _harm_front(_drain_server, lambda rig, server: rig.replace_server(server))
freeze_front = _harm_front(
    lambda _, server: server.send_signal(signal.SIGSTOP), lambda _, server: server.send_signal(signal.SIGCONT)
)
kill_actor = _harm_pool(lambda rig: _kill_process(rig.pool, rig.victim, "ray::Member"), _mend_nothing)
kill_node = _harm_pool(lambda rig: _kill_process(rig.pool, rig.victim, "raylet/raylet"), _mend_nothing)
freeze_node = _harm_pool(lambda rig: _send_signal(rig, signal.SIGSTOP), lambda rig: _send_signal(rig, signal.SIGCONT))
kill_head = _harm_pool(lambda rig: _kill_process(rig.pool, rig.pool.head, "gcs_server"), _mend_nothing, HEAD_S + 5.0)
kill_driver = _harm_pool(lambda rig: _kill_process(rig.pool, rig.server, "server.pool.gateway"), _mend_nothing)
cut_link = _harm_pool(lambda rig: rig.set_link_down(True), lambda rig: rig.set_link_down(False))
wrong_sizes = _harm_pool(lambda rig: rig.wrong.touch(), lambda rig: rig.wrong.unlink())
