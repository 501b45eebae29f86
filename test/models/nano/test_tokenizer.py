"""Plain language becomes a colour and a class; what is not known is said, never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from photon_ros.core.errors import ModelError, PromptError, UnknownWordError
from photon_ros.models.nano import vocabulary
from photon_ros.models.nano.tokenizer import NanoTokenizer, canonical
from training.export import build_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> NanoTokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(build_tokenizer().to_str())
    return NanoTokenizer(path)


@pytest.mark.parametrize(
    ("prompt", "meaning"),
    [
        ("red cone", ("red", "cone")),
        ("cone", ("any", "cone")),
        ("the red cone", ("red", "cone")),
        ("  Red   CONES\n", ("red", "cone")),
        ("cone red", ("red", "cone")),
        ("people", ("any", "person")),
        ("Persons", ("any", "person")),
        ("a pedestrian", ("any", "person")),
        ("boxes", ("any", "box")),
        ("all the blue bottles", ("blue", "bottle")),
        ("red", ("red", "object")),
        ("object", ("any", "object")),
        ("red things", ("red", "object")),
        ("any object", ("any", "object")),
        ("red red cone", ("red", "cone")),
    ],
)
def test_prompts_that_mean_the_same_become_the_same(
    tokenizer: NanoTokenizer, prompt: str, meaning: tuple[str, str]
) -> None:
    assert canonical(prompt) == meaning
    ids = vocabulary.word_ids()
    assert tokenizer.encode(prompt) == [ids[word] for word in meaning]
    # The family puts a blank before the object.
    assert tokenizer.encode(" " + prompt) == tokenizer.encode(prompt)


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t", "the", "a the"])
def test_an_empty_prompt_is_refused(tokenizer: NanoTokenizer, prompt: str) -> None:
    with pytest.raises(PromptError, match="the prompt is empty: nano wants"):
        tokenizer.encode(prompt)


def test_an_unknown_word_is_named_with_all_the_known_ones(tokenizer: NanoTokenizer) -> None:
    with pytest.raises(UnknownWordError) as caught:
        tokenizer.encode("the big red zebra and big cone")
    error = caught.value
    assert error.words == ("big", "zebra", "and")
    assert set(error.known) == {*vocabulary.COLOURS, *vocabulary.CLASSES, "object"}
    assert str(error).startswith("nano does not know 'big', 'zebra', 'and'; it knows: red, ")


@pytest.mark.parametrize(
    "prompt", ["<coord>", "<|endoftext|>", "<point>", "redcone", "reds", "cone.", "[UNK]", "käse"]
)
def test_near_misses_and_special_tokens_are_unknown_words(
    tokenizer: NanoTokenizer, prompt: str
) -> None:
    with pytest.raises(UnknownWordError):
        tokenizer.encode(prompt)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("red blue cone", "one colour at a time, got blue and red"),
        ("cone and ball".replace(" and", ""), "one class at a time, got ball and cone"),
    ],
)
def test_two_of_a_kind_are_refused(tokenizer: NanoTokenizer, prompt: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        tokenizer.encode(prompt)


@pytest.mark.parametrize("prompt", ["person " * 2000, "red cone " * 5, "the " * 8 + "person"])
def test_a_prompt_of_many_words_is_refused_with_their_number(
    tokenizer: NanoTokenizer, prompt: str
) -> None:
    num_words = len(prompt.split())
    message = f"the prompt has {num_words} words: nano takes a colour and a class, .* at most 8"
    with pytest.raises(PromptError, match=message):
        tokenizer.encode(prompt)


def test_as_many_words_as_are_allowed_are_taken(tokenizer: NanoTokenizer) -> None:
    assert tokenizer.encode("the " * 6 + "red cone") == tokenizer.encode("red cone")


@given(
    colour=st.sampled_from(["", *vocabulary.COLOURS]),
    kind=st.sampled_from([*vocabulary.CLASSES, "object"]),
    plural=st.booleans(),
    upper=st.booleans(),
)
def test_every_pair_of_words_comes_back(
    tokenizer: NanoTokenizer, colour: str, kind: str, plural: bool, upper: bool
) -> None:
    prompt = f"{colour} {kind}{'es' if kind == 'box' and plural else 's' * plural}"
    prompt = prompt.upper() if upper else prompt
    ids = tokenizer.encode(prompt)
    assert len(ids) == 2
    assert min(ids) >= vocabulary.FIRST_WORD_ID
    assert tokenizer.decode(ids) == f"{colour} {kind}".strip()


@given(text=st.text(max_size=40))
def test_any_text_is_two_known_ids_or_a_prompt_error(tokenizer: NanoTokenizer, text: str) -> None:
    try:
        ids = tokenizer.encode(text)
    except PromptError:
        return
    assert len(ids) == 2
    assert all(vocabulary.FIRST_WORD_ID <= token < vocabulary.VOCAB_SIZE for token in ids)


def test_special_tokens_never_appear_in_text(tokenizer: NanoTokenizer) -> None:
    ids = vocabulary.word_ids()
    mixed = [0, 5, ids["red"], 6, ids["cone"], 3]
    assert tokenizer.decode(mixed) == "red cone"


def test_ids_are_dense_unique_and_within_the_vocabulary() -> None:
    ids = vocabulary.special_tokens() | vocabulary.word_ids()
    assert sorted(ids.values()) == list(range(len(ids)))
    assert len(ids) <= vocabulary.VOCAB_SIZE
    assert vocabulary.special_tokens()[vocabulary.END] == vocabulary.EOS_ID == vocabulary.BOS_ID


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"looked for .*tokenizer\.json"):
        NanoTokenizer(tmp_path / "tokenizer.json")
