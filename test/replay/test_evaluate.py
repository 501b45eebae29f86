from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faster_coco_eval import COCO, COCOeval_faster
from painted import SeeingPhoton, scene, truth_document, write_scene, write_truth
from PIL import Image
from rosbags.rosbag2 import Reader as Ros2Reader
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from photon_ros.core.errors import BagError, InputError, UnknownWordError
from photon_ros.replay.bag_writer import BagOptions
from photon_ros.replay.evaluate import Evaluation, evaluate
from photon_ros.replay.options import EvaluateOptions
from photon_ros.replay.outcome import FrameOutcome, FrameStatus, RunOutcome
from photon_ros.replay.pictures import MAX_PICTURES, choose_frames
from photon_ros.replay.provenance import sha256_of
from photon_ros.replay.results import SCHEMA, dump_document
from photon_ros.replay.scoring import Score, Tally

NUM_FRAMES = 20
FRAMES = scene(NUM_FRAMES)
LABELLED = [0, 3, 4, 9, 16]

Run = Callable[..., tuple[Evaluation, SeeingPhoton]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Evaluate the painted scene; keyword arguments are options, photon the model."""
    write_scene(tmp_path / "bag", FRAMES)

    def call(
        *, photon: SeeingPhoton | None = None, **options: Any
    ) -> tuple[Evaluation, SeeingPhoton]:
        seeing = photon or SeeingPhoton()
        defaults: dict[str, Any] = {
            "bag": tmp_path / "bag",
            "out": tmp_path / "out",
            "skill": "detect",
            "prompts": ("red", "green"),
        }
        return evaluate(EvaluateOptions(**(defaults | options)), lambda _: seeing), seeing

    return call


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    return write_truth(tmp_path / "truth.json", FRAMES, LABELLED)


def read_results(out: Path) -> Any:
    return json.loads((out / "results.json").read_text())


def test_a_seeing_model_scores_one_on_every_labelled_frame(
    run: Run, truth: Path, tmp_path: Path
) -> None:
    evaluation, _ = run(truth=truth)
    document = read_results(tmp_path / "out")
    assert document == json.loads(json.dumps(evaluation.document))
    num_truth = sum(len(FRAMES[k]) for k in LABELLED)
    perfect = {"f1_iou50": 1.0, "precision_iou50": 1.0, "recall_iou50": 1.0, "ap_iou50": 1.0}
    accuracy = document["accuracy"]
    strict = [row.pop("ap_iou50_95") for row in (accuracy, *accuracy["by_prompt"].values())]
    assert strict == [pytest.approx(1.0)] * 3
    assert accuracy == {
        **perfect,
        "num_truth": num_truth,
        "num_predicted": num_truth,
        "num_frames": len(LABELLED),
        "by_prompt": {
            "red": {**perfect, "num_truth": 5, "num_predicted": 5},
            "green": {**perfect, "num_truth": 3, "num_predicted": 3},
        },
    }
    assert document["frames"] == {
        "received": NUM_FRAMES,
        "completed": NUM_FRAMES,
        "failed": 0,
        "dropped": {},
    }


def test_the_document_has_every_key_that_readers_rely_on(
    run: Run, truth: Path, tmp_path: Path
) -> None:
    run(truth=truth, topic="/camera/image_raw")
    document = read_results(tmp_path / "out")
    assert document["schema"] == SCHEMA == "photon_ros.results/1"
    assert set(document) == {
        "schema", "accuracy", "latency_ms", "frames", "throughput", "bag", "config", "notes",
        "commit", "machine", "answers",
    }  # fmt: skip
    assert list(document["latency_ms"]) == [
        "decode_image", "preprocess", "queue", "prefill", "decode", "postprocess", "total",
    ]  # fmt: skip
    for row in document["latency_ms"].values():
        assert list(row) == ["p50", "p95", "p99", "max"]
        assert 0 <= row["p50"] <= row["p95"] <= row["p99"] <= row["max"]
    assert document["bag"] == {
        "sha256": sha256_of(tmp_path / "bag"),
        "name": "bag",
        "storage": "mcap",
        "size_bytes": sum(file.stat().st_size for file in (tmp_path / "bag").iterdir()),
        "topic": "/camera/image_raw/compressed",
        "num_images": NUM_FRAMES,
        "first_stamp_ns": 1_000_000_000,
        "last_stamp_ns": 2_900_000_000,
    }
    assert document["config"] == {
        "mode": "lockstep",
        "rate": None,
        "skill": "detect",
        "prompts": ["red", "green"],
        "model": "seeing",
        "device": "cpu",
        "dtype": None,
        "max_objects": 50,
        "max_crops": None,
        "depth_policy": "reject",
        "truth": "truth.json",
        "truth_frames_only": False,
        "truth_may_miss": False,
    }
    assert document["throughput"]["frames_per_s"] > 0
    assert {"cpu", "cores", "memory_mb", "python", "torch", "os"} <= set(document["machine"])
    assert re.fullmatch(r"unknown|[0-9a-f]{40}(-dirty)?", document["commit"])


@pytest.mark.parametrize("jpeg_quality", [90, None])
def test_truth_of_another_picture_size_is_refused_before_a_frame_is_spent(
    run: Run, truth: Path, tmp_path: Path, jpeg_quality: int | None
) -> None:
    bag = tmp_path / "other"
    write_scene(bag, FRAMES, BagOptions(jpeg_quality=jpeg_quality))
    document = json.loads(truth.read_text())
    document["images"][2]["width"] = 1920
    truth.write_text(json.dumps(document))
    photon = SeeingPhoton()
    stamp_ns = document["images"][2]["stamp_ns"]
    with pytest.raises(
        BagError, match=f"at stamp_ns {stamp_ns} is 1920x120, the recorded frame is 160x120"
    ):
        run(bag=bag, truth=truth, photon=photon)
    assert photon.requests == []


def test_without_truth_there_is_no_accuracy(run: Run, tmp_path: Path) -> None:
    run()
    assert read_results(tmp_path / "out")["accuracy"] is None


def test_only_the_labelled_frames_are_taken_when_asked(
    run: Run, truth: Path, tmp_path: Path
) -> None:
    _, photon = run(truth=truth, truth_frames_only=True, prompts=("red",))
    frames = [request.frame for request in photon.requests]
    assert [frame.sequence for frame in frames if frame] == LABELLED
    document = read_results(tmp_path / "out")
    assert document["frames"]["received"] == len(LABELLED)
    assert document["bag"]["num_images"] == NUM_FRAMES
    assert document["accuracy"]["f1_iou50"] == 1.0


def test_a_blind_model_is_scored_and_its_worst_frames_are_shown_first(
    run: Run, truth: Path, tmp_path: Path
) -> None:
    evaluation, _ = run(truth=truth, photon=SeeingPhoton(blind_to=["green"]))
    accuracy = evaluation.document["accuracy"]
    assert accuracy["by_prompt"]["red"]["f1_iou50"] == 1.0
    assert accuracy["by_prompt"]["green"] == {
        "f1_iou50": 0.0,
        "precision_iou50": 0.0,
        "recall_iou50": 0.0,
        "ap_iou50": 0.0,
        "ap_iou50_95": 0.0,
        "num_truth": 3,
        "num_predicted": 0,
    }
    assert accuracy["f1_iou50"] == pytest.approx(2 * 5 / (2 * 5 + 3))
    report = (tmp_path / "out" / "report.md").read_text()
    shown = re.findall(r"^### Frame (\d+)( \(among the worst\))?$", report, re.MULTILINE)
    assert shown[:5] == [
        ("0", " (among the worst)"),
        ("4", " (among the worst)"),
        ("16", " (among the worst)"),
        ("3", ""),
        ("9", ""),
    ]


def test_the_report_shows_pictures_that_are_there(run: Run, truth: Path, tmp_path: Path) -> None:
    run(truth=truth)
    report = (tmp_path / "out" / "report.md").read_text()
    links = re.findall(r"!\[[^]]*\]\(([^)]+)\)", report)
    assert len(links) == MAX_PICTURES
    assert sorted(links) == sorted(
        f"pictures/{file.name}" for file in (tmp_path / "out" / "pictures").iterdir()
    )
    assert "pictures/frame_000009_1900000000.jpg" in links
    picture = np.asarray(Image.open(tmp_path / "out" / links[0]))
    assert picture.shape == (120, 160, 3)


def test_true_boxes_are_drawn_where_nothing_was_found(
    run: Run, truth: Path, tmp_path: Path
) -> None:
    run(truth=truth, photon=SeeingPhoton(blind_to=["red", "green"]))
    name = tmp_path / "out" / "pictures" / "frame_000003_1300000000.jpg"
    picture = np.asarray(Image.open(name)).astype(int)
    # The red box of frame 3 has its left edge at 22 and spans 20..60.
    edge = picture[20:60, 21:24]
    assert (edge.min(2) > 200).any()


def test_the_report_says_where_its_figures_come_from(run: Run, truth: Path, tmp_path: Path) -> None:
    evaluation, _ = run(truth=truth)
    report = (tmp_path / "out" / "report.md").read_text()
    document = evaluation.document
    assert document["bag"]["sha256"] in report
    assert document["commit"] in report
    assert "| red | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 5 | 5 |" in report
    assert "| all | 1.000 | 1.000 | 1.000 | 1.000 | 1.000 | 8 | 8 |" in report
    assert f"| {NUM_FRAMES} | {NUM_FRAMES} | 0 | 0 |" in report
    assert "{{" not in report
    assert "| total |" in report


def test_tables_survive_prompts_that_look_like_markdown(run: Run, tmp_path: Path) -> None:
    class Agreeable(SeeingPhoton):
        def validate(self, skill: str, prompt: str) -> None:
            """Everything goes."""

        def submit(self, request: Any) -> Any:
            return super().submit(replace(request, prompt="red"))

    document = truth_document(FRAMES, [1])
    document["categories"][0]["name"] = "a|b"
    truth = tmp_path / "truth.json"
    truth.write_text(json.dumps(document))
    run(truth=truth, prompts=("a|b",), photon=Agreeable())
    assert "| a\\|b | 0.000 |" in (tmp_path / "out" / "report.md").read_text()


def test_pictures_of_a_run_without_truth_are_spread_over_it(run: Run, tmp_path: Path) -> None:
    run()
    names = sorted(file.name for file in (tmp_path / "out" / "pictures").iterdir())
    indices = [int(name.split("_")[1]) for name in names]
    assert len(indices) == MAX_PICTURES
    assert (indices[0], indices[-1]) == (0, NUM_FRAMES - 1)
    assert max(b - a for a, b in itertools.pairwise(indices)) <= 2


def outcome_of(num: int) -> RunOutcome:
    frames = {k: FrameOutcome(k, k, FrameStatus.OK) for k in range(num)}
    return RunOutcome(frames, num, {}, (), 1.0)


@pytest.mark.parametrize("num", [0, 1, 2, MAX_PICTURES, MAX_PICTURES + 1, 1000])
def test_the_sample_is_as_large_as_there_are_frames_up_to_its_limit(num: int) -> None:
    chosen = choose_frames(outcome_of(num), None)
    assert len(chosen) == len(set(chosen)) == min(num, MAX_PICTURES)
    assert chosen == sorted(chosen)


def test_with_more_labelled_frames_than_pictures_the_worst_are_kept() -> None:
    tallies = {k: Tally(num_truth=10, num_predicted=10, num_matched=k % 10) for k in range(50)}
    chosen = choose_frames(outcome_of(50), Score({}, tallies))
    assert chosen == [0, 10, 20, 30, 40, 1, 11, 21, 31, 41, 2, 12]


def test_errors_of_the_engine_are_counted_and_noted(run: Run, truth: Path, tmp_path: Path) -> None:
    evaluation, _ = run(truth=truth, photon=SeeingPhoton(fault_on=[1_000_000_000]))
    assert not evaluation.is_flawless
    document = read_results(tmp_path / "out")
    assert document["frames"]["failed"] == 1
    assert document["notes"] == ["first failed frame, number 0: the step failed; the step failed"]
    # An error on a labelled frame finds nothing there.
    assert document["accuracy"]["num_predicted"] == document["accuracy"]["num_truth"] - 2
    report = (tmp_path / "out" / "report.md").read_text()
    assert "first failed frame" in report
    assert "0 found, 2 true, 2 missed, 0 wrong, F1 0.00, error." in report


def damage(bag: Path, stamps_ns: list[int]) -> None:
    """Spoil the JPEGs of some frames of a bag of the painted scene."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    kind = "sensor_msgs/msg/CompressedImage"
    with Ros2Reader(bag) as reader:
        messages = [(log_ns, raw) for _, log_ns, raw in reader.messages()]
    shutil.rmtree(bag)
    with Writer(bag, version=8, storage_plugin=StoragePlugin.MCAP) as writer:
        connection = writer.add_connection("/camera/image_raw/compressed", kind, typestore=store)
        for log_ns, raw in messages:
            message: Any = store.deserialize_cdr(raw, kind)
            if log_ns in stamps_ns:
                message = replace(message, data=np.zeros_like(message.data))
            writer.write(connection, log_ns, store.serialize_cdr(message, kind))


def test_in_a_labelled_frame_that_cannot_be_decoded_everything_is_missed(
    run: Run, truth: Path, tmp_path: Path
) -> None:
    """Frames 3 and 4 of the labelled five are torn; they must not flatter the score."""
    damage(tmp_path / "bag", [1_300_000_000, 1_400_000_000])
    evaluation, _ = run(truth=truth)
    assert not evaluation.is_flawless
    accuracy = evaluation.document["accuracy"]
    missed = len(FRAMES[3]) + len(FRAMES[4])
    assert accuracy["num_frames"] == len(LABELLED)
    assert accuracy["num_truth"] == sum(len(FRAMES[k]) for k in LABELLED)
    assert accuracy["num_predicted"] == accuracy["num_truth"] - missed
    assert accuracy["precision_iou50"] == 1.0
    assert accuracy["recall_iou50"] == pytest.approx(1 - missed / accuracy["num_truth"])
    assert evaluation.document["frames"]["dropped"] == {"bad": 2}
    # What cannot be decoded cannot be shown; the other labelled frames still come first.
    report = (tmp_path / "out" / "report.md").read_text()
    shown = re.findall(r"^### Frame (\d+)", report, re.MULTILINE)
    assert shown[:3] == ["0", "9", "16"]
    assert len(shown) == MAX_PICTURES


def depth_bag(path: Path) -> None:
    """Write two depth images, 16 bits, of a ramp."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    kind = "sensor_msgs/msg/Image"
    ramp = np.linspace(500, 4000, 48 * 64).astype(np.uint16).reshape(48, 64)
    with Writer(path, version=8, storage_plugin=StoragePlugin.MCAP) as writer:
        connection = writer.add_connection("/depth", kind, typestore=store)
        for stamp_ns in (10**9, 2 * 10**9):
            stamp = store.types["builtin_interfaces/msg/Time"](sec=stamp_ns // 10**9, nanosec=0)
            message = store.types[kind](
                header=store.types["std_msgs/msg/Header"](stamp=stamp, frame_id="depth"),
                height=48,
                width=64,
                encoding="16UC1",
                is_bigendian=0,
                step=128,
                data=ramp.view(np.uint8).reshape(-1),
            )
            writer.write(connection, stamp_ns, store.serialize_cdr(message, kind))


def test_depth_is_bad_unless_it_is_asked_for(run: Run, tmp_path: Path) -> None:
    depth_bag(tmp_path / "deep")
    refused, photon = run(bag=tmp_path / "deep")
    assert refused.document["frames"]["dropped"] == {"bad": 2}
    assert not refused.is_flawless
    assert photon.requests == []
    assert "depth_policy is reject (allowed: normalize)" in refused.document["notes"][0]
    shown, photon = run(bag=tmp_path / "deep", depth_policy="normalize")
    assert shown.is_flawless
    assert len(photon.requests) == 4
    assert len(list((tmp_path / "out" / "pictures").iterdir())) == 2


def test_points_are_drawn_and_not_scored(run: Run, tmp_path: Path) -> None:
    run(skill="point", prompts=("red",))
    document = read_results(tmp_path / "out")
    assert document["accuracy"] is None
    assert document["config"]["skill"] == "point"
    assert document["frames"]["completed"] == NUM_FRAMES


def test_the_model_is_closed_also_after_an_error(run: Run) -> None:
    photon = SeeingPhoton()
    with pytest.raises(UnknownWordError, match="does not know 'dog'"):
        run(photon=photon, prompts=("dog",))
    assert photon.is_closed
    assert photon.requests == []


def test_the_bag_and_the_truth_are_checked_before_the_model_is_loaded(
    tmp_path: Path, truth: Path
) -> None:
    def load(_: EvaluateOptions) -> Any:
        raise AssertionError("loaded")

    write_scene(tmp_path / "bag", FRAMES)
    options = {"bag": tmp_path / "bag", "out": tmp_path / "out", "skill": "detect"}
    for change in (
        {"bag": tmp_path / "none", "prompts": ("red",)},
        {"topic": "/other", "prompts": ("red",)},
        {"truth": tmp_path / "none.json", "prompts": ("red",)},
        {"truth": truth, "prompts": ("red", "dog")},
    ):
        with pytest.raises(BagError):
            evaluate(EvaluateOptions(**(options | change)), load)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_a_second_run_replaces_its_own_files_and_nothing_else(
    run: Run, truth: Path, tmp_path: Path
) -> None:
    run(truth=truth)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    run(truth=truth, truth_frames_only=True)
    assert len(list((tmp_path / "out" / "pictures").iterdir())) == len(LABELLED)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert read_results(tmp_path / "out")["frames"]["received"] == len(LABELLED)


def everything_in(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Interrupted(SeeingPhoton):
    """Somebody presses ctrl-C at the third frame."""

    def submit(self, request: Any) -> Any:
        if len(self.requests) == 4:
            raise KeyboardInterrupt
        return super().submit(request)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"prompts": ("dog",)}, UnknownWordError),
        ({"photon": Interrupted()}, KeyboardInterrupt),
        ({"topic": "/other"}, BagError),
    ],
)
def test_a_run_that_fails_leaves_the_earlier_report_as_it_was(
    run: Run, tmp_path: Path, change: dict[str, Any], error: type[BaseException]
) -> None:
    run()
    before = everything_in(tmp_path / "out")
    with pytest.raises(error):
        run(**change)
    assert everything_in(tmp_path / "out") == before


def test_a_run_that_fails_leaves_no_folder_behind(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UnknownWordError):
        run(prompts=("dog",))
    assert not (tmp_path / "out").exists()


def test_files_of_somebody_else_are_safe_whatever_happens(run: Run, tmp_path: Path) -> None:
    """A folder that only happens to use a report's names is never given up for one."""
    victim = tmp_path / "victim"
    (victim / "pictures").mkdir(parents=True)
    (victim / "pictures" / "family.jpg").write_bytes(b"dear")
    (victim / "report.md").write_text("my report")
    (victim / "results.json").write_text('{"schema": "mine"}')
    before = everything_in(victim)
    for prompts in (("perzon",), ("red",)):
        with pytest.raises(InputError, match=r"its results.json was not written by an evaluation"):
            run(out=victim, prompts=prompts)
        assert everything_in(victim) == before


def test_a_folder_inside_the_recording_is_no_place_for_its_report(run: Run, tmp_path: Path) -> None:
    before = everything_in(tmp_path / "bag")
    (tmp_path / "link").symlink_to(tmp_path / "bag")
    for out in (tmp_path / "bag", tmp_path / "bag" / "report", tmp_path / "link" / "report"):
        for bag in (tmp_path / "bag", tmp_path / "bag" / "bag.mcap"):
            with pytest.raises(InputError, match="it lies in the bag"):
                run(bag=bag, out=out)
    assert everything_in(tmp_path / "bag") == before


def test_an_output_that_is_a_file_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(InputError, match=r"output folder .*taken cannot be used"):
        run(out=tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompts": ()}, "at least one prompt"),
        ({"skill": "caption"}, "evaluate knows detect, point, segment, not 'caption'"),
        ({"prompts": ("red", " RED ")}, "given twice"),
        ({"skill": "point", "truth": Path("t.json")}, "scores skill detect, not point"),
        ({"truth_frames_only": True}, "no truth"),
        ({"truth_may_miss": True}, "no truth"),
        ({"truth_frames_only": True, "truth": Path("t"), "live": True}, "live replay plays them"),
        ({"rate": 0.0}, "rate must be"),
        ({"rate": float("nan")}, "rate must be"),
        ({"rate": 1000.0}, "rate must be"),
        ({"max_objects": 0}, "max_objects"),
        ({"max_crops": -1}, "max_crops"),
    ],
)
def test_options_that_contradict_themselves_are_refused(
    change: dict[str, Any], reason: str
) -> None:
    good: dict[str, Any] = {
        "bag": Path("b"),
        "out": Path("o"),
        "skill": "detect",
        "prompts": ("red",),
    }
    with pytest.raises(InputError, match=reason):
        EvaluateOptions(**(good | change))


def test_every_answer_is_in_the_document_with_its_boxes_in_pixels(run: Run, tmp_path: Path) -> None:
    run(photon=SeeingPhoton(fault_on=[1_300_000_000]))
    answers = read_results(tmp_path / "out")["answers"]
    assert [answer["index"] for answer in answers] == list(range(NUM_FRAMES))
    assert [answer["stamp_ns"] for answer in answers] == [
        1_000_000_000 + 100_000_000 * k for k in range(NUM_FRAMES)
    ]
    assert {(answer["width"], answer["height"]) for answer in answers} == {(160, 120)}
    for k, answer in enumerate(answers):
        found = [] if k == 3 else [(one["label"], one["bbox"]) for one in answer["detections"]]
        # JPEG blurs an edge by a pixel.
        wanted = (
            [] if k == 3 else [(color, pytest.approx(bbox, abs=1.5)) for color, *bbox in FRAMES[k]]
        )
        assert found == wanted
    assert answers[3]["status"] == "error"
    assert answers[3]["error"] == "the step failed; the step failed"
    assert {one["score"] for answer in answers for one in answer["detections"]} == {0.9}
    # One line a frame, so that line tools and differences work on long recordings, too.
    lines = (tmp_path / "out" / "results.json").read_text().splitlines()
    assert sum('"stamp_ns": ' in line for line in lines) == NUM_FRAMES


def test_points_are_in_the_document_as_points(run: Run, tmp_path: Path) -> None:
    run(skill="point", prompts=("red",))
    for k, answer in enumerate(read_results(tmp_path / "out")["answers"]):
        (found,) = answer["detections"]
        _, left, top, width, height = FRAMES[k][0]
        assert set(found) == {"label", "score", "x", "y"}
        assert found["x"] == pytest.approx(left + width / 2, abs=1.5)
        assert found["y"] == pytest.approx(top + height / 2, abs=1.5)


def test_the_coco_results_load_beside_the_truth_and_give_the_same_figures(
    run: Run, truth: Path, tmp_path: Path
) -> None:
    """By the evaluator alone, from the two files: what anybody can do with them."""
    document = json.loads(truth.read_text())
    for image in document["images"]:
        image["id"] += 700  # nobody counts from one
    for annotation in document["annotations"]:
        annotation["image_id"] += 700
        x, y, width, height = annotation["bbox"]
        annotation["bbox"] = [x + 3, y, width + 4, height]  # so that not every IoU is a match
        annotation["area"] = (width + 4) * height
    truth.write_text(json.dumps(document))
    evaluation, _ = run(truth=truth, photon=SeeingPhoton(blind_to=["green"]))
    coco = COCO(str(truth))
    results = coco.loadRes(str(tmp_path / "out" / "detections.coco.json"))
    check = COCOeval_faster(coco, results, "bbox", print_function=lambda *_: None)
    check.params.catIds = [1, 2]  # red and green were asked for; blue is labelled nowhere
    check.run()
    accuracy = evaluation.document["accuracy"]
    assert 0.1 < accuracy["ap_iou50_95"] < 0.5
    assert accuracy["ap_iou50"] == pytest.approx(check.stats_as_dict["AP_50"])
    assert accuracy["ap_iou50_95"] == pytest.approx(check.stats_as_dict["AP_all"])
    assert accuracy["by_prompt"]["green"]["ap_iou50"] == 0.0
    assert accuracy["by_prompt"]["red"]["ap_iou50"] == pytest.approx(1.0)


def test_without_truth_there_are_no_coco_results(run: Run, truth: Path, tmp_path: Path) -> None:
    run(truth=truth)
    assert (tmp_path / "out" / "detections.coco.json").exists()
    run()
    assert not (tmp_path / "out" / "detections.coco.json").exists()


def test_truth_of_frames_that_were_cut_from_the_bag_is_left_out_when_asked(
    run: Run, tmp_path: Path
) -> None:
    truth = write_truth(tmp_path / "long.json", scene(40), [0, 4, 30, 31])
    with pytest.raises(BagError, match=r"2 of 4 stamps are not on .*score the rest by --truth-may"):
        run(truth=truth)
    evaluation, _ = run(truth=truth, truth_may_miss=True, truth_frames_only=True)
    assert evaluation.document["notes"] == ["2 of 4 labelled frames are not in the bag"]
    assert evaluation.document["accuracy"]["num_frames"] == 2
    assert evaluation.document["accuracy"]["f1_iou50"] == 1.0
    gone = write_truth(tmp_path / "gone.json", scene(40), [30, 31])
    with pytest.raises(BagError, match="2 of 2 stamps are not on"):
        run(truth=gone, truth_may_miss=True)


def test_the_document_is_json_that_other_languages_read(run: Run, tmp_path: Path) -> None:
    evaluation, _ = run()
    text = dump_document(evaluation.document)
    assert text.endswith("}\n")
    assert json.loads(text) == evaluation.document
    with pytest.raises(ValueError, match="not JSON compliant"):
        dump_document({"x": float("nan")})
