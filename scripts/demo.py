"""The whole way on one recording: frames, bag, DDS, node, detections, report.

    python scripts/demo.py --out DIR              a rendered scene, scored by its own truth
    python scripts/demo.py --out DIR --video FILE your recording, without truth

A bag is written, replayed over real middleware through the node (live: latency and drops), and
read straight into the engine (lockstep: accuracy). DIR then holds bag/, live/ and lockstep/, each
report with results.json, a summary and pictures. DIR is new, empty, or an earlier demo's: of that
the bag, the truth and the reports are replaced, and nothing else.

Exit code 0: done. 1: done, and frames failed. 2: a step could not run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from photon_ros.core.errors import PhotonError
from photon_ros.replay.bag_writer import BagOptions, frame_stamp_ns, write_bag
from training.demo_scene import MovingObject, moving_scene

FPS = 10
NUM_FRAMES = 60
SEED = 5
FRAMES_FAILED = 1  # exit code of the command line, and of the demo
PROMPTS = ("person", "cone", "ball")
VIDEO_PROMPTS = ("person",)


MARK = ".photon_ros_demo"
"""A file that says that the demo made its folder."""


class DemoError(Exception):
    """A step of the demo failed; its own output says why."""


def prepare(out: Path) -> None:
    """Make the demo's folder, or free what an earlier demo left in it; nothing else is touched.

    Raises DemoError for a folder that holds anything and that no demo made.
    """
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise DemoError(f"{out} was not made by the demo; give a new folder")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    bag = out / "bag"
    if bag.is_symlink():
        raise DemoError(f"{bag} was not made by the demo; give a new folder")
    # The reports are replaced by what writes them.
    for path in (bag / "bag.mcap", bag / "metadata.yaml", out / "truth.json"):
        path.unlink(missing_ok=True)


def render_bag(out: Path) -> Path:
    """Write the rendered scene as a bag and its truth as COCO JSON; return the truth's path."""
    options = BagOptions()
    truth: list[list[MovingObject]] = []

    def frames_bgr() -> Iterator[NDArray[np.uint8]]:
        for image, objects in moving_scene(SEED, NUM_FRAMES):
            truth.append(objects)
            yield np.ascontiguousarray(image[:, :, ::-1])

    summary = write_bag(out / "bag", frames_bgr(), Fraction(FPS), options)
    stamps = [frame_stamp_ns(k, Fraction(FPS), options.start_ns) for k in range(len(truth))]
    path = out / "truth.json"
    size = (summary.width_px, summary.height_px)
    path.write_text(json.dumps(coco_truth(truth, stamps, options.topic, size)), encoding="utf-8")
    return path


def coco_truth(
    truth: Sequence[Sequence[MovingObject]],
    stamps_ns: Sequence[int],
    topic: str,
    size_px: tuple[int, int],
) -> dict[str, Any]:
    """Return COCO JSON of the objects in each frame; its images carry topic and stamp_ns."""
    categories = {name: index + 1 for index, name in enumerate(PROMPTS)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image_id, (objects, stamp_ns) in enumerate(zip(truth, stamps_ns, strict=True), start=1):
        images.append(
            {
                "id": image_id,
                "file_name": f"{stamp_ns}.jpg",
                "width": size_px[0],
                "height": size_px[1],
                "topic": topic,
                "stamp_ns": stamp_ns,
            }
        )
        for item in objects:
            x_min, y_min, x_max, y_max = (float(value) for value in item.box)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": categories[item.kind],
                    "bbox": [x_min, y_min, x_max - x_min, y_max - y_min],
                    "area": (x_max - x_min) * (y_max - y_min),
                    "iscrowd": 0,
                }
            )
    names = [{"id": index, "name": name} for name, index in categories.items()]
    return {"images": images, "annotations": annotations, "categories": names}


def photon_ros(*arguments: str) -> None:
    """Run the command line in a process of its own; raise DemoError when it could not run."""
    command = [sys.executable, "-m", "photon_ros", *arguments]
    if subprocess.run(command, check=False).returncode not in (0, FRAMES_FAILED):
        raise DemoError(f"this step failed: photon-ros {' '.join(arguments)}")


def summary_table(reports: dict[str, dict[str, Any]]) -> Table:
    """Return one row of figures for each report; it fits 80 columns."""
    table = Table(title="photon_ros demo")
    table.add_column("run")
    for column in ("frames", "done", "failed", "dropped", "p50 ms", "p95 ms", "F1@0.5"):
        table.add_column(column, justify="right")
    for name, report in reports.items():
        frames, total = report["frames"], report["latency_ms"].get("total")
        accuracy = report["accuracy"]
        table.add_row(
            name,
            *(str(frames[key]) for key in ("received", "completed", "failed")),
            str(sum(frames["dropped"].values())),
            *("-" if total is None else f"{total[key]:.0f}" for key in ("p50", "p95")),
            "-" if accuracy is None else f"{accuracy['f1_iou50']:.3f}",
        )
    return table


def run_demo(out: Path, video: Path | None) -> dict[str, dict[str, Any]]:
    """Make the bag and both reports below ``out``; return the two results documents."""
    truth: list[str] = []
    prompts = PROMPTS if video is None else VIDEO_PROMPTS
    if video is None:
        truth = ["--truth", str(render_bag(out))]
    else:
        photon_ros("bag", "from-video", str(video), "--out", str(out / "bag"))
    asked = [word for prompt in prompts for word in ("--prompt", prompt)]
    reports = {}
    for name, options in (("live", ["--live", "--rate", "1"]), ("lockstep", [])):
        folder = out / name
        arguments = ["evaluate", str(out / "bag"), "--skill", "detect", *asked, *truth, *options]
        photon_ros(*arguments, "--out", str(folder))
        reports[name] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return reports


def main() -> int:
    """Run the demo as the command line says; return the exit code."""
    parser = argparse.ArgumentParser(description="Camera to detections, over real middleware.")
    parser.add_argument("--out", type=Path, required=True, help="new folder, or the last demo's")
    parser.add_argument("--video", type=Path, help="your recording instead of a rendered scene")
    options = parser.parse_args()
    began_s = time.monotonic()
    try:
        prepare(options.out)
        reports = run_demo(options.out, options.video)
    except (DemoError, PhotonError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    console = Console()
    console.print(summary_table(reports))
    console.print(f"ended after {time.monotonic() - began_s:.0f} s; look at:")
    for path in sorted(options.out.glob("*/results.json")):
        console.print(f"  {path.parent.resolve()}  (results.json, summary, pictures)")
    has_failed = any(report["frames"]["failed"] for report in reports.values())
    return FRAMES_FAILED if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
