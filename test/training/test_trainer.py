"""The trainer: a broken-off run ends with the same weights as an unbroken one."""

from __future__ import annotations

import csv
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from photon_ros.core.errors import InputError
from photon_ros.models.nano import load_nano
from photon_ros.models.nano.checkpoint import WEIGHTS
from training import train
from training import trainer as trainer_module
from training.pool import Mix, Pool, Renderer, render_pool
from training.precision import faster_in_bf16
from training.schedule import RESTART_LR, WARMUP_STEPS, Schedule
from training.state import has_state, read_state, read_weights, write_state
from training.trainer import Recipe, Trainer

TINY = Recipe(
    vision_batch=3,
    joint_batch=2,
    vision_tiled_batch=1,
    joint_tiled_batch=1,
    vision_tiled_share=0.4,
    joint_tiled_share=0.4,
    max_questions=3,
    max_tokens=40,
)
SCHEDULE = Schedule(vision_steps=3, joint_steps=2, again_steps=1)


@pytest.fixture(scope="module", autouse=True)
def _few_objects_are_rich() -> Iterator[None]:
    """A pool of two dozen scenes has too few with many objects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "RICH_OBJECTS", 3)
        patch.setattr(trainer_module, "WHITENING_SCENES", 8)
        yield


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    folder = tmp_path_factory.mktemp("pool")
    render_pool(folder, Renderer(2, Mix(0.6, 0.4, 0, 0), None), 24)
    return Pool(folder)


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in trainer.network.state_dict().items()}


@pytest.fixture(scope="module")
def unbroken(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trainer = Trainer(tmp_path_factory.mktemp("unbroken"), pool, TINY, SCHEDULE)
    trainer.run()
    return trainer


@pytest.mark.parametrize("break_after", [3, 5])
def test_a_resumed_run_equals_an_unbroken_one(
    pool: Pool, unbroken: Trainer, tmp_path: Path, break_after: int
) -> None:
    Trainer(tmp_path / "broken", pool, TINY, SCHEDULE).run(stop_after_steps=break_after)
    resumed = Trainer(tmp_path / "broken", pool, TINY, SCHEDULE)
    assert resumed.step == break_after
    assert not resumed.is_over
    resumed.run()
    assert resumed.is_over
    first, second = weights_of(unbroken), weights_of(resumed)
    assert first.keys() == second.keys()
    for key in first:
        assert torch.equal(first[key], second[key]), key
    logs = []
    for folder in (unbroken.folder, resumed.folder):
        with (folder / "log.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        logs.append([{k: v for k, v in row.items() if k != "elapsed_s"} for row in rows])
    assert [row["step"] for row in logs[0]] == ["1", "2", "3", "4", "5", "6"]
    assert logs[0] == logs[1]


def test_what_was_trained_after_the_last_state_is_trained_again(pool: Pool, tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, pool, TINY, SCHEDULE)
    trainer.run(stop_after_steps=2)
    kept = read_state(tmp_path)
    trainer.run(stop_after_steps=2)
    write_state(tmp_path, kept)  # as after a crash before the second state was written
    again = Trainer(tmp_path, pool, TINY, SCHEDULE)
    assert again.step == 2
    again.run(stop_after_steps=1)
    with (tmp_path / "log.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2", "3"]


def test_stages_follow_each_other_and_text_is_left_alone_in_the_first(
    pool: Pool, tmp_path: Path
) -> None:
    trainer = Trainer(tmp_path, pool, TINY, SCHEDULE)
    before = weights_of(trainer)
    trainer.run(stop_after_steps=3)
    middle = weights_of(trainer)
    assert torch.equal(before["text.wte"], middle["text.wte"])
    assert not torch.equal(before["vision.pos_emb"], middle["vision.pos_emb"])
    trainer.run()
    after = weights_of(trainer)
    assert not torch.equal(middle["text.wte"], after["text.wte"])
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["joint"] for row in rows] == ["0", "0", "0", "1", "1", "1"]
    assert all(row["token"] == "" for row in rows[:3])
    assert all(float(row["token"]) > 0 for row in rows[3:])


def test_training_learns(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.schedule.WARMUP_STEPS", 5)
    recipe = Recipe(vision_batch=3, vision_tiled_share=0.0, muon_lr=0.02, adam_lr=1.4e-3)
    trainer = Trainer(tmp_path, pool, recipe, Schedule(vision_steps=900, joint_steps=100))
    trainer.run(stop_after_steps=24)
    with (tmp_path / "log.csv").open(newline="") as file:
        losses = [float(row["dense"]) for row in csv.DictReader(file)]
    assert sum(losses[-5:]) < 0.75 * sum(losses[:5])


def test_another_seed_gives_another_run(pool: Pool, tmp_path: Path) -> None:
    first = Trainer(tmp_path / "1", pool, TINY, SCHEDULE)
    second = Trainer(tmp_path / "2", pool, Recipe(seed=2), SCHEDULE)
    assert not torch.equal(
        first.network.vision.proj_mlp.fc1.weight, second.network.vision.proj_mlp.fc1.weight
    )


def test_a_sitting_ends_when_its_time_is_up_and_keeps_its_state(pool: Pool, tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, pool, TINY, SCHEDULE)
    trainer.run(stop_after_s=0.0)
    assert trainer.step == 1
    assert read_state(tmp_path)["step"] == 1


def test_the_vision_encoder_slows_down_when_the_text_decoder_joins(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.schedule.WARMUP_STEPS", 1)
    trainer = Trainer(tmp_path, pool, TINY, Schedule(vision_steps=1, joint_steps=100))

    def lrs() -> dict[bool, set[float]]:
        groups = [g for o in (trainer._muon, trainer._adam) for g in o.param_groups]
        return {
            is_vision: {
                round(float(g["lr"] / g["full_lr"]), 6)
                for g in groups
                if g["is_vision"] == is_vision
            }
            for is_vision in (False, True)
        }

    trainer.run(stop_after_steps=1)
    assert lrs() == {False: {1.0}, True: {1.0}}
    trainer.run(stop_after_steps=1)
    assert lrs() == {False: {1.0}, True: {TINY.vision_lr_share}}


def test_the_step_size_warms_up_in_each_stage_and_falls_in_the_second_and_third() -> None:
    schedule = Schedule(vision_steps=1000, joint_steps=1000, again_steps=500)
    assert schedule.lr_factor(0) == pytest.approx(1 / WARMUP_STEPS)
    assert {schedule.lr_factor(k) for k in range(WARMUP_STEPS, 1000)} == {1.0}
    assert schedule.lr_factor(1000) == pytest.approx(1 / WARMUP_STEPS)
    factors = [schedule.lr_factor(k) for k in range(1000 + WARMUP_STEPS, 2000)]
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > 0.9
    assert 0 < factors[-1] < 0.02
    assert schedule.lr_factor(2000) == pytest.approx(RESTART_LR / WARMUP_STEPS)
    again = [schedule.lr_factor(k) for k in range(2000 + WARMUP_STEPS, 2500)]
    assert again == sorted(again, reverse=True)
    assert 0.9 * RESTART_LR < again[0] < RESTART_LR
    assert 0 < again[-1] < 0.02


def test_a_run_that_is_over_goes_on_when_its_schedule_is_longer() -> None:
    short = Schedule(vision_steps=50, joint_steps=150, again_steps=0)
    longer = Schedule(vision_steps=50, joint_steps=150, again_steps=30)
    assert (short.num_steps, longer.num_steps) == (200, 230)
    assert [short.lr_factor(k) for k in range(200)] == [longer.lr_factor(k) for k in range(200)]


def test_the_stages_are_as_long_as_the_schedule_says() -> None:
    schedule = Schedule(vision_steps=50, joint_steps=150, again_steps=20)
    assert schedule.num_steps == 220
    joint = [schedule.is_joint(step) for step in (0, 49, 50, 199, 200, 219)]
    assert joint == [False, False, True, True, True, True]
    assert Schedule(vision_steps=0, joint_steps=1).is_joint(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vision_steps": -1}, "vision_steps must be at least 0, got -1"),
        ({"joint_steps": -2}, "joint_steps must be at least 0, got -2"),
        ({"joint_steps": 0, "again_steps": 0}, "joint_steps and again_steps cannot both be 0"),
        ({"again_steps": -1}, "again_steps must be at least 0, got -1"),
    ],
)
def test_a_wrong_schedule_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Schedule(**arguments)


def test_a_run_that_starts_from_weights_has_them_and_heads_that_say_nothing(
    pool: Pool, tmp_path: Path
) -> None:
    trainer = Trainer(tmp_path, pool, TINY, Schedule(0, 0, 2), read_weights(WEIGHTS))
    given = load_file(WEIGHTS / "model.safetensors")
    mine = trainer.network.checkpoint()
    assert mine.keys() == given.keys()
    for key, value in given.items():
        assert torch.equal(mine[key], value.float()), key
    state = trainer.network.state_dict()
    heads = [key for key in state if f"model.{key}" not in given]
    assert {key.split(".")[0] for key in heads} == {"dense", "place", "outline"}
    assert not any(state[key].any() for key in heads)


def test_a_run_that_starts_from_weights_goes_on_from_its_own_state(
    pool: Pool, tmp_path: Path
) -> None:
    schedule = Schedule(0, 0, 3)
    trainer = Trainer(tmp_path, pool, TINY, schedule, read_weights(WEIGHTS))
    words = trainer.network.text.wte.clone()
    trainer.run(stop_after_steps=1)
    # The first step is as short as a warm-up's: what was learned is still there.
    assert 0 < float((trainer.network.text.wte - words).detach().abs().max()) < 1e-3
    again = Trainer(tmp_path, pool, TINY, schedule, read_weights(WEIGHTS))
    assert again.step == 1
    for key, value in weights_of(trainer).items():
        assert torch.equal(again.network.state_dict()[key], value), key
    again.run()
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["joint"] for row in rows] == ["1", "1", "1"]
    assert all(float(row["outline"]) > 0 and float(row["token"]) < 1 for row in rows)


def test_weights_of_something_else_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no weights in "):
        read_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match="not a complete safetensors file"):
        read_weights(tmp_path)
    given = load_file(WEIGHTS / "model.safetensors")
    for odd, message in (
        ({key: given[key] for key in list(given)[1:]}, "lacks 1 of"),
        (given | {"model.more": torch.zeros(1)}, "nano has no 'more', one of 1"),
        (given | {"model.text.wte": torch.zeros(3, 128)}, "text.wte must have shape"),
    ):
        save_file({k: v.contiguous() for k, v in odd.items()}, tmp_path / "model.safetensors")
        with pytest.raises(InputError, match=message):
            read_weights(tmp_path)


def test_from_weights_there_is_the_third_stage_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--smoke", "--out", str(tmp_path), "--start", str(WEIGHTS), "--again-steps", "3"]
    for stage in ("--vision-steps", "--joint-steps"):
        assert train.main([*arguments, stage, "1"]) == 2
        assert "with --start leave out --vision-steps" in capsys.readouterr().err
    assert train.main([*arguments[:-4], "--start", str(tmp_path / "none")]) == 2
    assert "training: no model at" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())  # refused before anything was rendered
    assert train.main(arguments) == 0
    assert read_state(tmp_path)["step"] == 3
    with (tmp_path / "log.csv").open(newline="") as file:
        assert [row["joint"] for row in csv.DictReader(file)] == ["1", "1", "1"]


def test_the_precision_is_the_faster_one_wherever_that_is_clear() -> None:
    def least_s(dtype: torch.dtype) -> float:
        a = torch.ones(512, 256, dtype=dtype)
        return min(timeit.repeat(lambda: a @ a[:256], number=3, repeat=5))

    ratio = least_s(torch.bfloat16) / least_s(torch.float32)
    if not 0.5 < ratio < 2:  # else noise decides
        assert faster_in_bf16() == (ratio < 1)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    assert not has_state(tmp_path)
    with pytest.raises(InputError, match=r"no run in .*state\.pt is missing"):
        read_state(tmp_path)


def test_the_smoke_run_ends_with_weights_that_load(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["--smoke", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "without real people" in printed
    assert "step 12" in printed
    checkpoint = load_nano(folder=tmp_path / "weights")
    assert checkpoint.name == "nano"
    # A second call finds a run that is over and only exports it.
    assert train.main(["--smoke", "--out", str(tmp_path)]) == 0
    assert read_state(tmp_path)["step"] == 12


def test_a_run_can_be_stopped_at_a_step_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for until, at in ((4, 4), (2, 4), (9, 9)):
        arguments = ["--smoke", "--out", str(tmp_path), "--until-step", str(until)]
        assert train.main(arguments) == 0
        assert read_state(tmp_path)["step"] == at
        assert f"stopped at step {at}" in capsys.readouterr().out


def test_a_film_that_is_not_there_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "no.avi"
    assert train.main(["--smoke", "--out", str(tmp_path), "--clip", str(missing)]) == 2
    assert f"training: {missing} is not a film" in capsys.readouterr().err
