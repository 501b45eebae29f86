"""results.json: the document that every evaluation leaves, and other tools read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from photon_ros.replay.bag_reader import BagEntry
from photon_ros.replay.latency import stage_percentiles
from photon_ros.replay.options import EvaluateOptions
from photon_ros.replay.outcome import RunOutcome
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
        "accuracy": None if score is None else _accuracy(score),
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
    """Return the document as JSON text that ends in a newline."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _accuracy(score: Score) -> dict[str, Any]:
    return {
        **score.total.as_dict(),
        "num_frames": len(score.by_frame),
        "by_prompt": {label: tally.as_dict() for label, tally in score.by_label.items()},
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
    }
