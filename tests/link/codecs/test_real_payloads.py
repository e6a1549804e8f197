"""What the codecs promise on real payloads, and the experiment that measures it."""

import json

import cv2
import numpy as np
import pytest

from edge_offload import cli
from edge_offload.link import codecs
from edge_offload.models.video import read_frames
from edge_offload_benchmarks import payloads
from edge_offload_research.temporal import ReceiveStream, SendStream
from tests.link.codecs.codec_pictures import picture

NUMBERS = (20, 50, 80)


def ratio(array, name):
    encoded = codecs.encode(array, name)
    assert codecs.decode(encoded.descriptor, encoded.buffers).tobytes() == array.tobytes()
    return array.nbytes / encoded.nbytes


@pytest.fixture(scope="module")
def pairs(video):
    """(frame, the frame before it) at 960x640."""
    needed = sorted({number - lag for number in NUMBERS for lag in (0, 1)})
    frames = read_frames(video, needed)
    frames = {number: payloads.resize_frame(frame, 960, 640) for number, frame in frames.items()}
    return [(frames[number], frames[number - 1]) for number in NUMBERS]


def test_video_frame_by_itself(pairs):
    assert np.mean([ratio(frame, "gradient+zstd") for frame, _ in pairs]) >= 2.2


@pytest.mark.process
def test_video_frame_against_the_one_before(pairs):
    coded = 0
    for frame, before in pairs:
        sender, receiver = SendStream(), ReceiveStream()
        first = sender.encode(before)
        receiver.decode(first.descriptor, first.buffers)
        sender.acknowledge(receiver.acknowledgement(first.descriptor))
        encoded = sender.encode(frame, "temporal+zstd")
        np.testing.assert_array_equal(receiver.decode(encoded.descriptor, encoded.buffers), frame)
        coded += encoded.nbytes
    assert sum(frame.nbytes for frame, _ in pairs) / coded >= 5


def test_normalised_image(pairs):
    assert min(ratio(payloads.normalise_frame(frame), "palette+zstd") for frame, _ in pairs) >= 5.5


def test_lidar_occupancy(scan):
    grid = payloads.make_occupancy(scan)
    assert ratio(grid, "sparse+zstd") >= 200
    assert ratio(grid.astype(bool), "bits+zstd") >= 200
    assert ratio(grid.astype(np.float32), "sparse+zstd") >= 800


def test_label_grids(scan):
    assert ratio(payloads.measured_labels(scan), "sparse+zstd") >= 50
    assert ratio(payloads.completed_labels(scan).astype(np.int64), "sparse+zstd") >= 200


class TestBench:
    @pytest.fixture
    def inputs(self, tmp_path):
        """A short video of a fixed camera, a small scan and a label grid."""
        video = tmp_path / "walk.avi"
        writer = cv2.VideoWriter(str(video), cv2.VideoWriter_fourcc(*"MJPG"), 10, (128, 96))
        for step in range(12):
            frame = picture(96, 128)
            frame[20:40, 5 * step : 5 * step + 10] = 255
            writer.write(frame)
        writer.release()
        scan = tmp_path / "scan.bin"
        rng = np.random.default_rng(0)
        rng.uniform([0, -20, -1.8, 0], [40, 20, 2, 1], (5000, 4)).astype(np.float32).tofile(scan)
        labels = tmp_path / "labels.npy"
        np.save(labels, rng.integers(0, 3, (16, 16, 8), dtype=np.uint8))
        return ["--video", str(video), "--scan", str(scan), "--labels", str(labels), "--frames", "1", "--repeats", "1"]

    def test_writes_a_valid_record_and_a_plot(self, inputs, tmp_path, capsys):
        out, plot = tmp_path / "codecs.json", tmp_path / "codecs.png"
        for name in ("gradient+zstd", "temporal+zstd", "temporal+lz4", "palette+zstd", "bits+zstd", "bits", "jpeg"):
            inputs += ["--codec", name]
        assert cli.main(["bench", "codecs", *inputs, "--json", str(out), "--plot", str(plot)]) == 0
        record = json.loads(out.read_text())
        pairs = {(row["payload"], row["codec"]) for row in record["rows"]}
        assert {
            ("frame 960x640", "gradient+zstd"),
            ("frame 960x640, noise 2, lag 4", "temporal+zstd"),
            ("frame 512x384, lag 1", "temporal+lz4"),
            ("normalised 224x224", "palette+zstd"),
            ("occupancy uint8", "bits+zstd"),
            ("labels, given, uint8", "bits"),
        } <= pairs
        assert all(row["lossless"] == (row["codec"].split("+")[0] not in ("jpeg", "fp16")) for row in record["rows"])
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert "gradient+zstd" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("option", "content", "message"),
        [
            ("--scan", b"abc", "not a scan"),
            ("--labels", b"abc", "not a label grid"),
            ("--video", b"abc", "cannot be read"),
        ],
    )
    def test_unusable_inputs_are_named(self, inputs, tmp_path, capsys, option, content, message):
        bad = tmp_path / "bad"
        bad.write_bytes(content)
        inputs[inputs.index(option) + 1] = str(bad)
        assert cli.main(["bench", "codecs", *inputs]) == 1
        text = capsys.readouterr().err
        assert message in text
        assert "bad" in text
