"""Output types beside Python types: a pattern, one of some options, a JSON schema, a grammar, parts.

`gen.constraints.plans` makes plans of them. Example: `gen.choice(["yes", 1])` has the texts yes and 1.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, get_origin

from gen.arguments import check_flag, check_text, read_whole
from gen.errors import ConstraintError, show

if TYPE_CHECKING:
    from gen.constraints.schema.writing.writer import Layout

Whitespace = Literal["line", "compact", "indent", "model"]


REFUSED = "x-gen-refused"
"""Marks a JSON schema of pydantic's for a type that is none of gen's; the value says why."""


def with_also(made: Any, asked: Any) -> dict[str, Any]:
    """A JSON schema with what else is asked."""
    return {**made, "allOf": [*made.get("allOf", ()), asked]} if made.keys() & asked.keys() else {**made, **asked}


class _Annotation:
    """Writes a type of Annotated into pydantic's JSON Schema: what it asks of a str, or that it cannot stand there.

    Pydantic's validation ignores it.
    """

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        made = handler(schema)
        asked = self._of_strings() if schema["type"] == "str" else {}
        if not asked:
            name = re.sub("(?<=.)(?=[A-Z])", "_", type(self).__name__).lower()
            return {
                **made,
                REFUSED: f"gen.{name} cannot stand in Annotated; give it as it is. "
                "Annotated[str, X] takes gen.regex, gen.text and a gen.choice of strings",
            }
        return with_also(made, asked)

    def _of_strings(self) -> dict[str, Any]:
        """A JSON Schema of the strings that are its texts; {} if the type cannot limit a str."""
        return {}


@dataclass(frozen=True)
class Regex(_Annotation):
    """See `gen.regex`."""

    pattern: str

    def _of_strings(self) -> dict[str, Any]:
        flags = re.match(r"\(\?[a-z]+\)|", self.pattern)[0]  # type: ignore[index]  # matches always
        rest = self.pattern.removeprefix(flags) + ("\n" if "x" in flags else "")  # ends a comment
        begin, end = (r"\A", r"\Z") if "m" in flags else ("^", "$")
        return {"pattern": f"{flags}{begin}(?:{rest}){end}"}


@dataclass(frozen=True)
class Choice(_Annotation):
    """See `gen.choice`."""

    options: Mapping[str, Any]

    def _of_strings(self) -> dict[str, Any]:
        return {"enum": [*self.options]} if all(one == text for text, one in self.options.items()) else {}


@dataclass(frozen=True)
class JsonSchema(_Annotation):
    """See `gen.json_schema`; the schema is kept as a text, and `ecma` says whether it may be another program's."""

    schema: str
    closed: bool
    whitespace: "Whitespace | Layout"
    ecma: bool = True
    required: Literal["all"] | None = None
    python_type: Any = None


@dataclass(frozen=True)
class Grammar(_Annotation):
    """See `gen.grammar`."""

    lark: str


@dataclass(frozen=True)
class Text(_Annotation):
    """See `gen.text`."""

    without: tuple[str, ...]
    max_chars: int | None

    def _of_strings(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"type": "string"}
        if self.max_chars is not None:
            asked["maxLength"] = self.max_chars
        if self.without:
            asked["not"] = {"pattern": "|".join(map(re.escape, self.without))}
        return asked


@dataclass(frozen=True)
class Sequence(_Annotation):
    """See `gen.sequence`. Its key and its value are those of a tree, see `gen.constraints.composing.trees`; so are
    those of the types below.
    """

    parts: tuple[Any, ...]

    @property
    def key(self) -> Hashable:
        return ("sequence", *(part.key for part in self.parts))

    def value(self, pieces: Any) -> tuple[Any, ...]:
        return tuple(part.value(one) for part, one in zip(self.parts, pieces, strict=True))


@dataclass(frozen=True)
class Either(_Annotation):
    """See `gen.either`."""

    branches: tuple[Any, ...]

    @property
    def key(self) -> Hashable:
        return ("either", *(branch.key for branch in self.branches))

    def value(self, pieces: Any) -> Any:
        number, one = pieces
        return self.branches[number].value(one)


@dataclass(frozen=True)
class Repeat(_Annotation):
    """See `gen.repeat`."""

    part: Any
    separator: str
    least: int
    most: int | None

    @property
    def key(self) -> Hashable:
        return ("repeat", self.part.key, self.separator, self.least, self.most)

    def value(self, pieces: Any) -> list[Any]:
        return [self.part.value(one) for one in pieces]


@dataclass(frozen=True)
class Made:
    """The texts of a type, and a function that makes another value of its value; not for users.

    Attributes:
        make: gives the value; it may raise ValueError.
        about: what it is, for errors.
    """

    part: Any
    make: Callable[[Any], Any]
    about: str = ""

    @property
    def key(self) -> Hashable:
        key: Hashable = self.part.key
        return key

    def value(self, pieces: Any) -> Any:
        return self.make(self.part.value(pieces))


Composed = Sequence | Either | Repeat | Made


def regex(pattern: str) -> Regex:
    """Texts that a regular expression matches as a whole; the value is the text.

    Args:
        pattern: in the syntax of Python's `re`, without what is not regular: backreferences, most look-around. \\d and
            \\w are ASCII. As an output type you can also give a compiled pattern, or any other object with a
            `pattern` that is a str.
    Raises:
        ConstraintError: it is no str.
    """
    if not isinstance(pattern, str):
        hint = "; give it as it is, without gen.regex" if isinstance(getattr(pattern, "pattern", None), str) else ""
        raise ConstraintError(f"a regular expression must be a str, got {show(pattern)}{hint}")
    check_text("the regular expression", pattern)
    return Regex(pattern)


def choice(options: Iterable[Any]) -> Choice:
    """One of some options, written as they are: strings without quotes, other values as JSON; the value is the option.

    Args:
        options: strings, numbers, bools, None, members of an Enum (or the Enum itself), or lists and dicts of those.
    Raises:
        ConstraintError: there is none, one of them cannot be written, or two are written alike.
    """
    try:
        given = None if isinstance(options, str | bytes) else list(options)
    except TypeError:
        given = None
    if given is None:
        raise ConstraintError(f"choice takes a list of options, got {show(options)}")
    if not given:
        raise ConstraintError("choice needs at least one option, got none.")
    texts: dict[str, Any] = {}
    for option in given:
        text = _text_of(option)
        if text in texts and (type(texts[text]) is not type(option) or texts[text] != option):
            raise ConstraintError(
                f"{show(texts[text])} and {show(option)} are both written {text!r}; give one of them."
            )
        texts.setdefault(text, option)
    return Choice(texts)


def json_schema(
    schema: Any, *, closed: bool = True, whitespace: Whitespace = "line", required: Literal["all"] | None = None
) -> JsonSchema:
    """JSON that meets a schema, or that of a Python type; the value is the parsed JSON, or the type's.

    Args:
        schema: a JSON Schema, as a dict or as a text; or a class, or another type such as list[int]. The text of a type
            is JSON in all cases, so that a date has quotes.
        closed: whether objects with `properties` or `patternProperties` have only those, unless `additionalProperties`
            is written; values of any type then nest at most five deep. False is the specification's reading.
        whitespace: "line" is that of `json.dumps`, ", " and ": "; "compact" has none; "indent" is that of
            `json.dumps(indent=2)`. "model" is any of the three: the model chooses one at the first place where they
            differ, and the text keeps to it. This needs the device engine.
        required: "all" asks for all fields of a type, also those with a default, which a small model likes to leave
            out. None asks for those that the type requires.
    Raises:
        ConstraintError: it is no JSON Schema, or no type that has one.
    """
    check_flag("closed", closed)
    if not isinstance(whitespace, str) or whitespace not in ("line", "compact", "indent", "model"):
        raise ConstraintError(f'whitespace must be "line", "compact", "indent" or "model", got {show(whitespace)}')
    if required is not None and not (isinstance(required, str) and required == "all"):
        raise ConstraintError(f'required must be "all" or None, got {show(required)}')
    if isinstance(schema, type) or get_origin(schema) or type(schema).__name__ in ("NewType", "TypeAliasType"):
        from gen.constraints.python_types import schema_of  # only those who ask for types need pydantic

        text = json.dumps(schema_of(schema, required=required)[0], ensure_ascii=False)
        return JsonSchema(text, closed, whitespace, ecma=False, required=required, python_type=schema)
    if required:
        raise ConstraintError(
            f'required="all" is for types; a JSON Schema says itself what is required, got {show(schema)}'
        )
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False, allow_nan=False)
        parsed = json.loads(text, parse_constant=_no_constant)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"{show(schema)} is no JSON: {error}") from error
    if not isinstance(parsed, dict | bool) or not isinstance(schema, Mapping | bool | str):
        raise ConstraintError(f"a JSON Schema must be a dict, or its text, got {show(schema)}")
    text = json.dumps(parsed, ensure_ascii=False)  # without escapes that the given text may have
    check_text("the schema", text)
    return JsonSchema(text, closed, whitespace)


def grammar(lark: str) -> Grammar:
    """Texts of a context-free grammar, on the host engine; the value is the text.

    Args:
        lark: in llguidance's variant of Lark's syntax, with a rule `start`.
    Raises:
        ConstraintError: it is no str.
    """
    if not isinstance(lark, str):
        raise ConstraintError(f"a grammar must be a str, got {show(lark)}")
    check_text("the grammar", lark)
    return Grammar(lark)


def text(without: str | Iterable[str] = (), max_chars: int | None = None) -> Text:
    """Any text, which may end after any character; the value is the text.

    Args:
        without: strings that do not occur in it. Such a text has no special tokens.
        max_chars: how many characters at most.
    Raises:
        ConstraintError: one of the strings is empty, or no str.
        ArgumentError: max_chars is no whole number.
    """
    given = (without,) if isinstance(without, str) else without
    if not isinstance(given, list | tuple | set | frozenset):
        raise ConstraintError(f"gen.text: without= takes a list of strings, got {show(without)}")
    given = tuple(given)
    for one in given:
        if not isinstance(one, str) or not one:
            raise ConstraintError(f"gen.text: without= takes strings of at least one character, got {show(one)}")
        check_text("a string of without=", one)
    return Text(given, None if max_chars is None else read_whole("max_chars", max_chars))


def sequence(*parts: Any) -> Sequence:
    """Parts one after another; the value is a tuple of their values, in which a string stands for itself.

    Args:
        parts: output types, and strings, which stand in the text as they are. If such a string names a special token
            of the vocabulary, the text has that token.
    Raises:
        ConstraintError: there is none.
    """
    return Sequence(_checked("sequence", parts))


def either(*branches: Any) -> Either:
    """One of several branches; the value is that of the first branch that matches the text.

    Args:
        branches: as the parts of `gen.sequence`.
    Raises:
        ConstraintError: there is none.
    """
    return Either(_checked("either", branches))


def repeat(part: Any, separator: str = "", least: int = 0, most: int | None = None) -> Repeat:
    """A part again and again; the value is the list of its values.

    Args:
        part: an output type or a string; it must not match the empty text.
        separator: the string between two parts.
        least: how often at least.
        most: how often at most; None is any number.
    Raises:
        ConstraintError: the separator is no str.
        ArgumentError: least or most is no whole number, or most is less than least, or than 1.
    """
    _checked("repeat", (part, separator))
    if not isinstance(separator, str):
        raise ConstraintError(f"gen.repeat: the separator must be a str, got {show(separator)}")
    least = read_whole("least", least)
    return Repeat(part, separator, least, None if most is None else read_whole("most", most, minimum=max(least, 1)))


def _checked(function: str, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    if not parts:
        raise ConstraintError(f"gen.{function} needs at least one output type or string, got none.")
    for part in parts:
        if isinstance(part, str):
            check_text(f"a string of gen.{function}", part)
        if part is None:
            raise ConstraintError(f"None in gen.{function} asks for no output type; type(None) is that of null.")
    return parts


def _text_of(option: Any) -> str:
    """How an option is written."""
    value = option.value if isinstance(option, Enum) else option
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError(f"the option {show(option)} cannot be written as JSON: {error}") from error
    check_text("an option", text)
    return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")
