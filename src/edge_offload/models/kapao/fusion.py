"""Fusion of KAPAO's two kinds of objects: confident keypoint objects replace nearby keypoints of poses."""

from __future__ import annotations

import numpy as np

from edge_offload.arrays import Array
from edge_offload.models.kapao.thresholds import Thresholds


def fuse_keypoints(poses: Array, scores: Array, objects: Array, thresholds: Thresholds) -> Array:
    """Keypoints with scores, float32 [n, 17, 3], from poses and keypoint objects.

    Keypoint objects are taken in the order given (best first). Each goes to the pose whose keypoint of the same index
    is nearest, among persons above ``conf_kp_person``, and replaces it if it is nearer than ``overwrite_tol`` and more
    confident than the keypoint object that replaced it before, if any.

    Args:
        poses: float [n, 17, 2], keypoints of the pose objects, pixels of the original image.
        scores: float [n], the persons' scores.
        objects: float [m, 4], x y score index, pixels of the original image.
        thresholds: of the estimator.

    Returns:
        x y score per keypoint. A keypoint that no object replaced has no confidence of its own: it carries the
        score of the pose that predicted it.
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
