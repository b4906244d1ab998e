"""Pydantic's JSON Schema of a type, with marks where it says less than pydantic checks.

A schema with the mark `REFUSED` is none that gen can write; the mark's value says why.
"""

import json
import logging
import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaValidator, to_json

from gen.constraints.automata.parsing import with_flags
from gen.constraints.output_types import REFUSED
from gen.constraints.pydantic_spelling import dates, decimals, moments, naive
from gen.errors import show

logger = logging.getLogger("gen")
UNREAD = "x-gen-unread"  # marks options of which pydantic reads one from no JSON; the value says so
UNKEYED = "x-gen-unkeyed"  # marks options of which pydantic reads one from no key of an object
CONVERTED = "x-gen-converted"  # marks values that a function of the user's may make readable
_SHORT_NUMBERS = "^[A-Z]+([0-9]{1,6}[A-Z]+)*$"  # of a duration; short, so that no sum of them is too large
_OF_THE_WEB = frozenset({"http", "https", "ws", "wss", "ftp"})
_HOST_AND_PATH = (
    r"([a-z0-9]{1,20}(-[a-z0-9]{1,20}){0,2}\.){1,3}[a-z]{2,12}(:[1-9][0-9]{0,3})?"
    r"(/[A-Za-z0-9._~-]{0,64}){0,9}(\?[A-Za-z0-9._~=&-]{0,128})?(#[A-Za-z0-9._~-]{0,64})?"
)
_LONGEST_URL = 1024  # more than those have

_BOUNDS = ("gt", "ge", "lt", "le")
_READ_OTHERWISE = {
    r"^(?:[^\\]|\\.)*?\[(?:[^\]\\]|\\.)*(?:\[|&&|--|~~)": "whose brackets its engine reads as sets within sets",
    r"^(?:[^\\]|\\.)*?\\(?:[<>]|b\{)": "in which its engine reads \\< and \\b{ as ends of words",
    r"^\(\?[a-z]*x.*\[": "in whose brackets its engine reads no spaces",
}
"""What pydantic's engine reads otherwise than Python's re, in patterns that both read."""
_ASCII = r"^[\x00-\x7f]*$"
_STRIPPED = r"^(\S|\S[\s\S]*\S)?$"
_SCALARS = ["null", "boolean", "number", "string"]


def alone(what: str) -> dict[str, str]:
    """The mark of a schema that says less than pydantic checks."""
    return {
        REFUSED: f"{what} is what pydantic alone can check; take a plainer type, such as "
        "Annotated[str, Field(pattern=...)], and convert the value"
    }


def _options_in(schema: Any) -> list[Any]:
    """The values of a core schema that may be equal to a bool, or be one."""
    kind = schema["type"]
    if kind in ("bool", "int", "float"):
        return [False, True] if kind == "bool" else [0, 1]
    own = schema.get("members" if kind == "enum" else "expected", ())
    return [*own, *(one for inner in _inner(schema) for one in _options_in(inner))]


def _unhashable(schema: Any) -> str:
    """Which of a core schema's values cannot be hashed; "" if all can."""
    kind = schema["type"]
    if kind in ("any", "list", "dict", "set", "typed-dict", "deque", "counter", "ordered-dict"):
        return "values of any type" if kind == "any" else f"{kind}s, which cannot be hashed"
    if kind in ("model", "dataclass"):
        return "" if getattr(schema["cls"], "__hash__", None) else f"{schema['cls'].__name__}, which cannot be hashed"
    return next((what for one in _inner(schema) if (what := _unhashable(one))), "")


def _inner(schema: Any) -> list[Any]:
    """The core schemas of what a value is made of, or of what it may be."""
    inner = [schema[name] for name in ("schema", "items_schema") if isinstance(schema.get(name), dict)]
    for name in ("items_schema", "choices"):
        found = schema.get(name, ())
        if isinstance(found, dict):
            found = () if "type" in found else found.values()
        inner += found
    return [one[0] if isinstance(one, tuple) else one for one in inner]


def _options(schema: Any, made: Any) -> Any:
    """The JSON schema of some options, marked if pydantic cannot read the JSON that it writes for one of them, such as
    a tuple or a date.
    """
    reader = SchemaValidator(schema)
    for option in schema["members" if schema["type"] == "enum" else "expected"]:
        try:
            reader.validate_json(to_json(option))
        except ValueError:
            why = f"pydantic reads no JSON as {show(option)}; take options that are JSON themselves, such as strings "
            return {**made, UNREAD: f"{why}and numbers, and convert the value"}
    keys = SchemaValidator({"type": "dict", "keys_schema": schema})
    for option in schema["members" if schema["type"] == "enum" else "expected"]:
        try:
            keys.validate_json(json.dumps({json.loads(to_json(option)): None}))
        except (TypeError, ValueError):
            return {**made, UNKEYED: f"pydantic reads no key of JSON as {show(option)}; take options that are strings"}
    return made


def _converted(schema: Any, made: Any) -> Any:
    """The JSON schema of a value that a function of the user's reads first."""
    return {**made, CONVERTED: True}


def _with_others(schema: Any, made: Any) -> Any:
    """The JSON schema of a model's fields, marked if the names of its further properties are limited."""
    names = schema.get("extras_keys_schema", {"type": "str"})
    return made if names == {"type": "str"} else {**made, **alone("a limit of the names of further properties")}


def _with(method: Callable[[Any], Any], add: Callable[[Any, Any], Any], schema: Any) -> Any:
    return add(schema, method(schema))


class PydanticSchemas(GenerateJsonSchema):
    """Pydantic's JSON Schema, with marks where it says less than pydantic checks."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012, as pydantic has it

    def build_schema_type_to_method(self) -> Any:
        """The methods for the kinds of types, with what is added to their schemas."""
        methods: dict[Any, Any] = super().build_schema_type_to_method()
        added = {
            _options: ("enum", "literal"),
            _converted: ("function-before", "function-wrap"),
            self._of_hashable: ("set", "frozenset"),
            self._keyed: ("dict", "counter", "ordered-dict", "frozendict"),
            _with_others: ("model-fields",),
            self._named: ("model-field", "dataclass-field", "typed-dict-field"),
        }
        for add, kinds in added.items():
            for kind in methods.keys() & kinds:
                methods[kind] = partial(_with, methods[kind], add)
        return methods

    def field_is_present(self, field: Any) -> bool:
        """Whether a field is read at all: a dataclass sets some itself."""
        return bool(field.get("init", True)) and super().field_is_present(field)

    def str_schema(self, schema: Any) -> Any:
        """A string. Its model's settings hold for it, too; where pydantic strips whitespace, none is at either end."""
        settings = {name: getattr(self._config, f"str_{name}", None) for name in ("min_length", "max_length")}
        schema = {**{name: limit for name, limit in settings.items() if limit}, **schema}
        made = super().str_schema(schema)
        pattern = schema.get("pattern", "")
        if isinstance(pattern, re.Pattern):  # which Python's re reads
            made["pattern"] = with_flags(pattern)
        elif why := next((why for one, why in _READ_OTHERWISE.items() if re.search(one, pattern, re.DOTALL)), ""):
            made |= alone(f"the pattern {show(pattern)}, {why},")
        elif pattern and not pattern.startswith(("^", r"\A")) and not pattern.endswith(("$", r"\z")):
            logger.warning("pattern=%s matches anywhere in a text; write ^...$ for whole texts", show(pattern))
        extra = [_ASCII] if schema.get("ascii_only") else []
        if schema.get("strip_whitespace") or getattr(self._config, "str_strip_whitespace", False):
            extra.append(_STRIPPED)
        return {**made, "allOf": [{"pattern": pattern} for pattern in extra]} if extra else made

    def float_schema(self, schema: Any) -> Any:
        """A number; multiples are limited to what a float holds exactly, or to where pydantic still takes the floats
        next to multiples of a number that is no float, such as 0.1: up to 2**22 none was refused, beyond 2**23 many.
        """
        made = super().float_schema(schema)
        if "multipleOf" in made:
            step = made["multipleOf"]
            most = 2**53 if Fraction(step) == Fraction(str(step)) else 2**22
            made["minimum"] = max(made.get("minimum", -most), -most)
            made["maximum"] = min(made.get("maximum", most), most)
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
            return {**made, **alone("a bound of a datetime without an offset from UTC")} if bounds else made
        made, bounds = self._moment(schema, super().datetime_schema(schema), "now_op")
        try:
            return {**made, "pattern": moments(bounds)} if bounds else made
        except ValueError as error:
            return {**made, **alone(f"a bound of a datetime, of which {error},")}

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
            made = {"type": "string", "pattern": f"^({'|'.join(schemes)})://{_HOST_AND_PATH}$"}
            most = schema.get("max_length") or _LONGEST_URL
            return {**made, "maxLength": most - 1} if most < _LONGEST_URL else made  # a slash may be added
        return {**alone(f"a URL of the schemes {', '.join(schemes)}")}

    def multi_host_url_schema(self, schema: Any) -> Any:
        """Not a URI as JSON Schema has it."""
        return {**super().multi_host_url_schema(schema), **alone("a URL with several hosts")}

    def decimal_schema(self, schema: Any) -> Any:
        """A number; if its digits are limited, a string whose pattern counts them."""
        number, text = super().decimal_schema(schema)["anyOf"]
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        if digits is None and places is None:
            return number
        bounds = {name: schema[name] for name in _BOUNDS if schema.get(name) is not None}
        text["pattern"] = decimals(digits, places, bounds)
        multiple = schema.get("multiple_of") is not None
        return {**text, **alone("a multiple with counted digits")} if multiple else text

    def complex_schema(self, schema: Any) -> Any:
        """A text of a form of its own."""
        return {**super().complex_schema(schema), **alone("a complex number")}

    def is_subclass_schema(self, schema: Any) -> Any:
        """No JSON is a class."""
        return alone("a class")

    def call_schema(self, schema: Any) -> Any:
        """Named tuples, in some versions; and functions, which pydantic would call."""
        if isinstance(schema["function"], type):
            return super().call_schema(schema)
        return alone("a function, which pydantic would call,")

    def tagged_union_schema(self, schema: Any) -> Any:
        """Alternatives that pydantic tells apart by a property, which must be there even if it has a default."""
        made = super().tagged_union_schema(schema)
        if callable(schema["discriminator"]):
            return made
        if "discriminator" not in made:  # an alias, whose alternatives are not all known yet
            return {**made, "anyOf": [{"required": path} for path in schema["discriminator"]]}
        name = made["discriminator"]["propertyName"]
        asked = [{**one, "required": [*one.get("required", ()), name]} for one in made["oneOf"]]
        return {**made, "oneOf": asked}

    def _of_hashable(self, schema: Any, made: Any) -> Any:
        """The JSON schema of a set, marked if its members may be unhashable; members of any type become scalars."""
        members = schema.get("items_schema", {"type": "any"})
        if members["type"] == "any":
            return {**made, "items": {"type": _SCALARS}}
        if unhashable := _unhashable(members):
            return {**made, **alone(f"a set of {unhashable}")}
        pairs = combinations(_options_in(members), 2)
        alike = any(one == other and isinstance(one, bool) is not isinstance(other, bool) for one, other in pairs)
        if schema.get("min_length", 0) > 1 and (alike or (members["type"] == "str" and self._converts(members))):
            return {**made, REFUSED: "at least two members that may be read as one, such as 1 and True"}
        return made

    def _keyed(self, schema: Any, made: Any) -> Any:
        """The JSON schema of a dict, with a schema of its keys if they are not just strings."""
        keys = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
        if keys and keys != {"type": "string"}:
            made["propertyNames"] = keys
        least = schema.get("min_length", 0)
        if least > 1 and self._converts(schema.get("keys_schema", {"type": "any"})):
            made |= {REFUSED: f"at least {least} keys that may be read as one; take keys of type int or str"}
        return made

    def _converts(self, keys: Any) -> bool:
        """Whether pydantic may read two different keys as one."""
        if keys["type"] == "str":
            return any(keys.get(to) or getattr(self._config, f"str_{to}", False) for to in ("to_lower", "to_upper"))
        return keys["type"] not in ("any", "int", "bool", "date", "literal", "enum")

    def _named_required_fields_schema(self, named_required_fields: Any) -> Any:
        """The fields; objects have no further property from which pydantic would read one."""
        made = super()._named_required_fields_schema(named_required_fields)
        read = {name for name, _, _ in named_required_fields} if self._by_name else set()
        for _, _, field in named_required_fields:
            alias = field.get("validation_alias", [])  # a name, a path, or a list of paths
            firsts = [alias] if isinstance(alias, str) else [one[0] if isinstance(one, list) else one for one in alias]
            read |= {one for one in firsts if isinstance(one, str)}
        others = [{"required": [name]} for name in sorted(read - made["properties"].keys())]
        return {**made, "not": {"anyOf": others}} if others else made

    @property
    def _by_name(self) -> bool:
        """Whether fields that have an alias are read by their own names, too."""
        return any(getattr(self._config, option, False) for option in ("validate_by_name", "populate_by_name"))

    def _named(self, field: Any, made: Any) -> Any:
        """A field's JSON schema, marked if pydantic reads it by no name: all its aliases are paths."""
        alias = field.get("validation_alias")
        if not isinstance(alias, list) or any(isinstance(path, list) and len(path) == 1 for path in alias):
            return made
        if self._by_name:
            return made
        why = (
            f"pydantic looks for this field at {show(alias)} alone, which no name of a JSON Schema says; give it a name"
        )
        advice = "AliasChoices('name', AliasPath(...)), or set validate_by_name=True in its model's config"
        return {**made, REFUSED: f"{why} too, as {advice}"}

    def _moment(self, schema: Any, made: Any, *unchecked: str) -> tuple[Any, dict[str, Any]]:
        """A moment's JSON schema and its bounds; marked if it has one of the settings that JSON Schema cannot say."""
        bounds = {name: schema[name] for name in _BOUNDS if schema.get(name) is not None}
        names = [name for name in unchecked if schema.get(name) is not None]
        if schema.get("tz_constraint") not in (None, "aware"):
            names.append("tz_constraint")
        return ({**made, **alone(f"{names[0]} of a {schema['type']}")} if names else made), bounds


class AllRequired(PydanticSchemas):
    """The same, where fields with defaults must be there too."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        """All fields are."""
        return True

    def named_tuple_schema(self, schema: Any) -> Any:
        """A named tuple, in newer versions."""
        return _whole(super().named_tuple_schema(schema))

    def p_arguments_schema(self, arguments: Any, var_args_schema: Any) -> Any:
        """The fields of a named tuple, in older versions."""
        return _whole(super().p_arguments_schema(arguments, var_args_schema))


def _whole(made: Any) -> Any:
    """The JSON schema of a tuple that has all of its places."""
    return {**made, "minItems": len(made["prefixItems"])} if "prefixItems" in made else made
