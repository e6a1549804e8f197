"""People from outputs that a server computed, or that a robot reported to it. None of them is trusted."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, TypeVar

import numpy as np

from edge_offload.errors import BadInput
from edge_offload.models import registry
from edge_offload.models.base import PersonEstimator
from edge_offload.models.letterbox import Letterbox
from edge_offload.models.people import People
from edge_offload.perception.timeline import Timeline
from edge_offload.perception.tracking import TrackedPerson, Tracker
from edge_offload.server.results import ServerFrameResult

MAX_TEXT = 256
CACHED_ENTRIES = 16

K = TypeVar("K")
V = TypeVar("V")


if TYPE_CHECKING:
    _Ordered = OrderedDict[Any, Any]
else:  # Python 3.8 knows no OrderedDict of something
    _Ordered = OrderedDict


class Recent(_Ordered):
    """A dictionary of the ``capacity`` entries that were used last."""

    capacity = CACHED_ENTRIES

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The entry of ``key``, made where there is none."""
        if key not in self:
            self[key] = make()
            while len(self) > self.capacity:
                self.popitem(last=False)
        self.move_to_end(key)
        value: V = self[key]
        return value


class FrameFacts:
    """Facts of a frame, as its robot states them.

    Attributes:
        stamp_ns: when it was captured.
        seq, frame_id: of its header.
        camera: that took it, where the robot has several.
        size: width and height in pixels; (0, 0) where it is about no picture.
        options: of the model, scalars by name.

    Raises:
        BadInput: something is missing or makes no sense.
    """

    def __init__(self, meta: Mapping[str, Any], pictures: bool = True) -> None:
        self.stamp_ns = _parse_int(meta, "stamp_ns", 0, 2**32 * 10**9 - 1)
        self.seq = _parse_int(meta, "seq", 0, 2**32 - 1)
        self.frame_id = str(meta.get("frame_id", ""))[:MAX_TEXT]
        self.camera = str(meta.get("camera", ""))[:MAX_TEXT]
        self.size: Tuple[int, int] = (0, 0)
        self.options: Dict[str, Any] = {}
        if not pictures:
            return
        image = meta.get("image")
        if not isinstance(image, list) or len(image) != 2 or not all(type(side) is int for side in image):
            raise BadInput("a report says no image size")
        self.size = (image[0], image[1])
        if min(self.size) < 1 or self.size[0] * self.size[1] > 64_000_000:
            raise BadInput(f"a report is about an image of {image[0]}x{image[1]} pixels")
        options = meta.get("options", {})
        if not isinstance(options, dict) or not all(isinstance(v, (bool, int, float, str)) for v in options.values()):
            raise BadInput("a report's model options are no scalars")
        self.options = dict(options)


def _parse_int(meta: Mapping[str, Any], key: str, low: int, high: int) -> int:
    value = meta.get(key)
    if type(value) is not int or not low <= value <= high:
        raise BadInput(f"a report has no valid {key}")
    return value


class _Followed:
    """People of one robot, camera and model, from frame to frame."""

    def __init__(self) -> None:
        self._tracker, self._timeline, self._recording = Tracker(), Timeline(), 0

    def update(self, people: People, facts: FrameFacts) -> List[TrackedPerson]:
        instant = self._timeline.make_instant(facts.stamp_ns, time.monotonic())
        if instant.recording != self._recording:
            self._recording = instant.recording
            self._tracker.reset()
        return self._tracker.update(people, instant.seconds, facts.size)


class ResultInterpreter:
    """Turns outputs into tracked people, with a tracker for every robot, camera and model.

    Args:
        allow: factories of the operator's own that may be imported; a name off the wire never is otherwise.
        overrides: options that hold here whatever a robot says, by model name.
    """

    def __init__(self, allow: Iterable[str] = (), overrides: Optional[Mapping[str, Mapping[str, Any]]] = None) -> None:
        self._allow = frozenset(map(registry.name_on_wire, allow))
        self._overrides = overrides or {}
        self._estimators: Recent = Recent()
        self._placements: Recent = Recent()
        self._followed: Recent = Recent()
        self._followed.capacity = CACHED_ENTRIES**2  # robots by cameras

    def interpret_people(self, result: ServerFrameResult, facts: FrameFacts) -> List[TrackedPerson]:
        """The people in one frame of one robot.

        Raises:
            BadInput: a model that is not allowed, or outputs that are not those of the model.
        """
        estimator = self._find_estimator(result.model, facts.options)
        if estimator is None or not estimator.trained:
            return []
        people = estimator.interpret(result.outputs, self._image_placement(estimator, facts))
        followed: _Followed = self._followed.get_or_make((result.peer, facts.camera, result.model), _Followed)
        return followed.update(people, facts)

    def _find_estimator(self, name: str, options: Dict[str, Any]) -> Optional[PersonEstimator]:
        entry = registry.entries().get(name)
        if entry is None and name not in self._allow:
            raise BadInput(f"a robot reports results of model {name[:MAX_TEXT]!r}, which is not known here")
        if entry is not None:
            if entry.kind != "people":
                return None
            # files are this machine's own business
            options = {key: value for key, value in options.items() if key not in entry.path_options}
        options = {**options, **self._overrides.get(name, {})}
        key = (name, json.dumps(options, sort_keys=True))
        return self._estimators.get_or_make(key, lambda: self._build_estimator(name, options))

    def _build_estimator(self, name: str, options: Dict[str, Any]) -> Optional[PersonEstimator]:
        """Build the estimator of people; None for the operator's own other models, which their robots interpret."""
        if name in self._allow and registry.is_user_model(name):
            built = None if registry.is_file(name) else registry.build_model(name, options)
            return built if isinstance(built, PersonEstimator) else None
        return registry.build_estimator(name, **options)

    def _image_placement(self, estimator: PersonEstimator, facts: FrameFacts) -> Letterbox:
        width, height = facts.size
        return self._placements.get_or_make(
            (estimator.size, estimator.stride, facts.size),
            lambda: estimator.prepare(np.zeros((height, width, 3), dtype=np.uint8))[1],
        )
