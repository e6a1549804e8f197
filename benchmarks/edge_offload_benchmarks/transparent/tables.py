"""What ``bench transparent`` shows: tables, and a plot of its record."""

from __future__ import annotations

import pathlib
from typing import Any, Dict, Iterator, Mapping, Optional

#: Costs of a call: field of the record, and the device that it is of (empty: the one that this machine gets).
#: Field of the record for what a replayed call costs.
KERNEL = "kernel_us_per_op"


def row(line: Dict[str, Any]) -> str:
    """One network, link and mode."""
    latency = line["latency_s"]
    return (
        f"{line['model']:<38} {line['link']:<12} {line['mode']:<7} {latency['p50'] * 1e3:8.1f}"
        f" {latency['p99'] * 1e3:8.1f} {line['round_trips']:7.1f} {line['rpcs']:7.1f}"
        f" {line['bytes_up'] / 1e3:9.1f} {line['bytes_down'] / 1e3:9.1f}"
        f" {line['client_walk_s'] * 1e3:8.1f} {line['energy_j']:6.2f} {'equal' if line['bit_equal'] else 'DIFFERS'}"
    )


#: Whose results others are compared with, by ``--reference``.
WHOSE = {"cpu": "the robot's own", "cuda": "plain CUDA's"}


def bits_row(item: Mapping[str, Any], whose: str = WHOSE["cpu"]) -> str:
    """Format the number of compared inferences of one network."""
    equal = f"{item['equal']} of {item['inferences']} inferences in mode replay equal {whose}"
    return f"{item['model']:<38} {equal}, {item['round_trips']} round trips"


def show(record: Dict[str, Any]) -> None:
    """Print the tables."""
    for line in record.get("apps", ()):
        print(", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                        for key, value in line.items()))  # fmt: skip
    if record["records"]:
        head = f"{'model':<38} {'link':<12} {'mode':<7} {'p50 ms':>8} {'p99 ms':>8} {'trips':>7} {'rpcs':>7}"
        print(f"{head} {'kB up':>9} {'kB down':>9} {'walk ms':>8} {'J':>6}")
        for line in record["records"]:
            print(row(line))
        print()
        for item in record["checks"]:
            print(f"{item['model']:<38} {item['link']:<12} replay/server {_ratio(item['replay_over_server'])}   "
                  f"per_op/replay {_ratio(item['per_op_over_replay'])} (at least 0.9 x the model's "
                  f"{_ratio(item['modelled'])}: {_holds(item)})")  # fmt: skip
        print()
        for line in _cost_lines(record.get(KERNEL, {})):
            print(line)
    for item in record.get("bits", ()):
        print(bits_row(item, WHOSE[record.get("reference", "cpu")]))
    rpcs = record["cricket"]["rpcs"]
    print(f"synthetic, from published counts of KAPAO: Cricket {rpcs['cricket']} calls per inference, semi-RRTO "
          f"{rpcs['semi_rrto']}, RRTO {rpcs['rrto']}")  # fmt: skip
    for failure in record["failures"]:
        print(f"FAILED {failure['model']} {failure['link']} {','.join(failure['modes'])}: {failure['error']}")
    print(f"load average {record['load_average'][0]:.1f} at the start, {record['load_average_end'][0]:.1f} at the end")


def _cost_lines(cost: Mapping[str, float]) -> Iterator[str]:
    """The cost of a call, in microseconds."""
    if not cost:
        return
    us = {name: f"{value * 1e6:.2f} us" for name, value in cost.items()}
    yield f"one call of a chain of 200 replayed: {us['device_s']} (eager, 16 numbers: {us['cpu_s']})"
    if "device_thread_s" in us:
        yield f"  processor time of the thread: {us['device_thread_s']} (eager: {us['cpu_thread_s']})"


def _holds(item: Dict[str, Any]) -> str:
    if item["per_op_over_replay"] is None or item["modelled"] is None:
        return "-"
    return "yes" if item["per_op_over_replay"] >= 0.9 * item["modelled"] else "NO"


def _ratio(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.2f}"


def plot(record: Dict[str, Any], path: pathlib.Path) -> None:
    """Median latency by network and mode, one panel per link."""
    from edge_offload_benchmarks.plotting import open_panels

    links = list(dict.fromkeys(line["link"] for line in record["records"]))
    models = list(dict.fromkeys(line["model"] for line in record["records"]))
    modes = ("local", "server", *("replay", "lazy", "cached", "per_op"))
    with open_panels(path, len(links), 1, (11, 3.6 * len(links))) as grid:
        for panel, link in zip(grid[:, 0], links):
            for offset, mode in enumerate(modes):
                p50_s = {line["model"]: line["latency_s"]["p50"] for line in record["records"]
                         if line["link"] == link and line["mode"] == mode}  # fmt: skip
                places = [i + (offset - 2.5) * 0.13 for i, model in enumerate(models) if model in p50_s]
                panel.bar(places, [p50_s[model] * 1e3 for model in models if model in p50_s], 0.13, label=mode)
            panel.set_yscale("log")
            panel.set_ylabel("median latency, ms")
            panel.set_title(link)
            panel.set_xticks(range(len(models)), models, rotation=20, ha="right", fontsize=8)
        grid[0, 0].legend(ncol=6, fontsize=8)
