"""Payload codecs on real payloads: ratio, encoding and decoding speed of each.

Payloads: frames of a video of a fixed camera (by themselves, and against the frame 1 or 4 earlier; at 960x640 and
512x384; as they are and with Gaussian sensor noise added), a normalised 224x224 float32 image, the 256x256x32 occupancy
of a LiDAR scan and label grids made from it, or a label
grid of your own network.

  edge-offload bench codecs                                        with the sample video (see --video)
  edge-offload bench codecs --scan 000000.bin                      and with a LiDAR scan in KITTI's format
  edge-offload bench codecs --json codecs.json --plot codecs.png

ratio is plain bytes / coded bytes over all frames together. MB/s are 10^6 plain bytes per second of processor time on
one core, the best of --repeats per frame. Every lossless payload is decoded and compared bit for bit.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from edge_offload.arrays import Array
from edge_offload.outputs import add_output
from edge_offload_benchmarks.processes import describe_machine

if TYPE_CHECKING:
    Pair = Tuple[Array, Optional[Array]]

LAGS = (1, 4)
NOISES = (1.0, 2.0)
SIZES = ((960, 640), (512, 384))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("--video", type=pathlib.Path, help="video of a fixed camera (default: the sample video)")
    parser.add_argument("--scan", type=pathlib.Path, help="LiDAR scan: float32 x, y, z, reflectance (none by default)")
    parser.add_argument("--labels", type=pathlib.Path, help="label grid that a network gave: .npy of small integers")
    parser.add_argument("--codec", action="append", metavar="NAME", help="only this codec (may be repeated)")
    parser.add_argument("--frames", type=int, default=16, metavar="N", help="frames, drawn from the whole video (16)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="runs per frame, the best counts (3)")
    add_output(parser, "--json", type=pathlib.Path, metavar="FILE", help="write the record codec_bench here")
    add_output(parser, "--plot", type=pathlib.Path, metavar="FILE", help="draw ratios and speeds (needs matplotlib)")


@dataclass(frozen=True)
class Payload:
    """One line of the experiment's matrix: arrays of a kind, each with its reference if there is one."""

    name: str
    pairs: Sequence[Pair]


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload import records
    from edge_offload.errors import BadInput
    from edge_offload.link import codecs
    from edge_offload_research.temporal import TEMPORAL

    if args.frames < 1 or args.repeats < 1:
        raise BadInput("--frames and --repeats are at least 1")
    names = [*codecs.codec_names(), *codecs.codec_names(lossless=False), *TEMPORAL]
    for name in args.codec or ():
        if name not in names:
            raise BadInput(f"no codec {name!r}", remedy=f"use some of {', '.join(names)}")
    kernels = codecs.prepare()
    payloads = []
    if args.scan is None:
        print("no --scan: occupancy and label grids are left out", file=sys.stderr)
    else:
        payloads += scan_payloads(args.scan)
    if args.labels is not None:
        grid = read_labels(args.labels)
        payloads.append(Payload(f"labels, given, {grid.dtype.name}", [(grid, None)]))
    payloads = video_payloads(args.video, args.frames) + payloads
    rows = [row for payload in payloads for row in measure_payload(payload, args.codec or names, args.repeats)]
    record = {"machine": describe_machine(), "kernels": kernels, "frames": args.frames, "rows": rows}
    print(f"{record['machine']}; {kernels}")
    print(format_table(rows))
    if args.json:
        records.write(args.json, "codec_bench", record)
    if args.plot:
        draw_ratios(rows, args.plot)
    return 0


def video_payloads(path: Optional[pathlib.Path], count: int) -> List[Payload]:
    """Frames by themselves and against earlier ones, with and without noise, and normalised images.

    Raises:
        BadInput: no video, or too short a one.
    """
    from edge_offload.errors import BadInput
    from edge_offload.models.video import Video, read_frames, sample_video
    from edge_offload_benchmarks import payloads

    source = path or sample_video()
    length = Video(source).length
    if length < count + max(LAGS):
        raise BadInput(f"{source} has {length} frames", remedy=f"give a video of at least {count + max(LAGS)} frames")
    # drawn, not on a grid: a grid may keep step with the key frames of the video
    numbers = sorted(random.Random(0).sample(range(max(LAGS), length), count))
    needed = sorted({number - lag for number in numbers for lag in (0, *LAGS)})
    frames = read_frames(source, needed)
    made = []
    for width, height in SIZES:
        small = {number: payloads.resize_frame(frame, width, height) for number, frame in frames.items()}
        for sigma in (0.0, *NOISES) if (width, height) == SIZES[0] else (0.0,):
            if sigma:
                small = {
                    number: payloads.with_noise(payloads.resize_frame(frame, width, height), sigma, number)
                    for number, frame in frames.items()
                }
            name = f"frame {width}x{height}" + (f", noise {sigma:g}" if sigma else "")
            made.append(Payload(name, [(small[number], None) for number in numbers]))
            for lag in LAGS:
                pairs = [(small[number], small[number - lag]) for number in numbers]
                made.append(Payload(f"{name}, lag {lag}", pairs))
    made.append(Payload("normalised 224x224", [(payloads.normalise_frame(frames[number]), None) for number in numbers]))
    return made


def scan_payloads(path: pathlib.Path) -> List[Payload]:
    """Occupancy and label grids of one scan, in the dtypes that networks take and give."""
    import numpy as np

    from edge_offload_benchmarks import payloads

    scan = payloads.read_scan(path)
    occupied, labels = payloads.make_occupancy(scan), payloads.completed_labels(scan)
    return [
        Payload("occupancy uint8", [(occupied, None)]),
        Payload("occupancy float32", [(occupied.astype(np.float32), None)]),
        Payload("labels, measured, uint8", [(payloads.measured_labels(scan), None)]),
        Payload("labels, completed, uint8", [(labels, None)]),
        Payload("labels, completed, int64", [(labels.astype(np.int64), None)]),
    ]


def read_labels(path: pathlib.Path) -> Array:
    """An array of integers from a .npy file.

    Raises:
        BadInput: it is something else.
    """
    import numpy as np

    from edge_offload.errors import BadInput

    try:
        grid = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} is not a label grid: {error}") from error
    if not isinstance(grid, np.ndarray) or grid.dtype.kind not in "iu" or not grid.size:
        raise BadInput(f"{path} is not a label grid", remedy="give a .npy file of integers")
    return grid


def measure_payload(payload: Payload, codec_names: Sequence[str], repeats: int) -> List[Dict[str, Any]]:
    """One row of the record per codec of ``codec_names`` that suits the payload."""
    from edge_offload.errors import EdgeOffloadError
    from edge_offload.link import codecs
    from edge_offload_research.temporal import TEMPORAL

    temporal = payload.pairs[0][1] is not None
    rows = []
    for name in codec_names:
        if (name in TEMPORAL) != temporal:
            continue
        plain = coded = 0
        encode_s = decode_s = 0.0
        lossless = temporal or name in codecs.codec_names()
        try:
            for array, reference in payload.pairs:
                runs = [_code_once(name, array, reference, lossless) for _ in range(repeats)]
                plain, coded = plain + array.nbytes, coded + runs[0][0]
                encode_s += min(run[1] for run in runs)
                decode_s += min(run[2] for run in runs)
        except codecs.NotApplicable:
            continue
        except EdgeOffloadError as error:
            raise type(error)(f"{payload.name}, {name}: {error}") from error
        first = payload.pairs[0][0]
        rows.append(
            {
                "payload": payload.name,
                "dtype": first.dtype.name,
                "shape": list(first.shape),
                "codec": name,
                "lossless": lossless,
                "ratio": plain / coded,
                "encode_bytes_per_s": plain / max(encode_s, 1e-9),
                "decode_bytes_per_s": plain / max(decode_s, 1e-9),
            }
        )
    return rows


def _code_once(name: str, array: Array, reference: Optional[Array], lossless: bool) -> Tuple[int, float, float]:
    """(coded bytes, seconds to encode, seconds to decode) of one array; streams with all that they do per payload."""
    from edge_offload.errors import ProtocolError
    from edge_offload.link import codecs
    from edge_offload_research.temporal import ReceiveStream, SendStream

    encode: Callable[[], codecs.Encoded]
    decode: Callable[[codecs.Encoded], Array]
    if reference is None:
        encode = lambda: codecs.encode(array, name)  # noqa: E731
        decode = lambda encoded: codecs.decode(encoded.descriptor, encoded.buffers)  # noqa: E731
    else:
        sender, receiver = SendStream(), ReceiveStream()
        first = sender.encode(reference, "raw")
        receiver.decode(first.descriptor, first.buffers)
        sender.acknowledge(receiver.acknowledgement(first.descriptor))
        encode = lambda: sender.encode(array, name)  # noqa: E731
        decode = lambda encoded: receiver.decode(encoded.descriptor, encoded.buffers)  # noqa: E731
    start = time.thread_time()
    encoded = encode()
    middle = time.thread_time()
    decoded = decode(encoded)
    end = time.thread_time()
    if encoded.descriptor["codec"] != name or (lossless and decoded.tobytes() != array.tobytes()):
        raise ProtocolError(f"codec {name} did not give the payload back")
    return max(encoded.nbytes, 1), middle - start, end - middle


def format_table(rows: Sequence[Dict[str, Any]]) -> str:
    """The rows as text, one block per payload."""
    lines = [f"{'payload':32s} {'codec':14s} {'ratio':>8s} {'encode':>8s} {'decode':>8s}   (MB/s)"]
    previous = ""
    for row in rows:
        name = "" if row["payload"] == previous else row["payload"]
        previous = row["payload"]
        codec = row["codec"] + ("" if row["lossless"] else " (lossy)")
        lines.append(
            f"{name:32s} {codec:14s} {row['ratio']:8.2f} {row['encode_bytes_per_s'] / 1e6:8.0f}"
            f" {row['decode_bytes_per_s'] / 1e6:8.0f}"
        )
    return "\n".join(lines)


def draw_ratios(rows: Sequence[Dict[str, Any]], path: pathlib.Path) -> None:
    """One line per payload, one dot per lossless codec: ratio, and encoding speed as colour."""
    from edge_offload_benchmarks.plotting import open_panels

    names = list(dict.fromkeys(row["payload"] for row in rows))
    lossless = [row for row in rows if row["lossless"] and row["codec"] != "raw"]
    with open_panels(path, 1, 1, (10, 1.2 + 0.4 * len(names))) as ((panel,),):
        dots = panel.scatter(
            [row["ratio"] for row in lossless],
            [names.index(row["payload"]) for row in lossless],
            c=[row["encode_bytes_per_s"] / 1e6 for row in lossless],
            norm="log",
        )
        for line, name in enumerate(names):
            mine = [row for row in lossless if row["payload"] == name]
            if mine:
                best = max(mine, key=lambda row: row["ratio"])
                text = f"{best['codec']}  {best['ratio']:.3g}"
                panel.annotate(text, (best["ratio"], line), fontsize=8, xytext=(7, -3), textcoords="offset points")
        panel.set(xscale="log", xlabel="ratio (plain bytes / coded bytes), lossless codecs")
        panel.set_yticks(range(len(names)), names)
        panel.invert_yaxis()
        panel.margins(x=0.25)
        panel.grid(True, alpha=0.3)
        panel.figure.colorbar(dots, label="encode, MB/s")
