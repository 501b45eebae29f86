"""NodeConfig: every parameter typed, bounded, explained, and refused with a reason."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.core.errors import InputError
from photon_ros.ros.param_spec import ParamSpec
from photon_ros.ros.params import NodeConfig, specs

NUMERIC = [spec for spec in specs() if type(spec.default) in (int, float)]


def test_defaults_are_allowed_and_every_field_is_a_parameter() -> None:
    config = NodeConfig()
    assert len(specs()) == len(dataclasses.fields(NodeConfig))
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
    assert config.prompts("point") == ()
    with pytest.raises(InputError, match=r"prompts\.point is empty"):
        config.changed({"skills": ["point"]})


def test_asked_is_every_prompt_of_every_skill_in_order() -> None:
    config = NodeConfig().changed(
        {"skills": ["point", "detect"], "prompts.point": ["cup"], "prompts.detect": ["a", "b"]}
    )
    assert config.asked() == (("point", "cup"), ("detect", "a"), ("detect", "b"))


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
