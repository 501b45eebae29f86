"""results.json: the document that every evaluation leaves, and other tools read.

schema      name and version
accuracy    figures of the scorer, over all prompts and by_prompt; null without truth
latency_ms  {stage: {p50, p95, p99, max}}
frames      {received, completed, failed, dropped: {reason: number}}
throughput  {frames_per_s, elapsed_s}
bag, config, notes, commit, machine
answers     one item per answered frame, one to a line:
    index, stamp_ns     which message of the topic, and the stamp of its header
    width, height       of its image in pixels; 0 where nobody said
    status, error       "ok", "partial", "timeout" or "error"; what went wrong, or ""
    detections          [{label, score, bbox: [x, y, width, height]}], points with x and y
                        in place of bbox; pixels, origin top left, not clamped to the image;
                        score null where there is none
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from photon_ros.core.result import Detection, DetectionKind
from photon_ros.replay.bag_reader import BagEntry
from photon_ros.replay.coco import AveragePrecision, mean_of
from photon_ros.replay.latency import stage_percentiles
from photon_ros.replay.options import EvaluateOptions
from photon_ros.replay.outcome import FrameOutcome, RunOutcome
from photon_ros.replay.provenance import bag_files, commit, machine, sha256_of
from photon_ros.replay.report_folder import SCHEMA_NAME
from photon_ros.replay.scoring import Score

SCHEMA: Final = f"{SCHEMA_NAME}/1"
"""Name and version of the document; a reader of version 1 can read any later 1."""

Document = dict[str, Any]


def results_document(
    options: EvaluateOptions,
    run: RunOutcome,
    bag: Mapping[str, Any],
    score: Score | None,
    precisions: Mapping[str, AveragePrecision],
    model_name: str,
) -> Document:
    """Return the document: JSON types only, every key always there.

    ``accuracy`` is None without truth. In a frame that could not be decoded everything is missed.
    In a live run it is over the labelled frames that were answered; ``num_frames`` says how many
    those are.
    """
    per_s = len(run.frames) / run.elapsed_s if run.elapsed_s > 0 else 0.0
    return {
        "schema": SCHEMA,
        "accuracy": None if score is None else _accuracy(score, precisions),
        "latency_ms": stage_percentiles(run.latencies_ms),
        "frames": {
            "received": run.received,
            "completed": run.completed,
            "failed": run.failed,
            "dropped": dict(run.dropped),
        },
        "throughput": {"frames_per_s": round(per_s, 3), "elapsed_s": round(run.elapsed_s, 3)},
        "bag": dict(bag),
        "config": _config(options, model_name),
        "notes": list(run.notes),
        "commit": commit(),
        "machine": dict(machine(options.device)),
        "answers": [_answer(run.frames[index]) for index in sorted(run.frames)],
    }


def bag_facts(path: Path, storage: str, topic: str, entries: Sequence[BagEntry]) -> dict[str, Any]:
    """Return what identifies the recording and the part of it that was used."""
    stamps = [entry.stamp_ns for entry in entries]
    return {
        "sha256": sha256_of(path),
        "name": path.resolve().name,
        "storage": storage,
        "size_bytes": sum(file.stat().st_size for file in bag_files(path)),
        "topic": topic,
        "num_images": len(entries),
        "first_stamp_ns": min(stamps),
        "last_stamp_ns": max(stamps),
    }


def dump_document(document: Document) -> str:
    """Return the document as JSON text that ends in a newline; answers have a line each."""
    text = json.dumps({**document, "answers": []}, indent=2, ensure_ascii=False, allow_nan=False)
    answers = [
        "\n    " + json.dumps(answer, ensure_ascii=False, allow_nan=False)
        for answer in document["answers"]
    ]
    if answers:  # quotes within a text are escaped, so these are nowhere else
        text = text.replace('"answers": []', f'"answers": [{",".join(answers)}\n  ]')
    return text + "\n"


def _answer(outcome: FrameOutcome) -> dict[str, Any]:
    return {
        "index": outcome.index,
        "stamp_ns": outcome.stamp_ns,
        "width": outcome.width_px,
        "height": outcome.height_px,
        "status": outcome.status.value,
        "error": outcome.error,
        "detections": [_detection(found, outcome) for found in outcome.detections],
    }


def _detection(found: Detection, outcome: FrameOutcome) -> dict[str, Any]:
    width, height = outcome.width_px, outcome.height_px
    entry = {
        "label": found.label,
        "score": round(found.score, 6) if math.isfinite(found.score) else None,
    }
    if found.kind is DetectionKind.POINT:
        return {**entry, "x": round(found.x * width, 3), "y": round(found.y * height, 3)}
    x_min, y_min, _, _ = found.corners()
    bbox = (x_min * width, y_min * height, found.width * width, found.height * height)
    return {**entry, "bbox": [round(value, 3) for value in bbox]}


def _accuracy(score: Score, precisions: Mapping[str, AveragePrecision]) -> dict[str, Any]:
    return {
        **score.total.as_dict(),
        **mean_of(precisions).as_dict(),
        "num_frames": len(score.by_frame),
        "by_prompt": {
            label: {**tally.as_dict(), **precisions[label].as_dict()}
            for label, tally in score.by_label.items()
        },
    }


def _config(options: EvaluateOptions, model_name: str) -> dict[str, Any]:
    return {
        "mode": options.mode,
        "rate": options.rate if options.live else None,
        "skill": options.skill,
        "prompts": list(options.prompts),
        "model": model_name,
        "device": options.device,
        "dtype": options.dtype,
        "max_objects": options.max_objects,
        "max_crops": options.max_crops,
        "depth_policy": options.depth_policy,
        "truth": options.truth.name if options.truth else None,
        "truth_frames_only": options.truth_frames_only,
        "truth_may_miss": options.truth_may_miss,
    }
