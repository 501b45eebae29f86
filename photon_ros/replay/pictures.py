"""Which frames of a run to show, and their overlay pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image

from photon_ros.overlay import draw
from photon_ros.pixels import DepthPolicy
from photon_ros.replay.bag_reader import BagReader
from photon_ros.replay.outcome import FrameOutcome, RunOutcome
from photon_ros.replay.report_folder import picture_name
from photon_ros.replay.scoring import Score, Tally
from photon_ros.replay.truth import TruthImage, label_key

MAX_PICTURES: Final = 12
_NUM_WORST: Final = 3
_JPEG_QUALITY: Final = 92


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of the report.

    Attributes:
        file_name: name within the folder of pictures.
        tally: how the frame scored; None without truth.
        is_worst: among the frames that scored lowest, and not flawless.
    """

    file_name: str
    outcome: FrameOutcome
    tally: Tally | None
    is_worst: bool


def choose_frames(run: RunOutcome, score: Score | None) -> list[int]:
    """Return the frames to show: labelled ones first, the worst in front, then a sample.

    The sample is spread evenly over the answered frames without truth.
    """
    tallies = {} if score is None else score.by_frame
    answered = run.frames.keys() & tallies.keys()
    labelled = sorted(answered, key=lambda index: (tallies[index].f1, index))[:MAX_PICTURES]
    others = sorted(run.frames.keys() - tallies.keys())
    room = min(MAX_PICTURES - len(labelled), len(others))
    step = (len(others) - 1) / max(1, room - 1)
    return labelled + [others[round(place * step)] for place in range(room)]


def draw_pictures(
    folder: Path,
    reader: BagReader,
    topic: str,
    run: RunOutcome,
    truth: Mapping[int, TruthImage],
    score: Score | None,
    depth_policy: DepthPolicy,
) -> list[Picture]:
    """Draw the chosen frames into ``folder`` and return them in the order to show them."""
    chosen = choose_frames(run, score)
    tallies = {} if score is None else score.by_frame
    worst = [index for index in chosen if index in tallies and tallies[index].f1 < 1]
    prompts = set() if score is None else {label_key(label) for label in score.by_label}
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[int, Picture] = {}
    for item in reader.frames(topic, set(chosen), depth_policy=depth_policy):
        if item.frame is None:  # answered once, so it was readable: the bag changed since
            continue
        outcome = run.frames[item.index]
        boxes = truth[item.index].boxes if item.index in truth else ()
        shown = [box.box for box in boxes if label_key(box.label) in prompts]
        name = picture_name(item.index, item.stamp_ns)
        image = Image.fromarray(draw(item.frame.image, outcome.detections, truth=shown))
        image.save(folder / name, quality=_JPEG_QUALITY)
        is_worst = item.index in worst[:_NUM_WORST]
        pictures[item.index] = Picture(name, outcome, tallies.get(item.index), is_worst)
    return [pictures[index] for index in chosen if index in pictures]
