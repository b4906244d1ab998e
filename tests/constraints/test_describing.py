"""What a prompt is told of a type. Examples are values of the type, which pydantic reads."""

import json
import random
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypeAliasType

import gen
from benchmarks.constraints.random_types import random_schema
from tests.helpers import ScriptedModel


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    """A line of an order."""

    what: str = Field(max_length=20, description="as Öl or\n  brot")
    count: Annotated[int, Field(ge=1, le=99)]


class Order(BaseModel):
    name: str = Field(alias="full name", description="who orders")
    email: str | None = None
    due: date
    colour: Colour
    lines: list[Line] = Field(min_length=1, max_length=5)
    size: tuple[int, float] = (1, 2.5)
    notes: dict[str, bool] = {}


class Node(BaseModel):
    number: float = Field(gt=3, multiple_of=2)
    next: "Node | None" = None


class Oak(BaseModel):
    kind: Literal["oak"] = "oak"


class Elm(BaseModel):
    kind: Literal["elm"] = "elm"
    age: int = 3


AB = {"a": {"type": "integer"}, "b": {"type": "string"}}
UP_TO_3 = "string of at most 3 characters"
A, B = '\n  "a": whole number', '  "b": string'


class Again(Enum):
    ONE = 1
    UNO = 1


SHAPES = """Answer with JSON of this form:
{
  "kind": "oak"
} or {
  "kind": "elm",
  "age": whole number (may be left out)
}"""

OR_NULL = {"anyOf": [{"$ref": "#/definitions/node"}, {"type": "null"}]}


class Folder(BaseModel):
    inside: list["Folder"]
    first: dict[str, "Folder"] = {}


TREE = {
    "definitions": {
        "node": {"type": "object", "properties": {"of": {"type": "array", "items": OR_NULL}}, "required": ["of"]}
    },
    "$ref": "#/definitions/node",
}

ORDER = """Answer with JSON of this form:
{
  "full name": string (who orders),
  "email": string or null (may be left out),
  "due": date, as "2024-05-31",
  "colour": "red" or "blue",
  "lines": list of 1 to 5 items of [{
    "what": string of at most 20 characters (as Öl or brot),
    "count": whole number, at least 1 and at most 99
  }, ...],
  "size": [whole number, number] (may be left out),
  "notes": {
    any name: true or false
  } (may be left out)
}"""


@pytest.mark.parametrize(
    ("output_type", "said"),
    [
        (Order, ORDER),
        (gen.json_schema(Order), ORDER),
        (gen.json_schema(Order.model_json_schema()), ORDER),
        (
            Node,
            'Answer with JSON of this form:\n{\n  "number": number, above 3 and a multiple of 2,\n'
            '  "next": Node again or null (may be left out)\n}',
        ),
        (Literal["a", "b c"], "Answer with one of these: a, b c"),
        (gen.choice(["yes", 1]), "Answer with one of these: yes, 1"),
        (bool, "Answer with JSON of this form:\ntrue or false"),
        (gen.regex("[a-c]+"), "Answer with string that matches [a-c]+"),
        (gen.text(), "Answer with string"),
        (gen.text(max_chars=3), "Answer with string of at most 3 characters"),
        (gen.text(["\n", "ü"]), 'Answer with string (without "\\n" and "ü")'),
        (Annotated[str, Field(description="a  city")], "Answer with string (a city)"),
        (date, 'Answer with date, as "2024-05-31"'),
        (list[int], "Answer with JSON of this form:\nlist of [whole number, ...]"),
        (gen.json_schema(TREE), 'Answer with JSON of this form:\n{\n  "of": list of [node again or null, ...]\n}'),
        (dict[int, bool], "Answer with JSON of this form:\n{\n  any name: true or false\n}"),
        (Annotated[Oak | Elm, Field(discriminator="kind")], SHAPES),
        (Again, "Answer with JSON of this form:\n1"),
        *(
            (gen.json_schema(schema), f"Answer with JSON of this form:\n{said}")
            for schema, said in [
                ({"type": ["integer", "null"]}, "whole number or null"),
                ({"type": "integer", "nullable": True}, "whole number or null"),
                ({"type": "integer", "minimum": 3, "allOf": [{"minimum": 10}]}, "whole number, at least 10"),
                ({"$ref": "#/$defs/a", "maxLength": 5, "$defs": {"a": {"type": "string", "maxLength": 3}}}, UP_TO_3),
                ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, "whole number, above 3"),
                ({"type": "integer", "maximum": 3, "exclusiveMaximum": False}, "whole number, at most 3"),
                ({"properties": {"a": AB["a"]}, "required": ["a", "c"]}, f'{{{A},\n  "c": any value\n}}'),
                (
                    {"type": "object", "properties": AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
                    f"{{{A},\n{B} (may be left out)\n}} or {{{A} (may be left out),\n{B}\n}}",
                ),
                (
                    {
                        "allOf": [{"$ref": "#/$defs/x"}, {"properties": {"c": False}}],
                        "$defs": {"x": {"properties": AB}},
                    },
                    f"{{{A} (may be left out),\n{B} (may be left out)\n}}",
                ),
                (
                    {"allOf": [{"properties": {name: part}} for name, part in AB.items()], "required": ["a", "b"]},
                    f"{{{A},\n{B}\n}}",
                ),
                ({"allOf": [{"enum": ["a", "b"]}], "description": "one"}, '"a" or "b"'),
                (
                    {
                        "type": "array",
                        "prefixItems": [{"type": "integer"}] * 2,
                        "items": {"type": "string"},
                        "minItems": 1,
                    },
                    "[whole number, whole number (may be left out), string, ...]",
                ),
                (
                    {"type": "array", "items": [{"type": "integer"}], "additionalItems": False, "minItems": 1},
                    "[whole number]",
                ),
            ]
        ),
    ],
)
def test_a_type_is_described_by_its_names_types_and_bounds(output_type: Any, said: str) -> None:
    assert gen.describe(output_type) == said
    assert gen.describe(gen.compile(ScriptedModel("x"), output_type)) == said


@pytest.mark.parametrize(
    "output_type",
    [
        *(Order, Node, Folder, bool, int, date, Colour, list[Line], Annotated[int, Field(gt=7)], dict[str, int]),
        *(Annotated[list[int], Field(max_length=0)], Annotated[list[int], Field(min_length=3)]),
        *(Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(ge=0.3, le=0.9)]),
        tuple[Annotated[str, Field(description="who")], Annotated[Literal["a", "bb"], Field(min_length=2)]],
        *(Annotated[float, Field(gt=0.25, multiple_of=0.1)], Annotated[int, Field(ge=8, lt=15, multiple_of=7)]),
    ],
)
def test_an_example_is_a_value_of_the_type(output_type: Any) -> None:
    lead, example = gen.describe(output_type, form="example").split("\n", 1)
    assert lead == "Answer as in this example:"
    text = json.dumps(example) if output_type in (date, Colour) else example
    assert TypeAdapter(output_type).validate_json(text) is not None
    if output_type is Order:
        assert "who orders" in example and "Öl" in example


Name = TypeAliasType("Name", str)


class Told(BaseModel):
    code: Annotated[str, Field(pattern="^[A-Z]{3}$", description="the code")]
    kinds: set[Literal["a", "b", "c"]] = Field(min_length=2)
    counts: dict[str, int] = Field(min_length=2)
    words: list[Annotated[str, Field(description="a word")]] = Field(min_length=2)
    names: list[Name] = []
    note: str = Field("x", description="why")
    place: str | None = Field(None, description="where")
    by: Name = Field("x", description="who writes")


def test_descriptions_stay_where_an_example_is_changed_for_its_type() -> None:
    """The set's first example has one member twice, and the type refuses it."""
    example = gen.describe(Told, form="example").split("\n", 1)[1]
    assert json.loads(example) == {
        "code": "the code",
        "kinds": ["a", "b"],
        "counts": {"1": 1, "2": 1},
        "words": ["a word", "a word"],
        "names": ["..."],
        "note": "why",
        "place": "where",
        "by": "who writes",
    }
    assert Told(**json.loads(example) | {"code": "ABC"})


def test_an_example_of_a_random_schema_meets_it() -> None:
    met = 0
    for number in range(60):
        schema = gen.json_schema(random_schema(random.Random(number)), closed=False)
        try:
            constraint = gen.compile(ScriptedModel("x"), schema)
        except gen.ConstraintError:
            continue
        assert constraint.accepts(gen.describe(schema, form="example").split("\n", 1)[1]), number
        met += 1
    assert met > 20


def test_an_example_leaves_out_what_it_stands_in() -> None:
    properties = {"kind": {"enum": ["oak"]}, "child": {"$ref": "#"}}
    example = gen.describe(gen.json_schema({"type": "object", "properties": properties}), form="example")
    assert json.loads(example.split("\n", 1)[1]) == {"kind": "oak", "child": {"kind": "oak"}}


@pytest.mark.parametrize(
    ("output_type", "said"),
    [
        (gen.text(), "Answer as in this example:\n..."),
        (gen.text("a"), 'Answer as in this example:\nwithout "a"'),
        (gen.text("."), "Answer as in this example:\n---"),
        (gen.text(max_chars=3), "Answer with a text of at most 3 characters, as in this example:\n..."),
        (
            Annotated[str, Field(min_length=4, max_length=9, description="a city")],
            "Answer with a text of 4 to 9 characters, as in this example:\na city",
        ),
    ],
)
def test_an_example_of_a_text_says_how_long_it_may_be(output_type: Any, said: str) -> None:
    assert gen.describe(output_type, form="example") == said


@pytest.mark.parametrize(
    ("output_type", "message"),
    [
        (gen.sequence("a", int), "has no description"),
        (gen.tool_calls([{"name": "f", "description": "", "parameters": {}}]), "has no description"),
        (gen.grammar('start: "a"'), "has no description"),
        (None, "None asks for no output type"),
    ],
)
def test_what_has_no_description_is_refused(output_type: Any, message: str) -> None:
    with pytest.raises(gen.ConstraintError, match=message):
        gen.describe(output_type)
    with pytest.raises(gen.ArgumentError, match='form must be "schema" or "example"'):
        gen.describe(int, form="text")  # type: ignore[arg-type]
