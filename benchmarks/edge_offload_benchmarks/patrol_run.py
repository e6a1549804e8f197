"""``bench multitask --real``: patrol.launch as a user starts it, and what its topics tell of the turns."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import tempfile
from collections import Counter
from typing import Any, Dict, Iterable, List, Tuple

from edge_offload.errors import RemoteError

RESULTS = {"people": "/kapao/people", "scene": "/agrnav/semantic_grid"}
TOPICS = (*RESULTS.values(), "/offload/drop", "/offload/turn_taken")
#: Beyond the seconds measured: start and end of a launch, and of the recording of its topics.
AROUND_S, ENDS_S = 150.0, 20.0


def run_patrol(seconds: float, port: int = 11951) -> Dict[str, Dict[str, Any]]:
    """Run it for so many seconds of results: by task, the summary of :func:`read_messages`.

    Raises:
        RemoteError: it told nothing of a task.
    """
    with tempfile.TemporaryDirectory() as folder:
        bag = pathlib.Path(folder) / "run.bag"
        environment = {**os.environ, "ROS_MASTER_URI": f"http://127.0.0.1:{port}"}
        arguments = {"duration": f"{seconds:g}", "directory": folder, "port": f"{port + 1}", "link_port": f"{port + 2}"}
        command = ["roslaunch", "-p", str(port), "edge_offload", "patrol.launch"]
        command += [f"{name}:={value}" for name, value in arguments.items()]
        recorder = subprocess.Popen(
            ["rosbag", "record", "-O", str(bag), *TOPICS],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                timeout=seconds + AROUND_S, check=False,
            )  # fmt: skip
        finally:
            recorder.send_signal(signal.SIGINT)
            recorder.wait(ENDS_S)
        if not bag.exists():
            raise RemoteError(f"patrol.launch told nothing: {done.stdout[-500:]}")
        import rosbag

        with rosbag.Bag(str(bag)) as opened:
            return read_messages((topic, message, when.to_nsec()) for topic, message, when in opened.read_messages())


def read_messages(messages: Iterable[Tuple[str, Any, int]]) -> Dict[str, Dict[str, Any]]:
    """Summarise topics, messages and arrivals (ns) by task: results by origin, age, turns and drops.

    Raises:
        RemoteError: nothing came of a task.
    """
    stale: Dict[str, List[float]] = {task: [] for task in RESULTS}
    origins: Dict[str, Counter[str]] = {task: Counter() for task in RESULTS}
    drops: Dict[str, List[Tuple[float, float]]] = {task: [] for task in RESULTS}
    turn_s: Dict[str, List[float]] = {task: [] for task in RESULTS}
    stamps: List[int] = []
    for topic, message, when in messages:
        stamp = message.header.stamp.to_nsec()
        if topic in RESULTS.values():
            task = next(name for name, its in RESULTS.items() if its == topic)
            origins[task][message.result.origin] += 1
            stamps.append(stamp)
            if message.result.origin in ("fresh", "carried"):
                stale[task].append((stamp - message.result.seen.to_nsec()) / 1e9)
        elif topic == "/offload/drop" and message.task in drops:
            drops[message.task].append((message.drop, message.staleness.to_sec()))
        elif topic == "/offload/turn_taken" and message.state == message.ENDED and message.task in turn_s:
            turn_s[message.task].append((when - stamp) / 1e9)
    lasted = (max(stamps, default=0) - min(stamps, default=0)) / 1e9
    by_task = {}
    for task in RESULTS:
        if not stale[task] or not drops[task] or not turn_s[task] or lasted <= 0:
            raise RemoteError(f"patrol.launch: nothing was carried of the task {task}")
        by_task[task] = {
            "results_by_origin": dict(origins[task].most_common()),
            "stale_s": _mean_or_nan(stale[task]),
            "turns_per_s": len(turn_s[task]) / lasted,
            "latency_s": _mean_or_nan(turn_s[task]),
            "compared": len(drops[task]),
            "drop": _mean_or_nan([drop for drop, _ in drops[task]]),
            "drop_stale_s": _mean_or_nan([age for _, age in drops[task]]),
        }
    return by_task


def _mean_or_nan(values: List[float]) -> float:
    return sum(values) / len(values)
