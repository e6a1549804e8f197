"""Tables of staleness: every frame through its network once, every result carried over 1 to 30 frames; kept on disk.

One table is one stretch of frames of one task at 10 Hz: of people some seconds of the sample video, of the scene one
made-up street along which a robot drives (5 s), stands (3 s), and drives while it turns (4 s), again and again.

A table is a file of numpy (``.npz``, no pickles). ``about`` is JSON: version, task, name, frames, the median time
that the network took (s), the mean size of what an offload sends (bytes). Beside it are arrays; row ``n`` is of
frame ``n``, column ``k`` of the result of frame ``n`` in the frame ``k`` later (NaN: that is beyond the end):

- ``drop/held``, ``drop/velocity``, ``drop/carried`` [n, 31]: drop against the network's own result there, 0 to 1
- ``drop/local`` [n]: that of the local algorithm's result
- people: ``boxes/network``, ``boxes/local`` [n, most, 4], ``boxes/speed`` [n, most, 2] (px/s), ``boxes/carried``
  [n, 31, most, 4]: x1 y1 x2 y2 in pixels, NaN where there is nobody
- scene: ``truth/held``, ``truth/carried`` [n, 31], ``truth/local`` [n]: completion IoU with what the street is like;
  ``phase`` [n]: 0 drives, 1 stands, 2 turns
"""

from __future__ import annotations

import json
import math
import pathlib
import statistics
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput

VERSION = 1
#: Frames over which results are carried, and frames per second of both tasks.
FAR, RATE = 30, 10.0
#: Long side of the images of the local algorithm for people (px); people that count are at least so sure.
LOCAL_SIZE, SURE = 384, 0.25
#: Voxels along x and y of the scenes; height of the sensor (m), its speed (m/s) and how fast it turns (rad/s).
CELLS, HEIGHT_M, SPEED_M_S, TURN_RAD_S = 64, 1.73, 1.0, 0.5
#: Quality of the images that would be sent.
JPEG_QUALITY = 90
#: What a stretch is of, and how results are shown in later frames.
TASKS, METHODS = ("people", "scene"), ("held", "velocity", "carried")

LogProgress = Callable[[str], None]


@dataclass(frozen=True)
class Stretch:
    """Frames of a table: ``count`` of the sample video from ``number`` on, or of the street ``number``.

    ``validation`` streets have kinds of objects that no other has. ``size``: long side of the network's images (px), 0:
    its own.
    """

    task: str
    number: int
    count: int
    validation: bool = False
    size: int = 0

    @property
    def name(self) -> str:
        """Name of the file."""
        size = f"-{self.size}px" if self.size else ""
        return f"{self.task}-{self.number}-{self.count}{'-held-out' if self.validation else ''}{size}"


@dataclass(frozen=True)
class Table:
    """One stretch of frames; see the module for the arrays."""

    about: Dict[str, Any]
    arrays: Dict[str, Array]

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.arrays["drop/local"])

    def drop(self, method: str) -> Array:
        """[frames, FAR + 1] of a way to show a result later."""
        return self.arrays[f"drop/{method}"]


def load(path: pathlib.Path) -> Table:
    """Read a table.

    Raises:
        BadInput: no file of this version and form.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            about = json.loads(str(stored["about"]))
            table = Table(about, {name: stored[name] for name in stored.files if name != "about"})
        shapes = {table.drop(method).shape for method in METHODS}
        if about["version"] != VERSION or about["task"] not in TASKS or shapes != {(table.frames, FAR + 1)}:
            raise ValueError("of another version or form")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is no table of staleness: {error}", remedy="delete it; it is made again") from error
    return table


def save(path: pathlib.Path, table: Table) -> None:
    """Write a table; a reader never meets half a one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".part.npz")
    arrays = {name: array.astype(np.float32) for name, array in table.arrays.items()}
    np.savez_compressed(half, about=np.array(json.dumps(table.about)), **arrays)
    half.replace(path)


def table(folder: pathlib.Path, stretch: Stretch, log: LogProgress) -> Table:
    """Read the table of a stretch if ``folder`` has it, else compute and save it there (minutes)."""
    path = folder / f"{stretch.name}.npz"
    if not path.exists():
        save(path, (_people if stretch.task == "people" else _scene)(stretch, log))
    return load(path)


def _stamp(frame: int) -> int:
    return round((frame + 1) / RATE * 1e9)


def _about(stretch: Stretch, seconds: Sequence[float], size: Sequence[int]) -> Dict[str, Any]:
    return {
        "version": VERSION,
        "task": stretch.task,
        "name": stretch.name,
        "frames": stretch.count,
        "network_s": statistics.median(seconds),
        "bytes": statistics.mean(size),
    }


def _no_drops(count: int, methods: Sequence[str]) -> Dict[str, Array]:
    return {method: np.full((count, FAR + 1), math.nan) for method in methods}


def _people(stretch: Stretch, log: LogProgress) -> Table:
    import cv2

    from edge_offload.models.registry import build_estimator
    from edge_offload.models.video import read_frames, sample_video
    from edge_offload.perception.carry.flow import FlowCarrier
    from edge_offload.perception.tracking import TrackedPerson, Tracker, TrackerConfig

    first, count = stretch.number, stretch.count
    frames = list(read_frames(sample_video(), range(first, first + count)).values())
    sized = {"size": stretch.size} if stretch.size else {}
    network, lite = build_estimator("kapao_vtest", **sized), build_estimator("kapao_vtest", size=LOCAL_SIZE)
    tracker = Tracker(TrackerConfig(high_score=SURE, low_score=0.1))
    seen: List[List[TrackedPerson]] = []
    small, seconds, sizes = [], [], []
    for number, bgr in enumerate(frames):
        started_at = time.perf_counter()
        detections = network.infer(bgr)
        seconds.append(time.perf_counter() - started_at)
        seen.append([person for person in tracker.update(detections, _stamp(number) / 1e9) if not person.coasting])
        little = lite.infer(bgr)
        small.append(little.boxes[little.scores >= SURE])
        sizes.append(len(cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]))
        if number % 50 == 0:
            log(f"{stretch.name}: frame {number} of {count} through the network")
    boxes = [np.array([person.box for person in people]).reshape(-1, 4) for people in seen]
    speeds = [np.array([person.velocity for person in people]).reshape(-1, 2) for people in seen]
    carrier = FlowCarrier()
    moved: List[List[Array]] = []
    for number, people in enumerate(seen):
        for later in range(FAR + 1) if number == 0 else (FAR,):
            if number + later < count:
                carrier.add_frame(_stamp(number + later), frames[number + later])
        reach = min(FAR, count - 1 - number)
        carried = [carrier.carry(people, _stamp(number), _stamp(number + later)) for later in range(1, reach + 1)]
        moved.append([np.array([person.box for person in persons]).reshape(-1, 4) for persons in carried])
        if number % 50 == 0:
            log(f"{stretch.name}: carried from frame {number} of {count}")
    most = max(len(array) for row in (boxes, small, *moved) for array in row)
    carried_boxes = np.full((count, FAR + 1, most, 4), math.nan, dtype=np.float32)
    for number, row in enumerate(moved):
        for later, array in enumerate(row, 1):
            carried_boxes[number, later, : len(array)] = array
    arrays = {
        "boxes/network": _padded(boxes, most, 4),
        "boxes/local": _padded(small, most, 4),
        "boxes/speed": _padded(speeds, most, 2),
        "boxes/carried": carried_boxes,
    }
    return Table(_about(stretch, seconds, sizes), {**arrays, **_people_drops(arrays)})


def _people_drops(arrays: Dict[str, Array]) -> Dict[str, Array]:
    from edge_offload.perception.agreement import boxes_drop

    count = len(arrays["boxes/network"])
    drops = _no_drops(count, METHODS)
    for number in range(count):
        for later in range(min(FAR, count - 1 - number) + 1):
            target = people(arrays["boxes/network"][number + later])
            for method, table in drops.items():
                table[number, later] = boxes_drop(shown(arrays, method, number, later), target)
    local = [boxes_drop(people(arrays["boxes/local"][n]), people(arrays["boxes/network"][n])) for n in range(count)]
    return {**{f"drop/{method}": table for method, table in drops.items()}, "drop/local": np.array(local)}


def people(padded: Array) -> Array:
    """Boxes [n, 4] of those who are there."""
    boxes: Array = padded[~np.isnan(padded[:, 0])]
    return boxes


def shown(arrays: Dict[str, Array], method: str, number: int, later: int) -> Array:
    """Boxes [n, 4] that the result of frame ``number`` shows so many frames later."""
    if method == "carried" and later:
        return people(arrays["boxes/carried"][number, later])
    boxes = arrays["boxes/network"][number]
    if method == "velocity":
        boxes = boxes + np.tile(arrays["boxes/speed"][number], 2) * later / RATE
    return people(boxes)


def _padded(rows: Sequence[Array], most: int, width: int) -> Array:
    padded = np.full((len(rows), most, width), math.nan, dtype=np.float32)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded


def drive(number: int) -> Tuple[float, float, int]:
    """Metres driven and angle turned (rad) until a frame, and its phase."""
    x = yaw = 0.0
    phase = 0
    for frame in range(number + 1):
        lap, place = divmod(frame / RATE, 12.0)
        phase = 0 if place < 5.0 else 1 if place < 8.0 else 2
        x += SPEED_M_S / RATE * (phase != 1)
        yaw += TURN_RAD_S / RATE * (phase == 2) * (1 if lap % 2 == 0 else -1)
    return x, yaw, phase


def _scene(stretch: Stretch, log: LogProgress) -> Table:
    from edge_offload.models.sconet.baselines import fill_columns
    from edge_offload.models.sconet.completer import SceneCompleter
    from edge_offload.models.voxels import grid_around
    from edge_offload.perception.agreement import scene_drop
    from edge_offload.perception.carry.odometry import SceneCarrier

    count, grid = stretch.count, grid_around(HEIGHT_M, cells=CELLS)
    completer, carrier = SceneCompleter(grid=grid), SceneCarrier(grid)
    hits, labels, truths, poses, seconds, sizes = [], [], [], [], [], []
    for number in range(count):
        points, truth, pose = _sweep(stretch, number, grid)
        poses.append(pose)
        truths.append(truth)
        hits.append(grid.occupancy(points))
        sizes.append(int(np.packbits(hits[-1] > 0).nbytes))
        started_at = time.perf_counter()
        labels.append(completer.complete(points))
        seconds.append(time.perf_counter() - started_at)
        if number % 25 == 0:
            log(f"{stretch.name}: sweep {number} of {count} through the network")
    drops, ious = _no_drops(count, ("held", "carried")), _no_drops(count, ("held", "carried"))
    for number in range(count):
        for later in range(FAR + 1) if number == 0 else (FAR,):
            if number + later < count:
                carrier.add_frame(_stamp(number + later), hits[number + later], poses[number + later])
        for later in range(min(FAR, count - 1 - number) + 1):
            moved = carrier.carry(labels[number], _stamp(number), _stamp(number + later))
            for method, shown in (("held", labels[number]), ("carried", moved)):
                drops[method][number, later] = scene_drop(shown, labels[number + later])
                ious[method][number, later] = _completion(shown, truths[number + later])
        if number % 50 == 0:
            log(f"{stretch.name}: carried from sweep {number} of {count}")
    local = [fill_columns(occupancy) for occupancy in hits]
    arrays = {
        **{f"drop/{method}": drop for method, drop in drops.items()},
        **{f"truth/{method}": iou for method, iou in ious.items()},
        "drop/velocity": drops["held"],
        "drop/local": np.array([scene_drop(local_labels, label) for local_labels, label in zip(local, labels)]),
        "truth/local": np.array([_completion(predicted, truth) for predicted, truth in zip(local, truths)]),
        "phase": np.array([drive(number)[2] for number in range(count)]),
    }
    return Table(_about(stretch, seconds, sizes), arrays)


def _sweep(stretch: Stretch, number: int, grid: Any) -> Tuple[Array, Array, Any]:
    """Points of a sweep, what the street is like there (IGNORED: nobody could see it), and the sensor's pose."""
    from edge_offload.models.scenes.labels import IGNORED
    from edge_offload.models.scenes.lidar import Lidar, SensorPose, ground_height, simulate_sweep
    from edge_offload.models.scenes.world import Street
    from edge_offload.perception.geometry import Transform
    from edge_offload_training.sconet import truth, visibility

    street, lidar = (
        Street(stretch.number, stretch.validation),
        Lidar(low=-0.43, high=0.1, columns=1200, height=HEIGHT_M),
    )
    x, yaw, _ = drive(number)
    # whoever walks in the street walks to and fro
    pose = SensorPose(x=x, yaw=yaw, time_s=20 - abs(number / RATE % 40 - 20))
    world = street.world_around(x)
    points, _ = simulate_sweep(world, pose, lidar, 10_000 * stretch.number + number)
    labels = truth.true_labels(world, pose, lidar, grid)
    seen = visibility.visible_voxels(world, visibility.along_the_street(pose, grid), pose, lidar, grid)
    labels[~seen & (grid.occupancy(points) == 0)] = IGNORED
    up = ground_height(world, pose) + lidar.height
    turned = np.array([[math.cos(yaw), -math.sin(yaw), 0], [math.sin(yaw), math.cos(yaw), 0], [0, 0, 1.0]])
    return points, labels, Transform(turned, np.array([x, 0.0, up]))


def _completion(labels: Array, truth: Array) -> float:
    """Overlap (IoU) of the full voxels where the truth is known."""
    from edge_offload.models.scenes.labels import IGNORED

    labelled = truth != IGNORED
    full, truly_full = (labels != 0) & labelled, (truth != 0) & labelled
    either = np.count_nonzero(full | truly_full)
    return float(np.count_nonzero(full & truly_full) / either) if either else 1.0
