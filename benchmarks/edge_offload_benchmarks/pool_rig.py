"""A pool on this machine for experiments: head, members, a server in front, and the processes that they consist of."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import signal
import tempfile
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

import psutil

from edge_offload.errors import LinkLost
from edge_offload.server.pool.cluster import socket_folder
from edge_offload_benchmarks.ports import lasting_port
from edge_offload_benchmarks.processes import Process, edge_offload

STORE_MB = 80


class Pool:
    """Head and members as ``edge-offload pool`` begins them; a context manager that leaves nothing running.

    Args:
        store_mb: of each machine's object store.
        host: of the head.
    """

    def __init__(self, store_mb: int = STORE_MB, host: str = "127.0.0.1") -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="edge-offload-pool-")
        self.root = pathlib.Path(self._directory.name)
        self.keys, self.profiles = self.root / "pool", self.root / "profiles"
        self.address = f"{host}:{lasting_port()}"
        self._store_mb = store_mb
        self.members: List[Process] = []

    def __enter__(self) -> Pool:
        host, port = self.address.split(":")
        self.head = self._start_process("head", "--host", host, "--port", port)
        self.head.wait_line("pool on port")
        return self

    def __exit__(self, *_: Any) -> None:
        for process in [*reversed(self.members), *([self.head] if hasattr(self, "head") else [])]:
            for each in self.list_tree(process):  # one that stands still does not end
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.resume()
            process.send_signal(signal.SIGCONT)
            process.process.terminate()
        for process in [*reversed(self.members), *([self.head] if hasattr(self, "head") else [])]:
            process.stop(30.0)
        shutil.rmtree(socket_folder(int(self.address.split(":")[1])), ignore_errors=True)
        self._directory.cleanup()

    def _start_process(
        self, *words: str, environment: Optional[Mapping[str, str]] = None, prefix: Sequence[str] = (),
        keys: Optional[pathlib.Path] = None,
    ) -> Process:  # fmt: skip
        options = ["--store-mb", str(self._store_mb), "--pool-keys", str(keys or self.keys)]
        return Process([*prefix, *edge_offload("pool", *words, *options)], environment)

    def join_pool(
        self, gpu: str, *more: str, environment: Optional[Mapping[str, str]] = None, prefix: Sequence[str] = (),
        keys: Optional[pathlib.Path] = None, wait: bool = True,
    ) -> Process:  # fmt: skip
        """A member; :meth:`wait_joined` waits until it is one, where that is not waited for here."""
        arguments = ["join", self.address, "--class", gpu, *more]
        member = self._start_process(*arguments, environment=environment, prefix=prefix, keys=keys)
        self.members.append(member)
        if wait:
            self.wait_joined()
        return member

    def wait_joined(self) -> None:
        """All members have joined."""
        for member in self.members:
            member.wait_line("joined")

    def end_members(self) -> None:
        """End all members."""
        for member in self.members:
            member.process.terminate()
        for member in self.members:
            member.stop(30.0)
        self.members = []
        for status_file in self.keys.glob("server-*.json"):
            status_file.unlink()

    def server_options(self, model: str, slo_s: float) -> List[str]:
        """Return the options of a server that serves a model by the pool."""
        return [
            "--pool", self.address, "--model", model, "--slo", repr(slo_s), "--profiles", str(self.profiles),
            "--pool-keys", str(self.keys),
        ]  # fmt: skip

    def read_status(self) -> Dict[str, Any]:
        """Read the newest status of a driver of the pool; empty before the first."""
        status_files = sorted(self.keys.glob("server-*.json"), key=lambda path: path.stat().st_mtime)
        with contextlib.suppress(IndexError, OSError, ValueError):
            return dict(json.loads(status_files[-1].read_text(encoding="utf-8")))
        return {}

    def read_statuses(self) -> List[Dict[str, Any]]:
        """Read each driver's status of the last seconds, with its ``pid``."""
        from edge_offload.server.pool import cluster

        return cluster.read_statuses(self.keys, self.address)

    def wait_workers(self, gpus: Mapping[str, int], timeout_s: float) -> Dict[str, Any]:
        """The status once a plan for so many GPUs serves, all its workers there.

        Raises:
            LinkLost: it does not.
        """
        ends = time.monotonic() + timeout_s
        classes = ", ".join(f"{count} {gpu}" for gpu, count in sorted(gpus.items()))
        while time.monotonic() < ends:
            status = self.read_status()
            stages = status.get("stages", [])
            ready = stages and all(stage["workers_there"] == stage["workers"] for stage in stages)
            if ready and str(status["why"]).endswith(f"for {classes}"):
                return status
            time.sleep(0.2)
        raise LinkLost(f"no plan for {classes} serves after {timeout_s:g} s: {self.read_status().get('why')}")

    def measure_usage(self, others: Sequence[Process]) -> Dict[str, float]:
        """Bytes of memory (a share of what is shared) and seconds of processor of head, members and others."""
        memory, cpu_s = 0, 0.0
        for process in [self.head, *self.members, *others]:
            for each in [psutil.Process(process.process.pid), *self.list_tree(process)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    memory += each.memory_full_info().pss
                    times = each.cpu_times()
                    cpu_s += times.user + times.system
        return {"memory": memory, "cpu_s": cpu_s}

    def cpu_by(self, server: Process) -> Dict[str, float]:
        """Measure processor seconds so far: of the server in front, its driver, members, and Ray around them."""
        front = psutil.Process(server.pid).cpu_times()
        spent = {"front": front.user + front.system, "driver": 0.0, "members": 0.0}
        for name, process, word in [
            ("driver", server, "server.pool.gateway"), *(("members", member, "ray::Member") for member in self.members)
        ]:  # fmt: skip
            for each in self.list_tree(process, word):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = each.cpu_times()
                    spent[name] += times.user + times.system
        spent["ray"] = self.measure_usage([server])["cpu_s"] - sum(spent.values())
        return spent

    def list_tree(self, process: Process, word: str = "") -> List[psutil.Process]:
        """Processes below one of ours whose command has this word."""
        processes = []
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in psutil.Process(process.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if word in " ".join(each.cmdline()):
                        processes.append(each)
        return processes
