"""``auto`` of a stream: the difference to the frame before where that is least to send."""

import numpy as np

from edge_offload_research.temporal import ReceiveStream, SendStream
from edge_offload_research.temporal.choice import TemporalSelector
from tests.link.codecs.codec_pictures import picture
from tests.link.codecs.test_choice import Machine


def test_temporal_wins_for_a_fixed_camera(monkeypatch):
    machine = Machine(monkeypatch, selector=TemporalSelector)
    sender, receiver = SendStream(selector=TemporalSelector(clock=machine.clock)), ReceiveStream()
    rng = np.random.default_rng(0)
    for step in range(20):
        frame = picture(120, 160)
        frame[step : step + 8, 40:60] = rng.integers(0, 255, (8, 20, 3))
        encoded = sender.encode(frame, link_bytes_per_s=5e6)
        receiver.decode(encoded.descriptor, encoded.buffers)
        sender.acknowledge(receiver.acknowledgement(encoded.descriptor))
    assert encoded.descriptor["codec"] == "temporal+zstd"
    assert sender.select(frame, 5e6) == "temporal+zstd"
