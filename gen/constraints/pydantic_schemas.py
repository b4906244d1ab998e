"""Pydantic's JSON Schema of a type, with marks where it says less than pydantic checks."""

from collections.abc import Iterable
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaValidator, to_json

from gen.errors import show

ALONE = "x-pydantic-alone"  # marks what JSON Schema cannot say; the value names it
UNREAD = "x-pydantic-unread"  # marks options of which pydantic reads one from no JSON; the value names that one
ELSEWHERE = "x-pydantic-elsewhere"  # marks a field that pydantic does not read by its name; the value says where
CONVERTED = "x-pydantic-converted"  # marks what a function of the user's may make readable
_SHORT_NUMBERS = "^[A-Z]+([0-9]{1,6}[A-Z]+)*$"  # of a duration, that no sum of them is too large
_OF_THE_WEB = frozenset({"http", "https", "ws", "wss", "ftp"})
_HOST_AND_PATH = (
    r"([a-z0-9]{1,20}(-[a-z0-9]{1,20}){0,2}\.){1,3}[a-z]{2,12}(:[1-9][0-9]{0,3})?"
    r"(/[A-Za-z0-9._~-]{0,64}){0,9}(\?[A-Za-z0-9._~=&-]{0,128})?(#[A-Za-z0-9._~-]{0,64})?"
)


def _counted(digits: int | None, places: int | None) -> str:
    """The pattern of decimal numbers of at most so many digits, at most so many of them after the point."""
    if digits is not None and places is not None:
        places = min(digits, places)
    before = min(18, 18 if digits is None else digits - (places or 0))
    if before < 1:
        return rf"^-?0\.[0-9]{{1,{places}}}$"
    whole = f"(0|[1-9][0-9]{{0,{before - 1}}})"
    return rf"^-?{whole}(\.[0-9]{{1,{places}}})?$" if places else f"^-?{whole}$"


def _options(schema: Any, options: Iterable[Any], made: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of some options, marked if pydantic does not read what it writes of one of them."""
    reader = SchemaValidator(schema)
    for option in options:
        try:
            reader.validate_json(to_json(option))
        except ValueError:
            return {**made, UNREAD: show(option)}
    return made


class PydanticSchemas(GenerateJsonSchema):
    """Pydantic's JSON Schema, with marks where it says less than pydantic checks."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012, as pydantic has it

    def enum_schema(self, schema: Any) -> Any:
        """The values of an Enum; pydantic writes some that it does not read, such as tuples and dates."""
        return _options(schema, schema["members"], super().enum_schema(schema))

    def literal_schema(self, schema: Any) -> Any:
        """As of an Enum."""
        return _options(schema, schema["expected"], super().literal_schema(schema))

    def field_is_present(self, field: Any) -> bool:
        """Whether a field is read at all: a dataclass makes some by itself."""
        return bool(field.get("init", True)) and super().field_is_present(field)

    def model_field_schema(self, schema: Any) -> Any:
        """A field of a model, which may have other names, or only places in what has other names."""
        return self._named(schema, super().model_field_schema(schema))

    def dataclass_field_schema(self, schema: Any) -> Any:
        """As of a model."""
        return self._named(schema, super().dataclass_field_schema(schema))

    def typed_dict_field_schema(self, schema: Any) -> Any:
        """As of a model."""
        return self._named(schema, super().typed_dict_field_schema(schema))

    def function_before_schema(self, schema: Any) -> Any:
        """What a function of the user's has read first."""
        return {**super().function_before_schema(schema), CONVERTED: True}

    def function_wrap_schema(self, schema: Any) -> Any:
        """As above."""
        return {**super().function_wrap_schema(schema), CONVERTED: True}

    def date_schema(self, schema: Any) -> Any:
        """A date; its bounds are pydantic's alone."""
        return self._moment(schema, super().date_schema(schema))

    def datetime_schema(self, schema: Any) -> Any:
        """As of a date; and texts always name an offset from UTC."""
        return self._moment(schema, super().datetime_schema(schema))

    def time_schema(self, schema: Any) -> Any:
        """As of a datetime."""
        return self._moment(schema, super().time_schema(schema))

    def timedelta_schema(self, schema: Any) -> Any:
        """A duration; its bounds are pydantic's alone."""
        return self._moment(schema, {**super().timedelta_schema(schema), "pattern": _SHORT_NUMBERS})

    def url_schema(self, schema: Any) -> Any:
        """A URL of the web, of few characters, which all parsers read alike."""
        schemes = schema.get("allowed_schemes") or sorted(_OF_THE_WEB)
        if set(schemes) <= _OF_THE_WEB:
            return {"type": "string", "pattern": f"^({'|'.join(schemes)})://{_HOST_AND_PATH}$"}
        return {ALONE: f"a URL of the schemes {', '.join(schemes)}"}

    def multi_host_url_schema(self, schema: Any) -> Any:
        """No URI of JSON Schema."""
        return {**super().multi_host_url_schema(schema), ALONE: "a URL with several hosts"}

    def decimal_schema(self, schema: Any) -> Any:
        """A number; where digits are counted a string, whose pattern counts them."""
        number, text = super().decimal_schema(schema)["anyOf"]
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        if digits is None and places is None:
            return number
        text["pattern"] = _counted(digits, places)
        bounded = any(schema.get(name) is not None for name in ("gt", "ge", "lt", "le", "multiple_of"))
        return {**text, ALONE: "a decimal number with bounds and counted digits"} if bounded else text

    def complex_schema(self, schema: Any) -> Any:
        """A text of a form of its own."""
        return {**super().complex_schema(schema), ALONE: "a complex number"}

    def is_subclass_schema(self, schema: Any) -> Any:
        """No JSON is a class."""
        return {ALONE: "a class"}

    def call_schema(self, schema: Any) -> Any:
        """Named tuples, in some versions; and functions, which pydantic would call."""
        if isinstance(schema["function"], type):
            return super().call_schema(schema)
        return {ALONE: "a function, which pydantic would call,"}

    def dict_schema(self, schema: Any) -> Any:
        """Also says what keys are that are no strings."""
        made = super().dict_schema(schema)
        keys = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
        kind = keys.get("type", "string")
        if kind == "integer":
            made["propertyNames"] = keys
        elif kind != "string":
            made[ALONE] = f"keys of type {kind}"
        return made

    def _named(self, field: Any, made: Any) -> Any:
        """A field's JSON schema, marked if pydantic reads it by no name: all its aliases are paths."""
        alias = field.get("validation_alias")
        if not isinstance(alias, list) or any(isinstance(path, list) and len(path) == 1 for path in alias):
            return made
        if any(getattr(self._config, option, False) for option in ("validate_by_name", "populate_by_name")):
            return made
        return {**made, ELSEWHERE: show(alias)}

    def _moment(self, schema: Any, made: Any) -> Any:
        names = [name for name in ("gt", "ge", "lt", "le", "now_op") if schema.get(name) is not None]
        if schema.get("tz_constraint") not in (None, "aware"):
            names.append("tz_constraint")
        return {**made, ALONE: f"{names[0]} of a {schema['type']}"} if names else made
