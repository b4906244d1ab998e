"""Reads tools: functions with type hints, pydantic models, OpenAI's JSON."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from gen.constraints.output_types import Made, json_schema
from gen.errors import ConstraintError, show
from gen.tools.calls import Tool

ToolLike = Callable[..., object] | type[BaseModel] | Mapping[str, Any]


def read_tools(tools: object) -> list[Tool]:
    """The tools of a list.

    Raises:
        ConstraintError: it is no list of tools, or two tools have the same name.
    """
    if not isinstance(tools, list | tuple) or not tools:
        raise ConstraintError(f"tools must be a list of at least one tool, got {show(tools)}")
    read = [_read(tool) for tool in tools]
    names = [tool.name for tool in read]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConstraintError(f"two tools are named {show(name)}; give each a name of its own.")
    return read


def _read(tool: Any) -> Tool:
    if isinstance(tool, Tool):
        return tool
    if isinstance(tool, Mapping):
        return _of_json(tool)
    if isinstance(tool, type) and issubclass(tool, BaseModel):
        described = _described(tool.__name__, inspect.cleandoc(tool.__doc__ or ""), tool)
        return _tool(tool.__name__, described, tool, lambda value: value)
    if callable(tool) and not isinstance(tool, type) and hasattr(tool, "__name__"):
        return _of_function(tool)
    raise ConstraintError(
        f"a tool is a function with type hints, a pydantic model, or OpenAI's JSON of a function, got {show(tool)}"
    )


def _of_json(tool: Mapping[str, Any]) -> Tool:
    """A tool in OpenAI's JSON, or only the JSON of its "function". Without parameters the tool takes no arguments."""
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise ConstraintError(
            'a tool must be as {"type": "function", "function": {"name": "f", "parameters": {...}}}, got ' + show(tool)
        )
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ConstraintError(
            f"the parameters of the tool {function['name']!r} must be a JSON Schema of type object, got "
            f"{show(parameters)}"
        )
    schema = {"type": "object", "properties": {}, **parameters}
    described = {"type": "function", "function": {**function, "parameters": schema}}
    return _tool(function["name"], described, json_schema(schema), lambda value: value)


def _of_function(function: Callable[..., object]) -> Tool:
    """A function: a pydantic model is made with its parameters as fields; the value of its arguments is a dict."""
    name: str = function.__name__
    try:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError, NameError) as error:
        raise ConstraintError(f"the hints of the tool {name!r} cannot be read: {error}") from error
    about, said = _documented(function)
    fields: dict[str, Any] = {}
    for number, (parameter, known) in enumerate(parameters.items()):
        if known.kind in (known.VAR_POSITIONAL, known.VAR_KEYWORD, known.POSITIONAL_ONLY):
            raise ConstraintError(f"the tool {name!r} takes {known}; tools take named parameters alone.")
        if parameter not in hints:
            raise ConstraintError(f"the parameter {parameter!r} of the tool {name!r} has no type hint; give it one.")
        default = ... if known.default is known.empty else known.default
        # pydantic does not allow every name of a parameter as the name of a field
        fields[f"field{number}"] = (
            hints[parameter],
            Field(default, alias=parameter, description=said.get(parameter)),
        )
    model = create_model(name, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)

    def arguments(value: BaseModel) -> dict[str, Any]:
        given = [field for field in type(value).model_fields if field in value.model_fields_set]
        return {str(type(value).model_fields[field].alias): getattr(value, field) for field in given}

    return _tool(name, _described(name, about, model), model, arguments)


def _tool(name: str, described: Mapping[str, Any], arguments: Any, read: Callable[[Any], Any]) -> Tool:
    return Tool(name, described, Made(arguments, read, f"the arguments of the tool {name!r}"))


def _described(name: str, about: str | None, model: type[BaseModel]) -> dict[str, Any]:
    try:
        parameters = model.model_json_schema()
    except Exception as error:  # pydantic raises errors of many types
        raise ConstraintError(f"the parameters of the tool {name!r} have no JSON Schema: {error}") from error
    parameters.pop("title", None)
    parameters.pop("description", None)
    parameters.setdefault("properties", {})
    for field in parameters["properties"].values():
        field.pop("title", None)
    return {"type": "function", "function": {"name": name, "description": about or "", "parameters": parameters}}


def _documented(function: Callable[..., object]) -> tuple[str, Mapping[str, str]]:
    """What a docstring in Google's style says about a function, and about each parameter."""
    from transformers.utils.chat_template_utils import parse_google_format_docstring

    about, parameters, _ = parse_google_format_docstring(inspect.getdoc(function) or "")
    return about or "", parameters or {}
