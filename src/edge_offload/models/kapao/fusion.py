"""Fusion of KAPAO's two kinds of objects: confident keypoint objects replace nearby keypoints of poses."""

from __future__ import annotations

import numpy as np

from edge_offload.arrays import Array
from edge_offload.models.kapao.thresholds import Thresholds


def fuse_keypoints(poses: Array, scores: Array, objects: Array, thresholds: Thresholds) -> Array:
    """Fuse poses and keypoint objects to keypoints with scores, float32 [n, 17, 3].

    Keypoint objects are processed in the given order (best first). Each is assigned to the nearest keypoint of the
    same index, among persons above ``conf_kp_person``. It replaces that keypoint if it is nearer than
    ``overwrite_tol`` and more confident than an earlier replacement.

    Args:
        poses: float [n, 17, 2], keypoints of the pose objects, pixels of the original image.
        scores: float [n], the persons' scores.
        objects: float [m, 4], x y score index, pixels of the original image.
        thresholds: of the estimator.

    Returns:
        x y score per keypoint. A keypoint that no object replaced has the score of its pose.
    """
    fused: Array = np.concatenate((poses, np.zeros_like(poses[..., :1])), axis=2).astype(np.float32)
    takers = np.flatnonzero(scores > thresholds.conf_kp_person)
    if len(takers):
        for x, y, score, index in objects:
            candidates = fused[takers, int(index)]
            distance = np.hypot(candidates[:, 0] - x, candidates[:, 1] - y)
            nearest = int(np.argmin(distance))
            if distance[nearest] < thresholds.overwrite_tol and score > candidates[nearest, 2]:
                fused[takers[nearest], int(index)] = (x, y, score)
    unreplaced = fused[..., 2] == 0
    fused[..., 2] = np.where(unreplaced, scores[:, None], fused[..., 2])
    return fused
