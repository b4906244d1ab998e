"""How sure a model was of each leaf of a value. The oracle scores every other value by itself, with `gen.score`."""

import datetime
import json
import pickle
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
import torch
from pydantic import BaseModel, Field

import gen
from tests.helpers import ScriptedModel, byte_tokenizer, tiny_model


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


def check_fields(model: Any, prompt: list[int], made: gen.Completion, choices: Callable[[Any], Sequence[str]]) -> None:
    """Compare all fields with scores of texts. The tokenizer writes a token for each byte, so that a text has one
    spelling.

    Args:
        choices: the texts of all values that may stand at a path; none if they are many.
    """
    value, data = json.loads(made.text), made.text.encode()
    own = gen.score(model, prompt, made.token_ids)
    for field in made.fields:
        assert json.loads(field.text) == leaf_at(value, field.path)
        assert made.text[field.start : field.end] == field.text
        begin = len(made.text[: field.start].encode())
        end = begin + len(field.text.encode()) + (field.text[0] in "-0123456789")
        assert bytes(field.token_ids) == data[begin:end]
        assert field.logprob == pytest.approx(sum(own.logprobs[begin:end]), abs=1e-4)
        tail = data[begin + len(field.text.encode()) : end]
        texts = choices(field.path)
        assert field.text in texts or not texts
        others = [text for text in texts if text != field.text]
        scores = [gen.score(model, [*prompt, *data[:begin]], [*text.encode(), *tail]).sum for text in others]
        if not scores:
            assert (field.other, field.other_logprob) == (None, None)
            continue
        assert field.other_logprob == pytest.approx(max(scores), abs=1e-4)
        assert scores[others.index(field.other or "")] == pytest.approx(max(scores), abs=1e-4)


@pytest.mark.parametrize("whitespace", ["line", "indent", "model"])
@pytest.mark.parametrize("seed", range(3))
def test_a_leaf_and_the_best_other_value_have_the_scores_of_their_texts(seed: int, whitespace: Any) -> None:
    model = new_model()
    prompt = [*b"Thing: "]
    asked = gen.json_schema(Thing, whitespace=whitespace)
    made = gen.generate(model, prompt, asked, seed=seed, details=True)
    assert [field.path for field in made.fields][:4] == [("colour",), ("ok",), ("name",), ("rows", 0, "kind")]
    check_fields(model, prompt, made, lambda path: CHOICES.get(path, []))


def listed(items: dict[str, Any]) -> Any:
    return gen.json_schema({"type": "array", "items": items, "minItems": 3, "maxItems": 4})


ABC = {"enum": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("output_type", "choices"),
    [
        (listed({"enum": [1, 2, 3, 4], "minimum": 3}), ["3", "4"]),
        (listed({**ABC, "not": {"const": "b"}}), ['"a"', '"c"']),
        (
            listed({"allOf": [{"$ref": "#/items/$defs/abc"}, {"maxLength": 1}], "$defs": {"abc": ABC}}),
            ['"a"', '"b"', '"c"'],
        ),
        (listed({"type": "boolean", "nullable": True}), ["true", "false", "null"]),
        (listed({"type": ["boolean", "null"]}), ["true", "false", "null"]),
        (listed({"anyOf": [{"const": 1}, {"const": True}]}), ["1", "true"]),
        (listed({"type": "number", "minimum": 0, "maximum": 1}), []),
        (Annotated[dict[int, bool], Field(min_length=1, max_length=3)], ["true", "false"]),
        (listed({"type": "string", "pattern": "^[ab]c?$"}), ['"a"', '"b"', '"ac"', '"bc"']),
        (listed({"type": "integer", "minimum": 8, "maximum": 12}), ["8", "9", "10", "11", "12"]),
    ],
)
def test_other_values_are_those_that_the_type_allows_there(output_type: Any, choices: list[str]) -> None:
    model = new_model()
    for seed in range(2):
        made = gen.generate(model, [*b"x"], output_type, seed=seed, details=True)
        check_fields(model, [*b"x"], made, lambda path: choices)


def test_a_choice_is_narrowed_by_the_text_before_it_and_not_by_the_text_behind_it() -> None:
    class Left(BaseModel):
        kind: Literal["left"]
        how: Literal["far", "near"]

    class Right(BaseModel):
        kind: Literal["right"]
        how: str = Field(max_length=2)

    model = new_model()
    made = gen.generate(model, [*b"x"], Annotated[set[Literal["a", "b", "c"]], Field(min_length=3)], details=True)
    left = ['"a"', '"b"', '"c"']
    for field in made.fields:
        assert (field.other in left, field.other is None) == (len(left) > 1, len(left) == 1)
        left.remove(field.text)
    for seed in range(4):
        made = gen.generate(model, [*b"x"], Left | Right, seed=seed, details=True)
        narrow = ['"far"', '"near"'] if made.value.kind == "left" else []
        check_fields(model, [*b"x"], made, {("kind",): ['"left"', '"right"'], ("how",): narrow}.__getitem__)


def test_of_a_name_that_comes_twice_the_last_value_is_told() -> None:
    text = '{"x": {"y": true}, "z": {}, "x": {"z": false}}'
    made = gen.generate(ScriptedModel(text), [*b"x"], dict[str, dict[str, bool]], details=True)
    assert made.text == text
    assert [(field.path, field.text) for field in made.fields] == [(("x", "z"), "false")]


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


def test_a_leaf_is_looked_for_behind_the_thought_and_what_begins_the_answer() -> None:
    """An answer of gpt-oss begins with <|channel|>final<|message|>, which has both options in it."""
    tokenizer = byte_tokenizer(specials=["<|start|>", "<|channel|>", "<|message|>", "<|end|>"])
    tokenizer.chat_template = "{{ messages[0].content }}<|start|>assistant{# <|channel|><|message|> #}"
    model = gen.from_transformers(tiny_model(vocab_size=263, max_position_embeddings=512), tokenizer)
    for seed in range(4):
        made = gen.generate(model, "x", Literal["a", "fin"], chat=True, seed=seed, thinking=6, details=True)
        [field] = made.fields
        own = gen.score(model, list(made.receipt.prompt_ids), made.token_ids)
        assert field.token_ids == [*made.text.encode()]
        assert field.logprob == pytest.approx(sum(own.logprobs[-len(made.text) :]), abs=1e-4)


def test_what_has_no_fields_says_so() -> None:
    model = new_model()
    with pytest.raises(gen.IncompleteError) as caught:
        gen.generate(model, "x", Annotated[list[Literal["aaaa"]], Field(min_length=1)], stop="aa", details=True)
    with pytest.raises(gen.ArgumentError, match="fields are those of a whole value"):
        _ = caught.value.completion.fields
    made = gen.generate(model, "x", gen.regex("a+b"), details=True, shorten=True, max_new_tokens=4)
    with pytest.raises(gen.ArgumentError, match="fields are those of a value"):
        _ = made.fields
    made = gen.generate(model, "x", bool, details=True)
    with pytest.raises(gen.ArgumentError, match="only the completion itself"):
        _ = pickle.loads(pickle.dumps(made)).fields
    assert made.fields
    with torch.no_grad():
        model.hf_model.lm_head.weight.mul_(2)  # other numbers than those that made the text
    with pytest.raises(gen.ArgumentError, match="no fields: the model's weights have been changed since the call"):
        _ = made.fields
