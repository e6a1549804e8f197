"""Seconds of a network's blocks on classes of GPUs, and bytes between them; from and to CSV.

The columns are ``dnn, gpu, vgpu_denom, block, batch, latency_us`` and ``dnn, cut_after_block, bytes_batch1``.
"""

from __future__ import annotations

import csv
import math
import pathlib
from dataclasses import dataclass
from typing import AbstractSet, Dict, Iterator, List, Mapping, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput

LATENCIES, CUTS = "block_latency_us.csv", "cut_bytes.csv"
_LATENCY_COLUMNS = ("dnn", "gpu", "vgpu_denom", "block", "batch", "latency_us")
_CUT_COLUMNS = ("dnn", "cut_after_block", "bytes_batch1")


@dataclass(frozen=True)
class BlockProfile:
    """A network by its blocks.

    Attributes:
        name: of the network.
        latency_s: by class of GPU and parts that a GPU is divided into (1: whole): [blocks, batch - 1], seconds.
        cut_bytes: bytes for one frame that cross after each block but the last.
    """

    name: str
    latency_s: Mapping[str, Mapping[int, Array]]
    cut_bytes: Array

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.cut_bytes) + 1

    def stage_seconds(self, gpu: str, parts: int, first: int, end: int) -> Array:
        """Return seconds of blocks ``first`` to ``end`` (excluded), by batch - 1."""
        seconds: Array = self.latency_s[gpu][parts][first:end].sum(axis=0)
        return seconds


def load_profiles(folder: pathlib.Path) -> Dict[str, BlockProfile]:
    """Load networks from a folder with :data:`LATENCIES` and :data:`CUTS`.

    Raises:
        BadInput: a file is missing or malformed, a block or batch is missing, a number is not finite and positive.
    """
    latencies: Dict[str, Dict[Tuple[str, int], Dict[Tuple[int, int], float]]] = {}
    for row in _read_rows(folder / LATENCIES, _LATENCY_COLUMNS):
        place = f"{LATENCIES}: {row['dnn']} on {row['gpu']}"
        parts, block, batch = (_parse_integer(row[key], f"{place}: {key}") for key in ("vgpu_denom", "block", "batch"))
        latency_us = _parse_number(row["latency_us"], f"{place}, block {block}, batch {batch}: latency_us")
        if parts < 1 or block < 0 or batch < 1:
            raise BadInput(f"{place}: vgpu_denom {parts}, block {block}, batch {batch} cannot be")
        table = latencies.setdefault(row["dnn"], {}).setdefault((row["gpu"], parts), {})
        if (block, batch) in table:
            raise BadInput(f"{place}: block {block}, batch {batch} is there twice")
        # a clock cannot resolve less than a microsecond
        table[block, batch] = max(latency_us / 1e6, 1e-6)
    cuts: Dict[str, Dict[int, float]] = {}
    for row in _read_rows(folder / CUTS, _CUT_COLUMNS):
        place = f"{CUTS}: {row['dnn']}"
        block = _parse_integer(row["cut_after_block"], f"{place}: cut_after_block")
        cuts.setdefault(row["dnn"], {})[block] = _parse_number(
            row["bytes_batch1"], f"{place}, block {block}: bytes_batch1"
        )
    if not latencies:
        raise BadInput(f"{folder / LATENCIES} says nothing", remedy="measure with 'edge-offload pool profile'")
    return {name: _make_network(name, table, cuts.get(name, {})) for name, table in latencies.items()}


def save_profiles(folder: pathlib.Path, networks: Mapping[str, BlockProfile]) -> None:
    """Write both files, as :func:`load_profiles` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LATENCIES, "w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(_LATENCY_COLUMNS)
        for name, network in networks.items():
            for gpu, shares in network.latency_s.items():
                for parts, table in shares.items():
                    for block, batch in np.ndindex(table.shape):
                        rows.writerow((name, gpu, parts, block, batch + 1, round(float(table[block, batch]) * 1e6, 3)))
    with open(folder / CUTS, "w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(_CUT_COLUMNS)
        for name, network in networks.items():
            for block, size in enumerate([*network.cut_bytes, 0]):
                rows.writerow((name, block, int(size)))


def _make_network(
    name: str, tables: Mapping[Tuple[str, int], Mapping[Tuple[int, int], float]], cuts: Mapping[int, float]
) -> BlockProfile:
    blocks = 1 + max(block for table in tables.values() for block, _ in table)
    latency: Dict[str, Dict[int, Array]] = {}
    for (gpu, parts), table in tables.items():
        batches = 1 + max(batch for _, batch in table) - 1
        for block in range(blocks):
            for batch in range(1, batches + 1):
                if (block, batch) not in table:
                    raise BadInput(
                        f"{name} on 1/{parts} of {gpu}: block {block} has no latency for a batch of {batch}",
                        remedy="measure it again; a profile has every block at every batch size",
                    )
        latency.setdefault(gpu, {})[parts] = np.array(
            [[table[block, batch] for batch in range(1, batches + 1)] for block in range(blocks)]
        )
    missing = [block for block in range(blocks - 1) if block not in cuts]
    if missing:
        raise BadInput(f"{name}: nothing says what crosses after block {missing[0]}", remedy=f"add it to {CUTS}")
    return BlockProfile(name, latency, np.array([cuts[block] for block in range(blocks - 1)], float))


def _read_rows(path: pathlib.Path, columns: Tuple[str, ...]) -> Iterator[Dict[str, str]]:
    try:
        with open(path, newline="", encoding="utf-8") as lines:
            reader = csv.DictReader(lines)
            missing = [column for column in columns if column not in (reader.fieldnames or [])]
            if missing:
                raise BadInput(f"{path} has no column {missing[0]}", remedy=f"its columns are {', '.join(columns)}")
            most = 1_000_000
            for number, row in enumerate(reader):
                if number >= most:
                    raise BadInput(f"{path} has more than {most} rows")
                empty: List[str] = [column for column in columns if not row[column]]
                if empty:
                    raise BadInput(f"{path}, line {number + 2}: no {empty[0]}")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"cannot read {path}: {error}", remedy="name a folder with profiles") from error


def _parse_number(text: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise BadInput(f"{name} is {text!r}", remedy="it is a finite number of at least 0")
    return value


def _parse_integer(text: str, name: str) -> int:
    value = _parse_number(text, name)
    if value != int(value):
        raise BadInput(f"{name} is {text!r}", remedy="it is a whole number")
    return int(value)


def dilate_network(network: BlockProfile, factor: float) -> BlockProfile:
    """Return the network on members that are slower by a factor."""
    return BlockProfile(
        network.name,
        {gpu: {parts: table * factor for parts, table in shares.items()} for gpu, shares in network.latency_s.items()},
        network.cut_bytes,
    )


def without_shares(network: BlockProfile, classes: AbstractSet[str]) -> BlockProfile:
    """Return the network without shares of GPUs of ``classes``."""
    latency = {
        gpu: {parts: table for parts, table in shares.items() if parts == 1} if gpu in classes else shares
        for gpu, shares in network.latency_s.items()
    }
    return BlockProfile(network.name, latency, network.cut_bytes)
