"""Pictures and videos: what is drawn can be seen, and files are whole or absent."""

from __future__ import annotations

import pathlib

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_offload.errors import BadInput
from edge_offload.mode import Mode
from edge_offload.perception.overlay import Status, colour_of, draw_people
from edge_offload.perception.tracking import TrackedPerson
from edge_offload.perception.video import VideoWriter, write_png
from tests.perception.scenes import box_at, keypoints_in


def grey(height: int = 576, width: int = 768) -> np.ndarray:
    return np.full((height, width, 3), 90, np.uint8)


def person(number: int, box: np.ndarray, coasting: bool = False) -> TrackedPerson:
    return TrackedPerson(
        number, box.astype(np.float32), 0.5, keypoints_in(box), np.zeros(2), 1.0, 0.3 * coasting, coasting
    )  # fmt: skip


def changed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((a != b).any(axis=2))


def test_the_input_image_is_not_changed() -> None:
    image = grey()
    drawn = draw_people(image, [person(1, box_at(300, 300))], Status(Mode.LOCAL, "movenet"))
    assert (image == 90).all()
    assert drawn.shape == image.shape
    assert drawn.dtype == np.uint8


def test_a_person_is_drawn_in_their_colour_at_their_place() -> None:
    box = box_at(300, 300, 60, 150)
    drawn = draw_people(grey(), [person(5, box)])
    y, x = np.nonzero((np.abs(drawn.astype(int) - colour_of(5)) < 60).all(axis=2))
    assert x.min() == pytest.approx(box[0], abs=3)
    assert y.max() == pytest.approx(box[3], abs=3)
    far = changed(drawn, grey())
    far[200:400, 240:480] = False
    assert not far.any()


def test_colours_are_stable_and_neighbours_differ() -> None:
    assert colour_of(3) == colour_of(3)
    palette = np.array([colour_of(number) for number in range(1, 9)], dtype=float)
    distances = np.linalg.norm(palette[:, None] - palette[None], axis=2) + 1e3 * np.eye(8)
    assert distances.min() > 40


def test_target_guess_and_plain_person_are_drawn_differently() -> None:
    box = box_at(300, 300, 60, 150)
    plain = draw_people(grey(), [person(5, box)])
    target = draw_people(grey(), [person(5, box)], target_id=5)
    guess = draw_people(grey(), [person(5, box, coasting=True)])
    assert changed(plain, target).sum() > 300
    assert changed(plain, guess).sum() > 300


def test_the_bar_shows_mode_figures_and_the_note() -> None:
    def bar(**values: object) -> np.ndarray:
        settings: dict = {"mode": Mode.SERVER, "model": "movenet", "latency_s": 0.083, "bytes_up": 1000}
        settings.update(values)
        return draw_people(grey(), [], Status(**settings))

    base = bar()
    assert not changed(base, grey())[35:].any(), "the bar covers the top only"
    others = [{"mode": Mode.LOCAL}, {"latency_s": 0.2}, {"bytes_up": 5}, {"model": "kapao"}, {"joules": 1.0}]
    others.append({"carried_s": 0.3})
    assert all(changed(base, bar(**other)).any() for other in others)
    assert changed(bar(note="x" * 500), base)[35:60].any()
    assert not changed(bar(model="/home/robot/nets/movenet"), base).any(), "a file is shown without its folder"


@pytest.mark.parametrize(("height", "width"), [(576, 768), (480, 640), (240, 320), (64, 64)])
def test_no_word_of_the_bar_is_cut(height: int, width: int) -> None:
    status = Status(Mode.REPLAY, "kapao_vtest", 1.267, 1_245_400, 11_300, 10.73, carried_s=1.4)
    drawn = [draw_people(grey(height, width), [], status, target)[: height // 20] for target in (1, 1234)]
    wider = np.nonzero(changed(*drawn).any(axis=0))[0]
    bright = np.nonzero((drawn[1] > 110).any(axis=(0, 2)))[0]
    if width >= 320:  # on less there is no room for who the target is
        assert wider.size
        assert bright.max() < width - 3


def test_two_labels_in_one_place_do_not_cover_each_other() -> None:
    a, b = person(1, box_at(300, 300)), person(2, box_at(306, 300))
    drawn = draw_people(grey(), [a, b])
    for number in (1, 2):
        assert (drawn == colour_of(number)).all(axis=2)[:250].sum() > 200


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 90), st.integers(1, 120),
    st.lists(st.lists(st.floats(-1e9, 1e9, width=32), min_size=4, max_size=4), max_size=3), st.booleans(),
)  # fmt: skip
def test_no_box_and_no_size_breaks_it(height: int, width: int, boxes: list, coasting: bool) -> None:
    crowd = [person(number, np.array(box), coasting) for number, box in enumerate(boxes, start=1)]
    assert draw_people(grey(height, width), crowd, Status(Mode.SPLIT, "mödel", note="né"), 1).shape == (
        height,
        width,
        3,
    )


def test_what_is_no_image_is_refused() -> None:
    for wrong in (np.zeros((10, 10), np.uint8), np.zeros((10, 10, 3)), np.zeros((0, 10, 3), np.uint8)):
        with pytest.raises(BadInput, match="overlay"):
            draw_people(wrong, [])


def test_png_is_written_atomically(tmp_path: pathlib.Path) -> None:
    image = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    path = write_png(tmp_path / "new" / "picture.png", image)
    assert np.array_equal(cv2.imread(str(path)), image)
    write_png(path, image[:20])
    assert [entry.name for entry in path.parent.iterdir()] == ["picture.png"]
    with pytest.raises(BadInput, match="not a uint8"):
        write_png(path, image.astype(float))
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput):
        write_png(tmp_path / "file" / "picture.png", image)


@pytest.mark.parametrize("suffix", [".mp4", ".avi"])
def test_a_video_appears_when_complete_and_can_be_read(tmp_path: pathlib.Path, suffix: str) -> None:
    with VideoWriter(tmp_path / f"out{suffix}", fps=10) as writer:
        for frame in range(12):
            writer.write(np.full((101, 121, 3), 10 * frame, np.uint8))
        assert not (tmp_path / f"out{suffix}").exists(), "not there until it is complete"
    assert list(tmp_path.iterdir()) == [writer.path]
    capture = cv2.VideoCapture(str(writer.path))
    frames = []
    while True:
        readable, frame = capture.read()
        if not readable:
            break
        frames.append(frame)
    assert len(frames) == 12
    assert frames[0].shape == (100, 120, 3)
    assert frames[10].mean() == pytest.approx(100, abs=6)


def test_opencv_does_not_print_that_a_codec_is_missing(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture) -> None:
    """H.264 is tried before MPEG-4; OpenCV's levels of logging are elsewhere in OpenCV 5 than in OpenCV 4."""
    with VideoWriter(tmp_path / "out.mp4") as writer:
        writer.write(grey(40, 40))
    assert "ERROR" not in capfd.readouterr().err
    cv2.imread(str(tmp_path / "absent.png"))
    assert "absent.png" in capfd.readouterr().err, "warnings are printed again"


def test_video_misuse_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BadInput, match="suffix"):
        VideoWriter(tmp_path / "out.gif")
    with VideoWriter(tmp_path / "out.avi") as writer:
        writer.write(grey(40, 40))
        with pytest.raises(BadInput, match="frame of"):
            writer.write(grey(60, 40))
    assert VideoWriter(tmp_path / "never.avi").close() is None
