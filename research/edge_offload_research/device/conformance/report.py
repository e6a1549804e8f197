"""What came out: totals, the terminal's table, the page ``docs/reference/compatibility.md``, progress."""

from __future__ import annotations

import sys
import time
from typing import Any, Dict, List, Mapping, Sequence

from edge_offload_research.device.conformance.exclusions import EXCLUSIONS

OUTCOMES = ("passed", "refused", "wrong", "excluded")
EVERY = 20


class Progress:
    """Says every few entries how far the run is and when it will be done."""

    def __init__(self, total: int, done: int = 0) -> None:
        self._total, self._done, self._started_at, self._at_start = total, done, time.monotonic(), done

    def __call__(self, record: Mapping[str, Any]) -> None:
        """One more entry."""
        self._done += 1
        for mode, outcome in record["outcomes"].items():
            if outcome == "wrong":
                print(f"{record['entry']}: wrong in {mode}: {record['reasons'].get(mode, '')}", file=sys.stderr)
        if self._done % EVERY == 0 or self._done == self._total:
            each = (time.monotonic() - self._started_at) / (self._done - self._at_start)
            remaining_s = each * (self._total - self._done)
            print(
                f"{self._done}/{self._total} entries, {remaining_s / 60:.0f} min left at {each:.1f} s each",
                file=sys.stderr, flush=True,
            )  # fmt: skip


def record_of(entries: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Dict[str, Any]:
    """The record of a run (``conformance`` in the schema); ``facts`` are torch, modes, dtypes and limit."""
    totals = {
        mode: {outcome: sum(entry["outcomes"][mode] == outcome for entry in entries) for outcome in OUTCOMES}
        for mode in facts["modes"]
    }
    return {**facts, "totals": totals, "entries": [dict(entry) for entry in entries]}


def format_table(record: Mapping[str, Any]) -> str:
    """Totals by mode, as lines of text."""
    count = len(record["entries"])
    lines = [f"{'mode':10}" + "".join(f"{outcome:>10}" for outcome in OUTCOMES) + "    passed of all"]
    for mode, totals in record["totals"].items():
        share = 100 * totals["passed"] / count
        lines.append(f"{mode:10}" + "".join(f"{totals[outcome]:10}" for outcome in OUTCOMES) + f"{share:14.1f} %")
    return "\n".join(lines)


def format_page(record: Mapping[str, Any]) -> str:
    """The compatibility page, in Markdown."""
    entries = record["entries"]
    samples = sum(entry["samples"] for entry in entries)
    layouts = [layout for layout in record.get("layouts", []) if layout != "sampled"]
    lying = [f"The tensors of samples lie in memory in other ways, too: {', '.join(layouts)}.", ""] if layouts else []
    on_cuda = record.get("reference") == "cuda"
    reference = "by plain CUDA (TF32 off, cuDNN deterministic)" if on_cuda else "on the CPU"
    executor = "with the same torch" if on_cuda else "whose executor is a CPU process with the same torch"
    limit = f"at most {record['limit']} of each dtype, evenly spread" if record["limit"] else "all samples"
    lines = [
        "# Compatibility",
        "",
        "Operators of PyTorch that run on the virtual CUDA device. This page is written by",
        f"`edge-offload conformance --markdown` (torch {record['torch']}).",
        "",
        f"The judge is PyTorch's own test suite: {len(entries)} entries of `op_db`, {samples} samples ({limit}",
        f"in {', '.join(record['dtypes'])}; in another dtype for entries that have none of them), forward only.",
        f"Every sample runs {reference} and on the device, {executor} and one",
        "thread; the results are compared bit by bit (NaN equals NaN), with their dtype, shape and strides; where",
        f"{'plain CUDA' if on_cuda else 'the CPU'} raises, the device must too. Random operators start from the same "
        "seed. In replay mode each sample",
        "runs four times with fresh values, so that the server runs ahead of the later ones.",
        "",
        *lying,
        "An entry is *passed* if every sample is. It is *refused* if some sample ends in a clear error that names what",
        "is not supported. It is *wrong* if any result differs or a process dies, *excluded* if it cannot be compared.",
        "",
        "| mode | " + " | ".join(OUTCOMES) + " | passed of all |",
        "| --- |" + " ---: |" * (len(OUTCOMES) + 1),
    ]
    for mode, totals in record["totals"].items():
        share = 100 * totals["passed"] / max(1, len(entries))
        lines.append(f"| {mode} | " + " | ".join(str(totals[outcome]) for outcome in OUTCOMES) + f" | {share:.1f} % |")
    for outcome, title in (("wrong", "Wrong"), ("refused", "Refused")):
        lines += ["", f"## {title}", "", *_list_reasons(entries, outcome)]
    lines += ["", "## Excluded", ""]
    present = {entry["entry"] for entry in entries}
    lines += [f"- `{name}`: {reason}" for name, reason in EXCLUSIONS.items() if name in present]
    return "\n".join(lines) + "\n"


def _list_reasons(entries: Sequence[Mapping[str, Any]], outcome: str) -> List[str]:
    lines = []
    for entry in entries:
        modes = [mode for mode, one in entry["outcomes"].items() if one == outcome]
        if modes:
            where = "" if len(modes) == len(entry["outcomes"]) else f" ({', '.join(modes)})"
            reason = entry["reasons"].get(modes[0], "").replace("|", "\\|")
            lines.append(f"- `{entry['entry']}`{where}: {reason}")
    return lines or ["None."]
