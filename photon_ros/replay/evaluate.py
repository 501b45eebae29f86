"""Evaluate a recording: run it, score it, and write the report.

    OUT/results.json    the document (photon_ros.replay.results)
    OUT/report.md       its summary
    OUT/detections.coco.json  with truth: what was found in the labelled frames, as COCO results
    OUT/pictures/       overlay pictures of labelled frames first, then a sample

Everything cheap is checked before the model is loaded, and the model and the prompts before
the first frame is spent. An earlier report in OUT stays until the new one is whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from photon_ros.pixels import DepthPolicy
from photon_ros.replay.bag_reader import COMPRESSED_IMAGE, BagEntry, BagReader
from photon_ros.replay.coco import average_precisions, coco_results
from photon_ros.replay.live import run_live
from photon_ros.replay.lockstep import Question, Submitter, run_lockstep
from photon_ros.replay.options import EvaluateOptions
from photon_ros.replay.outcome import RunOutcome
from photon_ros.replay.pictures import draw_pictures
from photon_ros.replay.progress import progress_bar
from photon_ros.replay.report import render_report
from photon_ros.replay.report_folder import (
    COCO_NAME,
    PICTURES_NAME,
    REPORT_NAME,
    RESULTS_NAME,
    ReportFolder,
)
from photon_ros.replay.results import Document, bag_facts, dump_document, results_document
from photon_ros.replay.scoring import Score, score
from photon_ros.replay.truth import TruthImage, check_sizes, frames_with_truth, read_truth


class Asker(Submitter, Protocol):
    """What an evaluation needs of Photon."""

    model_name: str

    def validate(self, skill: str, prompt: str) -> None:
        """Raise an InputError if the model cannot be asked that."""
        ...


OpenAsker = Callable[[EvaluateOptions], AbstractContextManager[Asker]]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluation yields besides its files.

    Attributes:
        is_flawless: no frame failed, and every one could be decoded.
    """

    document: Document
    is_flawless: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be run: the topic, its frames, and the labels of some of them.

    Attributes:
        category_ids: the truth's id of each prompt.
        notes: what a reader of the report should know about the truth.
    """

    topic: str
    entries: list[BagEntry]
    truth: Mapping[int, TruthImage] = field(default_factory=dict)
    category_ids: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def wanted(self, options: EvaluateOptions) -> set[int] | None:
        """Indices to take; None takes all."""
        return set(self.truth) if options.truth_frames_only else None


def open_photon(options: EvaluateOptions) -> AbstractContextManager[Asker]:
    """Load the model that the options name."""
    from photon_ros.photon import Photon  # torch: only once the bag and the truth are fine

    return Photon(options.model, device=options.device, dtype=options.dtype)


def evaluate(options: EvaluateOptions, open_asker: OpenAsker = open_photon) -> Evaluation:
    """Run one evaluation and write its report to ``options.out``.

    Raises:
        BagError: the recording or the truth cannot be used.
        InputError: the model, the skill, a prompt or the output folder cannot be used.
    """
    with BagReader(options.bag) as reader:
        plan = make_plan(reader, options)
        with ReportFolder(options.out, options.bag) as folder:
            run, model_name = _run(reader, plan, options, open_asker)
            found = {index: outcome.detections for index, outcome in run.frames.items()}
            truth = plan.truth
            if options.live:  # which frames a node drops is for the latency, not the accuracy
                truth = {index: truth[index] for index in truth if index in run.frames}
            scored = score(truth, found, options.prompts) if plan.truth else None
            results = coco_results(truth, found, plan.category_ids)
            precisions = average_precisions(truth, results, plan.category_ids)
            if scored is not None:
                (folder.draft / COCO_NAME).write_text(json.dumps(results) + "\n", "utf-8")
            facts = bag_facts(options.bag, reader.storage, plan.topic, plan.entries)
            document = results_document(options, run, facts, scored, precisions, model_name)
            document["notes"] += plan.notes
            _write(folder.draft, reader, plan, run, scored, document, options.depth_policy)
            folder.put_in_place()
    return Evaluation(document, run.is_flawless)


def make_plan(reader: BagReader, options: EvaluateOptions) -> Plan:
    """Choose the topic, list its frames, and find the labelled ones among them."""
    truth = None if options.truth is None else read_truth(options.truth)
    topic = reader.select_topic(options.topic)
    entries = reader.entries(topic)
    if truth is None:
        return Plan(topic, entries)
    truth.check_labels(options.prompts)
    stamps_ns = [entry.stamp_ns for entry in entries]
    labelled = frames_with_truth(truth, topic, stamps_ns, may_miss=options.truth_may_miss)
    check_sizes(truth, labelled, reader.sizes(topic, labelled.keys()))
    num_truth = len(truth.for_topic(topic))
    notes: tuple[str, ...] = ()
    if len(labelled) < num_truth:
        notes = (f"{num_truth - len(labelled)} of {num_truth} labelled frames are not in the bag",)
    return Plan(topic, entries, labelled, truth.category_ids(options.prompts), notes)


def _run(
    reader: BagReader, plan: Plan, options: EvaluateOptions, open_asker: OpenAsker
) -> tuple[RunOutcome, str]:
    wanted = plan.wanted(options)
    total = len(plan.entries) if wanted is None else len(wanted)
    if options.live:
        is_compressed = reader.image_topics()[plan.topic] == COMPRESSED_IMAGE
        with progress_bar("frames", total) as advance:
            run = run_live(options, plan.topic, is_compressed, plan.entries, on_frame=advance)
        return run, Path(options.model).name
    question = Question(options.skill, options.prompts, options.max_objects, options.max_crops)
    with open_asker(options) as asker:
        for prompt in options.prompts:
            asker.validate(options.skill, prompt)
        with progress_bar("frames", total) as advance:
            run = run_lockstep(
                asker,
                reader,
                plan.topic,
                question,
                wanted=wanted,
                depth_policy=options.depth_policy,
                on_frame=advance,
            )
        return run, asker.model_name


def _write(
    out: Path,
    reader: BagReader,
    plan: Plan,
    run: RunOutcome,
    scored: Score | None,
    document: Document,
    depth_policy: DepthPolicy,
) -> None:
    pictures = draw_pictures(
        out / PICTURES_NAME, reader, plan.topic, run, plan.truth, scored, depth_policy
    )
    report = render_report(document, pictures, PICTURES_NAME)
    (out / REPORT_NAME).write_text(report, "utf-8")
    (out / RESULTS_NAME).write_text(dump_document(document), "utf-8")
