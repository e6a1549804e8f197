"""What is closed twice leaves descriptors alone that others have opened meanwhile."""

from __future__ import annotations

import os
import shutil

import pytest

from edge_offload.errors import Unsupported
from edge_offload.execute.session.note import CrashNote
from edge_offload.link.sockets.descriptors import Wakeup
from edge_offload_research.emulate.trace import BYTES_PER_MBIT, Link, Trace
from edge_offload_research.testbed.packets.emulator import PacketEmulator

pytestmark = pytest.mark.process


def make_emulator():
    link = Link.of("test", Trace.constant_trace(20 * BYTES_PER_MBIT), 0.03)
    if shutil.which("ip") is None:
        pytest.skip("needs ip")
    try:
        emulator = PacketEmulator("127.77.45.2:0", "127.0.0.1:5700", link)
    except Unsupported as error:
        pytest.skip(f"no link of packets here: {error}")
    return emulator.start().close


def make_pipeline():
    pipeline = pytest.importorskip("edge_offload.nodes.camera.pipeline")
    if shutil.which(pipeline.LAUNCHER) is None:
        pytest.skip("no GStreamer: apt-get install gstreamer1.0-tools")
    return pipeline.GstreamerPipeline("videotestsrc num-buffers=1").connect().close


@pytest.mark.parametrize(
    "make",
    [lambda: Wakeup().close, lambda: CrashNote().close_descriptor, make_pipeline, make_emulator],
    ids=["wakeup", "crash note", "pipeline", "packet emulator"],
)
def test_a_second_close_leaves_descriptors_of_others_open(make) -> None:
    close = make()
    close()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    close()
    for descriptor in others:
        os.fstat(descriptor)
        os.close(descriptor)


def test_a_wakeup_that_nobody_closes_gives_its_descriptors_back() -> None:
    before = set(os.listdir("/proc/self/fd"))
    Wakeup()
    assert set(os.listdir("/proc/self/fd")) <= before
