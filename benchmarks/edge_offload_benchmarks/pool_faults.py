"""``bench pool --faults``: what becomes of requests that are under way when a part of an emulated pool fails, on Ray.

GPUs are emulated, so that many batches are under way; processes are killed and stopped from outside. The driver says
how each batch stood that was under way then and could not go on where it was. One *could* be in time elsewhere if its
deadline leaves time for what is left of it at another worker of its stage, or for another route from its inputs, from
when the failure could be known: when the call is overdue (by half of its time, 50 ms at least), or at the driver's
notice where that was earlier; each call as late as half of the calls were before. Its last tensors may be in the failed
machine's store (a killed actor leaves that): then from its inputs alone. Each batch is judged as if it were the only
one.
"""

from __future__ import annotations

import contextlib
import math
import pathlib
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np
import psutil

from edge_offload.errors import BadInput
from edge_offload.server.pool import profile, simulate
from edge_offload.server.pool.dispatch import OVERDUE_GRACE_S
from edge_offload_benchmarks.chaos.robot import MODEL
from edge_offload_benchmarks.pool_real import LOST_S, ROBOTS, START_S, emulated_profile
from edge_offload_benchmarks.processes import Process, Server, introduce_robots

if TYPE_CHECKING:
    from edge_offload_benchmarks.pool_rig import Pool

#: Share of frames under way that could be in time elsewhere, and have to be.
MIN_SHARE = 0.95
#: Machines of each class.
MACHINES = 3
#: Stages of a pipeline, at most.
CALLS = 3
#: In units of the deadline: load before a fault, and after it.
BEFORE, AFTER = 1.0, 2.0


def measure_faults(
    folder: pathlib.Path, name: str, gpus: Mapping[str, int], times: float, load: float, repeat: int, seed: int
) -> List[Dict[str, Any]]:
    """A row for each kind of fault.

    Args:
        folder: of profiles.
        name: of the network.
        gpus: how many of each class, shared out among machines; the last class is harmed.
        times: dilation.
        load: share of the planned rate.
        repeat: faults of each kind.
        seed: of arrivals.
    """
    from edge_offload_benchmarks.pool_rig import Pool

    profiles = profile.load_profiles(folder)
    if name not in profiles or any(gpu not in profiles[name].latency_s for gpu in gpus):
        raise BadInput(f"{folder} has no {name or 'network'} on {', '.join(gpus)}", remedy="say --faults NAME")
    if any(count % MACHINES for count in gpus.values()):
        raise BadInput(f"GPUs of a class are shared out among {MACHINES} machines", remedy=f"multiples of {MACHINES}")
    slo_s = 5 * min(float(shares[1][:, 0].sum()) for shares in profiles[name].latency_s.values()) * times
    rows = []
    with Pool() as pool:
        emulated_profile(pool, profiles[name])
        members = []
        for gpu, count in gpus.items():
            arguments = ["--gpus", str(count // MACHINES), "--emulated", str(pool.profiles), "--times", repr(times)]
            members += [pool.join_pool(gpu, *arguments, wait=False) for _ in range(MACHINES)]
        pool.wait_joined()
        root = pool.root / "keys"
        public, stores = introduce_robots(root, [f"robot{number}" for number in range(ROBOTS)])
        options = ["--keys", str(root / "server"), "--allow", MODEL, "--queue", "1024"]
        with Server(*options, *pool.server_options(MODEL, slo_s)) as server:
            for store in stores.values():
                store.trust_server(server.address, public)
            command = [sys.executable, "-m", "edge_offload_benchmarks.pool_real", server.address, str(root)]
            with Process(command) as robots:
                for kind in KINDS:
                    faults = []
                    for number in range(repeat):
                        rate = pool.wait_workers(gpus, START_S)["rate"]
                        at_s = simulate.poisson_arrivals(
                            rate * load, slo_s * (BEFORE + AFTER), np.random.default_rng([seed, number])
                        )
                        faults.append(_measure_fault(pool, members[-1], robots, at_s.tolist(), slo_s, kind))
                    sums = _sum_faults(faults)
                    sums["beyond_s"] /= repeat
                    rows.append({"fault": kind, "slo_s": slo_s, "load": load, "faults": repeat, **sums})
                    print(f"{kind}: {rows[-1]['did']} of {rows[-1]['could']} that could be in time", flush=True)
                robots.end()
    return rows


def _measure_fault(
    pool: Pool, victim: Process, robots: Process, at_s: List[float], slo_s: float, kind: str
) -> Dict[str, Any]:
    """One fault under load: what the robots got, and what the driver says of batches that were under way."""
    harm, mend, loses = KINDS[kind]
    answers: List[Dict[str, Any]] = []
    load = threading.Thread(target=lambda: answers.append(robots.request_answer({"at": at_s}, at_s[-1] + 2 * LOST_S)))
    load.start()
    time.sleep(BEFORE * slo_s)
    lost = _node_of(pool, victim) if loses else ""
    beyond_s = CALLS * max(0.0, pool.read_status()["late_s"]["p50"])
    started_s = time.monotonic()
    harm(pool, victim)
    time.sleep(AFTER * slo_s)
    mend(pool, victim)
    load.join()
    time.sleep(2.0)  # the driver tells once a second
    stranded = [each for each in pool.read_status()["stranded"] if each["began"] <= started_s <= each["noticed"]]
    latencies_s = answers[0]["took_s"]
    could = [each for each in stranded if could_be_in_time(each, started_s, lost, beyond_s)]
    for each in could:
        if not in_time(each):
            ends_s = {name: round(each[name] - started_s, 2) for name in ("noticed", "due", "deadline")}
            print(f"{kind} at {started_s:.3f}, not in time: { ({**each, **ends_s}) }", flush=True)
    return {
        "beyond_s": beyond_s,
        "requests": len(at_s),
        "in_time": sum(latency_s is not None and latency_s <= slo_s for latency_s in latencies_s),
        "refused": answers[0]["refused"],
        "failed": answers[0]["failed"],
        "lost": sum(seconds is None for seconds in latencies_s) - answers[0]["refused"] - answers[0]["failed"],
        "stranded": sum(each["requests"] for each in stranded),
        "could": sum(each["requests"] for each in could),
        "did": sum(each["requests"] for each in could if in_time(each)),
    }


def in_time(stood: Mapping[str, Any]) -> bool:
    """Return whether a batch was answered in time after all."""
    return stood["answered"] is not None and stood["answered"] <= stood["deadline"]


def could_be_in_time(stood: Mapping[str, Any], started_s: float, lost: str, beyond_s: float = 0.0) -> bool:
    """Return whether a batch could be in time elsewhere: see the module. None stands for infinite.

    Args:
        stood: as the driver tells.
        started_s: when the machine failed.
        lost: its node, if what its store holds is lost.
        beyond_s: what its calls cost beyond their time.
    """
    overdue_s = max(stood["due"], started_s) + max(OVERDUE_GRACE_S, stood["takes"] / 2)
    detected_s = min(overdue_s, stood["noticed"])
    at_lost_machine = lost and stood["at"] == lost
    free_s, restart_s = (math.inf if stood[name] is None else stood[name] for name in ("free", "anew_s"))
    free_s = math.inf if at_lost_machine else free_s
    end_s = min(max(free_s, detected_s) + stood["left_s"], detected_s + restart_s) + beyond_s
    return bool(end_s <= stood["deadline"])


def _sum_faults(faults: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    return {name: sum(fault[name] for fault in faults) for name in faults[0]}


def meets_share(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether enough were in time, and every request was answered or refused once."""
    return all(row["did"] >= MIN_SHARE * row["could"] and not row["lost"] and not row["failed"] for row in rows)


def _node_of(pool: Pool, victim: Process) -> str:
    """Return Ray's name of a machine."""
    (raylet,) = pool.list_tree(victim, "raylet/raylet")[:1]
    arguments: List[str] = raylet.cmdline()
    return next(word.partition("=")[2] for word in arguments if word.startswith("--node_id="))


def _kill_process(pool: Pool, victim: Process, word: str) -> None:
    for each in pool.list_tree(victim, word):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


def _send_signal(pool: Pool, victim: Process, number: signal.Signals) -> None:
    for each in [psutil.Process(victim.process.pid), *pool.list_tree(victim)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.send_signal(number)


def _mend_nothing(_pool: Pool, _victim: Process) -> None:
    """Leave the recovery to the pool."""


#: What is done to a machine, how it is made good, and whether what its store holds is lost meanwhile.
Act = Callable[["Pool", Process], None]
KINDS: Dict[str, Tuple[Act, Act, bool]] = {
    "actors killed": (lambda pool, victim: _kill_process(pool, victim, "ray::Member"), _mend_nothing, False),
    "raylet killed": (lambda pool, victim: _kill_process(pool, victim, "raylet/raylet"), _mend_nothing, True),
    "stopped": (
        lambda pool, victim: _send_signal(pool, victim, signal.SIGSTOP),
        lambda pool, victim: _send_signal(pool, victim, signal.SIGCONT),
        True,
    ),
}
