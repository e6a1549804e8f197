"""Completed scenes carried along by odometry: the grid moved as the robot moved, and what the new sweep says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Iterator, Optional, Tuple, Union

import cv2
import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.sconet.baselines import columns
from edge_offload.models.voxels import VoxelGrid
from edge_offload.perception.carry.ring import LIMIT_BYTES, Ring
from edge_offload.perception.geometry import Transform

FASTEST_M_S, FASTEST_RAD_S = 15.0, 6.0
"""No robot drives or turns faster: an odometry that says so has jumped."""

LEAST_S = 0.05
"""Poses nearer to each other in time are judged as if they were so far apart: two clocks differ by some of that."""


Pose = Union[Transform, Callable[[], Optional[Transform]], None]
"""Where a sensor is, or what is asked where it was: the answer may come late."""


@dataclass(frozen=True, eq=False)
class _Sweep:
    """Voxels hit, as bits, and the sensor's pose in the world (None: not known)."""

    bits: Array
    asked: Pose

    @property
    def pose(self) -> Optional[Transform]:
        return self.asked() if callable(self.asked) else self.asked


class SceneCarrier:
    """Carries completed scenes along: ``see`` takes every sweep in, ``carry`` moves labels to a later one.

    The labels are moved by the odometry between the two sweeps, at once, so that no error adds up. Then the later sweep
    has the last word: what it sees through is empty, what it hit is full, and what the earlier grid did not reach is
    what can be made of the sweep alone (:func:`~edge_offload.models.sconet.baselines.columns`).

    Not thread-safe.

    Args:
        grid: where the voxels lie about the sensor, in every sweep.
        limit_bytes: of the sweeps kept.

    Attributes:
        degraded: why the last result was carried as held, that is without odometry; empty: it was not.
    """

    def __init__(self, grid: VoxelGrid, limit_bytes: int = LIMIT_BYTES) -> None:
        self.grid = grid
        self.degraded = ""
        self._ring: Ring[_Sweep] = Ring(limit_bytes)
        self._sight = Sight(grid)
        self._alone: Optional[Tuple[_Sweep, Array]] = None

    def see(self, stamp: int, occupancy: Array, pose: Pose = None) -> bool:
        """Take a sweep in.

        Args:
            stamp: ns, of the sweep or on a timeline. One that goes back begins anew: what was before is forgotten.
            occupancy: uint8 [x, y, z], voxels that it hit.
            pose: maps the sensor's frame into one that does not move; None: not known. Or a call that gives it, which
                is made whenever a result is carried from this sweep, or to it.

        Returns:
            Whether earlier sweeps are still known.

        Raises:
            BadInput: the occupancy is not of the grid.
        """
        if occupancy.shape != self.grid.shape:
            raise BadInput(f"a sweep of {occupancy.shape} voxels in a grid of {self.grid.shape}")
        bits = np.packbits(occupancy > 0)
        return self._ring.put(stamp, _Sweep(bits, pose), bits.nbytes + 1024)

    def forget(self) -> None:
        """Nothing of before is of use any more: sweeps have begun anew."""
        self._ring.clear()
        self._alone = None

    @property
    def bytes_held(self) -> int:
        """Of the frames in the ring."""
        return self._ring.size

    def carry(self, result: Array, source: int, target: int) -> Array:
        """Labels uint8 [x, y, z] of the sweep ``source`` as they are for the sweep ``target`` (stamps, ns).

        Raises:
            BadInput: the labels are not of the grid, or the target is before the source.
        """
        if result.shape != self.grid.shape:
            raise BadInput(f"labels of shape {result.shape} in a grid of {self.grid.shape}")
        if target < source:
            raise BadInput("a result cannot be carried back in time")
        self.degraded = ""
        if target == source:
            return result
        before, now = self._ring.get(source), self._ring.get(target)
        motion = self._motion(before, now, (target - source) / 1e9)
        labels, inside = (result, None) if motion is None else moved(result, motion, self.grid)
        if now is None:
            return labels
        hits = self._hits(now)
        labels = self._sight.cleared(labels, hits)
        alone = self.alone(target)
        missed = (hits > 0) & (labels == 0)
        labels[missed] = alone[missed]
        if inside is not None:
            labels[~inside] = alone[~inside]
        return labels

    def steps(self, result: Array, source: int, target: int) -> Iterator[None]:
        """None: a scene is moved at once, whatever lies between."""
        return iter(())

    def alone(self, stamp: int) -> Array:
        """What can be made of a sweep that is held without a network: labels uint8 [x, y, z].

        Raises:
            BadInput: it is not held.
        """
        sweep = self._ring.get(stamp)
        if sweep is None:
            raise BadInput("a sweep that is not held")
        if self._alone is None or self._alone[0] is not sweep:
            self._alone = (sweep, columns(self._hits(sweep)))
        return self._alone[1]

    def _hits(self, sweep: _Sweep) -> Array:
        voxels = int(np.prod(self.grid.shape))
        return np.unpackbits(sweep.bits, count=voxels).reshape(self.grid.shape)

    def _motion(self, before: Optional[_Sweep], now: Optional[_Sweep], passed_s: float) -> Optional[Transform]:
        """Maps the sensor's frame of now into that of before; None where that is not known, and why."""
        if before is None or now is None:
            self.degraded = "the sweep that the network saw, or this one, is not held any more"
        elif (was := before.pose) is None or (then := now.pose) is None:
            self.degraded = "no odometry: the sensor's pose is not known"
        else:
            back = was.inverse()
            motion = Transform(back.rotation @ then.rotation, back.points(then.translation))
            metres = float(np.linalg.norm(motion.translation))
            turned = math.acos(min(1.0, max(-1.0, (float(np.trace(motion.rotation)) - 1) / 2)))
            time_s = max(passed_s, LEAST_S)
            if metres <= FASTEST_M_S * time_s and (turned <= FASTEST_RAD_S * time_s):
                return motion
            self.degraded = f"odometry jumped: {metres:.1f} m and {math.degrees(turned):.0f}° in {passed_s:.2f} s"
        return None


def moved(labels: Array, motion: Transform, grid: VoxelGrid) -> Tuple[Array, Array]:
    """Labels as a sensor sees them that has moved.

    Args:
        labels: uint8 [x, y, z], in the frame of the sensor before.
        motion: maps points of the sensor's frame of now into that of before. A robot leans little: a column of
            voxels stays one, moved along its middle.
        grid: where the voxels are in both.

    Returns:
        uint8 [x, y, z], 0 where nothing is known, and bool [x, y]: which columns the grid had reached before.
    """
    x, y, _ = grid.axes()
    middle = grid.origin[2] + grid.extent[2] / 2
    size, (west, south, _) = grid.voxel_size, grid.origin
    # of every column's middle: its place before, in voxels from the corner
    rows, constant = motion.rotation / size, motion.points(np.array([0.0, 0.0, middle])) / size
    along = [row[0] * x[:, None] + (row[1] * y + start) for row, start in zip(rows, constant)]
    i = np.floor(along[0] - west / size).astype(np.int64)
    j = np.floor(along[1] - south / size).astype(np.int64)
    rise = np.rint(along[2] - middle / size).astype(np.int64)
    inside: Array = (i >= 0) & (i < grid.shape[0]) & (j >= 0) & (j < grid.shape[1])
    found = labels[np.where(inside, i, 0), np.where(inside, j, 0)]
    found[~inside] = 0
    for step in range(int(rise.min()), int(rise.max()) + 1):
        if step:
            lifted = rise == step
            found[lifted] = _lowered(found[lifted], step)
    return found, inside


def _lowered(columns: Array, step: int) -> Array:
    """Columns [n, z] with their content ``step`` voxels lower (negative: higher), 0 where nothing is known."""
    result = np.zeros_like(columns)
    if 0 < step < columns.shape[1]:
        result[:, :-step] = columns[:, step:]
    elif 0 < -step < columns.shape[1]:
        result[:, -step:] = columns[:, :step]
    return result


class Sight:
    """Which voxels a sweep sees through: those well before the nearest hit in their direction.

    Args:
        grid: with the sensor at its frame's origin.
        degrees: width of a direction. The nearest hit is that of a direction and its eight neighbours.
        margin_m: by how much a voxel has to lie before it.
    """

    def __init__(self, grid: VoxelGrid, degrees: float = 2.0, margin_m: float = 0.6) -> None:
        x, y, z = grid.axes()
        flat = np.hypot(x[:, None], y[None, :])[:, :, None]
        self._distance = np.sqrt(flat**2 + z**2).astype(np.float32).ravel()
        self._directions = round(180 / degrees), round(360 / degrees)
        rows, turns = self._directions
        row = np.clip((np.degrees(np.arctan2(z, flat)) + 90) / degrees, 0, rows - 1).astype(np.intp)
        turn = np.degrees(np.arctan2(y[None, :], x[:, None])) + 180
        self._direction = (row * turns + ((turn / degrees).astype(np.intp) % turns)[:, :, None]).ravel()
        self._margin_m = margin_m

    def cleared(self, labels: Array, hits: Array) -> Array:
        """A copy of ``labels`` uint8 [x, y, z], 0 where a sweep sees through that hit ``hits`` (likewise)."""
        hit = np.flatnonzero(hits > 0)
        far_first = hit[np.argsort(-self._distance[hit])]
        nearest = np.full(self._directions[0] * self._directions[1], np.inf, dtype=np.float32)
        nearest[self._direction[far_first]] = self._distance[far_first]
        around = np.pad(nearest.reshape(self._directions), ((0, 0), (1, 1)), "wrap")
        bound = cv2.erode(around, np.ones((3, 3), np.uint8))[:, 1:-1].ravel() - np.float32(self._margin_m)
        bound[~np.isfinite(bound)] = 0.0
        kept = self._distance >= bound.take(self._direction)
        return np.asarray(labels * kept.reshape(labels.shape))
