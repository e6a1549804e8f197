"""The page of a machine with a GPU, from what ``scripts/gpu run`` wrote."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence

from generate.gpu_papers import papers
from generate.tables import Column, kb, ratio, s, table, tenths, yes

#: Modes of the virtual device that are listed, in this order.
MODES = ("replay", "lazy", "cached", "per_op")


def gpu(record: Any) -> List[str]:
    """Sections of the page; a phase that did not run has none."""
    phases: Mapping[str, Any] = record["phases"]
    lines: List[str] = []
    for title, name, write in (
        ("Bits", "bits", _bits),
        ("Operators", "conformance", _conformance),
        ("Times", "speed", _speed),
        ("The papers' table", "papers", papers),
        ("Batches", "batches", _batches),
        ("Stages of a pool", "pool", _pool),
        ("Robots", "robots", _robots),
        ("Modules", "modules", _modules),
        ("CUDA graphs as an engine", "engines", _engines),
        ("Remoting peers", "peers", _peers),
        ("Faults", "faults", _faults),
    ):
        records = list(phases.get(name, {}).get("records", []))
        section = write(records) if records else []
        if section:
            lines += [f"## {title}", "", *section, ""]
    took = ", ".join(f"{name} {one['seconds']:.0f} s" for name, one in phases.items() if "seconds" in one)
    return [*_machine(record["machine"]), *lines, f"Phases took: {took}."]


def _machine(records: Sequence[Mapping[str, Any]]) -> List[str]:
    facts: Dict[str, Any] = {}
    for one in records:
        facts.update({key: value for key, value in one.items() if key not in ("name", "at_s")})
    words = {
        "device": "GPU",
        "driver": "driver",
        "torch": "torch",
        "cuda": "CUDA",
        "cudnn": "cuDNN",
        "cores": "cores",
        "cpu": "processor",
        "python": "Python",
    }
    said = [f"{word} {facts[key]}" for key, word in words.items() if facts.get(key)]
    return [", ".join(said) + ".", ""] if said else []


def _bits(records: Sequence[Mapping[str, Any]]) -> List[str]:
    totals = [
        {"way": one["name"][6:], **{key: value for key, value in one.items() if key not in ("name", "at_s")}}
        for one in records
        if one["name"].startswith("total ") and one["name"] != "total plain"
    ]
    columns: List[Column] = [
        ("way", "way", str),
        ("programs and networks", "programs", str),
        ("same bits", "bits", str),
        ("close (1e-5)", "close", str),
        ("as far as TF32", "tf32", str),
        ("further", "FAR", str),
        ("errors", "error", str),
    ]
    return [
        "Results of small programs and of networks, against the same program by plain CUDA on this GPU,",
        "without TF32 and with cuDNN's deterministic algorithms. Rows `plain …` are plain CUDA, too: a second time,",
        "with TF32, with torch's own batch norm.",
        "",
        *table(totals, columns),
    ]


def _conformance(records: Sequence[Mapping[str, Any]]) -> List[str]:
    rows = [one for one in records if one["name"] in ("lazy", "replay")]
    names = sorted({key for one in rows for key in one if key not in ("name", "at_s")})
    columns: List[Column] = [("mode", "name", str), *((name, name, str) for name in names)]
    return ["Calls of PyTorch's own samples (`op_db`) through a server, against plain CUDA.", "", *table(rows, columns)]


def _speed(records: Sequence[Mapping[str, Any]]) -> List[str]:
    native = {one["model"]: one for one in records if one["name"].endswith("tf32=False") and "eager" in one}
    by_name = {one["name"]: one for one in records}
    rows: List[Dict[str, Any]] = []
    for model, alone in native.items():
        graph = alone.get("graph", {}).get("ms")
        row: Dict[str, Any] = {
            "model": model,
            "kernels": alone.get("eager_gpu", {}).get("kernels"),
            "graph": graph,
            "paused": alone.get("graph_after_pauses", {}).get("ms"),
            "eager": alone["eager"]["ms"],
            "kernel_ms": _per(alone.get("eager_gpu"), "kernel_us", 1e3),
        }
        for key, name in (
            ("replay", f"{model} replay"),
            ("calls", f"{model} replay call by call"),
            ("server", f"{model} server"),
            ("eager_server", f"{model} server call by call"),
        ):
            one = by_name.get(name, {})
            row[key] = one.get("wall", {}).get("ms")
            row[f"{key}_p95"] = one.get("wall", {}).get("p95_ms")
            row[f"{key}_compute"] = _per(one, "compute_s", 1e-3)
            row[f"{key}_server"] = _per(one, "server_s", 1e-3)
        if graph and row["replay_compute"]:
            row["over_graph"] = row["replay_compute"] / graph
        if row["paused"] and row["replay_compute"]:
            row["over_paused"] = row["replay_compute"] / row["paused"]
        if row["calls_compute"] and row["replay_compute"]:
            row["gain"] = row["replay_compute"] / row["calls_compute"]
        if row["server"] and row["replay"]:
            row["over_server"] = row["replay"] / row["server"]
        rows.append(row)
    own: List[Column] = [
        ("network", "model", str),
        ("kernels", "kernels", tenths),
        ("their time, ms", "kernel_ms", s),
        ("torch in one process, ms", "eager", s),
        ("CUDA graph in one process, ms", "graph", s),
        ("… 5 ms after the frame before, ms", "paused", s),
    ]
    away: List[Column] = [
        ("network", "model", str),
        ("replay, ms", "replay", s),
        ("p95", "replay_p95", s),
        ("session, ms", "replay_compute", s),
        ("… call by call", "calls_compute", s),
        ("with graphs / without", "gain", ratio),
        ("session / graph", "over_graph", ratio),
        ("session / graph after 5 ms", "over_paused", ratio),
        ("replay call by call, ms", "calls", s),
        ("mode server, ms", "server", s),
        ("… eager", "eager_server", s),
        ("replay / server", "over_server", ratio),
    ]
    return [
        "Medians. The robot is a process without a GPU on other cores, the link is loopback. `session` is what the",
        "server's executor took for a frame, without codecs and queues.",
        "",
        *table(rows, own),
        "",
        *table(rows, away),
        "",
        *_links(records),
    ]


def _links(records: Sequence[Mapping[str, Any]]) -> List[str]:
    by_name = {one["name"]: one for one in records}
    rows: List[Dict[str, Any]] = []
    for one in records:
        mode_at = one["name"].partition(" replay at ")
        if not mode_at[2] or "wall" not in one:
            continue
        row: Dict[str, Any] = {"model": one["model"], "link": mode_at[2]}
        for mode, computing in (("replay", "compute_s"), ("server", "server_s")):
            facts = by_name.get(f"{one['model']} {mode} at {mode_at[2]}", {})
            if "wall" not in facts:
                continue
            row[mode] = facts["wall"]["ms"]
            row[f"{mode}_transfer"] = 1e3 * (facts["uplink_s"] + facts["downlink_s"])
            row[f"{mode}_codec"], row[f"{mode}_session"] = 1e3 * facts["codec_s"], 1e3 * facts[computing]
            parts = (row[f"{mode}_{part}"] for part in ("transfer", "codec", "session"))
            row[f"{mode}_over"] = row[mode] / sum(parts)
        if "server" in row:
            row["over_server"] = row["replay"] / row["server"]
        rows.append(row)
    columns: List[Column] = [("network", "model", str), ("link", "link", str)]
    for mode in ("replay", "server"):
        columns += [
            (f"{mode}, ms", mode, s),
            ("transfer", f"{mode}_transfer", s),
            ("codec", f"{mode}_codec", s),
            ("session", f"{mode}_session", s),
            ("latency / sum of parts", f"{mode}_over", ratio),
        ]
    columns.append(("replay / server", "over_server", ratio))
    if not rows:
        return []
    return ["Through an emulated link with a round trip of 2.6 ms. Medians of each part.", "", *table(rows, columns)]


def _per(row: Optional[Mapping[str, Any]], key: str, unit: float) -> Optional[float]:
    value = (row or {}).get(key)
    return None if value is None else value / unit


def _batches(records: Sequence[Mapping[str, Any]]) -> List[str]:
    rows = []
    for one in records:
        medians = one.get("median_ms")
        if medians:
            rows.append(
                {
                    **one,
                    "first": medians[0],
                    "last": medians[-1],
                    "largest": len(medians),
                    "gain": len(medians) * medians[0] / medians[-1],
                }
            )
    columns: List[Column] = [
        ("model", "name", str),
        ("alone, ms", "first", s),
        ("largest batch", "largest", str),
        ("it takes, ms", "last", s),
        ("frames a second, against one by one", "gain", s),
        ("bits of single frames up to", "equal", str),
    ]
    return table(rows, columns) if rows else []


def _robots(records: Sequence[Mapping[str, Any]]) -> List[str]:
    keys = (
        "frames_per_s", "captured_per_s", "least", "most", "jain", "batch", "refused", "alone", "server_cores", "busy",
        "gpu_busy", "J_per_frame", "failed",
    )  # fmt: skip
    rows = [
        {
            "name": one["name"],
            **{key: one.get(key) for key in keys},
            **{key: one.get("latency", {}).get(key) for key in ("ms", "p95_ms", "p99_ms")},
            "gpu_ms": one.get("compute_ms", one.get("compute", {}).get("ms")),
            "thread": max((one.get("threads") or {"": None}).values()),
        }
        for one in records
        if " robots" in one["name"]
    ]
    columns: List[Column] = [
        ("robots and network", "name", str),
        ("frames/s", "frames_per_s", tenths),
        ("of cameras", "captured_per_s", tenths),
        ("latency, ms", "ms", s),
        ("p95", "p95_ms", s),
        ("p99", "p99_ms", s),
        ("computation, ms", "gpu_ms", s),
        ("frames in a batch", "batch", tenths),
        ("frames of the slowest robot", "least", str),
        ("of the fastest", "most", str),
        ("Jain's index", "jain", ratio),
        ("refused", "refused", _text),
        ("without a promise", "alone", _text),
        ("device's thread busy", "busy", ratio),
        ("GPU busy", "gpu_busy", ratio),
        ("cores of the server", "server_cores", s),
        ("its busiest thread", "thread", ratio),
        ("GPU, J/frame", "J_per_frame", s),
        ("failed", "failed", _text),
    ]
    gains = [
        f"{one['name'][len('gain ') :]}: {one['batches']:.0f} frames/s in batches, {one['one_by_one']:.0f} one by one: "
        f"{one['gain']:.2f} ×."
        for one in records
        if "gain" in one
    ]
    return [
        "Mode `server`. One by one, a robot sends its next frame when it has a result. In batches, cameras take 10",
        "frames a second, of which robots send those that the server's promise has turns for. They ask for the bound",
        "at which they take the stated share of the device. `GPU busy`: share of time in which a kernel ran (NVML).",
        "",
        *table(rows, columns),
        *(["", *gains] if gains else []),
    ]


def _text(value: Any) -> str:
    return str(value) if value else "–"


def _modules(records: Sequence[Mapping[str, Any]]) -> List[str]:
    rows = [
        {key: one.get(key) for key in ("name", "ms", "p95_ms", "equal", "state", "failed")}
        for one in records
        if "ready_s" in one
    ]
    columns: List[Column] = [
        ("network and mode", "name", str),
        ("median, ms", "ms", s),
        ("p95", "p95_ms", s),
        ("bits of the network on this GPU", "equal", _text),
        ("failed", "failed", _text),
    ]
    return ["`OffloadedModule`, with the GPU on both sides.", "", *table(rows, columns)]


def _engines(records: Sequence[Mapping[str, Any]]) -> List[str]:
    lines = [line for one in records for line in one.get("lines", ()) if "x as fast" in line]
    return ["```text", *lines, "```"] if lines else []


def _pool(records: Sequence[Mapping[str, Any]]) -> List[str]:
    rows = [
        {
            "name": one["name"], "batch": title.partition(" ")[2],
            "equal": batch["equal"], "error": f"{batch['error']:.1e}",
            "undivided": one["undivided"]["ms"], "first": batch["stages"][0]["ms"], "second": batch["stages"][1]["ms"],
        }
        for one in records
        for title, batch in one.items()
        if title.startswith("batch ")
    ]  # fmt: skip
    columns: List[Column] = [
        ("network", "name", str),
        ("batch", "batch", str),
        ("undivided, one frame, ms", "undivided", s),
        ("first stage, ms", "first", s),
        ("second stage, ms", "second", s),
        ("bits of the undivided network", "equal", yes),
        ("largest error, of the largest value", "error", str),
    ]
    return table(rows, columns) if rows else []


def _peers(records: Sequence[Mapping[str, Any]]) -> List[str]:
    rows = [one for one in records if "wall" in one]
    columns: List[Column] = [
        ("program", "program", str),
        ("way", "way", str),
        ("median, ms", "wall.ms", s),
        ("p95", "wall.p95_ms", s),
        ("round trips per frame", "trips", tenths),
        ("kB up", "up", kb),
        ("kB down", "down", kb),
        ("bits of plain CUDA", "equal", str),
        ("first frame, s", "warm.first_s", s),
    ]
    failed = [one for one in records if "failed" in one or "skipped" in one]
    return [
        "The same program by plain CUDA, by our modes, by Lupine (calls of CUDA's driver) and by rgpu (torch's",
        "operators), in one run. Clients run on other cores; `at 93 Mbps` is through an emulated link with a round",
        "trip of 2.6 ms, which counts the bytes. The first frame has the link open: it loads kernels, or records.",
        "",
        *table(rows, columns),
        *([""] if failed else []),
        *(f"- {one['name']}: {str(one.get('failed') or one.get('skipped'))[:160]}" for one in failed),
    ]


def _faults(records: Sequence[Mapping[str, Any]]) -> List[str]:
    rows = []
    for one in records:
        facts = {key: value for key, value in one.items() if key not in ("name", "at_s", "log", "where")}
        rows.append(
            {"name": one["name"], "facts": "; ".join(f"{key}: {str(value)[:160]}" for key, value in facts.items())}
        )
    return table(rows, [("fault", "name", str), ("what was seen", "facts", str)])
