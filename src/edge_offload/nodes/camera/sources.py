"""Types of cameras: one row each, read by checks of arguments, launch files, camera_node and its ``--help``.

A new type is a module with a :class:`~edge_offload.nodes.camera.frames.FrameSource` and a row here. Only the standard
library is imported, since roslaunch's Python checks arguments, too.
"""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Mapping, Tuple

from edge_offload.errors import BadInput
from edge_offload.nodes.common.params import Param

ENVIRONMENT = "env:"
"""A value that begins so names the environment variable that has it: parameters are public, passwords are not."""


@dataclass(frozen=True)
class SourceType:
    """One type of camera.

    Attributes:
        name: what it is, for people.
        arguments: of launch files by which it is given, keys of :data:`ARGUMENTS`.
        form: regular expression of the values that mean this type; of several rows the first one counts.
        example: such a value.
        source: ``module:Class`` of a FrameSource, imported when it is needed.
        options: parameters of camera_node that the constructor takes beside the value.
        place: ``file``, ``folder`` or either, where the value is a path that has to be there, else empty.
    """

    name: str
    arguments: Tuple[str, ...]
    form: str
    example: str
    source: str
    options: Tuple[str, ...] = ()
    place: str = ""

    def load_class(self) -> Any:
        """The class, a FrameSource.

        Raises:
            ImportError: this Python lacks what it needs.
        """
        module, _, name = self.source.partition(":")
        return getattr(importlib.import_module(module), name)

    def check(self, value: str) -> None:
        """Look at ``value`` as far as that is possible before anything is started.

        Raises:
            BadInput: it cannot be used.
            ImportError: this Python lacks what it takes to look.
        """
        self.load_class().check(value)

    def open_source(self, value: str, params: Mapping[str, Any]) -> Any:
        """The FrameSource of ``value``; ``params`` are those of camera_node.

        Raises:
            BadInput: it cannot be opened.
        """
        return self.load_class()(value, **{name: params[name] for name in self.options})


@dataclass(frozen=True)
class Argument:
    """An argument of launch files that names a source.

    Attributes:
        parameter: of camera_node, in which it arrives.
        words: values that name none.
    """

    parameter: str
    words: Tuple[str, ...]


ARGUMENTS: Dict[str, Argument] = {
    "video": Argument("video", ("sample",)),
    "images": Argument("images", ("none",)),
    "bag": Argument("bag", ("none",)),
    "camera": Argument("device", ("file", "none")),
}
_PACKAGE = "edge_offload.nodes.camera"
#: In the order in which a value is looked at.
SOURCES: Tuple[SourceType, ...] = (
    SourceType("GStreamer pipeline", ("video", "camera"), r".+ ! .+",
               "nvarguscamerasrc ! nvvidconv ! video/x-raw,format=BGRx",
               f"{_PACKAGE}.pipeline:GstreamerPipeline", options=("rate",)),
    SourceType("RTSP or HTTP stream", ("video", "camera"), r"(rtsps?|https?|rtmps?|rtp|udp|tcp|srt)://\S+",
               "rtsp://192.168.1.64/stream1", f"{_PACKAGE}.stream:NetworkStream", options=("rate",)),
    SourceType("V4L2 camera", ("camera",), r"(?!\w+://).+", "/dev/video0",
               f"{_PACKAGE}.frames:Device", options=("width", "height", "rate")),
    SourceType("video file", ("video",), r"(?!\w+://).+", "lab.mp4", f"{_PACKAGE}.frames:VideoFile", place="file"),
    SourceType("folder of images", ("images",), r".+", "frames/", f"{_PACKAGE}.frames:ImageFolder", place="folder"),
    SourceType("bag with images", ("bag",), r".+", "walk.bag",
               f"{_PACKAGE}.bag:BagImages", options=("topic", "info_topic"), place="file or folder"),
)  # fmt: skip


def resolve_source(argument: str, value: str) -> Tuple[SourceType, str]:
    """The type of camera that ``value`` of ``argument`` means, and the value itself, looked up if it is in a variable.

    Raises:
        BadInput: it has the form of no type, or there is no such variable.
    """
    if value.startswith(ENVIRONMENT):
        variable = value[len(ENVIRONMENT) :]
        value = os.environ.get(variable, "")
        if not value:
            raise BadInput(f"there is no environment variable {variable}", remedy=f"export {variable}='…'")
    for row in _types_of(argument):
        if re.fullmatch(row.form, value, re.DOTALL):
            return row, value
    forms = ", ".join(f"{row.example} ({row.name})" for row in _types_of(argument))
    raise BadInput("that is no source of images", remedy=f"give one like {forms}")


def open_source(params: Mapping[str, Any]) -> Any:
    """The one source that the parameters of camera_node name, a FrameSource.

    Raises:
        BadInput: none, or several; or it cannot be opened.
    """
    given = [(name, params[argument.parameter]) for name, argument in ARGUMENTS.items() if params[argument.parameter]]
    if len(given) != 1:
        names = [f"~{argument.parameter}" for argument in ARGUMENTS.values()]
        raise BadInput(
            f"{'several sources' if given else 'no source'} of frames given",
            remedy=f"set exactly one of {', '.join(names[:-1])} and {names[-1]}",
        )
    row, value = resolve_source(*given[0])
    return row.open_source(value, params)


def source_parameters() -> Tuple[Param, ...]:
    """The parameters of camera_node by which sources are given, each with the types that it takes."""
    return tuple(Param(argument.parameter, "", _describe_argument(name)) for name, argument in ARGUMENTS.items())


def _describe_argument(argument: str) -> str:
    sample = {"video": ["'sample': the sample video"]}.get(argument, [])
    return "; ".join([*(f"{row.name}: {row.example}" for row in _types_of(argument)), *sample])


def _types_of(argument: str) -> Iterator[SourceType]:
    return (row for row in SOURCES if argument in row.arguments)
