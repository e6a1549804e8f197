"""Track people in a video, without ROS: here, or with the network on a server.

Reads a video (by default the sample video), finds and tracks people, and says what that cost. With --out, an annotated
video is written; with --png, the last annotated frame.

  edge-offload track --frames 100 --out people.mp4
  edge-offload track my.mp4 --model kapao_s --option weights=kapao_s.pt
  edge-offload serve &  edge-offload track --server tcp://127.0.0.1:5700

With --server every frame is sent there; a frame that the server does not answer is computed here, and the summary says
how many. Energy is measured where this machine has a sensor, else it comes from a model of a Jetson Xavier NX.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from edge_offload.errors import BadInput
from edge_offload.outputs import add_output

if TYPE_CHECKING:
    import numpy as np
    import torch

    from edge_offload.models.base import PersonEstimator
    from edge_offload.perception.pipeline import Run
    from edge_offload.timing import InferenceReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("video", nargs="?", help="video file (default: the sample video)")
    parser.add_argument("--model", default="movenet", help="a name from 'edge-offload models list' (movenet)")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the model")
    parser.add_argument("--server", metavar="ADDR", help="tcp://host:port of 'edge-offload serve'; none: all runs here")
    parser.add_argument("--keys", metavar="DIR", help="key directory (default: the user's)")
    parser.add_argument("--frames", type=int, metavar="N", help="stop after N frames")
    parser.add_argument("--camera", metavar="YAML", help="calibration with a pose (config/camera_demo.yaml): "
                        "shows how far away people are")  # fmt: skip
    parser.add_argument("--target", default="largest", help="whom to mark: largest, nearest, longest (largest)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="compute threads (1)")
    parser.add_argument("--slowdown", type=float, default=1.0, metavar="K", help="emulate a robot K times slower (1)")
    parser.add_argument("--allow-untrained", action="store_true", help="measure a model that has random weights")
    add_output(parser, "--out", metavar="FILE", help="annotated video, .mp4 or .avi")
    add_output(parser, "--png", metavar="FILE", help="last annotated frame")
    add_output(parser, "--json", metavar="FILE", help="the summary as a record of kind 'run'")


def run(args: argparse.Namespace) -> int:
    """Track, and print the summary."""
    if args.frames is not None and args.frames < 1:
        raise BadInput(f"--frames {args.frames}", remedy="give at least 1")
    if args.png and pathlib.Path(args.png).suffix.lower() != ".png":
        raise BadInput(f"--png {args.png}", remedy="name a .png")
    say("loading the model")
    from edge_offload.execute.threads import pin
    from edge_offload.models.registry import build_estimator

    pin(args.threads)
    options = parse_options(args.option)
    estimator = build_estimator(args.model, **options)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(runner(args, estimator, options))
        written, summary = track(args, estimator, network)
    report(args, estimator.name, written, summary)
    return 0


@contextlib.contextmanager
def runner(args: argparse.Namespace, estimator: PersonEstimator, options: Dict[str, Any]) -> Iterator[Run]:
    """What runs the network: this process, with the server where one is named."""
    from edge_offload.manager.runtime import OffloadedModule
    from edge_offload.modes import Mode

    client = None
    module: Optional[OffloadedModule] = None
    if args.server:
        from edge_offload.link.client import Client
        from edge_offload.link.keys import KeyStore

        def on_state(state: Any, cause: str) -> None:
            if module is not None:
                module.link_changed(state, cause)

        client = Client(args.server, keys=KeyStore(args.keys) if args.keys else None, on_state=on_state)
    module = OffloadedModule(
        args.model, estimator.module, client, options=options, robot_slowdown=args.slowdown
    )  # fmt: skip
    mode = Mode.LOCAL if client is None else Mode.SERVER
    try:
        if client is not None:
            say(f"connecting to {args.server}")
            client.start()
            client.wait_ready(10.0)
        opened = client is None

        def run_network(inputs: Sequence[torch.Tensor]) -> Tuple[Tuple[torch.Tensor, ...], InferenceReport]:
            nonlocal opened
            if not opened:
                wait_until_open(lambda: module.obstacle(mode, inputs))
                opened = True
            return module.run(inputs, mode)

        yield run_network
    finally:
        if client is not None:
            client.close()


def wait_until_open(obstacle: Callable[[], Optional[str]], timeout_s: float = 20.0) -> None:
    """Give the server time to build the model, so that the first frames are not computed here; then go on anyway."""
    end = time.monotonic() + timeout_s
    reason = obstacle()
    while reason is not None and time.monotonic() < end:
        time.sleep(0.05)
        reason = obstacle()
    if reason is not None:
        say(f"going on without the server for now: {reason}")


def track(args: argparse.Namespace, estimator: PersonEstimator, network: Run) -> Tuple[List[str], Dict[str, Any]]:
    """Work through the video; the files written, and the sums that the summary is made of."""
    from edge_offload.perception.geometry import Locator, load_camera
    from edge_offload.perception.overlay import Status, draw
    from edge_offload.perception.pipeline import PeoplePipeline
    from edge_offload.perception.target import TargetSelector
    from edge_offload.perception.video import VideoWriter, write_png
    from edge_offload.power.detect import open_meter
    from edge_offload.power.states import StateTimeline

    camera = load_camera(args.camera) if args.camera else None
    locator = None if camera is None else Locator(camera, camera.pose)
    pipeline = PeoplePipeline(estimator, network, locator=locator, allow_untrained=args.allow_untrained)
    selector = TargetSelector(args.target)
    timeline = StateTimeline()
    reports, energies, found, picture = [], [], 0, None
    ids: Set[int] = set()
    with contextlib.ExitStack() as stack:
        meter = stack.enter_context(open_meter(timeline))
        writer: Optional[VideoWriter] = None
        for frame, (stamp_s, bgr, fps) in enumerate(read(args.video, args.frames)):
            if args.out and writer is None:
                writer = stack.enter_context(VideoWriter(args.out, fps))
            result = pipeline.process(bgr, stamp_s)
            end_s = result.started_s + result.report.total_s
            timeline.add_report(result.report, result.started_s)
            energies.append(meter.energy_between(result.started_s, end_s))
            reports.append(result.report)
            found += len(result.detections)
            ids.update(person.id for person in result.people)
            if args.out or args.png:
                selector.select(result.people, stamp_s)
                status = Status(
                    result.report.mode, estimator.name, result.report.total_s, result.report.bytes_up,
                    result.report.bytes_down, energies[-1].joules, result.report.fallback_reason,
                )  # fmt: skip
                picture = draw(bgr, result.people, status, selector.target_id)
                if writer is not None:
                    writer.write(picture)
            progress(frame + 1, args.frames, result.report.total_s, len(result.people))
    written = [] if writer is None else [str(writer.path)]
    if args.png and picture is not None:
        written.append(str(write_png(args.png, picture)))
    return written, {"reports": reports, "energies": energies, "ids": ids, "found": found}


def read(video: Optional[str], limit: Optional[int]) -> Iterator[Tuple[float, np.ndarray, float]]:
    """Frames of a video with their time in it, and its frame rate.

    Raises:
        BadInput: it cannot be opened, or holds no frame.
    """
    import cv2

    from edge_offload.models.video import sample_video

    path = str(video or sample_video())
    capture = cv2.VideoCapture(path)
    try:
        fps = capture.get(cv2.CAP_PROP_FPS)
        fps = fps if 0 < fps < 1000 else 10.0
        count = 0
        while limit is None or count < limit:
            there, bgr = capture.read()
            if not there:
                break
            yield count / fps, bgr, fps
            count += 1
    finally:
        capture.release()
    if not count:
        raise BadInput(f"video {path} cannot be read", remedy="give a file that OpenCV can decode")


def report(args: argparse.Namespace, model: str, written: List[str], summary: Dict[str, Any]) -> None:
    """Print the summary, and write it as JSON where asked."""
    import numpy as np

    from edge_offload import records
    from edge_offload.power.source import MEASURED, MODEL

    reports, energies = summary["reports"], summary["energies"]
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
        "energy_j": float(np.mean([energy.joules for energy in energies])),
        "energy_source": MEASURED if sources == {MEASURED} else MODEL,
        "robot_slowdown": args.slowdown,
        "overlay": written,
    }
    latency = record["latency_s"]
    print(f"frames    {len(reports)}: {', '.join(f'{count} {mode}' for mode, count in modes.items())} ({model})")
    print(f"people    {summary['found'] / len(reports):.1f} a frame, {len(summary['ids'])} ids")
    print("latency   " + ", ".join(f"{name} {latency[name] * 1e3:.0f} ms" for name in ("mean", "p50", "p99")))
    traffic = f"{record['bytes_up'] / 1e3:.1f} kB up, {record['bytes_down'] / 1e3:.1f} kB down"
    energy = f"{record['energy_j']:.2f} J ({record['energy_source']})"
    print(f"a frame   {traffic}, {record['round_trips']:.2f} round trips, {energy}")
    reasons = Counter(item.fallback_reason for item in reports if item.fallback_reason)
    for reason, count in reasons.most_common(3):
        print(f"fallback  {count} frames: {reason}")
    for path in written:
        print(f"written   {path}")
    if args.json:
        records.write(args.json, "run", record)


def parse_options(texts: List[str]) -> Dict[str, Any]:
    """``{name: value}`` from ``NAME=VALUE``; values are JSON scalars, or else text.

    Raises:
        BadInput: not of that form.
    """
    import json

    options: Dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise BadInput(f"--option {text!r}", remedy="write NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def progress(frame: int, frames: Optional[int], seconds: float, people: int) -> None:
    """A line that is written over on a terminal; elsewhere a line every 50 frames."""
    text = f"frame {frame}{f' of {frames}' if frames else ''}: {people} people, {seconds * 1e3:.0f} ms"
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="\n" if frame == frames else "", file=sys.stderr, flush=True)
    elif frame % 50 == 0:
        say(text)


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"edge-offload track: {text}", file=sys.stderr, flush=True)
