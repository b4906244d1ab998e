"""Pydantic's JSON Schema of a type, with marks where it says less than pydantic checks.

A schema with the mark `REFUSED` is none that gen can write; the mark's value says why.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import combinations
from math import inf, isfinite, nextafter
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaValidator, to_json

from gen.constraints.automata.parsing import with_flags
from gen.constraints.output_types import REFUSED, with_also
from gen.constraints.pydantic_limits import (
    LENGTHS,
    NUMBERS,
    changes,
    converts,
    counts_digits,
    kinds_of,
    limited,
    own_limits,
    str_step,
)
from gen.constraints.pydantic_spelling import NAIVE, dates, decimals, moments
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
    r"^(?:[^\\]|\\.)*?\(\?[a-z]*x[a-z-]*[:)].*\[": "in whose brackets its engine reads no spaces",
}
"""What pydantic's engine reads otherwise than Python's re, in patterns that both read."""
_ASCII = r"^[\x00-\x7f]*$"
_STRIPPED = r"^(\S|\S[\s\S]*\S)?$"
_PLAINER = "take a plainer type, such as Annotated[str, Field(pattern=...)], and convert the value"
_ALONE = {"complex": "a complex number", "is-subclass": "a class", "multi-host-url": "a URL with several hosts"}
_SCALARS = ["null", "boolean", "number", "string"]
_NOT_READ = ("serialization", "metadata", "cls", "default", "python_schema", "strict_schema")


def alone(what: str) -> dict[str, str]:
    """The mark of a schema that says less than pydantic checks."""
    return {REFUSED: f"{what} is what pydantic alone can check; {_PLAINER}"}


def _options_in(schema: Any) -> list[Any]:
    """The values of a core schema that may be equal to a bool, or be one."""
    kind = schema["type"]
    if kind in ("bool", "int", "float", "decimal"):
        return [False, True] if kind == "bool" else [0, 1]
    return [*schema.get("members" if kind == "enum" else "expected", ())]


def _unhashable(schema: Any) -> str:
    """Which of a core schema's values cannot be hashed; "" if all can."""
    kind = schema["type"]
    if kind in ("any", "list", "dict", "set", "typed-dict", "deque", "counter", "ordered-dict", "generator"):
        return "values of any type" if kind == "any" else f"{kind}s, which cannot be hashed"
    if kind in ("model", "dataclass"):
        return "" if getattr(schema["cls"], "__hash__", None) else f"{schema['cls'].__name__}, which cannot be hashed"
    return ""


def _hashes_its_fields(schema: Any) -> bool:
    """Whether to hash a core schema's value is to hash what it is made of: a class may have a function of its own."""
    own = getattr(schema["cls"].__hash__, "__code__", None) if schema["type"] in ("model", "dataclass") else None
    made = own is not None and (own.co_filename == "<string>" or own.co_name == "hash_func")  # by dataclasses, pydantic
    return made or schema["type"] not in ("model", "dataclass")


def core_schemas(node: Any, looks_into: Callable[[Any], bool] = lambda schema: True) -> Iterator[dict[str, Any]]:
    """A core schema and all core schemas in it that read JSON."""
    todo = [node]
    while todo:
        here = todo.pop()
        if isinstance(here, dict):
            is_schema = isinstance(here.get("type"), str)  # else fields or choices, which may have any names
            if is_schema:
                yield here
            if not is_schema or looks_into(here):
                todo += [value for name, value in here.items() if not is_schema or name not in _NOT_READ]
        elif isinstance(here, list | tuple):
            todo += here


def _is_exact(bound: Any) -> bool:
    """Whether a bound is the number that its text is, as a float, too."""
    if not isinstance(bound, int | float | Decimal):
        return False
    return not isfinite(bound) or Fraction(float(bound)) == Fraction(str(bound))


def _within(bound: Decimal | float, name: str) -> int | float:
    """A bound as JSON has it, no further out where no float is the bound itself."""
    exact, nearest = Fraction(str(bound)), float(bound)
    if exact.denominator == 1:
        return int(exact)
    if name in ("lt", "le"):
        return nextafter(nearest, -inf) if Fraction(repr(nearest)) > exact else nearest
    return nextafter(nearest, inf) if Fraction(repr(nearest)) < exact else nearest


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

    _referred: dict[str, Any] = {}  # noqa: RUF012, replaced, never changed: core schemas by what refers to them
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012, as pydantic has it

    def build_schema_type_to_method(self) -> Any:
        """The methods for the kinds of types, with what is added to their schemas."""
        methods: dict[Any, Any] = super().build_schema_type_to_method()
        added = {
            _options: ("enum", "literal"),
            _converted: ("function-before", "function-wrap"),
            self._of_hashable: ("set", "frozenset"),
            self._keyed: ("dict", "counter", "ordered-dict", "frozendict"),
            self._checked: ("function-after",),
            _with_others: ("model-fields",),
            self._named: ("model-field", "dataclass-field", "typed-dict-field"),
        }
        for add, kinds in added.items():
            for kind in methods.keys() & kinds:
                methods[kind] = partial(_with, methods[kind], add)
        return methods | {kind: lambda _, what=what: alone(what) for kind, what in _ALONE.items()}

    def field_is_present(self, field: Any) -> bool:
        """Whether a field is read at all: a dataclass sets some itself."""
        return bool(field.get("init", True)) and super().field_is_present(field)

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Whether a field must be there: also if pydantic reads its default and refuses it, or if it makes one from
        the other fields.
        """
        own = field["schema"]
        read = own.get("validate_default") or getattr(self._config, "validate_default", False)
        if own["type"] == "default" and read:
            asked: Any = {"schema": {**own, "validate_default": True}, "definitions": [*self._referred.values()]}
            try:
                SchemaValidator({"type": "definitions", **asked}).get_default_value()
            except Exception:  # a function that makes the default may raise any
                return True
        return super().field_is_required(field, total)

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

    def definitions_schema(self, schema: Any) -> Any:
        """A type with those that it refers to."""
        self._referred = self._referred | {one["ref"]: one for one in schema["definitions"]}
        return super().definitions_schema(schema)

    def chain_schema(self, schema: Any) -> Any:
        """A value that is read in steps: what later ones ask of a string is asked of the text, even where a validator
        stands between.
        """
        made = super().chain_schema(schema)
        first, *later = schema["steps"]
        for step in filter(None, map(str_step, later)):
            made = self._limited(first, made, "pattern", self.generate_inner(step))
        return made

    def update_with_validations(self, json_schema: Any, core_schema: Any, mapping: Any) -> None:
        """Write the limits of a type, Decimals as the numbers for which pydantic takes them there."""
        super().update_with_validations(json_schema, core_schema, mapping)
        kind = int if core_schema["type"] == "int" else float
        json_schema |= {word: kind(said) for word, said in json_schema.items() if isinstance(said, Decimal)}

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
            made, bounds = self._moment(schema, {"type": "string", "pattern": NAIVE}, "now_op")
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
        made = {**super().timedelta_schema(schema), "pattern": _SHORT_NUMBERS}
        return self._moment(schema, made, *_BOUNDS, "multiple_of")[0]

    def tuple_schema(self, schema: Any) -> Any:
        """A tuple, whose own places hold beside the limits of its length."""
        made = super().tuple_schema(schema)
        unlimited: Any = {name: said for name, said in schema.items() if name not in LENGTHS}
        places = super().tuple_schema(unlimited)
        tightest = (("minItems", max), ("maxItems", min))
        return made | {word: chosen(made[word], places[word]) for word, chosen in tightest if word in places}

    def url_schema(self, schema: Any) -> Any:
        """A URL of the web, of few characters, which all parsers read alike."""
        schemes = schema.get("allowed_schemes") or sorted(_OF_THE_WEB)
        if set(schemes) <= _OF_THE_WEB:
            made = {"type": "string", "pattern": f"^({'|'.join(schemes)})://{_HOST_AND_PATH}$"}
            most = schema.get("max_length") or _LONGEST_URL
            return {**made, "maxLength": most - 1} if most < _LONGEST_URL else made  # a slash may be added
        return {**alone(f"a URL of the schemes {', '.join(schemes)}")}

    def decimal_schema(self, schema: Any) -> Any:
        """A number; if its digits are limited, a string whose pattern counts them."""
        number, text = super().decimal_schema(schema)["anyOf"]
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        bounds = {name: schema[name] for name in _BOUNDS if schema.get(name) is not None}
        multiple = schema.get("multiple_of")
        if digits is not None or places is not None:
            text["pattern"] = decimals(digits, places, bounds)
            return {**text, **alone("a multiple with counted digits")} if multiple is not None else text
        if multiple is None:
            return number | {NUMBERS[name]: _within(one, name) for name, one in bounds.items() if isfinite(one)}
        exact = Fraction(str(float(multiple))) == Fraction(str(multiple))
        return number if exact else {**number, **alone(f"a multiple of {multiple}")}

    def call_schema(self, schema: Any) -> Any:
        """Named tuples, in some versions; and functions, which pydantic would call."""
        if isinstance(schema["function"], type):
            return super().call_schema(schema)
        return alone("a function, which pydantic would call,")

    def tagged_union_schema(self, schema: Any) -> Any:
        """Alternatives that pydantic tells apart by a property, which must be there even if it has a default."""
        made = super().tagged_union_schema(schema)
        if callable(schema["discriminator"]):  # it decides, also where a value is of several of them
            return {"anyOf": made["oneOf"]}
        if "discriminator" not in made:  # an alias, whose alternatives are not all known yet
            return {**made, "anyOf": [{"required": path} for path in schema["discriminator"]]}
        name = made["discriminator"]["propertyName"]
        asked = [{**one, "required": [*one.get("required", ()), name]} for one in made["oneOf"]]
        return {**made, "oneOf": asked}

    def _checked(self, schema: Any, made: Any) -> Any:
        """The JSON schema of a value that a function looks at last."""
        inner = schema["schema"]
        for name, bound in own_limits(schema).items():
            asked: dict[str, Any] = {}
            if name in LENGTHS:
                read = {one["type"] for one in core_schemas(inner)} if name == "max_length" else set()
                asked = {"allOf": [dict.fromkeys(LENGTHS[name], bound - ("url" in read))]}  # which a slash may end
                if "bytes" in read:  # which pydantic counts, of secrets
                    asked["pattern"] = _ASCII
            elif name in NUMBERS and _is_exact(bound):
                asked = {NUMBERS[name]: float(bound)} if isfinite(bound) else {}
            elif name != "allow_inf_nan":
                return {**made, **alone(f"{name} of what is not plainly of one type")}
            made = self._limited(inner, made, name, asked, (name, bound) == ("min_length", 1))
        return made

    def _limited(self, schema: Any, made: Any, name: str, asked: Any, least: bool = False) -> Any:
        """The JSON schema of values that are limited after they are read, without those that know no such limit."""
        types = limited(kinds_of(schema, self._referred, self._config), name, least)
        if isinstance(types, str):
            why = f"pydantic knows {types} alone, and raises a TypeError for what else this type has"
            where = "write it where such values are, as in list[Annotated[int, Field(gt=0)]]"
            return {**made, REFUSED: f"{why}; {where}, or {_PLAINER}"}
        return with_also(made, {**asked, "type": types} if types else asked)

    def _of_hashable(self, schema: Any, made: Any) -> Any:
        """The JSON schema of a set, marked if its members may be unhashable; members of any type become scalars."""
        members = schema.get("items_schema", {"type": "any"})
        if members["type"] == "any":
            return {**made, "items": {"type": _SCALARS}}
        parts = [*self._made_of(members)]
        if unhashable := next(filter(None, map(_unhashable, parts)), ""):
            return {**made, **alone(f"a set of {unhashable}")}
        pairs = combinations([option for part in parts for option in _options_in(part)], 2)
        alike = any(one == other and isinstance(one, bool) is not isinstance(other, bool) for one, other in pairs)
        if schema.get("min_length", 0) > 1 and (alike or any(map(self._written_twice, parts))):
            return {**made, REFUSED: "at least two members that may be read as one, such as 1 and True"}
        return made

    def _made_of(self, schema: Any) -> Iterator[Any]:
        """A core schema, and those of what its values are made of, or of what they may be; only of what is hashed."""
        todo, seen = [schema], set[str]()
        while todo:
            for one in core_schemas(todo.pop(), _hashes_its_fields):
                yield one
                if one["type"] == "definition-ref" and one["schema_ref"] not in seen:
                    seen.add(one["schema_ref"])
                    todo.append(self._referred[one["schema_ref"]])

    def _written_twice(self, schema: Any) -> bool:
        """Whether two strings, or a string and a number, may be read as one value."""
        cases = schema["type"] == "str" and changes(schema, self._config, "to_lower", "to_upper")
        return cases or counts_digits(schema)

    def _keyed(self, schema: Any, made: Any) -> Any:
        """The JSON schema of a dict, with a schema of its keys if they are not just strings."""
        keys = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
        if keys and keys != {"type": "string"}:
            made["propertyNames"] = keys
        least = schema.get("min_length", 0)
        if least > 1 and converts(schema, self._config):
            made |= {REFUSED: f"at least {least} keys that may be read as one; take keys of type int or str"}
        return made

    def _named_required_fields_schema(self, named_required_fields: Any) -> Any:
        """The fields. What two of them are read from is for both; objects have no further property from which pydantic
        would read one.
        """
        made = super()._named_required_fields_schema(named_required_fields)
        by_alias = getattr(self._config, "validate_by_alias", None) is not False
        readers: dict[str, list[Any]] = {}
        deep = set[str]()  # names in whose values pydantic looks for other fields
        for own, _, field in named_required_fields:
            alias = field.get("validation_alias", own) if by_alias else own  # a name, a path, or a list of paths
            paths = alias if isinstance(alias, list) and isinstance(alias[0], list) else [alias]
            paths = [[one] if isinstance(one, str) else one for one in paths]
            deep |= {path[0] for path in paths if len(path) > 1}
            for name in {path[0] for path in [*paths, *([own],) * self._by_name]}:
                readers.setdefault(name, []).append(field)
        for name, fields in readers.items():
            if name in made["properties"] and len(fields) > 1:
                one = made["properties"][name] | {"allOf": [self.generate_inner(field) for field in fields]}
                made["properties"][name] = one | alone(f"a part of {name!r} as another field") if name in deep else one
        others = [{"required": [name]} for name in sorted(readers.keys() - made["properties"].keys())]
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
