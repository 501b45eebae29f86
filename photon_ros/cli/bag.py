"""photon-ros bag: make recordings, look into them, and take out pictures to label."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from photon_ros.cli.arguments import add_depth_argument
from photon_ros.cli.wording import counted

if TYPE_CHECKING:
    from photon_ros.cli.arguments import Commands


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "bag",
        help="make recordings, look into them, take out pictures to label",
        description="Make recordings (ROS 2 bags), look into them, take out pictures to label.",
    )
    actions = parser.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
    _add_from_video(actions)
    _add_info(actions)
    _add_frames(actions)


def _add_info(actions: Commands) -> None:
    info = actions.add_parser(
        "info",
        help="list the image topics of a recording",
        description="List the image topics of a recording.",
    )
    info.add_argument("bag", type=Path, metavar="BAG", help="ROS 2 or ROS 1 recording")
    info.add_argument(
        "--json", action="store_true", help="print JSON, with the stamp of every image"
    )
    info.set_defaults(run=run_info)


def _add_frames(actions: Commands) -> None:
    frames = actions.add_parser(
        "frames",
        help="take out pictures to label",
        description="Write the pictures of a topic as STAMP_NS.jpg, and truth.json, COCO JSON "
        "without annotations. Label them with any tool that keeps the file names: what it exports "
        "as COCO is truth for evaluate.",
    )
    frames.add_argument("bag", type=Path, metavar="BAG", help="ROS 2 or ROS 1 recording")
    frames.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder")
    frames.add_argument("--topic", metavar="T", help="image topic; T also finds T/compressed")
    frames.add_argument(
        "--every", type=int, default=1, metavar="N", help="take each N-th frame (default: 1)"
    )
    frames.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="TEXT",
        help="what will be labelled; may be given several times",
    )
    add_depth_argument(frames)
    frames.set_defaults(run=run_frames)


def _add_from_video(actions: Commands) -> None:
    from_video = actions.add_parser(
        "from-video",
        help="make a bag from a video file",
        description="Make a bag from a video file: frame k is stamped start + k / fps seconds.",
    )
    from_video.add_argument("video", type=Path, metavar="VIDEO", help="any video FFmpeg reads")
    from_video.add_argument(
        "--out", type=Path, required=True, metavar="BAG", help="new folder for the bag"
    )
    from_video.add_argument(
        "--fps",
        metavar="F",
        help="frames per second, as 10, 29.97 or 30000/1001 (default: the video's)",
    )
    from_video.add_argument(
        "--topic",
        default="/camera/image_raw",
        metavar="T",
        help="topic; JPEG goes to T/compressed (default: /camera/image_raw)",
    )
    from_video.add_argument(
        "--format", choices=("mcap", "sqlite3"), default="mcap", help="storage (default: mcap)"
    )
    from_video.add_argument(
        "--start-ns",
        type=int,
        default=1_000_000_000,
        metavar="N",
        help="stamp of the first frame in nanoseconds (default: 1 s)",
    )
    kind = from_video.add_mutually_exclusive_group()
    kind.add_argument("--raw", action="store_true", help="store uncompressed rgb8 images")
    kind.add_argument(
        "--jpeg", type=int, default=95, metavar="Q", help="JPEG quality 1..100 (default: 95)"
    )
    from_video.set_defaults(run=run_from_video)


def run_from_video(arguments: argparse.Namespace) -> int:
    """Write a video as a bag."""
    from photon_ros.replay.bag_writer import BagOptions, bag_from_video
    from photon_ros.replay.progress import progress_bar
    from photon_ros.replay.video import parse_fps

    options = BagOptions(
        topic=arguments.topic,
        start_ns=arguments.start_ns,
        storage=arguments.format,
        jpeg_quality=None if arguments.raw else arguments.jpeg,
    )
    fps = None if arguments.fps is None else parse_fps(arguments.fps)
    with progress_bar("frames", None) as advance:
        summary = bag_from_video(arguments.video, arguments.out, options, fps=fps, on_frame=advance)
    seconds = (summary.last_stamp_ns - summary.first_stamp_ns) / 1e9
    print(
        f"{arguments.out}: {counted(summary.num_frames, 'frame')} "
        f"of {summary.width_px}x{summary.height_px} "
        f"on {summary.topic}, {float(summary.fps):.6g} Hz, {seconds:.3f} s, "
        f"{summary.size_bytes / 1e6:.1f} MB"
    )
    return 0


def run_info(arguments: argparse.Namespace) -> int:
    """List the image topics of a recording."""
    from photon_ros.replay.bag_reader import BagReader
    from photon_ros.replay.labelling import image_topics

    with BagReader(arguments.bag) as reader:
        topics = image_topics(reader)
    if arguments.json:
        print(json.dumps([topic.as_dict() for topic in topics], indent=1))
        return 0
    for topic in topics:
        size = "of unknown size" if topic.size_px is None else "of {}x{}".format(*topic.size_px)
        number = len(topic.stamps_ns)
        print(f"{topic.topic}  {topic.msgtype}: {counted(number, 'image')} {size}")
        if number:
            print(f"  stamps {min(topic.stamps_ns)} to {max(topic.stamps_ns)} ns")
    return 0


def run_frames(arguments: argparse.Namespace) -> int:
    """Take out pictures to label; 1 when frames could not be decoded."""
    from photon_ros.replay.bag_reader import BagReader
    from photon_ros.replay.labelling import TRUTH_NAME, export_frames
    from photon_ros.replay.progress import progress_bar

    with BagReader(arguments.bag) as reader, progress_bar("frames", None) as advance:
        export = export_frames(
            reader,
            arguments.out,
            topic=arguments.topic,
            every=arguments.every,
            labels=arguments.label,
            depth_policy=arguments.depth_policy,
            on_frame=advance,
        )
    bad = f"; {export.num_bad} could not be decoded" if export.num_bad else ""
    print(
        f"{arguments.out}: {counted(export.num_frames, 'picture')} of "
        f"{export.topic}, and {TRUTH_NAME}{bad}"
    )
    return 1 if export.num_bad else 0
