"""How many robots one device holds under a bound on accuracy, in virtual time: ours, and every baseline at its best.

A cell is what robots see, a bound, and a table of batch latencies. In each, every system has the same robots, cameras
and links (5G and LTE as in the dissertation, 3.6.1, and Wi-Fi, in turn). Robots are held if every session's mean true
drop over the robot alone on this device is within the bound, and 95 % of windows of 5 s within 1.5 times it. Each
baseline's interval, batch and margin are searched on the same load.

  edge-offload bench fleet --latencies gpu.csv --json fleet.json
  edge-offload bench fleet --latencies gpu.csv --latencies cpu.csv --content people,scene --json fleet.json

--latencies (batch,latency_ms; repeatable): without it a made-up device of 8 + 4.5 ms for each frame. --content: what
robots see. linear: drops rise by a rate of each robot's own, which stays. people, scene: what carried results have
lost, by the tables of bench multitask (--tables; those that are missing are made, seconds for each frame), at 10 Hz;
each robot replays it from a place of its own. The device is emulated by its table: nothing is computed.

ours: serve --promises, with the margins that it is shipped with. ours-searched: with those that hold most on this very
load, as each baseline's settings are. fixed: our packing, one interval and batch for all. ARISE: single measurements, 1
s ahead, no memory. ARISE-alpha: as Step 1 says, uncoordinated. Chameleon-like: the same without batches. Clipper-like:
one interval, the server batches what has come. Static: one interval, one batch.

--real: a server process on each emulated device and --robots of them in another, over real sockets, beside what virtual
time says of the same robots (linear, cameras of --rate frames per second).

--network SIZE: --robots on a real server, kapao_vtest at that size on one core; the drop of every frame is measured
against the network's own result for it (--people, --tables).

--misbehave: beside them a robot that says it loses everything, though its picture stands still, one that says it loses
nothing, one that sends all its frames whatever its turns, and one that sends none of its turns. With --network the
server holds what the first two say against their results.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.manager.promise import HABITS
from edge_offload.outputs import add_output
from edge_offload.server.promises.latencies import Latencies
from edge_offload_benchmarks.simulation.fleet import (
    BEFORE_S,
    BEYOND,
    FIRST_S,
    LINKS,
    WINDOWS,
    Content,
    Lines,
    Link,
    Robot,
    Tables,
    before,
    check_promise,
    simulate_single,
    windows,
)
from edge_offload_benchmarks.simulation.fleet_systems import SEARCHED, Run, System, systems
from edge_offload_research.emulate.device import load_csv

LINEAR_FPS, TABLES_FPS = 30.0, 10.0
#: Accuracy that linear robots lose for each frame, on average; each has 0.5 to 1.5 times it.
RATE = 0.006
#: Frames of the video, and sweeps of streets with kinds of objects that occur in no other.
PEOPLE, STREETS = "400:395", "1001:400"
#: Bounds of each content.
BOUNDS = {"linear": (0.02, 0.04), "people": (0.05, 0.1), "scene": (0.02, 0.05)}
MADE_UP = tuple(0.008 + 0.0045 * size for size in range(1, 9))
#: Searched for each baseline that has them.
INTERVALS, BATCHES = (1, 2, 3, 4, 6, 8, 12, 16), (1, 2, 4, 8)
#: Robots that a cell has at most.
MOST = 128


@dataclass(frozen=True)
class Cell:
    """Conditions of a fleet: latencies, interval, bound and content."""

    content: str
    bound: float
    device: str
    latencies: Latencies


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--latencies", type=pathlib.Path, action="append", metavar="CSV", help="of a device")
    parser.add_argument("--content", default="linear", metavar="NAME,...", help="linear, people, scene (linear)")
    parser.add_argument("--tables", type=pathlib.Path, metavar="FOLDER", help="of tables of staleness (in the cache)")
    stretches = "FIRST:COUNT of what is replayed, several with commas"
    parser.add_argument("--people", default=PEOPLE, metavar="STRETCHES", help=f"of the video, {stretches} ({PEOPLE})")
    parser.add_argument("--streets", default=STREETS, metavar="STRETCHES", help=f"of streets, likewise ({STREETS})")
    parser.add_argument("--seconds", type=float, default=28.0, help="of a run (28); sessions of 20 s or more count")
    parser.add_argument("--seed", type=int, default=0, help="of robots and links (0)")
    parser.add_argument("--systems", metavar="NAME,...", help="only these, such as ours,fixed (all)")
    parser.add_argument("--real", action="store_true", help="real processes and sockets beside virtual time")
    parser.add_argument("--network", type=int, metavar="SIZE", help="a real network, long side of its images (px)")
    parser.add_argument("--misbehave", action="store_true", help="with --real, --network: beside four that do")
    parser.add_argument("--robots", type=int, default=16, metavar="N", help="that ask, with --real (16)")
    parser.add_argument("--rate", type=float, default=10.0, metavar="HZ", help="of their cameras, with --real (10)")
    parser.add_argument("--bound", type=float, help="only this one; with --real, the one that they ask for (0.04)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record here")
    add_output(parser, "--plot", type=pathlib.Path, metavar="FILE", help="draw robots held (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    if not 20 <= args.seconds <= 3600:
        raise BadInput("--seconds is from 20 to 3600")
    devices = {path.stem: load_csv(path) for path in args.latencies or []} or {"made up": Latencies(MADE_UP)}
    if args.network is not None:
        return _measure_network(args)
    if args.real:
        return _measure_robots(args)
    contents = args.content.split(",")
    if not set(contents) <= set(BOUNDS):
        raise BadInput(f"--content {args.content}", remedy=f"give some of {','.join(BOUNDS)}")
    given = {"people": args.people, "scene": args.streets}
    measured = {name: tables(name, given[name], args.tables, args.seconds) for name in contents if name in given}
    names = tuple(system.name for system in systems(INTERVALS, BATCHES))
    requested = names if args.systems is None else tuple(args.systems.split(","))
    if not set(requested) <= set(names):
        raise BadInput(f"--systems {args.systems}", remedy=f"give some of {','.join(names)}")
    cells = [
        Cell(content, bound, device, latencies)
        for content in contents
        for bound in BOUNDS[content]
        if args.bound in (None, bound)
        for device, latencies in devices.items()
    ]
    if not cells:
        raise BadInput(f"no cell has the bound {args.bound}", remedy=f"use one of {BOUNDS}")
    record: Dict[str, Any] = {
        "seconds": args.seconds,
        "seed": args.seed,
        "devices": {name: list(table.seconds) for name, table in devices.items()},
        "cells": [],
    }
    for cell in cells:
        row = measure_cell(cell, measured, args.seconds, args.seed, requested)
        record["cells"].append(row)
        shown = ", ".join(f"{name} {one['held']}" for name, one in row["systems"].items())
        print(f"{cell.content}, bound {cell.bound:g}, {cell.device}: {shown}", flush=True)
        record["summary"] = summarise_cells(record["cells"]) if requested == names else {}
        if args.json:  # after each, so that a run that is stopped has something to show
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, value in record["summary"].items():
        print(f"{name}: {value:.2f}")
    if args.plot:
        _draw_cells(args.plot, record["cells"])
    return 0


def _measure_network(args: argparse.Namespace) -> int:
    """A real network on one core."""
    from edge_offload.cache import cache_dir
    from edge_offload_benchmarks import fleet_robots

    bound = 0.1 if args.bound is None else args.bound
    first, _, count = args.people.partition(":")
    needed = math.ceil((fleet_robots.LEAD_S + args.seconds + fleet_robots.TAIL_S) * TABLES_FPS)
    if not (first.isdigit() and count.isdigit() and int(count) >= needed):
        raise BadInput(f"--people {args.people}", remedy=f"one stretch FIRST:COUNT, COUNT from {needed} on")
    if not (64 <= args.network <= 1280 and 1 <= args.robots <= 16 and 0 < bound <= 1):
        raise BadInput("--network is 64 to 1280, --robots 1 to 16, --bound above 0 to 1")
    folder = args.tables or cache_dir() / "staleness"
    record = fleet_robots.measure_network(
        args.network, int(first), int(count), folder, args.robots, bound, args.seconds, args.misbehave
    )
    print(", ".join(f"{name} {value}" for name, value in record.items()), flush=True)
    if args.json:
        args.json.write_text(
            json.dumps({"seconds": args.seconds, "network": record}, indent=1) + "\n", encoding="utf-8"
        )
    return 0


def _measure_robots(args: argparse.Namespace) -> int:
    """Real processes beside virtual time."""
    from edge_offload_benchmarks import fleet_robots

    bound = 0.04 if args.bound is None else args.bound
    if not args.latencies or not 1 <= args.robots <= 50 or not 1 <= args.rate <= 60 or not 0 < bound <= 1:
        raise BadInput("--real needs --latencies, --robots 1 to 50, --rate 1 to 60, --bound above 0 to 1")
    record: Dict[str, Any] = {"seconds": args.seconds, "rate": args.rate, "real": []}
    slope = RATE * LINEAR_FPS / args.rate / 2
    for path in args.latencies:
        latencies = load_csv(path)
        real = fleet_robots.measure_emulated(
            path.resolve(), latencies, args.robots, bound, 1 / args.rate, slope, args.seconds, args.misbehave
        )
        draw = np.random.default_rng(0)
        rates = tuple(float(rate) for rate in slope * draw.uniform(0.5, 1.5, args.robots))
        content, loopback = Lines(1 / args.rate, rates), Link((1e5, 0.0), (1e5, 0.0), (0.002, 0.0))
        robots = [
            Robot(number, float(draw.uniform(0, 1 / args.rate)), content, loopback, np.random.default_rng(number))
            for number in range(args.robots)
        ]
        systems(INTERVALS, BATCHES)[0].variants[0][1](
            robots, latencies, bound, args.seconds + fleet_robots.LEAD_S
        )  # fmt: skip
        virtual = sum(robot.since is not None for robot in robots)
        record["real"].append({"device": path.stem, "virtual": virtual, **real})
        shown = ", ".join(f"{name} {value}" for name, value in record["real"][-1].items() if name != "device")
        print(f"{path.stem}: {shown}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def measure_cell(
    cell: Cell, measured: Dict[str, Tuple[Array, ...]], seconds: float, seed: int, names: Optional[Sequence[str]] = None
) -> Dict[str, Any]:
    """Robots held by every system, or those of these names, in one cell."""
    fleet = _Fleet(cell, measured, seconds, seed)
    return {
        "content": cell.content,
        "bound": cell.bound,
        "device": cell.device,
        "analytic": fleet.analytic_bound(),
        "systems": {
            system.name: fleet.find_capacity(system)
            for system in systems(INTERVALS, BATCHES)
            if names is None or system.name in names
        },
    }


def summarise_cells(cells: Sequence[Dict[str, Any]]) -> Dict[str, float]:
    """Ours over the best baseline and over fixed intervals, and over the analytic bound where drops are linear."""
    best, fixed, searched, analytic = [], [], [], []
    for row in cells:
        most_robots = {name: one["held"] for name, one in row["systems"].items()}
        ours = most_robots["ours"]
        best.append(
            ours / max(1, *(count for name, count in most_robots.items() if name not in ("ours", SEARCHED, "fixed")))
        )
        fixed.append(ours / max(1, most_robots["fixed"]))
        if SEARCHED in most_robots:
            searched.append(most_robots[SEARCHED] / max(1, most_robots["fixed"]))
        if row["analytic"]:
            analytic.append(ours / row["analytic"])
    ratios = {
        "ours over the best baseline, geometric mean": math.exp(float(np.mean(np.log(np.maximum(best, 1e-3))))),
        "ours over the best baseline, least": min(best),
        "ours over fixed intervals packed, least": min(fixed),
    }
    if searched:
        ratios["ours, with its margin searched, too, over fixed intervals packed, least"] = min(searched)
    if analytic:
        ratios["ours over the analytic bound, least"] = min(analytic)
    return ratios


class _Fleet:
    """The robots of a cell, and how many of them a system holds."""

    def __init__(self, cell: Cell, measured: Dict[str, Tuple[Array, ...]], seconds: float, seed: int) -> None:
        self.cell, self.seconds, self.seed = cell, seconds, seed
        draw = np.random.default_rng(seed)
        if cell.content == "linear":
            rates = tuple(float(rate) for rate in RATE * draw.uniform(0.5, 1.5, MOST))
            self.content: Content = Lines(1 / LINEAR_FPS, rates)
        else:
            tables = measured[cell.content]
            rooms = [len(table) - _count_frames(seconds) for table in tables]
            ends = np.cumsum(rooms)
            places = []
            for drawn in draw.integers(0, ends[-1], MOST):
                stretch = int(np.searchsorted(ends, drawn, side="right"))
                places.append((stretch, int(drawn - ends[stretch] + rooms[stretch]) + math.ceil(BEFORE_S * TABLES_FPS)))
            self.content = Tables(1 / TABLES_FPS, tables, tuple(places), HABITS[cell.content])
        self.phases = [float(phase) for phase in draw.uniform(0, self.content.interval, MOST)]
        self._references: Dict[int, Robot] = {}

    def first_robots(self, count: int) -> List[Robot]:
        """The first ones."""
        links = list(LINKS.values())
        return [
            Robot(
                number, self.phases[number], self.content, links[number % len(links)],
                np.random.default_rng([self.seed, number]),
            )
            for number in range(count)
        ]  # fmt: skip

    def judge_robots(self, run: Run, count: int, adaptive: bool) -> Dict[str, Any]:
        """Judge a system with ``count`` robots."""
        cell, robots = self.cell, self.first_robots(count)
        for robot in robots:
            before(robot, cell.latencies)
        counts = run(robots, cell.latencies, cell.bound, self.seconds)
        # systems that promise nothing serve everybody from the begin on
        admitted = [robot for robot in robots if robot.since is not None] if adaptive else robots
        means, parts, broken = [], [], 0
        for robot in admitted:
            if robot.number not in self._references:
                self._references[robot.number] = simulate_single(robot, cell.latencies, self.seconds)
            reference = self._references[robot.number]
            first_s = (robot.since or 0.0) + FIRST_S
            fine, mean = check_promise(robot, reference, cell.bound, self.seconds, first_s)
            broken += not fine
            means.append(mean)
            parts += windows(robot, reference, self.seconds, first_s)
        within = float(np.mean([part <= BEYOND * cell.bound for part in parts])) if parts else 1.0
        return {
            "offered": count,
            "held": len(admitted) if broken == 0 and within >= WINDOWS else 0,
            "there": len(admitted),
            "broken": broken,
            "drop_mean": float(np.mean(means)) if means else 0.0,
            "drop_most": max(means, default=0.0),
            "windows_within": within,
            "late": counts["late"] / max(1.0, counts["members"]),
            "busy": min(1.0, counts["busy_s"] / self.seconds),
            "batch": (counts["members"] - counts["late"]) / max(1.0, counts["batches"]),
        }

    def find_capacity(self, system: System) -> Dict[str, Any]:
        """Return the best result of a system over all its settings."""
        best: Optional[Tuple[Dict[str, Any], str]] = None
        for settings, run in system.variants:
            outcome = self._search_most(run, system.adaptive, 0 if best is None else int(best[0]["held"]))
            if best is None or outcome["held"] > best[0]["held"]:
                best = outcome, settings
        assert best is not None
        return {**best[0], "settings": best[1]}

    def _search_most(self, run: Run, adaptive: bool, least: int) -> Dict[str, Any]:
        if adaptive:
            # it says itself whom it can hold: more robots ask than any system could hold
            return self.judge_robots(run, MOST, True)
        outcome = self.judge_robots(run, min(MOST, least + 1), False)
        if not outcome["held"]:
            return outcome
        good, step = outcome, 4
        while good["offered"] < MOST:
            tried = self.judge_robots(run, min(MOST, good["offered"] + step), False)
            if tried["held"]:
                good = tried
            elif step == 1:
                break
            else:
                step //= 2
        return good

    def analytic_bound(self) -> float:
        """Robots that a device could hold if requests fell as they please: batch / latency * interval / rate of frames.

        Only where drops are linear; of the mean rate and of the links' mean way.
        """
        if not isinstance(self.content, Lines):
            return 0.0
        from edge_offload.server.promises.settings import Wish, choose_settings

        latencies, robots = self.cell.latencies, self.first_robots(len(LINKS))
        ups = float(np.mean([robot.usual for robot in robots]))
        downs = float(np.mean([robot.downs for robot in robots]))
        rate = float(np.mean(self.content.rates))
        wish = Wish(self.cell.bound, rate, self.content.interval, ups, downs, latencies.largest)
        settings = choose_settings(wish, latencies, fixed_intervals=True)
        return settings.batch / latencies.batch_latency(settings.batch) * settings.interval * self.content.interval


def tables(task: str, stretches: str, folder: Optional[pathlib.Path], seconds: float) -> Tuple[Array, ...]:
    """Load the drops of carried results of stretches, each [frame, age]; missing ones are computed (minutes).

    Args:
        task: "people" or "scene".
        stretches: FIRST:COUNT of the video's frames, STREET:COUNT of sweeps; several with commas.
        folder: of the tables; None: in the user's cache.
        seconds: of a session, which has to fit.

    Raises:
        BadInput: no such stretches, or too short ones.
    """
    from edge_offload.cache import cache_dir
    from edge_offload_benchmarks.simulation.staleness import FAR, Stretch, table

    requested = []
    for item in stretches.split(","):
        number, _, count = item.partition(":")
        if not number.isdigit() or not count.isdigit() or int(count) <= max(_count_frames(seconds), 2 * FAR):
            raise BadInput(
                f"stretch {item!r} of {task}",
                remedy=f"give FIRST:COUNT, COUNT above {max(_count_frames(seconds), 2 * FAR)} for {seconds:g} s",
            )
        requested.append(Stretch(task, int(number), int(count), validation=task == "scene"))
    where = folder or cache_dir() / "staleness"
    made = [table(where, stretch, lambda text: print(text, file=sys.stderr, flush=True)) for stretch in requested]
    return tuple(one.drop("carried") for one in made)


def _count_frames(seconds: float) -> int:
    """Count the frames that a session needs."""
    return math.ceil((BEFORE_S + seconds) * TABLES_FPS) + 2


def _draw_cells(path: pathlib.Path, cells: Sequence[Dict[str, Any]]) -> None:
    from edge_offload_benchmarks.plotting import open_panels

    names = list(cells[0]["systems"])
    across = np.arange(len(cells))
    with open_panels(path, 1, 1, (max(7.0, 1.3 * len(cells)), 4.2)) as grid:
        axes = grid[0, 0]
        for place, name in enumerate(names):
            heights = [row["systems"][name]["held"] for row in cells]
            axes.bar(across + (place - (len(names) - 1) / 2) * 0.8 / len(names), heights, 0.8 / len(names), label=name)
        labels = [f"{row['content']}, {row['bound']:g}\n{row['device'].replace('_', chr(10), 1)}" for row in cells]
        axes.set_xticks(across, labels, fontsize=7)
        axes.set_ylabel("robots held")
        axes.legend(fontsize=8, ncol=len(names), loc="upper center", bbox_to_anchor=(0.5, 1.12), frameon=False)
