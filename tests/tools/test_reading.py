"""Tools as users give them: their arguments as values, their descriptions for a template, and what is refused."""

from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

import gen
from gen.tools.calls import tools_for_template
from tests.helpers import ScriptedModel


def add(x: int, y: int = 2, *, schema: bool = False) -> int:
    """Add two numbers.

    They may be negative.

    Args:
        x: the first
            of them.
        y: the second.
    Returns:
        The sum.
    """
    return x + y


class Visit(BaseModel):
    when: date
    who: str = "me"


def read(tool: Any, arguments: str) -> Any:
    """The value of a tool call's arguments."""
    model: Any = ScriptedModel("x")
    name = getattr(tool, "__name__", None) or tool.get("function", tool)["name"]
    kind = gen.compile(model, gen.tool_calls([tool], choice=name))
    [call] = kind.read(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>').calls
    return call.arguments


def test_arguments_are_values_of_the_hints() -> None:
    assert read(add, '{"x": 1}') == {"x": 1}
    assert add(**read(add, '{"x": 1, "y": 3, "schema": true}')) == 4
    assert read(Visit, '{"when": "2024-02-29", "who": "Ada"}') == Visit(when=date(2024, 2, 29), who="Ada")

    def at(when: date, what: Visit | None) -> None: ...

    found = read(at, '{"when": "2024-02-29", "what": {"when": "2023-01-01"}}')
    assert found == {"when": date(2024, 2, 29), "what": Visit(when=date(2023, 1, 1))}
    assert read({"name": "go", "parameters": {"properties": {"x": {"type": "integer"}}}}, '{"x": 3}') == {"x": 3}
    assert read({"type": "function", "function": {"name": "now"}}, "{}") == {}
    schema = {"properties": {"x": {"type": "integer"}}, "required": ["x"]}
    for elsewhere in ({"$ref": "#/$defs/a"}, {"allOf": [schema]}, {"anyOf": [schema]}):  # that list the properties
        assert read({"name": "go", "parameters": {**elsewhere, "$defs": {"a": schema}}}, '{"x": 3}') == {"x": 3}
    with pytest.raises(ValueError, match="no full match"):
        read({"type": "function", "function": {"name": "now"}}, '{"x": 1}')
    with pytest.raises(ValueError, match="no full match"):
        read(add, '{"x": 1, "z": 3}')


def test_a_template_is_told_of_them_as_openai_has_it() -> None:
    told = [
        tool["function"] for tool in tools_for_template([add, Visit, {"type": "function", "function": {"name": "f"}}])
    ]
    assert [tool["name"] for tool in told] == ["add", "Visit", "f"]
    assert told[0]["description"].startswith("Add two numbers.")
    assert told[0]["parameters"]["properties"] == {
        "x": {"type": "integer", "description": "the first of them."},
        "y": {"type": "integer", "description": "the second.", "default": 2},
        "schema": {"type": "boolean", "default": False},
    }
    assert told[0]["parameters"]["required"] == ["x"]
    assert told[1]["parameters"]["properties"]["when"] == {"type": "string", "format": "date"}
    assert told[2]["parameters"] == {"type": "object", "properties": {}}


def bare(x):  # type: ignore[no-untyped-def]
    return x


def listed(*numbers: int) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tools": []}, "a list of at least one tool"),
        ({"tools": add}, "a list of at least one tool"),
        ({"tools": [add, add]}, "two tools are named 'add'"),
        ({"tools": [bare]}, "the parameter 'x' of the tool 'bare' has no type hint"),
        ({"tools": [listed]}, "takes \\*numbers: int; tools take named parameters alone"),
        ({"tools": [int]}, "a tool is a function with type hints"),
        ({"tools": ["add"]}, "a tool is a function with type hints"),
        ({"tools": [{"type": "function"}]}, "a tool must be as"),
        ({"tools": [{"name": "f", "parameters": {"type": "array"}}]}, "must be a JSON Schema of type object"),
        ({"tools": [add], "choice": "sub"}, r'choice must be "auto", .* name of a tool \(add\), got \'sub\''),
        ({"tools": [add], "format": "qwen"}, "format must be one of hermes, llama3, mistral, gpt-oss"),
        ({"tools": [add], "parallel": 1}, "parallel must be True or False"),
    ],
)
def test_what_is_no_tool_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(gen.ArgumentError, match=message):
        gen.tool_calls(**arguments)
