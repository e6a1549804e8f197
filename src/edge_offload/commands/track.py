"""Track people in a video without ROS, with the network on this machine or on a server.

Reads a video (by default the sample video), detects and tracks people, and prints the cost. --out writes an annotated
video, --png the last annotated frame.

  edge-offload track --frames 100 --out people.mp4
  edge-offload track my.mp4 --model kapao_s --option checkpoint=kapao_s.safetensors
  edge-offload track my.mp4 --model yolo11n-pose.onnx     a trained network for people's keypoints
  edge-offload serve &  edge-offload track --server tcp://127.0.0.1:5700

It prints its progress; Ctrl-C ends it with the summary so far. With --server every frame is sent there. Frames without
an answer are computed on this machine, and the summary counts them. Energy (J) is measured if this machine has a
sensor; otherwise it is unknown.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import pathlib
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from edge_offload import subcommands
from edge_offload.errors import BadInput
from edge_offload.outputs import add_output

if TYPE_CHECKING:
    import torch

    from edge_offload.models.base import PersonEstimator
    from edge_offload.models.video import Video
    from edge_offload.perception.pipeline import Run
    from edge_offload.power.meter import Energy
    from edge_offload.timing import InferenceReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("video", nargs="?", help="video file (default: the sample video)")
    parser.add_argument("--model", default="movenet", help="a name from 'edge-offload models list' (movenet), or the "
                        ".onnx file of a network for COCO keypoints")  # fmt: skip
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the model")
    parser.add_argument(
        "--server",
        metavar="ADDR",
        help="tcp://host:port of 'edge-offload serve'; none: everything runs on this machine",
    )
    parser.add_argument("--keys", metavar="DIR", help="key directory (default: the user's)")
    parser.add_argument("--frames", type=int, metavar="N", help="stop after N frames")
    parser.add_argument("--camera", metavar="YAML", help="calibration with a pose (config/camera_demo.yaml): "
                        "prints the distances of people (m)")  # fmt: skip
    parser.add_argument("--target", default="largest", help="person to mark: largest, nearest, longest (largest)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="compute threads (1)")
    parser.add_argument("--device", default="auto", help=subcommands.DEVICE)
    parser.add_argument("--slowdown", type=float, default=1.0, metavar="K", help="emulate a robot K times slower (1)")
    parser.add_argument("--allow-untrained", action="store_true", help="measure a model that has random weights")
    add_output(parser, "--out", metavar="FILE", help="annotated video, .mp4 or .avi")
    add_output(parser, "--png", metavar="FILE", help="last annotated frame")
    add_output(parser, "--json", metavar="FILE", help="the summary as a record of kind 'run'")


def run(args: argparse.Namespace) -> int:
    """Track, and print the summary."""
    if args.frames is not None and args.frames < 1:
        raise BadInput(f"--frames {args.frames}", remedy="give at least 1")
    for option, path, suffixes in (("--out", args.out, (".mp4", ".avi")), ("--png", args.png, (".png",))):
        if path and pathlib.Path(path).suffix.lower() not in suffixes:
            raise BadInput(f"{option} {path}", remedy=f"name a {' or '.join(suffixes)}")
    from edge_offload.models.video import Video

    video = Video(args.video)
    print_progress("loading the model")
    from edge_offload.execute.threads import pin
    from edge_offload.models.registry import build_estimator, options_on_wire

    pin(args.threads)
    options = options_on_wire(args.model, subcommands.options(args.option))
    estimator = build_estimator(args.model, **options)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(runner(args, estimator, options))
        work = track(args, video, estimator, network)
    if not work.reports:
        raise KeyboardInterrupt
    report(args, estimator.name, work)
    if work.failed is not None:
        raise work.failed
    return 130 if work.interrupted else 0  # as a shell has it after Ctrl-C


@dataclass
class TrackedVideo:
    """Result of a run, from which the summary is made.

    Attributes:
        reports, energies: of each frame.
        found: people in all frames together.
        ids: whom they were taken for.
        written: files.
        failed: what could not be written.
        interrupted: whether Ctrl-C ended it.
    """

    reports: List[InferenceReport] = field(default_factory=list)
    energies: List[Energy] = field(default_factory=list)
    found: int = 0
    ids: Set[int] = field(default_factory=set)
    written: List[str] = field(default_factory=list)
    failed: Optional[BadInput] = None
    interrupted: bool = False

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A file that cannot be written costs neither the work nor its summary."""
        try:
            yield
        except BadInput as error:
            self.failed = self.failed or error


@contextlib.contextmanager
def runner(args: argparse.Namespace, estimator: PersonEstimator, options: Dict[str, Any]) -> Iterator[Run]:
    """Make the runner of the network: this process, with the server where one is named."""
    from edge_offload.companion.process import choose_device
    from edge_offload.mode import Mode
    from edge_offload.models.registry import name_on_wire
    from edge_offload.runtime.module import OffloadedModule

    client = None
    module: Optional[OffloadedModule] = None
    if args.server:
        from edge_offload.link.security.keys import KeyStore
        from edge_offload.link.transport.client import Client

        def on_state(state: Any, cause: str) -> None:
            if module is not None:
                module.link_changed(state, cause)

        client = Client(args.server, keys=KeyStore(args.keys) if args.keys else None, on_state=on_state)
    device, companion = choose_device(args.device, threads=args.threads)
    module = OffloadedModule(
        name_on_wire(args.model), estimator.module, client, options=options, device=device,
        robot_slowdown=args.slowdown, companion=companion,
    )  # fmt: skip
    mode = Mode.LOCAL if client is None else Mode.SERVER
    try:
        if client is not None:
            print_progress(f"connecting to {args.server}")
            client.start()
            client.wait_ready(10.0)
        opened = client is None

        def run_network(inputs: Sequence[torch.Tensor]) -> Tuple[Tuple[torch.Tensor, ...], InferenceReport]:
            nonlocal opened
            if not opened:
                wait_until_open(lambda: module.unavailable_reason(mode, inputs))
                opened = True
            return module.run_inference(inputs, mode)

        yield run_network
    finally:
        module.close()
        if client is not None:
            client.close()


def wait_until_open(unavailable_reason: Callable[[], Optional[str]], timeout_s: float = 20.0) -> None:
    """Give the server time to build the model, so that the first frames are not computed here; then go on anyway."""
    end = time.monotonic() + timeout_s
    reason = unavailable_reason()
    while reason is not None and time.monotonic() < end:
        time.sleep(0.05)
        reason = unavailable_reason()
    if reason is not None:
        print_progress(f"going on without the server for now: {reason}")


def track(args: argparse.Namespace, video: Video, estimator: PersonEstimator, network: Run) -> TrackedVideo:
    """Work through the video, to its end or until Ctrl-C."""
    from edge_offload.perception.geometry import load_camera
    from edge_offload.perception.locator import Locator
    from edge_offload.perception.overlay import Status, draw_people
    from edge_offload.perception.pipeline import PeoplePipeline
    from edge_offload.perception.target import TargetSelector
    from edge_offload.perception.video import VideoParts, write_png
    from edge_offload.power.detect import open_meter
    from edge_offload.power.states import StateTimeline

    camera = load_camera(args.camera) if args.camera else None
    locator = None if camera is None else Locator(camera, camera.pose)
    pipeline = PeoplePipeline(estimator, allow_untrained=args.allow_untrained)
    selector = TargetSelector(args.target)
    timeline = StateTimeline()
    work, picture = TrackedVideo(), None
    progress = TrackProgress(min(filter(None, (args.frames, video.length)), default=0))
    writer = VideoParts(args.out, video.fps) if args.out else None
    with open_meter(timeline) as meter, contextlib.suppress(KeyboardInterrupt):
        work.interrupted = True  # until the end is reached
        for stamp_s, bgr in video.frames(args.frames):
            result = pipeline.process(bgr, stamp_s, network, locator=locator)
            end_s = result.started_s + result.report.total_s
            timeline.add_report(result.report, result.started_s)
            energy = meter.energy_between(result.started_s, end_s)
            work.energies.append(energy)
            work.reports.append(result.report)
            work.found += len(result.detections)
            work.ids.update(person.id for person in result.people)
            if args.out or args.png:
                selector.select(result.people, stamp_s)
                joules = energy.joules if math.isfinite(energy.joules) else None
                status = Status(
                    result.report.mode, estimator.name, result.report.total_s, result.report.bytes_up,
                    result.report.bytes_down, joules, result.report.fallback_reason,
                )  # fmt: skip
                picture = draw_people(bgr, result.people, status, selector.target_id)
                if writer is not None:
                    with work.writing():
                        writer.write(picture)
            progress.add_frame(result.report, len(result.people))
        work.interrupted = False
    progress.end()
    with work.writing():
        work.written += [] if writer is None else [str(path) for path in writer.close()]
    with work.writing():
        work.written += [str(write_png(args.png, picture))] if args.png and picture is not None else []
    return work


def report(args: argparse.Namespace, model: str, work: TrackedVideo) -> None:
    """Print the summary, and write it as JSON where asked."""
    import numpy as np

    from edge_offload import records
    from edge_offload.power.source import MEASURED, MODEL, UNKNOWN

    reports, energies, written = work.reports, work.energies, work.written
    modes = Counter(str(item.mode) for item in reports)
    sources = {energy.source for energy in energies}
    record: Dict[str, Any] = {
        "frames_in": len(reports),
        "results_out": len(reports),
        "model": model,
        "mode": modes.most_common(1)[0][0],
        "frames_by_mode": dict(modes),
        "latency_s": records.latency_summary([item.total_s for item in reports]),
        "bytes_up": float(np.mean([item.bytes_up for item in reports])),
        "bytes_down": float(np.mean([item.bytes_down for item in reports])),
        "round_trips": float(np.mean([item.round_trips for item in reports])),
        "energy_j": None if UNKNOWN in sources else float(np.mean([energy.joules for energy in energies])),
        "energy_source": MEASURED if sources == {MEASURED} else UNKNOWN if UNKNOWN in sources else MODEL,
        "robot_slowdown": args.slowdown,
        "overlay": written,
    }
    latency = record["latency_s"]
    ended = " (ended by Ctrl-C)" if work.interrupted else ""
    print(f"frames    {len(reports)}{ended}: {', '.join(f'{count} {mode}' for mode, count in modes.items())} ({model})")
    print(f"people    {work.found / len(reports):.1f} a frame, {len(work.ids)} ids")
    print("latency   " + ", ".join(f"{name} {latency[name] * 1e3:.0f} ms" for name in ("mean", "p50", "p99")))
    traffic = f"{record['bytes_up'] / 1e3:.1f} kB up, {record['bytes_down'] / 1e3:.1f} kB down"
    energy = "energy not known" if UNKNOWN in sources else f"{record['energy_j']:.2f} J ({record['energy_source']})"
    print(f"a frame   {traffic}, {record['round_trips']:.2f} round trips, {energy}")
    reasons = Counter(item.fallback_reason for item in reports if item.fallback_reason)
    for reason, count in reasons.most_common(3):
        print(f"fallback  {count} frames: {reason}")
    for path in written:
        print(f"written   {path}")
    if args.json:
        records.write(args.json, "run", record)


class TrackProgress:
    """A line that is written over on a terminal; elsewhere one now and then.

    Args:
        frames: how many there will be; 0 when that is not known.
    """

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._frame = 0
        self._terminal = sys.stderr.isatty()
        self._due = 0.0

    def add_frame(self, report: InferenceReport, people: int) -> None:
        """One more frame is done."""
        self._frame += 1
        many = f"frame {self._frame}{f' of {self._frames}' if self._frames else ''}"
        text = f"{many}: {people} people, {report.total_s * 1e3:.0f} ms, {report.mode}"
        if self._terminal:
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._due:
            self._due = time.monotonic() + 10.0
            print_progress(text)

    def end(self) -> None:
        """End the line of progress."""
        if self._terminal and self._frame:
            print(file=sys.stderr, flush=True)


def print_progress(text: str) -> None:
    """Progress, on stderr."""
    print(f"edge-offload track: {text}", file=sys.stderr, flush=True)
