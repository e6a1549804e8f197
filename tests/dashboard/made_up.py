"""A made-up run: offloaded, then an outage of the link, then offloaded again."""

from __future__ import annotations

import json
import math
import random

BEGIN_S = 1_700_000_000.0


def run(seconds: float = 60.0, begin_s: float = BEGIN_S, rate: float = 8.0):
    """Records of a run, in order of time. The middle third has no link: every frame there falls back."""
    dice = random.Random(7)
    records = [{"kind": "about", "t_s": begin_s, "link": "wifi_93mbps"}]
    records.append(mode(begin_s, "server", "auto", "predicted 71 ms against 240 ms on the robot"))
    records.append(diagnostic(begin_s, "kapao_node: health", "ok", "running"))
    records.append(server(begin_s, 0.1))
    down, back = begin_s + seconds / 3, begin_s + 2 * seconds / 3
    t_s = begin_s
    joules = 0.0
    while t_s < begin_s + seconds:
        outage = down <= t_s < back
        wobble = 1 + 0.25 * math.sin(t_s / 3) + dice.uniform(-0.1, 0.1)
        records.append(latency(t_s, outage, wobble))
        records.append(people(t_s))
        t_s = round(t_s + 1 / rate, 6)
        if int(t_s * rate) % 4 == 0:
            watts = 13.35 if outage else 5.9 * wobble
            joules += watts * 4 / rate
            records.append(power(t_s, watts, joules))
            records.append(bandwidth(t_s, not outage, wobble))
        if int(t_s * rate) % int(rate) == 0:
            records.append(server(t_s, 0.0 if outage else 0.35 * wobble))
    records.append(mode(down + 1, "local", "auto", "the server has not answered for 1.0 s"))
    records.append(diagnostic(down + 0.6, "kapao_node: health", "warn", "the server does not answer"))
    records.append(mode(back + 0.5, "server", "auto", "the link carries 11.0 MB/s again"))
    records.append(diagnostic(back + 0.4, "kapao_node: health", "ok", "running"))
    return sorted(records, key=lambda record: record["t_s"])


def latency(t_s: float, local: bool = False, wobble: float = 1.0, **changes):
    remote = {"queue": 0.004, "encode": 0.006, "uplink": 0.028 * wobble, "compute_robot": 0.0,
              "compute_server": 0.031 * wobble, "downlink": 0.003, "decode": 0.002}  # fmt: skip
    local_stages = {**dict.fromkeys(remote, 0.0), "queue": 0.02, "compute_robot": 0.21 * wobble, "decode": 0.002}
    stages = local_stages if local else remote
    return {
        "kind": "latency", "t_s": t_s, "stamp_s": t_s - 0.1, "model": "movenet", "mode": "local" if local else "server",
        "fallback_reason": "the server does not answer" if local else "", "error": "",
        "total_s": sum(stages.values()), "stages_s": stages, "bytes_up": 0 if local else 61234,
        "bytes_down": 0 if local else 412, "round_trips": 0 if local else 1, "connected": not local,
        "round_trip_s": 0.003, "deadline_s": 0.2, "deadline_met": sum(stages.values()) <= 0.2, "robot_slowdown": 4.0,
        "energy_j": 2.9 * wobble if local else 0.41 * wobble, "energy_source": "model", **changes,
    }  # fmt: skip


def people(t_s: float, origin: str = "fresh", count: int = 3):
    return {"kind": "people", "t_s": t_s, "people": count, **({} if origin == "fresh" else {"origin": origin})}


def scene(t_s: float, origin: str = "fresh"):
    return {"kind": "scene", "t_s": t_s, **({} if origin == "fresh" else {"origin": origin})}


def mode(t_s: float, name: str, policy: str, reason: str):
    return {"kind": "mode", "t_s": t_s, "mode": name, "policy": policy, "reason": reason}


def power(t_s: float, watts: float, joules: float):
    return {"kind": "power", "t_s": t_s, "host": "robot", "watts": watts, "joules": joules, "source": "model",
            "sensor": "state model", "state": "inference"}  # fmt: skip


def bandwidth(t_s: float, connected: bool, wobble: float = 1.0):
    rate = 11.3e6 * wobble if connected else 0.0
    return {"kind": "bandwidth", "t_s": t_s, "peer": "tcp://127.0.0.1:5701", "connected": connected,
            "source": "passive" if connected else "none", "uplink_bytes_per_s": rate,
            "downlink_bytes_per_s": 0.9 * rate, "round_trip_s": 0.0031 if connected else 0.0, "age_s": 0.1,
            "samples": 12}  # fmt: skip


def server(t_s: float, load: float, **changes):
    return {"kind": "server", "t_s": t_s, "address": "tcp://127.0.0.1:5700", "device": "cpu", "state": "ready",
            "robots": 1, "queue_length": 0, "load": load, "memory_bytes": 400 << 20, "inferences": 100, "refused": 0,
            "failed": 0, **changes}  # fmt: skip


def diagnostic(t_s: float, name: str, level: str, message: str):
    return {"kind": "diagnostic", "t_s": t_s, "name": name, "level": level, "message": message}


def write(path, records) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
