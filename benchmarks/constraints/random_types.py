"""Random JSON schemas of most keywords, values that may meet them, and random regular expressions, for `fuzz`."""

import random
from collections.abc import Callable, Iterator
from typing import Any

DRAFTS = ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#")
NAMES = ["a", "b", "id", "x-1", "é"]
_SCALARS = [None, True, False, 0, 1, -3, 7, 1.5, 2.0, 0.001, 12345678901, "", "a", "ab", "b1", "é", "x y", "A-1", "\n"]
_TYPES = ["null", "boolean", "integer", "number", "string", "string", "array", "array", "object", "object", "object"]
_FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "json-pointer"]
_FORMATS += ["uri-reference", "regex", "idn-hostname", "relative-json-pointer", "iri", "uri-template", "unknown"]
_FORMATTED = ["2024-02-29", "2023-02-29", "12:30:00Z", "2024-01-01T00:00:00+01:00", "P1DT2H", "a@b.co", "x-1", "a.b"]
_FORMATTED += ["1.2.3.4", "1.2.3.256", "::1", "http://a.b/c?d#e", "a", "/a/~0", "1/a", "[a-z]+", "not a format"]
_FORMATTED += ["123e4567-e89b-12d3-a456-426614174000", "file:///a", "mailto:a@b.co", "(", "http://u:p@a.b:80/"]
_PATTERNS = ["^[ab]*$", "a", "^x-", r"\d", r"^\S+$", "b$", "^(?!b)", "^(?=.*1)", r"^\w+-\d{1,3}$", r"\bab?\b", "^$"]
_PATTERNS += [r"^[^\s]{1,3}$", "^(a|b)+c?$", "[A-Z]", "^.{2,4}$", "é", r"\.", r"^\W", r"^[\w.-]+@", r"a{2}|^b", "[^a]"]
_BOUNDS = [-10, -1, -0.5, 0, 1, 2, 2.5, 10, 99, 100, 1000.001, 1e-5, 1e21]
_OF_NUMBERS = dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _BOUNDS)
_OF_NUMBERS["multipleOf"] = [1, 2, 3, 7, 10, 0.5, 0.1, 0.01, 2.5]
_LENGTHS = [0, 1, 2, 3, 10]
_OF_STRINGS: dict[str, Any] = {"minLength": _LENGTHS, "maxLength": _LENGTHS, "pattern": _PATTERNS, "format": _FORMATS}
_LETTERS = ["a", "b", "1", "-", " ", "é", "A", "\n", "x", "."]


def random_schema(chance: random.Random) -> dict[str, Any]:
    """A schema of draft 2020-12, or now and then of draft 7, with two definitions; one of thirty refers to itself."""
    drawing = _Schemas(chance, old=chance.random() < 0.15, circle=chance.random() < 0.03)
    return drawing.whole()


class _Schemas:
    """Draws one schema.

    Attributes:
        old: whether it is of draft 7.
        circle: whether items and properties may be the whole schema.
    """

    def __init__(self, chance: random.Random, *, old: bool, circle: bool) -> None:
        self._chance, self._old, self._circle = chance, old, circle

    def whole(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"$schema": DRAFTS[self._old]} if self._old or self._chance.random() < 0.3 else {}
        schema |= self._schema(self._chance.choice([1, 2, 2, 3]), ["p", "q"])
        schema["definitions" if self._old else "$defs"] = {"p": self._schema(0, []), "q": self._schema(1, ["p"])}
        return schema

    def _schema(self, depth: int, names: list[str]) -> dict[str, Any]:
        chance = self._chance
        out: dict[str, Any] = {}

        def below() -> Any:
            if chance.random() < 0.08:
                return chance.choice([True, True, {}, {}, False])
            if self._circle and chance.random() < 0.3:
                return {"$ref": "#"}
            return self._schema(max(0, depth - 1), names)

        kinds = [*self._of_types(out, below, depth)]
        if depth:
            applied = [self._several, self._several, self._not, self._condition, self._depend]
            kinds += chance.choices(applied, k=chance.choice([0, 0, 0, 1, 1, 2]))
        for kind in kinds:
            kind(out, below)
        if names and chance.random() < 0.15:
            where = "definitions" if self._old else "$defs"
            out["$ref"] = f"#/{where}/{chance.choice(names)}"
        return out

    def _of_types(self, out: dict[str, Any], below: Any, depth: int) -> Iterator[Callable[[dict[str, Any], Any], None]]:
        """Choose a type, or several, or none, and keywords most of which are about it."""
        chance = self._chance
        kind = chance.random()
        if kind < 0.7:
            out["type"] = chance.choice(_TYPES if depth else _TYPES[:6])
        elif kind < 0.8:
            out["type"] = chance.sample(sorted(set(_TYPES)), 2)
        elif kind < 0.9:
            yield self._values
            if chance.random() < 0.6:
                return
        said = out.get("type", chance.choice(_TYPES if depth else _TYPES[:6]))
        about = {
            "integer": self._number,
            "number": self._number,
            "string": self._string,
            "array": self._array,
            "object": self._object,
        }
        for one in said if isinstance(said, list) else [said]:
            if one in about and (depth or one not in ("array", "object")):
                yield about[one]
        if chance.random() < 0.05:
            yield about[chance.choice([*about])]

    def _values(self, out: dict[str, Any], below: Any) -> None:
        chance = self._chance
        if chance.random() < 0.3:
            out["const"] = random_value(chance, 1)
        else:
            out["enum"] = [random_value(chance, 1) for _ in range(chance.randint(1, 4))]
        if chance.random() < 0.3:
            out["enum"] = [*out.get("enum", []), chance.choice(_FORMATTED)]
            out["format"] = chance.choice(_FORMATS)

    def _number(self, out: dict[str, Any], below: Any) -> None:
        for word in self._chance.sample([*_OF_NUMBERS], self._chance.randint(0, 3)):
            out[word] = self._chance.choice(_OF_NUMBERS[word])

    def _string(self, out: dict[str, Any], below: Any) -> None:
        for word in self._chance.sample([*_OF_STRINGS], self._chance.randint(0, 2)):
            out[word] = self._chance.choice(_OF_STRINGS[word])

    def _array(self, out: dict[str, Any], below: Any) -> None:
        chance = self._chance
        if chance.random() < 0.8:
            out["items"] = below()
        if chance.random() < 0.25:
            first = [below() for _ in range(chance.randint(1, 2))]
            if self._old:
                rest = out.pop("items", None)
                out |= {"items": first} | ({} if rest is None else {"additionalItems": rest})
            else:
                out["prefixItems"] = first
        if chance.random() < 0.2:
            out["contains"] = below()
            if chance.random() < 0.5 and not self._old:
                out[chance.choice(["minContains", "maxContains"])] = chance.randint(0, 2)
        for word in ("minItems", "maxItems"):
            if chance.random() < 0.3:
                out[word] = chance.randint(0, 3)
        if chance.random() < 0.1:
            out["uniqueItems"] = True

    def _object(self, out: dict[str, Any], below: Any) -> None:
        chance = self._chance
        if chance.random() < 0.8:
            out["properties"] = {name: below() for name in chance.sample(NAMES, chance.randint(0, 3))}
        if chance.random() < 0.4:
            out["required"] = chance.sample(NAMES, chance.randint(1, 2))
        if chance.random() < 0.3:
            out["additionalProperties"] = chance.choice([False, True, below()])
        if chance.random() < 0.2:
            out["patternProperties"] = {chance.choice(["^x-", "a", "^[ab]$", r"\d", "^.$"]): below()}
        if chance.random() < 0.1:
            names = [{"maxLength": 1}, {"pattern": "^[a-c]"}, {"enum": ["a", "b"]}, {"minLength": 2}, {"const": "id"}]
            out["propertyNames"] = chance.choice(names)
        for word in ("minProperties", "maxProperties"):
            if chance.random() < 0.12:
                out[word] = chance.randint(0, 3)
        if chance.random() < 0.03:
            out["unevaluatedProperties"] = False

    def _several(self, out: dict[str, Any], below: Any) -> None:
        word = self._chance.choice(["anyOf", "anyOf", "oneOf", "allOf"])
        out[word] = [below() for _ in range(self._chance.randint(1, 3))]

    def _not(self, out: dict[str, Any], below: Any) -> None:
        out["not"] = below()

    def _condition(self, out: dict[str, Any], below: Any) -> None:
        out["if"] = below()
        for word in ("then", "else"):
            if self._chance.random() < 0.7:
                out[word] = below()

    def _depend(self, out: dict[str, Any], below: Any) -> None:
        name, other = self._chance.sample(NAMES, 2)
        listed = self._chance.random() < 0.5
        word = "dependencies" if self._old else "dependentRequired" if listed else "dependentSchemas"
        out[word] = {name: [other] if listed else below()}


def random_value(chance: random.Random, depth: int, scalars: list[Any] = _SCALARS) -> Any:
    kind = chance.random()
    if depth == 0 or kind < 0.5:
        return chance.choice(scalars)
    if kind < 0.7:
        return [random_value(chance, depth - 1, scalars) for _ in range(chance.randint(0, 3))]
    return {name: random_value(chance, depth - 1, scalars) for name in chance.sample(NAMES, chance.randint(0, 3))}


def scalars_near(schema: Any) -> list[Any]:
    """Scalars that a schema names, those beside them, and some others."""
    found = [*_SCALARS, *_FORMATTED]
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, (int, float)) and not isinstance(one, bool):
            found += [one, one + 1, one - 1, one / 2, -one]
        else:
            found.append(one)
    return found


def changed(chance: random.Random, value: Any, scalars: list[Any]) -> Any:
    """A value with one place changed."""
    if isinstance(value, dict) and value and chance.random() < 0.7:
        name = chance.choice([*value])
        if chance.random() < 0.2:
            return {one: value[one] for one in value if one != name}
        return value | {name: changed(chance, value[name], scalars)}
    if isinstance(value, list) and value and chance.random() < 0.7:
        at = chance.randrange(len(value))
        new = chance.choice([[], [value[at]] * 2, [changed(chance, value[at], scalars)]])
        return [*value[:at], *new, *value[at + 1 :]]
    kind = chance.random()
    if isinstance(value, dict) and kind < 0.6:
        return value | {chance.choice(NAMES): random_value(chance, 1, scalars)}
    if isinstance(value, list) and kind < 0.6:
        return [*value, random_value(chance, 1, scalars)]
    if isinstance(value, str) and kind < 0.6:
        at = chance.randint(0, len(value))
        return value[:at] + chance.choice(_LETTERS) + value[at + chance.randint(0, 1) :]
    if isinstance(value, int | float) and not isinstance(value, bool) and kind < 0.6:
        return chance.choice([value + 1, value - 1, value / 2, -value, float(value), value * 10])
    return random_value(chance, 1, scalars)


_ATOMS = ["a", "b", "c", "é", "😀", "ß", "k", "[ab]", "[^a]", "[a-cé-ü]", "[^é😀]", ".", r"\n", "[a-z&&[b]", r"\.", " "]
_ATOMS += [r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"[\w-]", r"[^\w]", r"[^\s\d]", r"[\w\W]", r"[\s\S]", r"\x41"]
_ATOMS += ["(?i:k)", "(?i:ß)", "(?i:[a-k])", "(?s:.)", "(?ai:k)", r"\u00e9", "[]a]", "[a-]", r"[\d\D]", "[^b-y]", "1"]
_ANCHORS = ["^", "$", r"\A", r"\Z", "(?m:^)", "(?m:$)", r"\b", r"\B"]
_REPEATS = ["*", "+", "?", "{2}", "{1,3}", "{0,2}", "*?", "+?", "{2,}", "??", "{,2}", "{3}?"]
_BEYOND = [r"(?:(?!b).)*", r"(a)\1", "a++", "(?>a|ab)c", "(?<=a)b", "(?<!a)b", "(a)?(?(1)b|c)"]  # mostly refused
REGEX_LETTERS = "aabbccékßKk\u017fK\n\n[-+.] AÉ&1٣ \x1c_z\r\t😀"


def random_pattern(chance: random.Random) -> str:
    """A regular expression in Python's syntax."""
    pattern = _pattern(chance, chance.choice([1, 2, 3, 4]))
    if chance.random() < 0.15:
        pattern = f"{chance.choice(['(?=', '(?!'])}{_pattern(chance, 2)}){pattern}"
    if chance.random() < 0.08:
        pattern = f"(?{chance.choice(['i', 's', 'm', 'a', 'x', 'ai', 'is'])}){pattern}"
    return pattern


def _pattern(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if depth == 0 or kind < 0.3:
        odd = chance.random()
        return chance.choice(_ANCHORS if odd < 0.1 else _BEYOND if odd < 0.12 else _ATOMS)
    inner = _pattern(chance, depth - 1)
    if kind < 0.8:
        other = _pattern(chance, depth - 1)
        group = chance.choice(["(", "(?:", f"(?P<n{chance.randrange(10**6)}>"]) if kind >= 0.65 else ""
        return f"{group}{inner}|{other})" if group else inner + other
    return f"(?:{inner}){chance.choice(_REPEATS)}"
