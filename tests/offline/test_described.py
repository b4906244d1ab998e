"""Samplers and output types that are read from a manifest equal those that were written."""

import datetime
import json
import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

import gen
from gen.offline.described import (
    describe_sampler,
    describe_speculate,
    describe_type,
    imported,
    made_sampler,
    made_speculate,
    made_type,
)
from gen.samplers import beam_search, greedy, multinomial


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Person(BaseModel):
    name: str
    colour: Colour


class Pair(TypedDict):
    left: int
    right: Person


def again(described: Any) -> Any:
    """A description, written to a manifest's JSON and read again."""
    return json.loads(json.dumps(described))


@pytest.mark.parametrize(
    "output_type",
    [
        *(None, int, bool, type(None), datetime.date, Person, Pair, Colour),
        *(list[int], dict[str, Person], tuple[int, str], tuple[int, ...], set[bool]),
        *(Literal["a", 1, None], int | None, list[Literal["x", "y"] | Person]),
        *(gen.regex(r"\d+"), gen.choice(["a", 1, None]), gen.grammar('start: "a"')),
        gen.sequence("a", gen.text(without=["</t>"], max_chars=9), gen.repeat(gen.either("b", Person), ", ", 1, 3)),
        *(gen.json_schema({"type": "integer"}, whitespace="compact"), gen.json_schema("true", closed=False)),
        *(gen.json_schema(Person, required="all"), gen.json_schema(list[Person], whitespace="indent")),
    ],
)
def test_a_type_comes_out_as_it_went_in(output_type: Any) -> None:
    assert made_type(again(describe_type(output_type))) == output_type


class Hidden:
    class Within(BaseModel):
        name: str


@pytest.mark.parametrize(
    ("output_type", "message"),
    [
        (type("Made", (BaseModel,), {"__module__": __name__}), r"test_described\.Made cannot be imported"),
        (type("Person", (BaseModel,), {"__module__": __name__}), r"test_described\.Person cannot be imported"),
        (type("Main", (BaseModel,), {"__module__": "__main__"}), r"__main__\.Main cannot be imported"),
        (Annotated[int, Field(gt=3)], "make a field of a pydantic class"),
        (gen.choice(Colour), "a job's choice is written into its manifest as JSON"),
        (Literal[Colour.RED], "written into its manifest as JSON"),
        (re.compile("a"), r"give a pattern as gen\.regex"),
    ],
)
def test_what_no_other_process_can_read_is_refused_with_its_name(output_type: Any, message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        describe_type(output_type)


def test_classes_within_classes_can_be_imported() -> None:
    assert made_type(describe_type(Hidden.Within)) is Hidden.Within
    with pytest.raises(gen.ArgumentError, match="cannot be imported here"):
        made_type({"class": "no_such_module:Person"})
    with pytest.raises(gen.ArgumentError, match="cannot be imported here"):
        made_type({"class": f"{__name__}:Nobody"})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("people", "named by its whole module and its class"),
        ("people:", "named by its whole module"),
        (":Person", "named by its whole module"),
        (".people:Person", "named by its whole module"),
        ("a_module_with_a_fault:Person", "cannot be imported here: ZeroDivisionError: "),
        ("a_module_without_sense:Person", "cannot be imported here: SyntaxError: "),
    ],
)
def test_a_class_that_cannot_be_imported_is_an_error_that_says_why(
    path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module_with_a_fault.py").write_text("1 / 0\n")
    (tmp_path / "a_module_without_sense.py").write_text("def f(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(gen.ArgumentError, match=message):
        imported(path)


@pytest.mark.parametrize(
    "sampler",
    [
        greedy(),
        greedy(repetition_penalty=1.2),
        multinomial(3, temperature=0.5, top_k=4, top_p=0.5, min_p=0.1),
        multinomial(logit_bias={7: -2.5, 3: float("-inf")}, bad_words=["no", [1, 2]], min_new_tokens=2),
        beam_search(4, length_penalty=0.5, early_stopping=True),
    ],
)
def test_a_sampler_comes_out_as_it_went_in(sampler: Any) -> None:
    assert repr(made_sampler(again(describe_sampler(sampler)))) == repr(sampler)
    assert describe_sampler(None) is made_sampler(None) is None


@pytest.mark.parametrize("speculate", ["auto", False, gen.Speculation(), gen.Speculation(prompt=False, most=3)])
def test_speculation_comes_out_as_it_went_in(speculate: Any) -> None:
    assert made_speculate(again(describe_speculate(speculate))) == speculate
