"""``bench pool --real``: an emulated cluster on this machine, requests of robots through ZeroMQ, beside the simulator.

GPUs take the time of the profile, dilated so far that what Ray, the driver and the server cost is a small share of the
shortest stage; that cost is measured first, on the cluster itself, by requests that come seldom.
"""

from __future__ import annotations

import functools
import json
import math
import pathlib
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.server.pool import profile, simulate
from edge_offload.server.pool.choose import plan_steady
from edge_offload.server.pool.columns import Cluster, Demand
from edge_offload.server.pool.plan import PoolPlan
from edge_offload.server.pool.profile import dilate_network
from edge_offload.server.pool.settings import PoolSettings
from edge_offload_benchmarks.chaos.robot import MODEL
from edge_offload_benchmarks.processes import Process, Server, introduce_robots

if TYPE_CHECKING:
    from edge_offload.server.pool.profile import BlockProfile
    from edge_offload_benchmarks.pool_rig import Pool

#: What a robot sends: 248,832 bytes.
SHAPE = (3, 288, 288)
ROBOTS = 16
#: Largest share of the shortest stage that a stage may cost beyond its time.
SHARE = 0.02
#: Requests, a quarter as often as the plan serves, from which the cost is taken.
SINGLE_FRAMES = 40
START_S = 180.0
#: Frames a second from which a frame's cost is taken, and at which it is told beside.
SELDOM, OFTEN = 20, 100
#: Of a request that is not answered.
LOST_S = 60.0


def measure_pool(folder: pathlib.Path, name: str, gpus: Dict[str, int], times: float, load: float, seconds: float,
            seed: int) -> Dict[str, Any]:  # fmt: skip
    """The record of one run.

    Args:
        folder: of profiles.
        name: of the network.
        gpus: how many of each class; one emulated machine for each class.
        times: least dilation.
        load: share of the planned rate.
        seconds: of load.
        seed: of arrivals.
    """
    from edge_offload_benchmarks.pool_rig import Pool

    profiles = profile.load_profiles(folder)
    if name not in profiles or any(gpu not in profiles[name].latency_s for gpu in gpus):
        raise BadInput(f"{folder} has no {name or 'network'} on {', '.join(gpus)}", remedy="say --network NAME")
    network = profiles[name]
    fastest_s = min(float(shares[1][:, 0].sum()) for shares in network.latency_s.values())
    with Pool(store_mb=512) as pool:
        served = emulated_profile(pool, network)
        while True:
            slo_s = 5 * fastest_s * times
            plan, cluster = _make_plan(dilate_network(served, times), gpus, slo_s, times)
            shortest_s = min(
                float(stage_s[stage.batch - 1])
                for one in plan.pipelines for stage in one.stages
                for dilated in [dilate_network(served, times)]
                for stage_s in [dilated.stage_seconds(stage.gpu, stage.parts, stage.first, stage.end)]
            )  # fmt: skip
            for gpu, count in gpus.items():
                pool.join_pool(gpu, "--gpus", str(count), "--emulated", str(pool.profiles), "--times", repr(times))
            emulated = dilate_network(served, times)
            outcome = _measure_server(pool, gpus, slo_s, plan, cluster, emulated, load, seconds, seed, shortest_s)
            print(
                f"overhead {1e3 * outcome['overhead_s']:.1f} ms a stage; shortest stage {1e3 * shortest_s:.0f} ms at "
                f"{times:.0f} times: {100 * outcome['overhead_s'] / shortest_s:.1f} %", flush=True,
            )  # fmt: skip
            if "served" in outcome:
                return {
                    "network": name, "gpus": gpus, "emulated": True, "times": times, "slo_s": slo_s, "load": load,
                    "seconds": seconds, "rate": plan.objective, "shortest_stage_s": shortest_s, **outcome,
                }  # fmt: skip
            times = math.ceil(1.2 * times * outcome["overhead_s"] / (SHARE * shortest_s))
            pool.end_members()


def measure_costs(seconds: float) -> Dict[str, Any]:
    """Measure what head and two members cost when idle, and what a frame through two stages costs.

    Emulated members that sleep for a millisecond and pass 250 kB; processor time is of all processes but the robots'.
    Frames come 20 times a second; what the same processes take in the same time without frames is told beside, and what
    a frame takes where there are 100 a second.
    """
    from edge_offload_benchmarks.pool_rig import Pool

    with Pool() as pool:
        good, bad = np.array([[1e-3], [1e-1]]), np.array([[1e-1], [1e-3]])
        emulated_profile(pool, profile.BlockProfile(MODEL, {"L4": {1: good}, "P4": {1: bad}}, np.array([250e3])))
        for gpu in ("L4", "P4"):
            pool.join_pool(gpu, "--emulated", str(pool.profiles))
        time.sleep(5.0)  # they have begun
        before = pool.measure_usage([])
        time.sleep(seconds)
        idle = pool.measure_usage([])
        root = pool.root / "keys"
        public, stores = introduce_robots(root, [f"robot{number}" for number in range(ROBOTS)])
        options = ["--keys", str(root / "server"), "--allow", MODEL, *pool.server_options(MODEL, 1.0)]
        with Server(*options) as server:
            for store in stores.values():
                store.trust_server(server.address, public)
            status = pool.wait_workers({"L4": 1, "P4": 1}, START_S)
            if len(status["stages"]) != 2:
                raise BadInput(f"the plan has {len(status['stages'])} stages instead of two")
            command = [sys.executable, "-m", "edge_offload_benchmarks.pool_real", server.address, str(root)]
            with Process(command) as robots:
                at_s, often_s = ([number / rate for number in range(round(rate * seconds))] for rate in (SELDOM, OFTEN))
                robots.request_answer({"at": at_s[:40]}, LOST_S)
                first = pool.cpu_by(server)
                time.sleep(seconds)
                still = pool.cpu_by(server)
                answer = robots.request_answer({"at": at_s}, seconds + LOST_S)
                last = pool.cpu_by(server)
                often = robots.request_answer({"at": often_s}, seconds + LOST_S)
                end = pool.cpu_by(server)
                robots.end()
    frequent_s = [latency_s for latency_s in often["took_s"] if latency_s is not None]
    answered_s = [each for each in answer["took_s"] if each is not None]
    without_s = sum(still.values()) - sum(first.values())
    all_s = sum(last.values()) - sum(still.values())
    return {
        "emulated": True,
        "idle_bytes": idle["memory"],
        "idle_cores": (idle["cpu_s"] - before["cpu_s"]) / seconds,
        "frame_cpu_s": (all_s - without_s) / max(len(answered_s), 1),
        "frame_cpu_by_s": {
            name: (last[name] - 2 * still[name] + first[name]) / max(len(answered_s), 1) for name in last
        },
        "frame_cpu_all_s": all_s / max(len(answered_s), 1),
        "without_frames_cores": without_s / seconds,
        "frames": len(at_s),
        "answered": len(answered_s),
        "p50_s": statistics.median(answered_s),
        "often": {
            "per_s": OFTEN,
            "frames": len(often_s),
            "answered": len(frequent_s),
            "frame_cpu_by_s": {
                name: (end[name] - last[name] - still[name] + first[name]) / max(len(frequent_s), 1) for name in end
            },
            "p50_s": statistics.median(frequent_s),
        },
    }


def emulated_profile(pool: Pool, network: BlockProfile) -> BlockProfile:
    """Put a network's times into a pool's profiles, for members that build none; as they are rounded there."""
    profile.save_profiles(pool.profiles, {MODEL: profile.BlockProfile(MODEL, network.latency_s, network.cut_bytes)})
    nothing = {"options": {}, "state_hash": "", "cuts": {}}
    (pool.profiles / "blocks.json").write_text(json.dumps({MODEL: nothing}), encoding="utf-8")
    return profile.load_profiles(pool.profiles)[MODEL]


def _make_plan(network: BlockProfile, gpus: Dict[str, int], slo_s: float, times: float) -> Tuple[PoolPlan, Cluster]:
    """Make the driver's plan from the settings of a server."""
    settings = PoolSettings("", "", "", slo_s, "", "")
    cluster = Cluster(gpus, settings.bandwidth * 1e9 / 8 / times, dict(gpus), settings.link_share)
    return plan_steady([Demand(network, slo_s)], cluster, settings.margin, settings.partitions), cluster


def _measure_server(
    pool: Pool,
    gpus: Dict[str, int],
    slo_s: float,
    plan: PoolPlan,
    cluster: Cluster,
    network: BlockProfile,
    load: float,
    seconds: float,
    seed: int,
    shortest_s: float,
) -> Dict[str, Any]:
    """A server in front of the pool: the cost, and if that is small enough, the load."""
    root = pool.root / f"keys{len(list(pool.root.iterdir()))}"
    public, stores = introduce_robots(root, [f"robot{number}" for number in range(ROBOTS)])
    options = ["--keys", str(root / "server"), "--allow", MODEL, "--queue", "1024", *pool.server_options(MODEL, slo_s)]
    with Server(*options) as server:
        for store in stores.values():
            store.trust_server(server.address, public)
        status = pool.wait_workers(gpus, START_S)
        if abs(status["rate"] / plan.objective - 1) > 1e-6:
            raise BadInput(f"the driver's plan serves {status['rate']:.3f} /s, the simulator's {plan.objective:.3f}")
        command = [sys.executable, "-m", "edge_offload_benchmarks.pool_real", server.address, str(root)]
        with Process(command) as robots:
            every_s = 4 / plan.objective
            single = robots.request_answer(
                {"at": [number * every_s for number in range(SINGLE_FRAMES)]}, SINGLE_FRAMES * every_s + LOST_S
            )
            stages = statistics.fmean(len(one.stages) for one in plan.pipelines)
            time.sleep(1.5)  # the driver tells once a second
            first = pool.read_status()
            overhead_s = first["late_s"]["mean"] + statistics.fmean(single["beyond_s"]) / stages
            figures: Dict[str, Any] = {"overhead_s": overhead_s, "overhead_share": overhead_s / shortest_s}
            if overhead_s > SHARE * shortest_s:
                return figures
            arrivals = simulate.poisson_arrivals(plan.objective * load, seconds, np.random.default_rng(seed))
            outcome = simulate.simulate_load(plan, {MODEL: network}, cluster, {MODEL: slo_s}, {MODEL: arrivals})
            answer = robots.request_answer({"at": arrivals.tolist()}, seconds + slo_s + 2 * LOST_S)
            time.sleep(1.5)
            last = pool.read_status()
            robots.end()
    latencies_s = answer["took_s"]
    return {
        **figures,
        "requests": len(arrivals),
        "served": statistics.fmean(latency_s is not None and latency_s <= slo_s for latency_s in latencies_s),
        "simulated": outcome.attainment[MODEL],
        "answered": sum(each is not None for each in latencies_s),
        "refused": answer["refused"],
        "failed": answer["failed"],
        "lost": len(latencies_s) - sum(took is not None for took in latencies_s) - answer["refused"] - answer["failed"],
        "reasons": answer["reasons"],
        "sent_late_s": answer["sent_late_s"],
        "late_s": last["late_s"],
        "driver": {key: last[key] - first[key] for key in ("requests", "answered", "in_time", "refused")},
        "plans": last["plans"] - first["plans"],
    }


def _send_load(at_s: List[float], clients: List[Any], handles: List[int], sent: Dict[str, Any], buffers: Any) -> Any:
    """Requests at these times; what came of them."""
    latencies_s: List[Optional[float]] = [None] * len(at_s)
    beyond_s: List[float] = []
    reasons: Counter[str] = Counter()
    late_s: List[float] = []
    futures: List[Any] = []
    started_at = time.monotonic() + 0.2

    def note_answer(future: Any, place: int, due: float) -> None:
        error = future.exception()
        if error is None:
            latencies_s[place] = time.monotonic() - due
            beyond_s.append(time.monotonic() - due - future.result().body["compute_s"])
        else:
            reasons[f"{type(error).__name__}: {error}"[:200]] += 1

    for place, at in enumerate(at_s):
        due = started_at + at
        time.sleep(max(0.0, due - time.monotonic()))
        late_s.append(time.monotonic() - due)
        robot = place % ROBOTS
        body = {"handle": handles[robot], "inputs": [sent], "codec": "auto", "wait_s": None, "meta": {}}
        future = clients[robot].request("infer", body, buffers, timeout_s=LOST_S)
        future.add_done_callback(functools.partial(note_answer, place=place, due=due))
        futures.append(future)
    wait(futures, LOST_S + 5.0)
    refused = sum(count for reason, count in reasons.items() if reason.startswith("Refused"))
    return {
        "took_s": latencies_s, "beyond_s": beyond_s, "refused": refused, "failed": sum(reasons.values()) - refused,
        "reasons": dict(reasons), "sent_late_s": max(late_s, default=0.0),
    }  # fmt: skip


def _run_robots(address: str, directory: str) -> None:
    """Robots in a process without torch: each line of standard input is a load, each line of output what came of it."""
    from edge_offload.link import codecs
    from edge_offload.link.security.keys import KeyStore
    from edge_offload.link.transport.client import Client

    picture = np.random.RandomState(1).randint(0, 256, SHAPE, dtype=np.uint8)
    spec = {"dtype": "uint8", "shape": list(SHAPE)}
    coded = codecs.encode(picture)
    sent = {**spec, "payload": coded.descriptor, "parts": len(coded.buffers)}
    clients = [
        Client(address, keys=KeyStore(pathlib.Path(directory) / f"robot{number}")).start() for number in range(ROBOTS)
    ]
    handles = []
    for client in clients:
        client.wait_ready(LOST_S)
        opened = client.request("open_model", {"name": MODEL, "inputs": [spec]}, timeout_s=LOST_S).result(LOST_S)
        handles.append(opened.body["handle"])
    for line in sys.stdin:
        print(json.dumps(_send_load(json.loads(line)["at"], clients, handles, sent, coded.buffers)), flush=True)
    assert "torch" not in sys.modules, "an emulated robot needs no torch"
    for client in clients:
        client.close()


if __name__ == "__main__":
    _run_robots(sys.argv[1], sys.argv[2])
