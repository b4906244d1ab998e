"""How sure a model was of each leaf of a value. The oracle scores every other value by itself, with `gen.score`."""

import datetime
import json
import pickle
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

import gen
from tests.helpers import byte_tokenizer, tiny_model


class Colour(Enum):
    RED = "rot é"
    BLUE = "blau"


class Inner(BaseModel):
    kind: Literal["a", 7, None]
    level: int = Field(gt=-3, lt=12, multiple_of=2)


class Thing(BaseModel):
    colour: Colour
    ok: bool | None
    name: str = Field(max_length=3)
    rows: list[Inner] = Field(min_length=1, max_length=2)
    pair: tuple[bool, float]
    count: int


INNER = {"kind": ['"a"', "7", "null"], "level": ["-2", "0", "2", "4", "6", "8", "10"]}
CHOICES: dict[tuple[Any, ...], list[str]] = {
    ("colour",): ['"rot é"', '"blau"'],
    ("ok",): ["true", "false", "null"],
    ("pair", 0): ["true", "false"],
    **{("rows", row, name): texts for row in (0, 1) for name, texts in INNER.items()},
}


def new_model() -> Any:
    return gen.from_transformers(tiny_model(max_position_embeddings=1024), byte_tokenizer(chat=True))


def leaf_at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


@pytest.mark.parametrize("whitespace", ["line", "indent"])
@pytest.mark.parametrize("seed", range(3))
def test_a_leaf_and_the_best_other_value_have_the_scores_of_their_texts(seed: int, whitespace: Any) -> None:
    """The tokenizer writes a token for each byte, so that a text has one spelling."""
    model = new_model()
    prompt = [*b"Thing: "]
    asked = gen.json_schema(Thing, whitespace=whitespace)
    made = gen.generate(model, prompt, asked, seed=seed, details=True)
    value, data = json.loads(made.text), made.text.encode()
    own = gen.score(model, prompt, made.token_ids)
    assert [field.path for field in made.fields][:4] == [("colour",), ("ok",), ("name",), ("rows", 0, "kind")]
    for field in made.fields:
        assert json.loads(field.text) == leaf_at(value, field.path)
        assert made.text[field.start : field.end] == field.text
        begin = len(made.text[: field.start].encode())
        end = begin + len(field.text.encode()) + (field.text[0] in "-0123456789")
        assert bytes(field.token_ids) == data[begin:end]
        assert field.logprob == pytest.approx(sum(own.logprobs[begin:end]), abs=1e-4)
        tail = data[begin + len(field.text.encode()) : end]
        others = [text for text in CHOICES.get(field.path, []) if text != field.text]
        scores = [gen.score(model, [*prompt, *data[:begin]], [*text.encode(), *tail]).sum for text in others]
        if not scores:
            assert (field.other, field.other_logprob) == (None, None)
            continue
        assert field.text in CHOICES[field.path]
        assert field.other_logprob == pytest.approx(max(scores), abs=1e-4)
        assert scores[others.index(field.other or "")] == pytest.approx(max(scores), abs=1e-4)


@pytest.mark.parametrize(
    ("output_type", "others"),
    [
        (Literal["ja", "nein"], ["ja", "nein"]),
        (gen.choice(["ja", 7]), ["ja", "7"]),
        (bool, ["true", "false"]),
        (gen.json_schema({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 2.5}), ["1", "2"]),
    ],
)
def test_a_value_that_is_a_leaf_itself_is_compared_as_a_whole(output_type: Any, others: list[str]) -> None:
    model = new_model()
    made = gen.generate(model, "x", output_type, seed=1, details=True)
    [field] = made.fields
    shares = gen.classify(model, "x", others)
    [other] = [text for text in others if text != made.text]
    assert (field.path, field.text, field.other) == ((), made.text, other)
    assert field.other_logprob is not None
    assert field.logprob - field.other_logprob == pytest.approx(
        gen.score(model, "x", made.text).sum - gen.score(model, "x", other).sum, abs=1e-4
    )
    assert shares[made.text] > 0


def test_a_date_is_a_leaf_without_options() -> None:
    model = new_model()
    made = gen.generate(model, "x", datetime.date, seed=1, details=True)
    [field] = made.fields
    assert (field.path, field.text, field.other) == ((), made.text, None)
    assert field.logprob == pytest.approx(gen.score(model, "x", made.text).sum, abs=1e-4)


def test_with_tokens_of_several_characters_a_leaf_has_all_tokens_that_touch_it() -> None:
    class Person(BaseModel):
        name: str = Field(max_length=20)
        age: int = Field(ge=0, le=99)
        happy: bool

    model = gen.load("demo")
    prompt = model.tokenizer.encode("Describe Ada as JSON.\n")
    made = gen.generate(model, prompt, Person, sampler=gen.samplers.greedy(), details=True)
    fields = {field.path[0]: field for field in made.fields}
    scores = gen.score(model, prompt, made.token_ids).logprobs
    for field in fields.values():
        count = len(field.token_ids)
        first = next(at for at in range(len(made.token_ids)) if made.token_ids[at : at + count] == field.token_ids)
        own = scores[first : first + count]
        assert field.logprob == pytest.approx(sum(own), abs=1e-4)
        assert field.text.strip('"') in model.tokenizer.decode(field.token_ids)
    assert fields["name"].other is None
    assert fields["happy"].other == "false"
    ages = {}
    for age in range(100):  # each with the character that ends it, as in the text
        begun = made.text[: fields["age"].start]
        text = begun + str(age) + made.text[fields["age"].end]
        ages[str(age)] = gen.score(model, prompt, model.tokenizer.encode_plain(text)).sum
    best = max((age for age in ages if age != fields["age"].text), key=lambda age: ages[age])
    assert fields["age"].other == best


def test_what_has_no_fields_says_so() -> None:
    model = new_model()
    made = gen.generate(model, "x", gen.regex("a+b"), details=True, shorten=True, max_new_tokens=4)
    with pytest.raises(gen.ArgumentError, match="fields are those of a value"):
        _ = made.fields
    made = gen.generate(model, "x", bool, details=True)
    with pytest.raises(gen.ArgumentError, match="only the completion itself"):
        _ = pickle.loads(pickle.dumps(made)).fields
