"""Real payloads for experiments: video frames, normalised images, LiDAR occupancy and label grids."""

from __future__ import annotations

import pathlib
from typing import Tuple

import numpy as np

from edge_offload.arrays import Array
from edge_offload.errors import BadInput

GRID = (256, 256, 32)
VOXEL_M = 0.2
ORIGIN_M = (0.0, -25.6, -2.0)
"""Voxel grid of the scene-completion networks: x forward, y left, z up; metres from the sensor."""

IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], np.float32)

_BAND = 2  # voxels of height per class of the label grid
_REACH = 3.0  # voxels: how far the completed label grid extends what was measured


def resize_frame(frame: Array, width: int, height: int) -> Array:
    """``frame`` at another size, bilinear."""
    import cv2

    small: Array = cv2.resize(frame, (width, height), interpolation=cv2.INTER_LINEAR)
    return small


def with_noise(frame: Array, sigma: float, seed: int) -> Array:
    """``frame`` with Gaussian noise of ``sigma`` 8-bit levels, independent per pixel and channel."""
    noise = np.random.default_rng(seed).normal(0.0, sigma, frame.shape)
    noisy: Array = np.clip(np.rint(frame + noise), 0, 255).astype(np.uint8)
    return noisy


def normalise_frame(frame: Array, side: int = 224) -> Array:
    """float32 [1, 3, side, side], RGB, by ImageNet's mean and standard deviation: what a torchvision network is fed."""
    image = resize_frame(frame, side, side)[..., ::-1].astype(np.float32) / 255
    return np.ascontiguousarray(((image - IMAGENET_MEAN) / IMAGENET_STD).transpose(2, 0, 1)[None])


def read_scan(path: pathlib.Path) -> Array:
    """A LiDAR scan: float32 [n, 4], x y z in metres and reflectance (KITTI's format).

    Raises:
        BadInput: not such a file.
    """
    try:
        data = np.fromfile(path, np.float32)
    except OSError as error:
        raise BadInput(f"cannot read scan {path}: {error}") from error
    if data.size == 0 or data.size % 4:
        raise BadInput(f"{path} is not a scan of float32 x, y, z, reflectance")
    return data.reshape(-1, 4)


def _voxels_of(scan: Array) -> Tuple[Array, Array]:
    """Voxel of every point in the grid, int [n, 3], and the points' reflectance [n]."""
    index = np.floor((scan[:, :3] - np.array(ORIGIN_M)) / VOXEL_M).astype(int)
    inside = ((index >= 0) & (index < GRID)).all(axis=1)
    return index[inside], scan[inside, 3]


def make_occupancy(scan: Array) -> Array:
    """uint8 [256, 256, 32]: 1 where a point fell."""
    grid = np.zeros(GRID, np.uint8)
    grid[tuple(_voxels_of(scan)[0].T)] = 1
    return grid


def measured_labels(scan: Array) -> Array:
    """uint8 [256, 256, 32] of 0..19: occupied voxels labelled by height band and reflectance, the rest 0."""
    index, reflectance = _voxels_of(scan)
    band = np.minimum(index[:, 2] // _BAND, 5)
    shade = np.digitize(reflectance, [0.15, 0.35])
    grid = np.zeros(GRID, np.uint8)
    grid[tuple(index.T)] = 1 + 3 * band + shade
    return grid


def completed_labels(scan: Array) -> Array:
    """Like :func:`measured_labels`, grown to every voxel within 0.6 m: as dense as a completed scene."""
    from scipy import ndimage

    labels = measured_labels(scan)
    distance, nearest = ndimage.distance_transform_edt(labels == 0, return_indices=True)
    grown: Array = np.where(distance <= _REACH, labels[tuple(nearest)], 0).astype(np.uint8)
    return grown
