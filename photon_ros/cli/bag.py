"""photon-ros bag: make recordings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from photon_ros.cli.arguments import Commands


def add_parser(commands: Commands) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "bag", help="make recordings", description="Make recordings (ROS 2 bags)."
    )
    actions = parser.add_subparsers(title="actions", dest="action", required=True, metavar="ACTION")
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
        f"{arguments.out}: {summary.num_frames} frame{'' if summary.num_frames == 1 else 's'} "
        f"of {summary.width_px}x{summary.height_px} "
        f"on {summary.topic}, {float(summary.fps):.6g} Hz, {seconds:.3f} s, "
        f"{summary.size_bytes / 1e6:.1f} MB"
    )
    return 0
