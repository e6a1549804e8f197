"""Profiles: what is written is read again, and what is missing or makes no sense is told."""

from __future__ import annotations

import pathlib
import random
from typing import Callable

import numpy as np
import pytest

from edge_offload.errors import BadInput
from edge_offload.server.pool import profile
from tests.server.pool.pool_nets import a_network


def saved(path: pathlib.Path) -> profile.BlockProfile:
    network = a_network(random.Random(1), "net", ("H", "L"), 3, 4, 2)
    profile.save_profiles(path, {"net": network})
    return network


def test_a_profile_is_read_as_it_was_written(tmp_path: pathlib.Path) -> None:
    network = saved(tmp_path)
    loaded = profile.load_profiles(tmp_path)["net"]
    assert loaded.blocks == 3
    for gpu, shares in network.latency_s.items():
        for parts, table in shares.items():
            assert np.allclose(loaded.latency_s[gpu][parts], table, atol=1e-8)
    assert np.allclose(loaded.cut_bytes, network.cut_bytes, atol=1)


def without_line(marked: str) -> Callable[[str], str]:
    return lambda text: "\n".join(line for line in text.splitlines() if not line.startswith(marked)) + "\n"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (profile.LATENCIES, without_line("net,H,1,1,2"), "block 1 has no latency for a batch of 2"),
        (profile.LATENCIES, lambda text: text.replace("net,H,1,0,1,", "net,H,1,0,1,nan"), "latency_us is 'nan"),
        (profile.LATENCIES, lambda text: text.replace("net,H,1,0,1,", "net,H,1,0,1,-"), "latency_us is '-"),
        (profile.LATENCIES, lambda text: text.replace("vgpu_denom", "v"), "has no column vgpu_denom"),
        (profile.LATENCIES, lambda text: text + text.splitlines()[1] + "\n", "is there twice"),
        (profile.LATENCIES, lambda text: text.splitlines()[0] + "\n", "says nothing"),
        (profile.CUTS, without_line("net,1"), "nothing says what crosses after block 1"),
        (profile.CUTS, lambda text: text.replace("net,0,", "net,0.5,"), "cut_after_block is '0.5'"),
    ],
)
def test_defects_of_a_profile_are_reported(
    file: str, change: Callable[[str], str], message: str, tmp_path: pathlib.Path
) -> None:
    saved(tmp_path)
    (tmp_path / file).write_text(change((tmp_path / file).read_text()))
    with pytest.raises(BadInput, match=message):
        profile.load_profiles(tmp_path)


def test_a_folder_without_profiles_is_reported(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        profile.load_profiles(tmp_path)
