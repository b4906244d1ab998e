"""Pydantic's JSON Schema of a type, with marks where it says less than pydantic checks."""

import logging
import re
from collections.abc import Iterable
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaValidator, to_json

from gen.constraints.pydantic_spelling import dates, decimals, moments, naive
from gen.errors import show

logger = logging.getLogger("gen")
ALONE = "x-pydantic-alone"  # marks what JSON Schema cannot say; the value names it
UNREAD = "x-pydantic-unread"  # marks options; the value names one that pydantic reads from no JSON
ELSEWHERE = "x-pydantic-elsewhere"  # marks a field that pydantic does not read by its name; the value says where
CONVERTED = "x-pydantic-converted"  # marks values that a function of the user's may make readable
_SHORT_NUMBERS = "^[A-Z]+([0-9]{1,6}[A-Z]+)*$"  # of a duration; short, so that no sum of them is too large
_OF_THE_WEB = frozenset({"http", "https", "ws", "wss", "ftp"})
_HOST_AND_PATH = (
    r"([a-z0-9]{1,20}(-[a-z0-9]{1,20}){0,2}\.){1,3}[a-z]{2,12}(:[1-9][0-9]{0,3})?"
    r"(/[A-Za-z0-9._~-]{0,64}){0,9}(\?[A-Za-z0-9._~=&-]{0,128})?(#[A-Za-z0-9._~-]{0,64})?"
)


_BOUNDS = ("gt", "ge", "lt", "le")
_SETS = re.compile(r"\[[^\]]*(\[|&&|--|~~)")
_ASCII = r"^[\x00-\x7f]*$"
_STRIPPED = r"^(\S|\S[\s\S]*\S)?$"
_SCALARS = ["null", "boolean", "number", "string"]


def _of_hashable(schema: Any, made: Any) -> Any:
    """The JSON schema of a set, marked if its members may be unhashable; members of any type become scalars."""
    members = schema.get("items_schema", {"type": "any"})
    if members["type"] == "any":
        return {**made, "items": {"type": _SCALARS}}
    unhashable = _unhashable(members)
    return {**made, ALONE: f"a set of {unhashable}"} if unhashable else made


def _unhashable(schema: Any) -> str:
    """Which of a core schema's values cannot be hashed; "" if all can."""
    kind = schema["type"]
    if kind in ("any", "list", "dict", "set", "typed-dict", "deque", "counter", "ordered-dict"):
        return "values of any type" if kind == "any" else f"{kind}s, which cannot be hashed"
    if kind in ("model", "dataclass"):
        return "" if getattr(schema["cls"], "__hash__", None) else f"{schema['cls'].__name__}, which cannot be hashed"
    inner = [schema[name] for name in ("schema", "items_schema") if isinstance(schema.get(name), dict)]
    for name in ("items_schema", "choices"):
        found = schema.get(name, ())
        inner += (
            found.values()
            if isinstance(found, dict) and "type" not in found
            else found
            if isinstance(found, list)
            else ()
        )
    return next((what for one in inner if (what := _unhashable(one[0] if isinstance(one, tuple) else one))), "")


def _options(schema: Any, options: Iterable[Any], made: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of some options, marked if pydantic cannot read the JSON that it writes for one of them."""
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
        """As for an Enum."""
        return _options(schema, schema["expected"], super().literal_schema(schema))

    def field_is_present(self, field: Any) -> bool:
        """Whether a field is read at all: a dataclass sets some itself."""
        return bool(field.get("init", True)) and super().field_is_present(field)

    def model_field_schema(self, schema: Any) -> Any:
        """A field of a model, which may have aliases, or only paths into other fields."""
        return self._named(schema, super().model_field_schema(schema))

    def dataclass_field_schema(self, schema: Any) -> Any:
        """As for a model."""
        return self._named(schema, super().dataclass_field_schema(schema))

    def typed_dict_field_schema(self, schema: Any) -> Any:
        """As for a model."""
        return self._named(schema, super().typed_dict_field_schema(schema))

    def function_before_schema(self, schema: Any) -> Any:
        """A value that a function of the user's reads first."""
        return {**super().function_before_schema(schema), CONVERTED: True}

    def function_wrap_schema(self, schema: Any) -> Any:
        """As above."""
        return {**super().function_wrap_schema(schema), CONVERTED: True}

    def str_schema(self, schema: Any) -> Any:
        """A string. Its model's settings hold for it, too; where pydantic strips whitespace, none is at either end."""
        settings = {name: getattr(self._config, f"str_{name}", None) for name in ("min_length", "max_length")}
        schema = {**{name: limit for name, limit in settings.items() if limit}, **schema}
        made = super().str_schema(schema)
        pattern = schema.get("pattern", "")
        if isinstance(pattern, str) and _SETS.search(re.sub(r"\\.", "", pattern)):
            made[ALONE] = f"the pattern {show(pattern)}, whose brackets its engine reads as sets within sets,"
        if (
            pattern
            and isinstance(pattern, str)
            and not pattern.startswith(("^", r"\A"))
            and not pattern.endswith(("$", r"\z"))
        ):
            logger.warning("pattern=%s matches anywhere in a text; write ^...$ for whole texts", show(pattern))
        extra = [_ASCII] if schema.get("ascii_only") else []
        if schema.get("strip_whitespace") or getattr(self._config, "str_strip_whitespace", False):
            extra.append(_STRIPPED)
        return {**made, "allOf": [{"pattern": pattern} for pattern in extra]} if extra else made

    def set_schema(self, schema: Any) -> Any:
        """A set, whose members can be hashed."""
        return _of_hashable(schema, super().set_schema(schema))

    def frozenset_schema(self, schema: Any) -> Any:
        """As for a set."""
        return _of_hashable(schema, super().frozenset_schema(schema))

    def float_schema(self, schema: Any) -> Any:
        """A number; multiples are limited to what a float holds exactly."""
        made = super().float_schema(schema)
        if "multipleOf" in made:
            made["minimum"] = max(made.get("minimum", -(2**53)), -(2**53))
            made["maximum"] = min(made.get("maximum", 2**53), 2**53)
        return made

    def date_schema(self, schema: Any) -> Any:
        """A date between its bounds; only pydantic can check that it is before or after today."""
        made, bounds = self._moment(schema, super().date_schema(schema), "now_op")
        return {**made, "pattern": dates(bounds)} if bounds else made

    def datetime_schema(self, schema: Any) -> Any:
        """As for a date; texts always name an offset from UTC, unless there must be none, and are in UTC if bounded."""
        if schema.get("tz_constraint") == "naive":
            schema = {name: said for name, said in schema.items() if name != "tz_constraint"}
            made, bounds = self._moment(schema, {"type": "string", "pattern": naive()}, "now_op")
            return {**made, ALONE: "a bound of a datetime without an offset from UTC"} if bounds else made
        made, bounds = self._moment(schema, super().datetime_schema(schema), "now_op")
        try:
            return {**made, "pattern": moments(bounds)} if bounds else made
        except ValueError as error:
            return {**made, ALONE: f"a bound of a datetime, of which {error},"}

    def time_schema(self, schema: Any) -> Any:
        """As for a datetime."""
        return self._moment(schema, super().time_schema(schema), *_BOUNDS)[0]

    def timedelta_schema(self, schema: Any) -> Any:
        """A duration; only pydantic can check its bounds."""
        return self._moment(schema, {**super().timedelta_schema(schema), "pattern": _SHORT_NUMBERS}, *_BOUNDS)[0]

    def url_schema(self, schema: Any) -> Any:
        """A URL of the web, of few characters, which all parsers read alike."""
        schemes = schema.get("allowed_schemes") or sorted(_OF_THE_WEB)
        if set(schemes) <= _OF_THE_WEB:
            return {"type": "string", "pattern": f"^({'|'.join(schemes)})://{_HOST_AND_PATH}$"}
        return {ALONE: f"a URL of the schemes {', '.join(schemes)}"}

    def multi_host_url_schema(self, schema: Any) -> Any:
        """Not a URI as JSON Schema has it."""
        return {**super().multi_host_url_schema(schema), ALONE: "a URL with several hosts"}

    def decimal_schema(self, schema: Any) -> Any:
        """A number; if its digits are limited, a string whose pattern counts them."""
        number, text = super().decimal_schema(schema)["anyOf"]
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        if digits is None and places is None:
            return number
        bounds = {name: schema[name] for name in _BOUNDS if schema.get(name) is not None}
        text["pattern"] = decimals(digits, places, bounds)
        multiple = schema.get("multiple_of") is not None
        return {**text, ALONE: "a multiple with counted digits"} if multiple else text

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
        """A dict, with a schema of its keys if they are not just strings."""
        return self._keyed(schema, super().dict_schema(schema))

    def counter_schema(self, schema: Any) -> Any:
        """As for a dict."""
        return self._keyed(schema, super().counter_schema(schema))

    def ordered_dict_schema(self, schema: Any) -> Any:
        """As for a dict."""
        return self._keyed(schema, super().ordered_dict_schema(schema))

    def frozendict_schema(self, schema: Any) -> Any:
        """As for a dict."""
        return self._keyed(schema, super().frozendict_schema(schema))

    def _keyed(self, schema: Any, made: Any) -> Any:
        keys = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
        if keys and keys != {"type": "string"}:
            made["propertyNames"] = keys
        return made

    def _named(self, field: Any, made: Any) -> Any:
        """A field's JSON schema, marked if pydantic reads it by no name: all its aliases are paths."""
        alias = field.get("validation_alias")
        if not isinstance(alias, list) or any(isinstance(path, list) and len(path) == 1 for path in alias):
            return made
        if any(getattr(self._config, option, False) for option in ("validate_by_name", "populate_by_name")):
            return made
        return {**made, ELSEWHERE: show(alias)}

    def _moment(self, schema: Any, made: Any, *alone: str) -> tuple[Any, dict[str, Any]]:
        """A moment's JSON schema and its bounds; marked if it has one of the settings `alone`, for pydantic only."""
        bounds = {name: schema[name] for name in _BOUNDS if schema.get(name) is not None}
        names = [name for name in alone if schema.get(name) is not None]
        if schema.get("tz_constraint") not in (None, "aware"):
            names.append("tz_constraint")
        return ({**made, ALONE: f"{names[0]} of a {schema['type']}"} if names else made), bounds
