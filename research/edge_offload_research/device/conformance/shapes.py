"""Of which operators the device works out right what their results look like, found by PyTorch's own samples.

Samples run on the device in many layouts; of every new call the executor is asked, and its answer compared with
what would have been worked out in each way (``native/cpp/survey.h``). An operator counts as exact for operands of a
layout if no such call differed and at least :data:`FEWEST` agreed; where torch's own iterator says it, or the result is
an operand, layouts share their samples. What is found for a release of torch is kept in
``device/shapes-<release>.json``, written by

  python -m edge_offload_research.device.conformance.shapes [--jobs N] [--entries GLOB ...]

and, for a GPU, in ``device/shapes-<release>-cuda.json``, written from what surveys there have counted by

  python -m edge_offload_research.device.conformance.shapes --counts FILE ...
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import itertools
import json
import pathlib
import subprocess
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.utils._pytree import tree_map

from edge_offload.device.installation import current_installation
from edge_offload.device.shapes import HOW, LAYOUTS, REQUESTED_KEY, layouts_of, operators_with_exact_shapes
from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.execute.devices import ON_CPU
from edge_offload_research.device.conformance.exclusions import EXCLUSIONS, HOST_ARGUMENTS
from edge_offload_research.device.conformance.judge import entry_name, set_seed

#: Calls that must agree, at the least; samples of an operator in its first dtype, and in each other, in more layouts.
FEWEST, SAMPLES, FEWER = 3, 5, 2
#: Seconds for an operator and dtype: for those samples, and for all the others.
LONGEST_S = 6.0
DTYPES = (torch.float32, torch.int64, torch.bool, torch.float16, torch.float64, torch.complex64)
#: Processes that may die one after the other, before any of them has surveyed an entry.
MAX_DEATHS = 5
#: What lines of a survey begin with: what an entry has added; of how many entries.
MARK, ALL = "shapes ", "entries "
#: Facts of a survey that are those of its table as well.
FACTS = ("torch", "device", "capability")
#: Layouts that share their samples where the one cannot be right and the other wrong.
ANY = LAYOUTS[:4]
#: The layout in which results are supposed to be those of the meta kernel where there is no table.
ROWS = LAYOUTS[0]
#: By operator, layout and how it was worked out: how often that was right and wrong.
Counts = Dict[Tuple[str, int, int], Tuple[int, int]]
Change = Callable[[torch.Tensor], torch.Tensor]
Arguments = Tuple[Any, Any, Any]


def exact_rules(counts: Counts) -> Dict[str, Dict[str, str]]:
    """Return the exact rules in the file's form: operators and layouts by way, a rule before the meta kernel."""
    by_layout: Dict[str, Dict[str, str]] = {how: {} for how in HOW}
    names = sorted({name for name, _, _ in counts if name.startswith("aten::")})
    for name, index in itertools.product(names, range(len(LAYOUTS))):
        for way in (1, 2, 0):
            agree, differ = counts.get((name, 1 << index, way), (0, 0))
            if agree < FEWEST and LAYOUTS[index] in ANY and _in_any_layout(name, way):
                of_all = [counts.get((name, 1 << LAYOUTS.index(letter), way), (0, 0)) for letter in ANY]
                agree, differ = (sum(column) for column in zip(*of_all))
            if agree >= FEWEST and not differ:
                by_layout[HOW[way]][name] = by_layout[HOW[way]].get(name, "") + LAYOUTS[index]
                break
    return by_layout


def table_of(surveys: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """The table of surveys of one device and torch, each ``{"torch", "device", "capability", "counts"}``.

    It names operators to be asked of. Their meta kernels are generated and differed, or differed in rows, where no way
    is exact.

    Raises:
        BadInput: they are of several devices or releases of torch.
    """
    facts = {name: surveys[0][name] for name in FACTS if name in surveys[0]}
    if any({name: each[name] for name in FACTS if name in each} != facts for each in surveys):
        raise BadInput("surveys of several devices or releases of torch", remedy="make a table of each")
    counts: Counts = {}
    for survey in surveys:
        add_counts(
            counts, {(name, layout, way): (agree, differ) for name, layout, way, agree, differ in survey["counts"]}
        )
    rules = exact_rules(counts)
    in_rows = {name for by_name in rules.values() for name, layouts in by_name.items() if ROWS in layouts}
    generated = set(operators_with_exact_shapes())
    requested = sorted(
        {
            name
            for (name, layout, way), (_, differ) in counts.items()
            if differ and not way and (name in generated or (layouts_of(ROWS) == layout and name not in in_rows))
        }
    )
    return {**facts, REQUESTED_KEY: requested, **rules}


def add_counts(counts: Counts, more: Counts) -> None:
    """Add counts to counts."""
    for key, (agree, differ) in more.items():
        before = counts.get(key, (0, 0))
        counts[key] = before[0] + agree, before[1] + differ


def _in_any_layout(name: str, way: int) -> bool:
    """Return whether a way is right in all of :data:`ANY` if it is in one.

    That is so where torch's own iterator says it, or the result is an operand.
    """
    packet, _, overload = name.replace("aten::", "").partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    if way:
        return torch.Tag.pointwise in operator.tags
    same = packet.endswith("_") and not packet.endswith("__") and torch.Tag.inplace_view not in operator.tags
    return same and not packet.startswith(("resize", "set"))


def survey(entries: Iterable[Any], native: Any, longest_s: float = LONGEST_S) -> Iterator[Counts]:
    """Run the samples of each of ``entries`` of op_db on the virtual device of this process; what that adds."""
    before: Counts = {}
    for op in entries:
        native.survey(True)
        for number, dtype in enumerate(each for each in DTYPES if each in op.supported_dtypes("cpu")):
            few, same = CHANGES[:FEW], CHANGES[:1]
            changes, others = (few, same) if number else (CHANGES, few)
            survey_samples(op, dtype, FEWER if number else SAMPLES, changes, others, longest_s)
        native.survey(False)
        now: Counts = dict(native.surveyed())
        more = {
            key: (value[0] - before.get(key, (0, 0))[0], value[1] - before.get(key, (0, 0))[1])
            for key, value in now.items()
        }
        yield {key: value for key, value in more.items() if any(value)}
        before = now


def survey_samples(
    op: Any, dtype: torch.dtype, count: int, changes: Sequence[Change], others: Sequence[Change], longest_s: float
) -> None:
    """Have the device see the samples of one operator and dtype; errors are part of them.

    ``count`` of them, evenly spread, lie in memory in all of ``changes``, all others in ``others``. Each of the two
    takes ``longest_s`` seconds at most.
    """
    set_seed(0)
    try:
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    except Exception:
        return  # it has none here
    step = max(1.0, (len(samples) - 1) / max(1, count - 1))
    spread = {round(index * step) for index in range(min(count, len(samples)))}
    _survey_sample([samples[place] for place in sorted(spread)], op, changes, longest_s)
    _survey_sample([sample for place, sample in enumerate(samples) if place not in spread], op, others, longest_s)


def _survey_sample(samples: Sequence[Any], op: Any, changes: Sequence[Change], longest_s: float) -> None:
    deadline = time.monotonic() + longest_s
    for sample in samples:
        for make in _vary_arguments(op, sample, changes):
            for function in filter(None, (op.op, op.inplace_variant)):
                if time.monotonic() > deadline:
                    return
                _try_call(function, make)


def _try_call(function: Any, make: Callable[[str], Arguments]) -> None:
    try:
        if not str(installed_device().remote.facts.get("name", "")).endswith(ON_CPU):
            # an index out of range raises on a CPU; on a GPU it ends the session
            on_cpu, args, kwargs = make("cpu")
            with torch.no_grad():
                function(on_cpu, *args, **kwargs)
        input_, args, kwargs = make("cuda")
        first = input_.clone() if isinstance(input_, torch.Tensor) else input_
        with torch.no_grad():
            function(first, *args, **kwargs)
        torch.cuda.synchronize()
    except EdgeOffloadError as error:
        if installed_device().recorder.failed:
            raise error
    except Exception:
        return  # what eager execution refuses


def installed_device() -> Any:
    """The virtual device of this process.

    Raises:
        EdgeOffloadError: there is none.
    """
    device = current_installation()
    if device is None:
        raise EdgeOffloadError("there is no virtual device", remedy="start this with 'edge-offload exec --mode lazy'")
    return device


def _vary_arguments(op: Any, sample: Any, changes: Sequence[Change]) -> Iterator[Callable[[str], Arguments]]:
    for change in changes:
        for which in (None, 0, 1) if changes is CHANGES and change is not _as_sampled else (None,):
            yield functools.partial(_move_sample, op, sample, change, which, None, False)
    if isinstance(sample.input, torch.Tensor) and sample.args and isinstance(sample.args[0], torch.Tensor):
        yield functools.partial(_move_sample, op, sample, _as_sampled, None, 2, False)
    if op.name.startswith("nn.functional."):
        yield functools.partial(_move_sample, op, sample, _as_sampled, None, None, True)


def _move_sample(
    op: Any,
    sample: Any,
    change: Change,
    which: Optional[int],
    number: Optional[int],
    inplace: bool,
    device: str,
) -> Arguments:
    """The arguments of a sample on ``device``, all tensors changed, or only one of the first two.

    ``number``: in place of the second operand.
    """
    numbers = itertools.count()

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            moved, place = value.detach().to(device, copy=True), next(numbers)
            strided = moved.layout is torch.strided
            return change(moved) if strided and which in (None, place) else moved
        if isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda")):
            return torch.device(device)
        return value

    input_ = tree_map(move, sample.input)
    args = sample.args if op.name in HOST_ARGUMENTS else tree_map(move, sample.args)
    kwargs = tree_map(move, sample.kwargs)
    return (
        input_,
        (number, *args[1:]) if number is not None else args,
        {**kwargs, "inplace": True} if inplace else kwargs,
    )


def _as_sampled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.contiguous(memory_format=formats[tensor.dim()]) if tensor.dim() in formats else tensor


def _lay_transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() >= 2 else tensor


def _first_two(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(0, 1).contiguous().transpose(0, 1) if tensor.dim() >= 3 else tensor


def _lay_reversed(tensor: torch.Tensor) -> torch.Tensor:
    order = tuple(range(tensor.dim()))[::-1]
    return tensor.permute(order).contiguous().permute(order) if tensor.dim() >= 2 else tensor


def _lay_with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack((tensor, tensor), -1).select(-1, 0) if tensor.dim() else tensor


def _lay_expanded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:1].expand(tensor.shape) if tensor.dim() and len(tensor) else tensor


def _lay_behind(tensor: torch.Tensor) -> torch.Tensor:
    """Behind something else in its storage."""
    return torch.stack((tensor, tensor))[1]


def _lay_single(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with dimensions of one element, whose strides mean nothing."""
    return tensor[..., :1, :1] if tensor.dim() >= 3 else tensor[:1] if tensor.dim() else tensor


def _make_empty(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[:0] if tensor.dim() else tensor


def _single_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return _channels_last(_lay_single(tensor))


def _lay_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with four dimensions, the channels last."""
    more = (2, 3, 2, 2)[: 4 - tensor.dim()]
    return _channels_last(tensor.expand(*more, *tensor.shape).contiguous()) if tensor.dim() in (1, 2, 3) else tensor


def _raised_transposed(tensor: torch.Tensor) -> torch.Tensor:
    return _lay_transposed(_lay_channels_last(tensor))


CHANGES: Tuple[Change, ...] = (
    _as_sampled, _channels_last, _lay_transposed, _make_empty, _lay_channels_last, _lay_with_gaps,
    _lay_reversed, _first_two, _lay_expanded, _lay_behind, _lay_single, _single_channels_last, _raised_transposed,
)  # fmt: skip
#: How many of them there are in a dtype that is not an operator's first.
FEW = 6


def choose_entries(patterns: List[str], part: int, parts: int) -> List[Any]:
    """Every ``parts``-th entry of op_db whose name fits, those that fit an earlier pattern first."""
    from torch.testing._internal.common_methods_invocations import op_db

    def place_of(op: Any) -> int:
        fits = (number for number, each in enumerate(patterns) if fnmatch.fnmatch(entry_name(op), each))
        return next(fits, len(patterns))

    places = [(place_of(op), op) for op in op_db if entry_name(op) not in EXCLUSIONS or "empty" in entry_name(op)]
    ordered = sorted(places, key=lambda pair: pair[0])
    return [op for number, op in ordered if number < len(patterns)][part::parts]


def part_of(command: Sequence[str]) -> Counts:
    """Run processes of the launcher one after the other: where one dies, the next continues after that entry.

    Raises:
        EdgeOffloadError: more than :data:`MAX_DEATHS` died in turn.
    """
    total: Counter[Tuple[str, int, int, bool]] = Counter()
    start, deaths = 0, 0
    while True:
        process = subprocess.Popen([*command, "--start", str(start)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                start, deaths, counted = start + 1, 0, json.loads(line[len(MARK) :])
                for name, layout, how, agree, differ in counted:
                    total[name, layout, how, True] += agree
                    total[name, layout, how, False] += differ
        if process.wait() == 0:
            return {key[:3]: (total[(*key[:3], True)], total[(*key[:3], False)]) for key in total}
        start, deaths = start + 1, deaths + 1
        if deaths > MAX_DEATHS:
            raise EdgeOffloadError(
                f"the survey ends with exit code {process.returncode}", remedy="see what it said above"
            )
        print(f"entry {start - 1} ended its process", file=sys.stderr)


def main() -> int:
    """Survey here if there is a device, else in processes of the launcher; write what is found to standard output."""
    parser = argparse.ArgumentParser(prog="edge_offload_research.device.conformance.shapes", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--entries", nargs="+", default=["*"])
    parser.add_argument("--longest", type=float, default=LONGEST_S)
    parser.add_argument("--counts", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    if args.counts:
        print(json.dumps(table_of([json.loads(path.read_text(encoding="utf-8")) for path in args.counts]), indent=0))
        return 0
    warnings.simplefilter("ignore")
    if current_installation() is not None:
        torch.set_num_threads(1)
        entries = choose_entries(args.entries, args.part, args.jobs)
        print(f"{ALL}{len(entries)}", flush=True)
        for counts in survey(entries[args.start :], installed_device().native, args.longest):
            print(MARK + json.dumps([[*key, *value] for key, value in counts.items()]), flush=True)
        return 0
    command = [
        sys.executable,
        "-m",
        "edge_offload.cli",
        "exec",
        "--mode",
        "lazy",
        "--threads",
        "1",
        "--",
        sys.executable,
    ]
    command += ["-m", "edge_offload_research.device.conformance.shapes", "--jobs", str(args.jobs)]
    command += ["--entries", *args.entries, "--longest", str(args.longest)]
    total: Counts = {}
    with ThreadPoolExecutor(args.jobs) as pool:
        for counts in pool.map(part_of, ([*command, "--part", str(part)] for part in range(args.jobs))):
            add_counts(total, counts)
    lines = [[*key, *value] for key, value in total.items()]
    print(json.dumps(table_of([{"torch": torch.__version__.split("+")[0], "counts": lines}]), indent=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
