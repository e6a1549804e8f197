"""Sources of sweeps for lidar_node: files, a bag, or a sensor that drives through a synthetic world."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Any, Iterator, List, Optional, Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.scenes.lidar import Lidar, SensorPose, ground_height, simulate_sweep
from edge_offload.models.scenes.world import Street, World, make_room
from edge_offload.nodes.common.convert import cloud_to_points
from edge_offload.perception.scene.scans import AUTO, read_scan, scan_files

WORLDS = ("street", "room")


@dataclass(frozen=True, eq=False)
class Sweep:
    """One turn of a sensor.

    Attributes:
        points: float32 [n, 4], x, y, z (m) and intensity; None where it cannot be used.
        error: why not.
        pose: x, y, z (m) and yaw (rad) of the sensor in the map, where that is known.
    """

    points: Optional[Array]
    error: str = ""
    pose: Optional[Tuple[float, float, float, float]] = None


class FileSweeps:
    """The .bin and .pcd files of a folder, or one of them; ``fields`` as for :func:`scans.read_scan`."""

    def __init__(self, path: str, fields: str = AUTO) -> None:
        self.files = scan_files(path)
        self._fields = fields
        read_scan(self.files[0], fields)

    def __iter__(self) -> Iterator[Sweep]:
        for file in self.files:
            try:
                yield Sweep(read_scan(file, self._fields))
            except BadInput as error:
                yield Sweep(None, str(error))

    def __str__(self) -> str:
        return f"{len(self.files)} scans"


def cloud_topic(bag: Any, requested: str) -> str:
    """Topic of the point clouds in ``bag``.

    Raises:
        BadInput: ``requested`` has no clouds, or it is empty and not exactly one topic has.
    """
    topics, path = bag.get_type_and_topic_info().topics, bag.filename
    clouds: List[str] = sorted(name for name, info in topics.items() if info.msg_type == "sensor_msgs/PointCloud2")
    if requested:
        matches = [name for name in clouds if name.strip("/") == requested.strip("/")]
        if not matches:
            remedy = f"it has some on: {', '.join(clouds) or 'no topic'}"
            raise BadInput(f"{path} has no point clouds on {requested}", remedy=remedy)
        return matches[0]
    if len(clouds) != 1:
        raise BadInput(f"{path} has {len(clouds)} topics of point clouds", remedy=f"name one of: {', '.join(clouds)}")
    return clouds[0]


class BagSweeps:
    """The point clouds of a bag.

    Args:
        topic: of the clouds; empty: the only one that has some.

    Raises:
        BadInput: no bag, or not exactly one topic to take.
    """

    def __init__(self, path: str, topic: str = "") -> None:
        self._path = str(pathlib.Path(path).expanduser())
        with self._open_bag() as bag:
            self._topic = cloud_topic(bag, topic)

    def _open_bag(self) -> Any:
        from edge_offload.nodes.common.bags import open_bag

        return open_bag(self._path)

    def __iter__(self) -> Iterator[Sweep]:
        from edge_offload.nodes.common.bags import read_messages

        with self._open_bag() as bag:
            for _, message, _ in read_messages(bag, [self._topic]):
                try:
                    yield Sweep(cloud_to_points(message))
                except BadInput as error:
                    yield Sweep(None, str(error))

    def __str__(self) -> str:
        return f"clouds of {self._topic} in {self._path}"


class WorldSweeps:
    """A sensor that drives down a street without end, or turns round in a room. Endless.

    Args:
        kind: one of :data:`WORLDS`.
        seed: of the world; equal seeds give equal sweeps.
        speed: m/s, or rad/s in a room.
        period_s: from sweep to sweep.
        height: m, of the sensor above the ground.
    """

    def __init__(self, kind: str, seed: int, speed: float, period_s: float, height: float) -> None:
        self._kind = kind
        self._seed = seed
        self._speed = speed
        self._period_s = period_s
        half = 0.43 if height > 1.4 else 0.35
        self._lidar = Lidar(low=-half, high=0.1 if height > 1.4 else 0.3, columns=1200, height=height)
        self._street = Street(seed)
        self._room: Optional[World] = make_room(seed) if kind == "room" else None

    def __iter__(self) -> Iterator[Sweep]:
        number = 0
        while True:
            yield self._sweep_at(number)
            number += 1

    def _sweep_at(self, number: int) -> Sweep:
        passed = number * self._period_s
        # people who walked on for ever would leave the street
        # people walk for 20 s in one direction, then back
        walked = 20.0 - abs(passed % 40.0 - 20.0)
        if self._room is not None:
            pose, world = SensorPose(yaw=(self._speed * passed) % (2 * np.pi), time_s=walked), self._room
        else:
            pose = SensorPose(x=self._speed * passed, time_s=walked)
            world = self._street.world_around(pose.x)
        points, _ = simulate_sweep(world, pose, self._lidar, self._seed + number)
        up = ground_height(world, pose) + self._lidar.height
        return Sweep(points, "", (pose.x, pose.y, up, pose.yaw))

    def __str__(self) -> str:
        return f"synthetic {self._kind}, seed {self._seed}"
