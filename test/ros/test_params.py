"""NodeConfig: every parameter typed, bounded, explained, and refused with a reason."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.core.errors import InputError
from photon_ros.replay.options import EvaluateOptions
from photon_ros.ros.camera_params import CameraConfig, camera_specs
from photon_ros.ros.live_config import LiveConfig
from photon_ros.ros.param_spec import ParamSpec
from photon_ros.ros.params import NodeConfig, all_specs, specs

NUMERIC = [spec for spec in specs() if type(spec.default) in (int, float)]


def test_defaults_are_allowed_and_every_field_is_a_parameter() -> None:
    config = NodeConfig()
    names = [spec.field_name for spec in specs()]
    assert [*names, "of_cameras"] == [item.name for item in dataclasses.fields(NodeConfig)]
    assert config.values() == {spec.name: spec.default for spec in specs()}


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.name)
def test_every_parameter_is_described_and_every_number_bounded(spec: ParamSpec) -> None:
    assert len(spec.description) >= 10
    if type(spec.default) in (int, float):
        assert spec.minimum is not None
        assert spec.maximum is not None


@pytest.mark.parametrize("spec", NUMERIC, ids=lambda spec: spec.name)
def test_a_number_out_of_bounds_is_refused_with_the_bounds(spec: ParamSpec) -> None:
    assert spec.minimum is not None
    assert spec.maximum is not None
    kind = type(spec.default)
    for value in (spec.minimum - 1, spec.maximum + 1):
        with pytest.raises(InputError, match=f"{spec.name} must be from"):
            NodeConfig().changed({spec.name: kind(value)})
    for value in (spec.minimum, spec.maximum):
        assert NodeConfig().changed({spec.name: kind(value)}).values()[spec.name] == value


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: spec.name)
def test_a_value_of_another_type_is_refused_by_name(spec: ParamSpec) -> None:
    wrong: object = 5 if isinstance(spec.default, (bool, str, tuple)) else "five"
    with pytest.raises(InputError, match=spec.name):
        NodeConfig().changed({spec.name: wrong})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"skills": []}, "skills is empty"),
        ({"skills": ["detect", "detect"]}, "skills has 'detect' more than once"),
        ({"skills": ["swim"]}, "'swim' is not one of point, detect"),
        ({"prompts.detect": []}, "prompts.detect is empty, and skills has detect"),
        ({"prompts.detect": ["person", " "]}, "prompts.detect has an empty prompt"),
        ({"prompts.detect": ["person", "person"]}, "'person' more than once"),
        ({"prompts.detect": "person"}, "must be a list of strings, got 'person'"),
        ({"prompts.detect": ["person", 3]}, "must be a list of strings"),
        ({"cameras": ["front", "rear cam"]}, "'rear cam' is not a valid relative topic name"),
        ({"cameras": ["/front"]}, "'/front' is not a valid"),
        ({"cameras": ["front", "front"]}, "'front' more than once"),
        ({"image_transport": "theora"}, "'theora' is not one of raw, compressed"),
        ({"rate_limit_hz": float("nan")}, "rate_limit_hz must be from 0 to 1000"),
        ({"max_objects": True}, "must be a whole number, got True"),
        ({"promts.detect": ["person"]}, "there is no parameter 'promts.detect'; known: autostart"),
    ],
)
def test_refusals_say_what_is_wrong(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        NodeConfig().changed(changes)
    assert reason in str(caught.value)


def test_a_whole_number_is_taken_for_a_real_one() -> None:
    config = NodeConfig().changed({"rate_limit_hz": 10})
    assert config.rate_limit_hz == 10.0
    assert type(config.rate_limit_hz) is float


def test_prompts_of_a_skill_that_is_not_asked_may_be_empty() -> None:
    config = NodeConfig().changed({"prompts.point": [], "skills": ["detect"]})
    assert config.prompts_point == ()
    with pytest.raises(InputError, match=r"prompts\.point is empty"):
        config.changed({"skills": ["point"]})


def test_asked_is_every_prompt_of_every_skill_in_order() -> None:
    config = NodeConfig().changed(
        {"skills": ["point", "detect"], "prompts.point": ["cup"], "prompts.detect": ["a", "b"]}
    )
    assert config.asked() == (("point", "cup"), ("detect", "a"), ("detect", "b"))


def test_an_evaluation_takes_what_the_node_takes_and_nothing_else() -> None:
    by_name = {spec.name: spec for spec in specs()}
    for name in ("max_objects", "max_crops"):
        maximum = by_name[name].maximum
        assert maximum is not None
        fields: dict[str, Any] = {
            "bag": Path("b"), "out": Path("o"), "skill": "detect", "prompts": ("person",),
        }  # fmt: skip
        assert EvaluateOptions(**fields, **{name: int(maximum)})
        with pytest.raises(InputError, match=f"{name} must be from . to {maximum}, got"):
            EvaluateOptions(**fields, **{name: int(maximum) + 1})


# One camera's own


FRONT_AND_REAR = NodeConfig().changed(
    {
        "cameras": ["front", "rear"],
        "prompts.detect": ["person", "cup"],
        "prompts.point": ["door"],
        "camera.front.prompts.detect": ["car"],
        "camera.rear.skills": ["point", "detect"],
    }
)


def test_a_camera_asks_with_its_own_lists_and_else_with_those_of_all() -> None:
    assert FRONT_AND_REAR.questions("front") == (("detect", ("car",)),)
    assert FRONT_AND_REAR.questions("rear") == (
        ("point", ("door",)),
        ("detect", ("person", "cup")),
    )
    back = FRONT_AND_REAR.changed({"camera.front.prompts.detect": [], "camera.rear.skills": []})
    common = (("detect", ("person", "cup")),)
    assert back.questions("front") == back.questions("rear") == common


def test_what_is_asked_of_any_camera_is_listed_once() -> None:
    assert FRONT_AND_REAR.asked() == (
        ("detect", "car"),
        ("point", "door"),
        ("detect", "person"),
        ("detect", "cup"),
    )
    assert FRONT_AND_REAR.changed({"camera.front.prompts.detect": ["cup"]}).asked() == (
        ("detect", "cup"),
        ("point", "door"),
        ("detect", "person"),
    )


def test_every_camera_has_its_parameters_and_a_camera_that_goes_takes_them_along() -> None:
    names = [spec.name for spec in camera_specs("front")]
    lists = ("skills", "prompts.point", "prompts.detect", "prompts.segment")
    assert names == [f"camera.front.{name}" for name in lists]
    assert list(FRONT_AND_REAR.values()) == [s.name for s in all_specs(("front", "rear"))]
    assert all(len(spec.description) >= 10 for spec in camera_specs("front"))
    assert all(not spec.read_only and spec.default == () for spec in camera_specs("front"))
    assert FRONT_AND_REAR.changed({"cameras": ["rear"]}).of_cameras == {
        "rear": CameraConfig(skills=("point", "detect"))
    }
    assert NodeConfig().changed(FRONT_AND_REAR.values()) == FRONT_AND_REAR


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"camera.side.skills": ["detect"]}, "no parameter 'camera.side.skills'; known: autostart"),
        ({"camera.front.max_crops": 1}, "no parameter 'camera.front.max_crops'"),
        ({"camera.front.skills": ["swim"]}, "camera.front.skills: 'swim' is not one of point"),
        ({"camera.front.skills": "detect"}, "camera.front.skills must be a list of strings"),
        ({"camera.front.skills": ["point", "point"]}, "camera.front.skills has 'point' more than"),
        ({"camera.front.prompts.detect": ["a", ""]}, "camera.front.prompts.detect has an empty"),
        ({"camera.front.prompts.detect": ["a", "a"]}, "camera.front.prompts.detect has 'a' more"),
        (
            {"prompts.point": []},
            "prompts.point is empty, camera.rear.prompts.point too, and camera.rear.skills has",
        ),
        (
            {"prompts.detect": []},
            "prompts.detect is empty, camera.rear.prompts.detect too, and camera.rear.skills has",
        ),
    ],
)
def test_refusals_of_a_cameras_lists_say_what_is_wrong(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        FRONT_AND_REAR.changed(changes)
    assert reason in str(caught.value)


def test_the_lists_of_all_may_be_empty_where_every_camera_has_its_own() -> None:
    config = NodeConfig().changed(
        {"cameras": ["left"], "prompts.detect": [], "camera.left.prompts.detect": ["car"]}
    )
    assert config.asked() == (("detect", "car"),)


def test_a_change_is_checked_as_a_whole_whatever_its_order() -> None:
    for names in (("cameras", "camera.up.skills"), ("camera.up.skills", "cameras")):
        values = {"cameras": ["up"], "camera.up.skills": ["point"]}
        config = NodeConfig().changed({name: values[name] for name in names})
        assert config.questions("up") == (("point", ("person",)),)


def test_only_the_cameras_concerned_get_a_new_version() -> None:
    live = LiveConfig(FRONT_AND_REAR)
    assert (live.version("front"), live.version("rear")) == (0, 0)
    live = live.changed(live.config.changed({"camera.front.prompts.detect": ["bus"]}))
    assert (live.version("front"), live.version("rear")) == (1, 0)
    live = live.changed(live.config.changed({"prompts.detect": ["bus"]}))  # front has its own
    assert (live.version("front"), live.version("rear")) == (1, 1)
    live = live.changed(live.config.changed({"max_objects": 3}))
    assert (live.version("front"), live.version("rear")) == (1, 1)
    live = live.changed(live.config.changed({"camera.front.prompts.detect": []}))
    # The words are the same as before, the list they come from is another.
    assert (live.version("front"), live.version("rear")) == (1, 1)


def test_a_refused_change_leaves_the_config_as_it_was() -> None:
    config = NodeConfig()
    before = config.values()
    with pytest.raises(InputError):
        config.changed({"max_objects": 7, "max_age_ms": -1.0})
    assert config.values() == before


@given(st.data())
def test_any_allowed_values_survive_a_round_trip(data: st.DataObject) -> None:
    changes: dict[str, object] = {}
    for spec in NUMERIC:
        assert spec.minimum is not None
        assert spec.maximum is not None
        if isinstance(spec.default, float):
            numbers: st.SearchStrategy[object] = st.floats(spec.minimum, spec.maximum)
        else:
            numbers = st.integers(int(spec.minimum), int(spec.maximum))
        changes[spec.name] = data.draw(numbers)
    config = NodeConfig().changed(changes)
    assert {name: config.values()[name] for name in changes} == changes
    assert NodeConfig().changed(config.values()) == config
