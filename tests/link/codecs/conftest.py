"""Payloads that the codec tests share: real ones where they are at hand, made ones elsewhere."""

import pathlib

import pytest

from edge_offload.errors import BadInput

SNAPSHOTS = pathlib.Path(__file__).resolve().parents[3].parent / "shared" / "data" / "snapshots"


@pytest.fixture(scope="session")
def video():
    """Path of the sample video."""
    from edge_offload.models.video import sample_video

    try:
        return sample_video()
    except BadInput as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def scan():
    """A real LiDAR scan, float32 [n, 4]."""
    from edge_offload_benchmarks import payloads

    path = SNAPSHOTS / "kitti_000000.bin"
    if not path.exists():
        pytest.skip("no LiDAR scan at hand")
    return payloads.read_scan(path)
