"""Write a bag of images from a video, the same every time: frame times become stamps, nothing is live.

The sample video's people walk through it; it is what the regression test of this package steps through. The footage
itself is not shipped: the bag is made on the machine that has the video. Needs ROS's rosbag (source devel/setup.bash).

Examples:
  edge-offload sample-bag walk.bag
  edge-offload sample-bag --video lab.mp4 --first 100 --every 2 --frames 50 lab.bag
"""

from __future__ import annotations

import argparse
import pathlib
import re

from edge_offload.errors import BadInput, EdgeOffloadError
from edge_offload.outputs import check_output
from edge_offload.subcommands import some

EPOCH_NS = 1_600_000_000 * 10**9
"""Stamp of a video's first frame: an arbitrary fixed time, as a video has none of its own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See the module."""
    parser.add_argument("bag", type=pathlib.Path, help="bag file to write")
    parser.add_argument("--video", type=pathlib.Path, help="video to read; default: the sample video")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first frame (0)")
    parser.add_argument("--every", type=some, default=4, metavar="N", help="take every N-th frame (4)")
    parser.add_argument("--frames", type=some, default=25, metavar="N", help="how many images (25)")
    parser.add_argument("--topic", default="camera/image_raw", help="topic of the images (camera/image_raw)")


def run(args: argparse.Namespace) -> int:
    """See the module."""
    from edge_offload.models.video import Video

    try:
        import genpy
        import rosbag
        from sensor_msgs.msg import Image
        from std_msgs.msg import Header
    except ImportError as error:
        raise EdgeOffloadError(f"no ROS here ({error})", remedy="source devel/setup.bash first") from error
    check_output(args.bag)
    if args.bag.exists() and not args.bag.is_file():
        raise BadInput(f"{args.bag} is no ordinary file", remedy="name another")
    if not re.fullmatch(r"[~/]?[A-Za-z][A-Za-z0-9_/]*", args.topic):
        raise BadInput(f"--topic {args.topic!r} is no name of a topic", remedy="such as camera/image_raw")
    video = Video(args.video)
    written = 0
    # written aside and renamed: a bag that is there is a whole one
    partial = args.bag.with_name(args.bag.name + ".part")
    with rosbag.Bag(str(partial), "w", compression="lz4") as bag:
        for number, (_, frame) in enumerate(video.frames(args.first + args.every * args.frames)):
            if number >= args.first and (number - args.first) % args.every == 0:
                total_ns = EPOCH_NS + round(number * 1e9 / video.fps)
                stamp = genpy.Time(total_ns // 10**9, total_ns % 10**9)
                height, width = frame.shape[:2]
                header = Header(seq=written, stamp=stamp, frame_id="camera_optical_frame")
                image = Image(header, height, width, "bgr8", 0, 3 * width, frame.tobytes())
                bag.write(args.topic, image, stamp)
                written += 1
    if not written:
        partial.unlink()
        raise BadInput(f"video {video.path} has no frame {args.first}")
    partial.replace(args.bag)
    print(f"wrote {args.bag}: {written} images of {video.path} on {args.topic}")
    return 0
