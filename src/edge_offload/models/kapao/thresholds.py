"""Published sets of thresholds for KAPAO's read-out and fusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of read-out and fusion.

    Attributes:
        conf, iou: least confidence of a person; overlap above which the weaker of two is suppressed.
        conf_kp, iou_kp: these of keypoint objects.
        conf_kp_person: least confidence of persons in the fusion.
        overwrite_tol: largest distance at which a keypoint object replaces a pose's keypoint, pixels of the image.
    """

    conf: float
    iou: float
    conf_kp: float
    iou_kp: float
    conf_kp_person: float
    overwrite_tol: float


PRESETS: Dict[str, Thresholds] = {
    "video": Thresholds(0.5, 0.45, 0.5, 0.45, 0.2, 50),
    "image": Thresholds(0.7, 0.45, 0.5, 0.45, 0.2, 25),
    "validation": Thresholds(0.001, 0.65, 0.2, 0.25, 0.3, 50),
}
