"""A layout of whitespace that the model chooses: any of the three, and the same one to the end of the text."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

import gen
from benchmarks.constraints.fuzz import LAYOUTS
from gen.constraints.schema import schema_table
from tests.constraints.walks import random_texts
from tests.helpers import ScriptedModel

SCHEMAS: list[Any] = [
    {"type": "array", "items": {"type": "integer", "maximum": 20, "minimum": 0}, "maxItems": 3},
    {"type": "object", "patternProperties": {"^[a-c]$": {"type": "null"}}, "maxProperties": 2},
    {"type": "integer"},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_text_is_one_of_exactly_one_of_the_three_layouts(schema: Any) -> None:
    """The oracle is `json.dumps`, and the tables of the three layouts."""
    union = schema_table(schema, closed=True, whitespace="model")
    for text in random_texts(union, 150, longest=40):
        value = json.loads(text)
        assert text in [json.dumps(value, ensure_ascii=False, **how) for how in LAYOUTS.values()]
    for name in LAYOUTS:
        one = schema_table(schema, closed=True, whitespace=name)
        for text in random_texts(one, 60, longest=40):
            assert union.accepts(text.encode())


class Person(BaseModel):
    name: str
    tags: list[int]


@pytest.mark.parametrize("how", LAYOUTS.values())
def test_the_model_chooses_and_keeps_its_layout(how: Any) -> None:
    wanted = Person(name="Zoë", tags=[1, 2])
    text = json.dumps(wanted.model_dump(), ensure_ascii=False, **how)
    model = ScriptedModel(text)
    asked = gen.json_schema(Person, whitespace="model")
    assert gen.compile(model, asked).engine == "device"
    made = gen.generate(model, ["x", "y"], asked, details=True)
    assert [(one.text, one.value) for one in made] == [(text, wanted)] * 2
    assert "".join(gen.stream(model, "x", asked)) == text


def test_a_type_of_the_host_engine_has_no_such_layout() -> None:
    schema = {"$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}
    with pytest.raises(gen.ConstraintError, match=r"refers to itself; nor can the host engine.*whitespace='model'"):
        gen.compile(ScriptedModel("x"), gen.json_schema(schema, whitespace="model"))
