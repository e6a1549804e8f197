"""Propagation of completed scenes by odometry: the grid moves with the robot, and the new sweep corrects it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Iterator, Optional, Tuple, Union

import cv2
import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput
from edge_offload.models.sconet.baselines import fill_columns
from edge_offload.models.voxels import VoxelGrid
from edge_offload.perception.carry.ring import LIMIT_BYTES, FrameRing
from edge_offload.perception.geometry import Transform

Pose = Union[Transform, Callable[[], Optional[Transform]], None]
"""Pose of a sensor, or a call that returns it once it is known."""


@dataclass(frozen=True, eq=False)
class _Sweep:
    """Hit voxels, as bits, and the sensor's pose in the world (None: unknown)."""

    bits: Array
    pose_source: Pose

    @property
    def pose(self) -> Optional[Transform]:
        return self.pose_source() if callable(self.pose_source) else self.pose_source


class SceneCarrier:
    """Carrier of completed scenes: ``add_frame`` stores each sweep, ``carry`` moves labels to a later one.

    The odometry between the two sweeps moves the labels in one step, so that errors do not accumulate. The later sweep
    corrects them: voxels that its rays pass are empty, voxels that it hit are full. Beyond the earlier grid the labels
    come from the sweep alone (:func:`~edge_offload.models.sconet.baselines.fill_columns`). Not thread-safe.

    Args:
        grid: voxel grid in the sensor's frame, of every sweep.
        limit_bytes: limit of the stored sweeps.

    Attributes:
        degraded: reason why the last result was carried without odometry; empty: it was not.
    """

    def __init__(self, grid: VoxelGrid, limit_bytes: int = LIMIT_BYTES) -> None:
        self.grid = grid
        self.degraded = ""
        self._ring: FrameRing[_Sweep] = FrameRing(limit_bytes)
        self._sight = LineOfSight(grid)
        self._labelled_sweep: Optional[Tuple[_Sweep, Array]] = None

    def add_frame(self, stamp: int, occupancy: Array, pose: Pose = None) -> bool:
        """Store a sweep.

        Args:
            stamp: ns, of the sweep or on a timeline. A stamp that goes back removes all earlier sweeps.
            occupancy: uint8 [x, y, z], hit voxels.
            pose: maps the sensor's frame into a fixed one; None: unknown. Or a function that returns it, called
                whenever a result is carried from or to this sweep.

        Returns:
            Whether earlier sweeps are still stored.

        Raises:
            BadInput: the occupancy is not of the grid.
        """
        if occupancy.shape != self.grid.shape:
            raise BadInput(f"a sweep of {occupancy.shape} voxels in a grid of {self.grid.shape}")
        bits = np.packbits(occupancy > 0)
        return self._ring.put(stamp, _Sweep(bits, pose), bits.nbytes + 1024)

    def clear_frames(self) -> None:
        """Remove all sweeps, because they have restarted."""
        self._ring.clear()
        self._labelled_sweep = None

    def carry(self, result: Array, source: int, target: int) -> Array:
        """Return labels uint8 [x, y, z] of sweep ``source`` moved to sweep ``target`` (stamps, ns).

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
        motion = self._relative_motion(before, now, (target - source) / 1e9)
        labels, inside = (result, None) if motion is None else move_labels(result, motion, self.grid)
        if now is None:
            return labels
        hits = self._unpack_hits(now)
        labels = self._sight.clear_visible(labels, hits)
        sweep_labels = self.label_sweep(target)
        missed = (hits > 0) & (labels == 0)
        labels[missed] = sweep_labels[missed]
        if inside is not None:
            labels[~inside] = sweep_labels[~inside]
        return labels

    def steps(self, result: Array, source: int, target: int) -> Iterator[None]:
        """Return no steps: a scene is moved in one step by :meth:`carry`."""
        return iter(())

    def label_sweep(self, stamp: int) -> Array:
        """Label a stored sweep without a network: uint8 [x, y, z].

        Raises:
            BadInput: it is not stored.
        """
        sweep = self._ring.get(stamp)
        if sweep is None:
            raise BadInput("a sweep that is not held")
        if self._labelled_sweep is None or self._labelled_sweep[0] is not sweep:
            self._labelled_sweep = (sweep, fill_columns(self._unpack_hits(sweep)))
        return self._labelled_sweep[1]

    def _unpack_hits(self, sweep: _Sweep) -> Array:
        voxels = int(np.prod(self.grid.shape))
        return np.unpackbits(sweep.bits, count=voxels).reshape(self.grid.shape)

    def _relative_motion(
        self, before: Optional[_Sweep], now: Optional[_Sweep], elapsed_s: float
    ) -> Optional[Transform]:
        """Return the map from the later sensor frame to the earlier one; None, with ``degraded``: unknown."""
        if before is None or now is None:
            self.degraded = "the sweep that the network saw, or this one, is not held any more"
        elif (was := before.pose) is None or (then := now.pose) is None:
            self.degraded = "no odometry: the sensor's pose is not known"
        else:
            back = was.inverse()
            motion = Transform(back.rotation @ then.rotation, back.map_points(then.translation))
            metres = float(np.linalg.norm(motion.translation))
            turned = math.acos(min(1.0, max(-1.0, (float(np.trace(motion.rotation)) - 1) / 2)))
            # a jump is what exceeds 15 m/s or 6 rad/s; over less than 50 ms the clocks' difference would decide
            time_s = max(elapsed_s, 0.05)
            if metres <= 15.0 * time_s and turned <= 6.0 * time_s:
                return motion
            self.degraded = f"odometry jumped: {metres:.1f} m and {math.degrees(turned):.0f}° in {elapsed_s:.2f} s"
        return None


def move_labels(labels: Array, motion: Transform, grid: VoxelGrid) -> Tuple[Array, Array]:
    """Move labels into the frame of a sensor that has moved.

    Args:
        labels: uint8 [x, y, z], in the earlier sensor frame.
        motion: maps points of the later sensor frame into the earlier one. Robots tilt little, so columns of voxels
            are moved as a whole, by the motion of their middle.
        grid: voxel grid of both.

    Returns:
        uint8 [x, y, z], 0 where unknown, and bool [x, y]: columns that lie within the earlier grid.
    """
    x, y, _ = grid.axes()
    middle = grid.origin[2] + grid.extent[2] / 2
    size, (west, south, _) = grid.voxel_size, grid.origin
    # earlier position of each column's middle, in voxels from the corner
    rows, constant = motion.rotation / size, motion.map_points(np.array([0.0, 0.0, middle])) / size
    along = [row[0] * x[:, None] + (row[1] * y + start) for row, start in zip(rows, constant)]
    i = np.floor(along[0] - west / size).astype(np.int64)
    j = np.floor(along[1] - south / size).astype(np.int64)
    rise = np.rint(along[2] - middle / size).astype(np.int64)
    inside: Array = (i >= 0) & (i < grid.shape[0]) & (j >= 0) & (j < grid.shape[1])
    result = labels[np.where(inside, i, 0), np.where(inside, j, 0)]
    result[~inside] = 0
    for step in range(int(rise.min()), int(rise.max()) + 1):
        if step:
            lifted = rise == step
            result[lifted] = _lower_columns(result[lifted], step)
    return result, inside


def _lower_columns(columns: Array, step: int) -> Array:
    """Shift columns [n, z] down by ``step`` voxels (negative: up), with 0 where unknown."""
    result = np.zeros_like(columns)
    if 0 < step < columns.shape[1]:
        result[:, :-step] = columns[:, step:]
    elif 0 < -step < columns.shape[1]:
        result[:, -step:] = columns[:, :step]
    return result


class LineOfSight:
    """Test for voxels that a sweep's rays pass: those well before the nearest hit in their direction.

    Args:
        grid: voxel grid with the sensor at its frame's origin.
        degrees: width of a direction. The nearest hit is that of a direction and its eight neighbours.
        margin_m: least distance of a passed voxel before the hit.
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

    def clear_visible(self, labels: Array, hits: Array) -> Array:
        """Copy ``labels`` uint8 [x, y, z], with 0 where rays of a sweep with ``hits`` uint8 [x, y, z] pass."""
        hit = np.flatnonzero(hits > 0)
        far_first = hit[np.argsort(-self._distance[hit])]
        nearest = np.full(self._directions[0] * self._directions[1], np.inf, dtype=np.float32)
        nearest[self._direction[far_first]] = self._distance[far_first]
        around = np.pad(nearest.reshape(self._directions), ((0, 0), (1, 1)), "wrap")
        bound = cv2.erode(around, np.ones((3, 3), np.uint8))[:, 1:-1].ravel() - np.float32(self._margin_m)
        bound[~np.isfinite(bound)] = 0.0
        hidden = self._distance >= bound.take(self._direction)
        return np.asarray(labels * hidden.reshape(labels.shape))
