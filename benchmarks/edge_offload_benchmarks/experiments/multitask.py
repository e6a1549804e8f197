"""Two networks of one robot that share one server: whose frame goes next, and what each way to decide it costs.

People of the sample video and the scene of made-up streets, both at 10 Hz. Every frame goes through its network once,
and every result is carried over 1 to 30 frames; these tables of staleness are made once (half an hour) and kept. Then
the robot lives in virtual time, with the latencies given, once per schedule:

  edge-offload bench multitask                                    latencies as measured, weights 1:4 to 4:1
  edge-offload bench multitask --latency people=0.4 --latency scene=0.5 --weights 1:1,1:10
  edge-offload bench multitask --real 60                          a run through ROS beside it
  edge-offload bench multitask --labels labels.json --json multitask.json --plot multitask.png

today: both offload at once, old results are held. constant velocity: boxes move on as they did. local alone: nothing is
offloaded. From here on results are carried along, without and with the local algorithm (shown where it is expected to
be better): all at once; fixed patterns, people to scene (round-robin is 1:1); turns: the manager's rule with its
estimates; turns, true rates: the same with the rates of the frames about now, those to come too; plan: the search of
'edge-offload turns plan' in the place of the rule, by the same estimates; optimum: the ceiling, by one who knows every
drop. Rule and search also live over the emulated links wifi_indoors and wifi_outdoors, from --seeds places each.

drop: what the current frame's result loses against the network's own result for that frame, 0 to 1. People: 1 - soft
F1 of boxes; scene: 1 - IoU of full voxels. weighted: the sum of both, with weights that add up to 1. The best fixed
pattern is chosen on --train and judged on --held-out; estimates go on from --train, as on a robot that has been on for
a while. Intervals are 95 %, by bootstrap over blocks of 2 s. --labels (boxes by frame of the video) and what the
streets are really like judge results beside that.
"""

from __future__ import annotations

import argparse
import itertools
import math
import pathlib
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.outputs import add_output

#: Seconds from stamp to result (docs/results/kapao_tracking.json, mode server), for either task.
LATENCY_S = {"people": 0.174, "scene": 0.174}
TRAIN, VALIDATION = "400:200/11", "601:194/1001,601:194/1002"
WEIGHTS = "1:4,1:2,1:1,2:1,4:1"
PATTERNS = {"3:1": (3, 1), "2:1": (2, 1), "round-robin": (1, 1), "1:2": (1, 2), "1:3": (1, 3)}
#: Ages (frames) at which results are judged by labels, and what is held there of people carried along (F1).
AGES, PEOPLE_F1, SCENE_CLOSES = (4, 8), (0.85, 0.78), 0.55
#: Turns may cost so much of the best fixed pattern, of the search of all plans, and of the best period at constant
#: rates.
TURNS_COST, PLAN_COST, CONSTANT_COST, STANDING_SHARE = 1.01, 1.02, 1.01, 0.75
RATIOS = (1, 2, 3, 5, 10, 20, 30)
BLOCK, DRAWS = 20, 2000
#: Processor seconds on the robot at full speed, for people and for the scene: of carrying a result to one frame (bench
#: carry --only cost), of the local algorithm for one frame, of making an offload ready and reading its result.
CARRY_S, LOCAL_S, OFFLOAD_S = (0.0029, 0.0015), (0.0245, 0.0007), (0.0023, 0.0)
#: The robot is so much slower, and its link carries so many bytes per second (wifi_93mbps).
SLOWDOWN, LINK = 4.0, 93e6 / 8
#: Schedules that carry nothing.
UNCARRIED = ("today", "constant velocity", "local alone")
CURVES = (
    ("turns_ratio", "turns", "tab:blue"),
    ("true_rates_ratio", "turns, true rates", "tab:orange"),
    ("optimum_ratio", "ceiling", "tab:green"),
)
PHASES = ((None, "all"), (0, "driving"), (1, "standing"), (2, "turning"))


class Run(NamedTuple):
    """Outcome of one schedule on some pairs of stretches: arrays over all their frames, one after the other."""

    drops: Array
    blocks: Array
    bytes_per_s: float
    share: float
    offloads_per_s: Tuple[float, float]
    outcomes: List[Tuple[Any, Any, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    add = parser.add_argument
    add("--latency", action="append", default=[], metavar="TASK=S",
        help=f"seconds from stamp to result ({', '.join(f'{k}={v}' for k, v in LATENCY_S.items())})")  # fmt: skip
    add("--weights", default=WEIGHTS, metavar="P:S,...", help=f"of people to scene ({WEIGHTS})")
    stretches = "FIRST:COUNT/STREET of the video's frames and of a street, several with commas"
    add("--train", default=TRAIN, metavar="STRETCHES", help=f"{stretches} ({TRAIN})")
    add("--held-out", default=VALIDATION, metavar="STRETCHES",
        help=f"likewise; streets with kinds of objects that occur in no other ({VALIDATION})")  # fmt: skip
    add("--tables", type=pathlib.Path, metavar="FOLDER", help="of the tables of staleness (in the cache)")
    add("--labels", type=pathlib.Path, metavar="FILE", help="people by frame (those that come with edge_offload)")
    add("--seeds", type=int, default=3, metavar="N", help="of the runs over emulated links (3); 0: none")
    add("--real", type=float, default=0.0, metavar="S",
        help="run patrol.launch for so many seconds, too, and its latencies in virtual time beside it")  # fmt: skip
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record multitask here")
    add_output(parser, "--plot", type=pathlib.Path, metavar="FILE", help="draw the figures (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.cache import cache_dir
    from edge_offload_benchmarks.experiments.people import LABELS, read_labels

    latencies_s, weights = read_latencies(args.latency), read_weights(args.weights)
    train, validation = read_stretches(args.train, False), read_stretches(args.held_out, True)
    labels = read_labels(args.labels or LABELS)
    folder = args.tables or cache_dir() / "staleness"
    record = measure_schedules(folder, train, validation, latencies_s, weights, labels, args.seeds)
    if args.real:
        record["real"] = measure_patrol(folder, validation, args.real)
    _print_record(record)
    if args.json is not None:
        records.write(args.json, "multitask", record)
        print(f"wrote {args.json}", file=sys.stderr)
    if args.plot is not None:
        plot_record(record, args.plot)
        print(f"wrote {args.plot}", file=sys.stderr)
    return 0


def read_latencies(given: Sequence[str]) -> Dict[str, float]:
    """Parse the latencies of both tasks from TASK=S.

    Raises:
        BadInput: something else.
    """
    from edge_offload.errors import BadInput

    latencies_s = dict(LATENCY_S)
    for text in given:
        task, _, value = text.partition("=")
        try:
            latencies_s[task], valid = float(value), task in LATENCY_S
        except ValueError:
            valid = False
        if not valid or not 0 < latencies_s[task] <= 3:
            raise BadInput(f"--latency {text}", remedy="give people=S or scene=S, S seconds above 0, 3 at most")
    return latencies_s


def read_weights(text: str) -> List[Tuple[float, float]]:
    """Pairs that add up to 1.

    Raises:
        BadInput: no such weights.
    """
    from edge_offload.errors import BadInput

    weights = []
    for item in text.split(","):
        try:
            people, scene = (float(part) for part in item.split(":"))
            total = people + scene
            if not math.isfinite(total) or min(people, scene) < 0 or total <= 0:
                raise ValueError
        except ValueError:
            raise BadInput(f"--weights: {item!r}", remedy="give pairs such as 1:1,1:4 from 0 on") from None
        weights.append((people / total, scene / total))
    return weights


def read_stretches(text: str, validation: bool) -> List[Tuple[Any, Any]]:
    """Pairs of stretches, of people and of the scene.

    Raises:
        BadInput: something else, or too short.
    """
    from edge_offload.errors import BadInput
    from edge_offload_benchmarks.simulation.staleness import FAR, Stretch

    stretches = []
    for item in text.split(","):
        frames, _, street = item.partition("/")
        first, _, count = frames.partition(":")
        if not all(part.isdigit() for part in (first, count, street)) or int(count) < 2 * FAR:
            raise BadInput(
                f"stretch {item!r}", remedy=f"give FIRST:COUNT/STREET, such as 601:194/7, COUNT {2 * FAR} on"
            )
        people, scene = Stretch("people", int(first), int(count)), Stretch("scene", int(street), int(count), validation)
        stretches.append((people, scene))
    return stretches


def measure_schedules(
    folder: pathlib.Path,
    train: Sequence[Tuple[Any, Any]],
    validation: Sequence[Tuple[Any, Any]],
    latencies_s: Mapping[str, float],
    weights: Sequence[Tuple[float, float]],
    labels: Mapping[int, Any],
    seeds: int,
) -> Dict[str, Any]:
    """Tables, schedules, and what they come to: the record."""
    from edge_offload_benchmarks.simulation.staleness import RATE, table
    from edge_offload_benchmarks.simulation.turn_links import over_links
    from edge_offload_benchmarks.simulation.turn_taking import Pair

    def log_progress(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    tables = {
        stretch.name: (stretch, table(folder, stretch, log_progress))
        for pair in (*train, *validation)
        for stretch in pair
    }
    frames = (math.ceil(latencies_s["people"] * RATE - 1e-9), math.ceil(latencies_s["scene"] * RATE - 1e-9))
    pairs = [[Pair((tables[a.name][1], tables[b.name][1]), frames) for a, b in part] for part in (train, validation)]
    add = {stretch.number: made for stretch, made in tables.values() if stretch.task == "people"}
    people = by_labels({number: add[number] for number in {a.number for a, _ in validation}}, labels)
    scene = by_streets([tables[name][1] for name in sorted({b.name for _, b in validation})])
    rows, summary = [], []
    for weight in weights:
        log_progress(f"weights {_format_ratio(weight)}: every schedule in virtual time")
        schedules, judged = _compare_schedules(pairs[0], pairs[1], weight, [a.number for a, _ in validation], labels)
        rows += schedules
        summary.append(judged)
    record: Dict[str, Any] = {
        "rate_hz": RATE,
        "latency_s": dict(latencies_s),
        "latency_frames": dict(zip(("people", "scene"), frames)),
        "tables": [{**made.about, "held_out": stretch in [s for p in validation for s in p]} for stretch, made in
                   tables.values()],
        "people": people,
        "scene": scene,
        "rows": rows,
        "weights": summary,
        "constant": [row for pair in ((4, 4), (5, 4)) for row in constant_rates(RATIOS, pair)],
        "links": over_links(pairs[0], pairs[1], seeds),
        "standing": standing_share(frames),
    }  # fmt: skip
    record["bars"] = _judge_bars(record)
    return record


def measure_patrol(folder: pathlib.Path, validation: Sequence[Tuple[Any, Any]], seconds: float) -> Dict[str, Any]:
    """A real run of patrol.launch by task, and the planner in virtual time with the latencies that it had.

    The real one sees the whole video and another street, its scene has the local algorithm, and its frames, links and
    latencies are as they come: drops are those of the comparisons that it made itself.
    """
    from edge_offload_benchmarks.patrol_run import run_patrol
    from edge_offload_benchmarks.simulation.staleness import RATE, table
    from edge_offload_benchmarks.simulation.turn_taking import Estimates, Pair, Turns, take_turns

    measured = run_patrol(seconds)
    first, second = (max(1, math.ceil(measured[task]["latency_s"] * RATE)) for task in ("people", "scene"))
    estimates, choose, pairs, outcomes = Estimates(), Turns((0.5, 0.5)), [], []
    for a, b in validation:
        pairs.append(Pair((table(folder, a, lambda _: None), table(folder, b, lambda _: None)), (first, second)))
        outcomes.append(take_turns(pairs[-1], choose, estimates, False))
    lived = _judge_outcomes(pairs, outcomes)
    stale = np.concatenate([outcome.stale for outcome in outcomes], axis=1)
    for k, task in enumerate(("people", "scene")):
        measured[task]["virtual"] = {
            "latency_frames": (first, second)[k],
            "stale_s": float(stale[k].mean() / RATE),
            "turns_per_s": lived.offloads_per_s[k],
            "drop": float(lived.drops[k].mean()),
        }
    return {"seconds": seconds, "tasks": measured}


def by_labels(tables: Mapping[int, Any], labels: Mapping[int, Any]) -> List[Dict[str, Any]]:
    """F1 at an overlap of 0.5 of people of whom the result is so many frames old."""
    from edge_offload_benchmarks.simulation.staleness import METHODS, shown

    rows = []
    for age in (1, *AGES):
        counts = {method: np.zeros(3) for method in (*METHODS, "fresh")}
        frames = 0
        for first, table in tables.items():
            labelled = [frame for frame in labels if first + age <= frame < first + table.frames]
            frames += len(labelled)
            for frame in labelled:
                for method in counts:
                    old = 0 if method == "fresh" else age
                    boxes = shown(table.arrays, "held" if method == "fresh" else method, frame - first - old, old)
                    counts[method] += match_people(boxes, labels[frame])
        rows.append({"age": age, "frames": frames, "f1": {method: f1_score(count) for method, count in counts.items()}})
    return rows


def match_people(boxes: Array, truth: Any) -> Tuple[int, int, int]:
    """People found, missed, and false boxes; who is partly hidden counts neither way."""
    from edge_offload.perception.assignment import assign_pairs, iou_matrix

    if not len(boxes):
        return 0, int((~truth.partial).sum()), 0
    if not len(truth.boxes):
        return 0, 0, len(boxes)
    overlaps = iou_matrix(boxes, truth.boxes)
    scored = np.where(truth.partial[None, :], 0.0, overlaps)
    pairs, free, _ = assign_pairs(1.0 - scored, 0.5)
    false = sum(1 for box in free if overlaps[box, truth.partial].max(initial=0.0) < 0.5)
    return len(pairs), int((~truth.partial).sum()) - len(pairs), false


def f1_score(counts: Array) -> Optional[float]:
    """Return the F1 score of matches, misses and false boxes; None without people."""
    matches, missed, false = (float(value) for value in counts)
    total = 2 * matches + missed + false
    return 2 * matches / total if total else None


def by_streets(tables: Sequence[Any]) -> List[Dict[str, Any]]:
    """Completion IoU with what streets are really like: fresh, held and carried; ``closes``: the share of the distance.

    By what the robot does when the sweep comes that is shown.
    """
    rows = []
    for age, (phase, robot) in itertools.product(AGES, PHASES):
        fresh, stale, carried, drops = [], [], [], []
        for table in tables:
            truth = {method: table.arrays[f"truth/{method}"] for method in ("held", "carried")}
            now = np.arange(age, table.frames)
            now = now if phase is None else now[table.arrays["phase"][now] == phase]
            fresh.append(truth["held"][now, 0])
            stale.append(truth["held"][now - age, age])
            carried.append(truth["carried"][now - age, age])
            drops.append([table.drop(method)[now - age, age].sum() for method in ("held", "carried")])
        means = {name: float(np.concatenate(part).mean()) if sum(map(len, part)) else None for name, part in
                 (("fresh", fresh), ("held", stale), ("carried", carried))}  # fmt: skip
        if None in means.values():
            continue
        gap = means["fresh"] - means["held"]  # type: ignore[operator]
        closed = means["carried"] - means["held"]  # type: ignore[operator]
        lost = np.sum(drops, axis=0)
        rows.append({"age": age, "robot": robot, "sweeps": sum(map(len, fresh)), **means,
                     "closes": closed / gap if gap > 1e-3 else None,
                     "closes_network": float(1 - lost[1] / lost[0]) if lost[0] else None})  # fmt: skip
    return rows


def _compare_schedules(
    train: Sequence[Any], validation: Sequence[Any], weights: Tuple[float, float], firsts: Sequence[int],
    labels: Mapping[int, Any],
) -> Tuple[List[Dict[str, Any]], Dict[str, Any]]:  # fmt: skip
    """Every schedule at these weights: rows, and the comparison of turns with fixed patterns and the ceiling."""
    from edge_offload_benchmarks.simulation.turn_taking import Pattern, Planned, Turns

    choosers: Dict[str, Any] = {name: (lambda counts=counts: Pattern(counts)) for name, counts in PATTERNS.items()}
    choosers["turns"] = lambda: Turns(weights)
    choosers["turns, true rates"] = lambda: Turns(weights, true_rates=True)
    choosers["plan"] = lambda: Planned(weights)
    runs: Dict[Tuple[str, bool], Tuple[Run, Run]] = {}
    every = _all_at_once(train, validation, False)
    runs["today", False] = every["held"]
    runs["constant velocity", False] = every["velocity"]
    runs["local alone", True] = _run_locally(train), _run_locally(validation)
    for local in (False, True):
        runs["all at once", local] = _all_at_once(train, validation, local)["carried"]
        for name, chooser in choosers.items():
            runs[name, local] = _simulate_schedule(train, validation, chooser, local)
        runs["optimum", local] = _find_best(train, weights, local), _find_best(validation, weights, local)
    rows = []
    for (name, local), (before, judged) in runs.items():
        row = {"weights": list(weights), "schedule": name, "local": local, "people": float(judged.drops[0].mean()),
               "scene": float(judged.drops[1].mean()), "weighted": _drop_interval(judged, weights),
               "train": _mean_drop(before, weights), "people_share": judged.share, "bytes_per_s": judged.bytes_per_s,
               "joules_per_s": joules_per_s(judged.offloads_per_s, judged.bytes_per_s, name not in UNCARRIED, local),
               **_by_truth(judged, firsts, labels)}  # fmt: skip
        rows.append(row)
    judgement: Dict[str, Any] = {"weights": list(weights)}
    for local in (False, True):
        best = min(PATTERNS, key=lambda name: _mean_drop(runs[name, local][0], weights))
        pattern = runs[best, local][1]
        part: Dict[str, Any] = {"pattern": best, "best_pattern": _drop_interval(pattern, weights)}
        for name, key in (
            ("turns", "turns"),
            ("turns, true rates", "true_rates"),
            ("plan", "plan"),
            ("optimum", "optimum"),
        ):
            part[key] = _drop_interval(runs[name, local][1], weights)
            part[f"{key}_ratio"] = _drop_interval(runs[name, local][1], weights, pattern)
        judgement = {**judgement, **part} if not local else {**judgement, "with_local": part}
    return rows, judgement


def _simulate_schedule(train: Sequence[Any], validation: Sequence[Any], chooser: Any, local: bool) -> Tuple[Run, Run]:
    """A robot with one schedule, through the training part and then the other."""
    from edge_offload_benchmarks.simulation.turn_taking import Estimates, take_turns

    estimates, choose = Estimates(), chooser()
    before = [take_turns(pair, choose, estimates, local) for pair in train]
    after = [take_turns(pair, choose, estimates, local) for pair in validation]
    return _judge_outcomes(train, before), _judge_outcomes(validation, after)


def _all_at_once(train: Sequence[Any], validation: Sequence[Any], local: bool) -> Dict[str, Tuple[Run, Run]]:
    from edge_offload_benchmarks.simulation.staleness import METHODS
    from edge_offload_benchmarks.simulation.turn_taking import Estimates, Pattern, take_turns

    estimates = Estimates()
    parts = [
        [take_turns(pair, Pattern((1, 1)), estimates, local, True) for pair in part] for part in (train, validation)
    ]
    return {
        method: (_judge_outcomes(train, parts[0], method), _judge_outcomes(validation, parts[1], method))
        for method in METHODS
    }


def _run_locally(pairs: Sequence[Any]) -> Run:
    from edge_offload_benchmarks.simulation.turn_taking import Outcome, drops_of

    outcomes = []
    for pair in pairs:
        shape = (2, pair.end - pair.begin)
        stale, local = np.ones(shape, dtype=int), np.ones(shape, dtype=bool)
        outcomes.append(Outcome(stale, local, drops_of(pair, "carried", stale, local), []))
    return _judge_outcomes(pairs, outcomes)


def _find_best(pairs: Sequence[Any], weights: Sequence[float], local: bool) -> Run:
    from edge_offload_benchmarks.simulation.offline_optimum import optimum
    from edge_offload_benchmarks.simulation.turn_taking import Outcome, drops_of, replayed

    outcomes = []
    for pair in pairs:
        carried = [np.nan_to_num(drop) for drop in pair.drops("carried")]
        shown = [np.minimum(drop, pair.local(k)[:, None]) if local else drop for k, drop in enumerate(carried)]
        costs = [weight * drop for weight, drop in zip(weights, shown)]
        _, offloads = optimum(costs, pair.latencies, pair.begin, pair.end, pair.seen)
        stale = replayed(pair, offloads)
        frames = np.arange(pair.begin, pair.end)
        better = [pair.local(k)[frames] < carried[k][frames, stale[k]] for k in (0, 1)]
        instead = np.array(better) & local
        outcomes.append(Outcome(stale, instead, drops_of(pair, "carried", stale, instead), offloads))
    return _judge_outcomes(pairs, outcomes)


def _judge_outcomes(pairs: Sequence[Any], outcomes: Sequence[Any], method: str = "carried") -> Run:
    from edge_offload_benchmarks.simulation.staleness import RATE
    from edge_offload_benchmarks.simulation.turn_taking import drops_of

    drops, blocks, sent, whose = [], [], 0.0, [0, 0]
    for number, (pair, outcome) in enumerate(zip(pairs, outcomes)):
        drops.append(drops_of(pair, method, outcome.stale, outcome.local))
        blocks.append(1000 * number + np.arange(drops[-1].shape[1]) // BLOCK)
        for _, k in outcome.offloads:
            whose[k] += 1
            sent += pair.tables[k].about["bytes"]
    frames = sum(map(len, blocks))
    share = whose[0] / sum(whose) if sum(whose) else 0.0
    listed = [(pair, outcome, method) for pair, outcome in zip(pairs, outcomes)]
    rates = (whose[0] * RATE / frames, whose[1] * RATE / frames)
    return Run(np.concatenate(drops, axis=1), np.concatenate(blocks), sent * RATE / frames, share, rates, listed)


def joules_per_s(offloads_per_s: Sequence[float], bytes_per_s: float, carried: bool, local: bool) -> float:
    """Return the robot's power by the state model of a Jetson Xavier NX: it computes, sends, or stands by (watts).

    Args:
        offloads_per_s: of either task.
        bytes_per_s: sent.
        carried: results are carried to every frame.
        local: the local algorithms see every frame.
    """
    from edge_offload.power.states import StatePowers
    from edge_offload_benchmarks.simulation.staleness import RATE

    per_frame = (np.array(CARRY_S) if carried else 0.0) + (np.array(LOCAL_S) if local else 0.0)
    computing = min(1.0, SLOWDOWN * float(np.sum(RATE * per_frame + np.array(OFFLOAD_S) * offloads_per_s)))
    powers = StatePowers()
    adds = (
        computing * (powers.inference - powers.standby),
        min(1.0, bytes_per_s / LINK) * (powers.communication - powers.standby),
    )
    return powers.standby + sum(adds)


def _mean_drop(judged: Run, weights: Sequence[float]) -> float:
    return float(np.dot(weights, judged.drops.mean(axis=1)))


def _drop_interval(judged: Run, weights: Sequence[float], other: Optional[Run] = None) -> Dict[str, float]:
    """Mean weighted drop, or its ratio to another's on the same frames, and its 95 % interval over blocks of time."""
    cost = np.dot(weights, judged.drops)
    base = np.ones_like(cost) if other is None else np.dot(weights, other.drops)
    members = [judged.blocks == block for block in np.unique(judged.blocks)]
    sums = np.array([[cost[chosen].sum(), base[chosen].sum()] for chosen in members])
    drawn = sums[np.random.default_rng(0).integers(0, len(sums), (DRAWS, len(sums)))].sum(axis=1)
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5])
    return {"mean": float(cost.sum() / base.sum()), "low": float(low), "high": float(high)}


def _by_truth(judged: Run, firsts: Sequence[int], labels: Mapping[int, Any]) -> Dict[str, Optional[float]]:
    """F1 of people on labelled frames, and completion IoU with what the streets are like."""
    from edge_offload_benchmarks.simulation.staleness import people, shown

    counts, ious = np.zeros(3), []
    for (pair, outcome, method), first in zip(judged.outcomes, firsts):
        add, truth = pair.tables[0].arrays, pair.tables[1].arrays
        kind = "held" if method == "velocity" else method
        for place, frame in enumerate(range(pair.begin, pair.end)):
            stale, local = outcome.stale[:, place], outcome.local[:, place]
            if first + frame in labels:
                carried = shown(add, method, frame - stale[0], int(stale[0]))
                boxes = people(add["boxes/local"][frame]) if local[0] else carried
                counts += match_people(boxes, labels[first + frame])
            scene_ious = truth["truth/local"][frame] if local[1] else truth[f"truth/{kind}"][frame - stale[1], stale[1]]
            ious.append(float(scene_ious))
    return {"people_f1": f1_score(counts), "scene_iou": float(np.mean(ious))}


def constant_rates(ratios: Sequence[float], latencies: Tuple[int, int], turns: int = 140) -> List[Dict[str, Any]]:
    """Long-run cost per frame at constant rates, beside the best schedule that repeats after at most 8 turns."""
    from edge_offload.manager.turn_giver import Rules
    from edge_offload.manager.turns import Task, choose

    rows = []
    for ratio in ratios:
        # rates are drops per frame: small ones, since nobody loses more than everything
        rates, now, last, run_of, cost, counted = (1e-6, ratio * 1e-6), 0, [-9, -10], ("", 0), 0.0, 0
        for turn in range(turns):
            tasks = [Task("ab"[k], latencies[k], now - last[k], rates[k]) for k in (0, 1)]
            first = choose(tasks, Rules.max_run, run_of)
            run_of, k = (first, run_of[1] + 1 if run_of[0] == first else 1), "ab".index(first)
            if turn >= 20:
                counted += latencies[k]
                cost += sum(rate * (f - of) for f in range(now, now + latencies[k]) for rate, of in zip(rates, last))
            last[k], now = now, now + latencies[k]
        best = best_period(latencies, rates, Rules.max_run)
        rows.append({"latencies": list(latencies), "ratio": ratio, "long_run": cost / counted, "best_period": best})
    return rows


def best_period(latencies: Sequence[int], rates: Sequence[float], max_run: int, most: int = 8) -> float:
    """Mean cost per frame of the best schedule of both tasks that repeats itself after at most so many turns."""
    best = math.inf
    for length in range(2, most + 1):
        for period in itertools.product((0, 1), repeat=length):
            rows = [len(list(same)) for _, same in itertools.groupby(period * 3)]
            if len(set(period)) < 2 or max(rows) > max_run:
                continue
            starts = np.cumsum([0, *(latencies[k] for k in period)])
            cost = 0.0
            for k, rate in enumerate(rates):
                add = [int(begin) for turn, begin in zip(period, starts) if turn == k]
                for begin, after in zip(add, [*add[1:], add[0] + int(starts[-1])]):
                    gap = after - begin
                    cost += rate * (gap * latencies[k] + gap * (gap - 1) / 2)
            best = min(best, cost / int(starts[-1]))
    return best


def standing_share(latencies: Tuple[int, int]) -> Dict[str, float]:
    """Share of turns of the other task while one's drop is zero: made-up tables, 3 s after it stops, for 9 s."""
    from edge_offload_benchmarks.simulation.staleness import FAR, RATE, Table
    from edge_offload_benchmarks.simulation.turn_taking import Estimates, Pair, Turns, take_turns

    count, stops = 240, 120
    tables = []
    for rates in (np.full(count, 0.015), np.where(np.arange(count) < stops, 0.015, 0.0)):
        lost, drop = np.concatenate([[0.0], np.cumsum(rates)]), np.full((count, FAR + 1), np.nan)
        for later in range(FAR + 1):
            drop[: count - later, later] = np.minimum(1.0, lost[later + 1 :] - lost[1 : count - later + 1])
        tables.append(Table({"bytes": 0.0}, {"drop/carried": drop, "drop/local": np.ones(count)}))
    outcome = take_turns(Pair((tables[0], tables[1]), latencies), Turns((0.5, 0.5)), Estimates(), False)
    whose = [k for frame, k in outcome.offloads if frame >= stops + 3 * RATE]
    whose = whose[len(whose) % 4 :]  # groups of four
    before = [k for frame, k in outcome.offloads if stops <= frame < stops + 3 * RATE]
    return {"share": whose.count(0) / len(whose), "turns": len(whose), "share_meanwhile": before.count(0) / len(before)}


def _judge_bars(record: Mapping[str, Any]) -> List[Dict[str, Any]]:
    bars = []
    for row in record["people"]:
        if row["age"] in AGES and row["f1"]["carried"] is not None:
            least, value = PEOPLE_F1[AGES.index(row["age"])], row["f1"]["carried"]
            bars.append(_make_bar(f"people, F1 carried {row['age']} frames >= {least}", f"{value:.3f}", value >= least))
    for row in record["scene"]:
        # where the robot stands there is next to nothing to close
        if row["robot"] != "standing" and row["closes"] is not None:
            name = f"scene, {row['robot']}, {row['age']} sweeps: carrying closes >= {SCENE_CLOSES:.0%} of held to fresh"
            bars.append(_make_bar(name, f"{row['closes']:.0%}", row["closes"] >= SCENE_CLOSES))
    for row in record["weights"]:
        for suffix, part in (("", row), (", with local algorithms", row["with_local"])):
            ratio = part["turns_ratio"]
            weights = _format_ratio(row["weights"])
            name = f"turns at {weights}{suffix} <= {TURNS_COST} x the best pattern ({part['pattern']})"
            value = f"{ratio['mean']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f}); ceiling "
            bars.append(_make_bar(name, f"{value}{part['optimum_ratio']['mean']:.3f}", ratio["mean"] <= TURNS_COST))
    for row in record["links"]:
        link = row["link"] if row["share"] == 1 else f"{row['share']:g} of {row['link']}"
        name = f"turns over {link} <= {PLAN_COST} x the search of all plans, mean of {row['runs']} runs"
        value = f"{row['mean']:.3f} ({row['least']:.3f} to {row['most']:.3f})"
        bars.append(_make_bar(name, value, row["mean"] <= PLAN_COST))
    worst = max(row["long_run"] / row["best_period"] for row in record["constant"])
    name = f"constant rates, 1:1 to 1:{max(RATIOS)}: long-run cost <= {CONSTANT_COST} x the best period"
    bars.append(_make_bar(name, f"{worst:.4f} at worst", worst <= CONSTANT_COST))
    share = record["standing"]["share"]
    name = f"a task that lost nothing for 3 s: the other gets >= {STANDING_SHARE:.0%} of the turns"
    bars.append(_make_bar(name, f"{share:.0%} of {record['standing']['turns']}", share >= STANDING_SHARE))
    return bars


def _make_bar(name: str, value: str, met: bool) -> Dict[str, Any]:
    return {"name": name, "value": value, "met": bool(met)}


def _format_ratio(weights: Sequence[float]) -> str:
    people, scene = weights
    if not people or not scene:
        return f"{people:g}:{scene:g}"
    return f"{people / scene:g}:1" if people > scene else f"1:{scene / people:g}"


def _print_record(record: Mapping[str, Any]) -> None:
    for row in record["people"]:
        shown = ", ".join(f"{name} {value:.3f}" for name, value in row["f1"].items() if value is not None)
        print(f"people, result {row['age']} frames old, F1 on {row['frames']} labelled frames: {shown}")
    for row in record["scene"]:
        closes = "" if row["closes"] is None else f": closes {row['closes']:.0%}"
        print(f"scene, {row['robot']}, {row['age']} sweeps old: IoU fresh {row['fresh']:.3f}, held {row['held']:.3f}, "
              f"carried {row['carried']:.3f}{closes}")  # fmt: skip
    for weights in record["weights"]:
        print(f"weights {_format_ratio(weights['weights'])}")
        for row in record["rows"]:
            if row["weights"] == weights["weights"]:
                drop, local = row["weighted"], "with local" if row["local"] else ""
                interval = f"{drop['mean']:.4f} ({drop['low']:.4f} to {drop['high']:.4f})"
                print(f"  {row['schedule']:18} {local:10} {interval}; "
                      f"people {row['people']:.4f}, scene {row['scene']:.4f}; {row['people_share']:4.0%} of turns to "
                      f"people; {row['bytes_per_s'] / 1e3:.0f} kB/s")  # fmt: skip
    for bar in record["bars"]:
        print(f"  {'met    ' if bar['met'] else 'NOT MET'} {bar['name']}: {bar['value']}")


def plot_record(record: Mapping[str, Any], path: pathlib.Path) -> None:
    """Weighted drop of every schedule at 1:1 (or the first weights), and turns against patterns over all weights."""
    from edge_offload_benchmarks.plotting import open_panels

    chosen = next((w["weights"] for w in record["weights"] if w["weights"][0] == 0.5), record["weights"][0]["weights"])
    rows = [row for row in record["rows"] if row["weights"] == chosen][::-1]
    with open_panels(path, 1, 2, (12, 6)) as grid:
        panel, right = grid[0]
        values = [row["weighted"]["mean"] for row in rows]
        error = [[row["weighted"]["mean"] - row["weighted"]["low"] for row in rows],
                 [row["weighted"]["high"] - row["weighted"]["mean"] for row in rows]]  # fmt: skip
        colours = ["tab:blue" if row["local"] else "tab:grey" for row in rows]
        panel.barh(range(len(rows)), values, xerr=error, color=colours)
        panel.set_yticks(range(len(rows)))
        panel.set_yticklabels([row["schedule"] + (" + local" if row["local"] else "") for row in rows])
        panel.set_xlabel(f"weighted drop of the current frame, {_format_ratio(chosen)} (95 %)")
        places = range(len(record["weights"]))
        for key, title, colour in CURVES:
            for style, parts in (("-o", record["weights"]), ("--s", [w["with_local"] for w in record["weights"]])):
                label = title + (", with local" if style == "--s" else "")
                right.plot(places, [part[key]["mean"] for part in parts], style, color=colour, label=label)
        right.axhline(1.0, color="black", linewidth=0.8)
        right.set_xticks(list(places))
        right.set_xticklabels([_format_ratio(w["weights"]) for w in record["weights"]])
        right.set_xlabel("weights, people to scene")
        right.set_ylabel("weighted drop, in that of the best fixed pattern")
        right.legend(fontsize=8)
