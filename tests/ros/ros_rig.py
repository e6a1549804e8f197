"""Parts of a ROS graph for tests: nodes as real processes, messages counted outside of them, waiting."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict

import pytest

from edge_offload_benchmarks.ports import lasting_port

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


def free_port() -> int:
    """For who binds it later, or again: no outgoing connection takes it meanwhile."""
    return lasting_port()


def wait_for(condition, what: str, timeout_s: float = 60.0):
    """The first true value of ``condition()``; fails after ``timeout_s``."""
    ends = time.monotonic() + timeout_s
    while time.monotonic() < ends:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    pytest.fail(f"{what} did not happen within {timeout_s:g} s")


def wait_for_readers(*publishers, timeout_s: float = 90.0) -> None:
    """Until each of the publishers has a subscriber that reads."""
    for publisher in publishers:
        wait_for(publisher.get_num_connections, f"a subscriber of {publisher.name}", timeout_s)
    # rospy counts a connection before its other end reads
    time.sleep(0.5)


class Listener:
    """Collects every message of a topic."""

    def __init__(self, topic, kind) -> None:
        import rospy

        self.messages = []
        self._lock = threading.Lock()
        self._subscriber = rospy.Subscriber(topic, kind, self._on, queue_size=1000, buff_size=2**24)

    def _on(self, message) -> None:
        with self._lock:
            self.messages.append(message)

    def __len__(self) -> int:
        return len(self.messages)

    @property
    def connected(self) -> bool:
        return self._subscriber.get_num_connections() > 0

    def by_stamp(self):
        messages_of = defaultdict(list)
        for message in list(self.messages):
            messages_of[message.header.stamp.to_nsec()].append(message)
        return messages_of

    def close(self) -> None:
        self._subscriber.unregister()


class Process:
    """A node as a process of its own."""

    def __init__(self, name: str, command, environment) -> None:
        self.name = name
        # as in a user's shell: with it, a test would see lines that wait in a pipe's buffer elsewhere
        environment = {key: value for key, value in environment.items() if key != "PYTHONUNBUFFERED"}
        self._popen = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._popen.stdout:
            self.output += line

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def signal(self, number) -> None:
        self._popen.send_signal(number)

    def wait(self, timeout_s: float = 60.0) -> int:
        code = self._popen.wait(timeout_s)
        self._reader.join(60)
        return code

    def stop(self) -> int:
        """As roslaunch does it."""
        if self.running:
            self.signal(signal.SIGINT)
        try:
            return self.wait(90)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            raise


class Graph:
    """Nodes and topics of one test, in a namespace of their own."""

    def __init__(self, namespace: str, keys: pathlib.Path) -> None:
        from diagnostic_msgs.msg import DiagnosticArray

        self.ns = namespace
        self.keys = keys
        self._processes = []
        self._listeners = []
        self._diagnostics = self._register(Listener("/diagnostics", DiagnosticArray))

    def _register(self, listener):
        self._listeners.append(listener)
        return listener

    def node(self, kind: str, name: str = "", prefix=(), arguments=(), **params) -> Process:
        """Start ``kind`` (of scripts/) with private parameters, under a name.

        ``prefix``: words before the Python; ``arguments``: after the script, such as remappings.
        """
        name = name or kind
        import rospy

        full = f"{self.ns}/{name}"
        if rospy.has_param(full):
            rospy.delete_param(full)
        for key, value in params.items():
            rospy.set_param(f"{full}/{key}", value)
        environment = {**os.environ, "PYTHONPATH": f"{FOLDER}:{os.environ.get('PYTHONPATH', '')}"}
        # as a user's shell has it: torch takes every core unless told otherwise
        command = [*prefix, sys.executable, "-X", "faulthandler", str(ROOT / "scripts" / kind)]
        command += [f"__ns:={self.ns}", f"__name:={name}", *arguments]
        process = Process(f"{full}"[1:], command, environment)
        self._processes.append(process)
        return process

    def listen(self, topic: str, kind) -> Listener:
        return self._register(Listener(f"{self.ns}/{topic}", kind))

    def publisher(self, topic: str, kind, **options):
        import rospy

        return rospy.Publisher(f"{self.ns}/{topic}", kind, queue_size=200, **options)

    def statuses(self, process: Process):
        """Everything that a node said on /diagnostics, the latest last."""
        return [
            status
            for message in list(self._diagnostics.messages)
            for status in message.status
            if status.name.startswith(f"{process.name}:")
        ]

    def has_status(self, process: Process, level: int, text: str = "") -> bool:
        """Whether the latest status of a node has this level, and these words in its message."""
        statuses = self.statuses(process)
        return bool(statuses) and statuses[-1].level == level and text in statuses[-1].message

    def complains(self, process: Process, text: str) -> bool:
        """Whether the latest status of a node is amber or red, with these words in its message."""
        return any(self.has_status(process, level, text) for level in (1, 2))

    def values(self, process: Process):
        """Figures in the latest status of a node."""
        statuses = self.statuses(process)
        return {item.key: item.value for item in statuses[-1].values} if statuses else {}

    def print_processes(self) -> None:
        """Print the end of each node's output, with the stacks of its threads if it still runs."""
        for process in self._processes:
            if process.running:
                process.signal(signal.SIGABRT)
                process.wait()
            print(f"{process.name}:", *process.output.splitlines()[-500:], sep="\n  ")

    def close(self) -> None:
        for process in reversed(self._processes):
            if process.running:
                process.stop()
        for listener in self._listeners:
            listener.close()


numbers = iter(range(10**6))
