"""The verdict on one entry of ``op_db``: every sample on a reference and on the virtual device, in several modes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Optional, Protocol, Sequence

import torch
from torch.utils._pytree import tree_flatten, tree_map

from edge_offload.device import installation
from edge_offload.errors import LinkLost, Unsupported
from edge_offload.mode import Mode, parse_mode
from edge_offload_research.device.conformance.exclusions import (
    BRANCHES_ON_DEVICE,
    EXCLUSIONS,
    HOST_ARGUMENTS,
    STRIDES_OF_CUDA,
)

PASSED, REFUSED, WRONG, EXCLUDED = OUTCOMES = ("passed", "refused", "wrong", "excluded")
DTYPES = ("float32", "float16", "int64")
#: For entries that have none of :data:`DTYPES`, the first of these that they have.
OTHER_DTYPES = ("complex64", "bool", "float64")
MODES = ("per_op", "lazy", "replay")
#: How the tensors of a sample lie in memory: as they were drawn, with channels last (those of four and five
#: dimensions), with the last two dimensions the other way round, with a gap behind each element.
LAYOUTS = (SAMPLED, CHANNELS_LAST, TRANSPOSED, STRIDED) = ("sampled", "channels_last", "transposed", "strided")
#: How often each sample runs in a mode, each time with fresh values. In replay the first run records, the second shows
#: that it repeats, and the server runs ahead of the other two.
RUNS = {"per_op": 1, "cached": 1, "lazy": 2, "replay": 4, "local": 1}
SEED = 7


@dataclass
class Verdict:
    """Verdict on one entry in one mode: the worst outcome with its first reason, and the number of samples."""

    outcome: str = PASSED
    reason: str = ""
    samples: int = 0
    compared: int = 0
    replayed: int = 0

    def add(self, outcome: str, reason: str = "") -> None:
        """One more sample."""
        self.samples += 1
        if OUTCOMES.index(outcome) > OUTCOMES.index(self.outcome):
            self.outcome, self.reason = outcome, reason


@dataclass
class Case:
    """One sample with several sets of values, and for each what the reference makes of it: a result or an error."""

    dtype: str
    samples: List[Any]
    layout: str = SAMPLED
    expected: List[Any] = field(default_factory=list)


class Raised:
    """The reference raised."""

    def __init__(self, text: str) -> None:
        self.text = text

    @staticmethod
    def of(error: Exception) -> Raised:
        """Wrap ``error``."""
        return Raised(f"{type(error).__name__}: {first_line(error)}")


class Reference(Protocol):
    """Source of expected results in place of the CPU of this process."""

    def results(self, entry: str, dtype: str, count: int, limit: int, layout: str, samples: List[List[Any]]) -> Any:
        """Return the leaves of the result, or :class:`Raised`, by the number of the values and of the sample.

        Args:
            entry: its name.
            dtype: of the samples.
            count: sets of values.
            limit: samples of each; 0 for all.
            layout: how their tensors lie.
            samples: what :func:`draw_samples` gives here; it must draw the same.
        """


def entry_name(op: Any) -> str:
    """Name of an entry of op_db, with its variant."""
    name: str = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    return name


def dtypes_of(op: Any) -> List[str]:
    """The dtypes in which ``op`` is sampled."""
    chosen = [name for name in DTYPES if getattr(torch, name) in op.dtypes]
    return chosen or [name for name in OTHER_DTYPES if getattr(torch, name) in op.dtypes][:1]


def judge_entry(
    op: Any, modes: Sequence[str], limit: int, device: Any, layouts: Sequence[str] = (SAMPLED,),
    reference: Optional[Reference] = None,
) -> Dict[str, Any]:  # fmt: skip
    """Verdicts on ``op`` in each of ``modes``, as a record (``conformance`` in the schema, one of its entries).

    Args:
        op: an entry of op_db.
        modes: execution modes of the virtual device.
        limit: samples per dtype; 0 for all.
        device: the installed virtual device.
        layouts: some of :data:`LAYOUTS`; each sample is judged in each.
        reference: what results are compared with; None: the CPU.
    """
    started_at = time.monotonic()
    name = entry_name(op)
    if name in EXCLUSIONS:
        outcomes = dict.fromkeys(modes, EXCLUDED)
        return {"entry": name, "outcomes": outcomes, "reasons": {}, "samples": 0, "replayed": 0, "seconds": 0.0}
    verdicts = {mode: Verdict() for mode in modes}
    for dtype in dtypes_of(op):
        try:
            count = max(RUNS[mode] for mode in modes)
            cases = [case for layout in layouts for case in cases_of(op, dtype, count, limit, layout, reference)]
            if op.name in BRANCHES_ON_DEVICE:
                refer_to_device(op, cases, device)
        except Exception as error:
            for verdict in verdicts.values():
                verdict.add(WRONG, f"{dtype}: its samples cannot be made: {first_line(error)}")
            continue
        for mode, verdict in verdicts.items():
            if parse_mode(mode) is not Mode.LOCAL:
                device.switch_mode(parse_mode(mode))
            before = device.recorder.counters.accepted
            try:
                for case in cases:
                    check_case(op, case, RUNS[mode], verdict)
            except LinkLost as error:
                verdict.add(WRONG, f"{dtype}: the executor died: {error}")
                break
            verdict.replayed += device.recorder.counters.accepted - before
        if device.recorder.failed:
            break
    for verdict in verdicts.values():
        if verdict.outcome == PASSED and not verdict.compared:
            verdict.add(WRONG, "no sample of it runs on the reference: there is nothing to compare with")
    return {
        "entry": name,
        "outcomes": {mode: verdict.outcome for mode, verdict in verdicts.items()},
        "reasons": {mode: verdict.reason for mode, verdict in verdicts.items() if verdict.reason},
        "samples": max(verdict.samples for verdict in verdicts.values()),
        "replayed": sum(verdict.replayed for verdict in verdicts.values()),
        "seconds": round(time.monotonic() - started_at, 2),
    }


def draw_samples(op: Any, dtype: str, count: int, limit: int) -> List[List[Any]]:
    """``count`` sets of values of the samples of ``op``, each a list of them, the same in every process.

    Of more than ``limit`` samples that many are taken, evenly spread, with the first and the last.
    """
    sets = []
    for number in range(count):
        set_seed(number)
        samples = list(op.sample_inputs("cpu", getattr(torch, dtype), requires_grad=False))
        if limit and len(samples) > limit:
            step = (len(samples) - 1) / max(1, limit - 1)
            samples = [samples[round(index * step)] for index in range(limit)]
        sets.append(samples)
    return sets


def cases_of(
    op: Any, dtype: str, count: int, limit: int, layout: str = SAMPLED, reference: Optional[Reference] = None
) -> Iterator[Case]:
    """Yield each sample of ``op`` with ``count`` sets of values (see :func:`draw_samples`) and reference results."""
    sets = draw_samples(op, dtype, count, limit)
    if reference is not None:
        results = reference.results(entry_name(op), dtype, count, limit, layout, sets)
        for samples, expected in zip(zip(*sets), zip(*results)):
            yield Case(dtype, list(samples), layout, list(expected))
        return
    for samples in zip(*sets):
        case = Case(dtype, list(samples), layout)
        for sample in samples:
            set_seed(SEED)
            try:
                case.expected.append(call_operator(op, sample, "cpu", layout))
            except Exception as error:
                if "edge_offload" in str(error):
                    raise
                case.expected.append(Raised.of(error))
        yield case


def refer_to_device(op: Any, cases: Sequence[Case], device: Any) -> None:
    """Replace what ``cases`` expect by what the device says in per-op (or local) mode, which must be close to it.

    Raises:
        ValueError: it is not close.
    """
    if device.recorder.mode in installation.MODES:
        device.switch_mode(Mode.PER_OP)
    for case in cases:
        for index, sample in enumerate(case.samples):
            expected = case.expected[index]
            if isinstance(expected, Raised):
                continue
            set_seed(SEED)
            result = to_host(call_operator(op, sample, "cuda", case.layout))
            tolerance = BRANCHES_ON_DEVICE[op.name]
            for a, b in zip(tree_flatten(expected)[0], tree_flatten(result)[0]):
                if not torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance, equal_nan=True):
                    raise ValueError(f"the device says {b} where the reference says {a}")
            case.expected[index] = result


def to_host(result: Any) -> Any:
    """``result`` with its tensors on the host."""
    return tree_map(lambda value: value.cpu() if isinstance(value, torch.Tensor) else value, result)


def check_case(op: Any, case: Case, runs: int, verdict: Verdict) -> None:
    """Run ``case`` on the device ``runs`` times and judge.

    Raises:
        LinkLost: the executor is gone.
    """
    where = case.dtype if case.layout == SAMPLED else f"{case.dtype}, {case.layout}"
    for sample, expected in zip(case.samples[:runs], case.expected):
        set_seed(SEED)
        try:
            on_device = call_operator(op, sample, "cuda", case.layout)
            result = to_host(on_device)
        except LinkLost:
            raise
        except Exception as error:
            if isinstance(expected, Raised):
                continue
            refused = isinstance(error, (NotImplementedError, Unsupported)) or "edge_offload" in str(error)
            text = f"{where}: {type(error).__name__}: {first_line(error)}"
            verdict.add(REFUSED if refused else WRONG, text)
            return
        if isinstance(expected, Raised):
            difference = f"no error where the reference says {expected.text}"
        else:
            verdict.compared += 1
            dense = entry_name(op) in STRIDES_OF_CUDA and isinstance(expected, torch.Tensor)  # of a CPU
            dense_expected = expected.contiguous() if dense else expected
            difference = compare_results(expected, result) or layout_difference(dense_expected, on_device)
        if difference:
            verdict.add(WRONG, f"{where}: {difference}")
            return
    verdict.add(PASSED)


def call_operator(op: Any, sample: Any, device: str, layout: str = SAMPLED) -> Any:
    """Run ``op`` on copies of the tensors of ``sample`` on ``device``, which replaces any that the sample names."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return laid_out(value.detach().cpu().clone() if device == "cpu" else value.detach().to(device), layout)
        if isinstance(value, torch.device) or (isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda")):
            return torch.device(device)
        return value

    arguments = sample.args if op.name in HOST_ARGUMENTS else tree_map(move, sample.args)
    with torch.no_grad():
        return op(tree_map(move, sample.input), *arguments, **tree_map(move, sample.kwargs))


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The numbers of ``tensor`` as ``layout`` has them in memory; those that it says nothing of stay as they are."""
    dims = tensor.dim() if tensor.layout == torch.strided else 0
    if layout == CHANNELS_LAST and dims in (4, 5):
        return tensor.contiguous(memory_format=torch.channels_last if dims == 4 else torch.channels_last_3d)
    if layout == TRANSPOSED and dims >= 2:
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == STRIDED and dims:
        return torch.stack([tensor, tensor], dim=-1)[..., 0]
    return tensor


def compare_results(expected: Any, result: Any) -> str:
    """Describe why two results differ; empty if they do not. Bit for bit, except that one NaN equals another."""
    one, right = tree_flatten(expected)[0], tree_flatten(result)[0]
    if len(one) != len(right):
        return f"{len(right)} results instead of {len(one)}"
    for a, b in zip(one, right):
        if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
            return f"a {type(b).__name__} instead of a {type(a).__name__}"
        difference = _tensor_difference(a, b) if isinstance(a, torch.Tensor) else _plain_difference(a, b)
        if difference:
            return difference
    return ""


def layout_difference(expected: Any, result: Any) -> str:
    """Describe where the strides of two results differ; empty if they do not. Single-element dimensions match any."""
    for a, b in zip(tree_flatten(expected)[0], tree_flatten(result)[0]):
        if isinstance(a, torch.Tensor) and a.layout == torch.strided and a.numel():
            strides = [[s for n, s in zip(t.shape, t.stride()) if n > 1] for t in (a, b)]
            if strides[0] != strides[1]:
                return f"strides {tuple(b.stride())} instead of {tuple(a.stride())}"
    return ""


def _tensor_difference(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{b.dtype} {tuple(b.shape)} instead of {a.dtype} {tuple(a.shape)}"
    if a.layout != b.layout:
        return f"a {b.layout} result instead of a {a.layout} one"
    if a.layout != torch.strided:
        return _tensor_difference(a.to_dense(), b.to_dense())
    if a.is_complex():
        return _tensor_difference(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj()))
    same = a == b
    if a.is_floating_point():
        same = (same & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())
    return "" if bool(same.all()) else f"{int((~same).sum())} of {a.numel()} values differ"


def _plain_difference(a: Any, b: Any) -> str:
    if a == b or isinstance(a, torch.device) or (a != a and b != b):
        return ""
    return f"{b!r} instead of {a!r}"


def first_line(error: BaseException, width: int = 200) -> str:
    """The first line of what ``error`` says."""
    lines = str(error).strip().splitlines()
    return lines[0][:width] if lines else type(error).__name__


def set_seed(value: int) -> None:
    """``torch.manual_seed`` for the two devices that matter (torch's takes a stack trace for each absent one)."""
    torch.default_generator.manual_seed(value)
    torch.cuda.manual_seed_all(value)


def find_entry(op_db: Sequence[Any], name: str) -> Optional[Any]:
    """The entry called ``name``."""
    return next((op for op in op_db if entry_name(op) == name), None)
