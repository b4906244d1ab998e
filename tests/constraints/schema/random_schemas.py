"""Random schemas of every keyword, and random values that may meet them."""

import random
from typing import Any

NAMES = ["a", "b", "c", "x-1"]
_SCALARS = [None, True, False, 0, 1, 2, 5, 1.5, -3, "a", "ab", "", "b1", "é", "x"]
_TYPES = ["null", "boolean", "integer", "number", "string", "array", "object", ["string", "null"], ["object", "array"]]
_PATTERNS = ["^[ab]*$", "a", "^x-", r"\d", r"^\S+$", "b$", "^(?!b)"]
_KINDS = ["type"] * 4 + ["properties"] * 4 + ["items", "anyOf", "oneOf", "allOf", "not", "if", "$ref", "enum", "const"]
_KINDS += ["number", "string", "count", "names", "depend", "unevaluated", "contains", "unique"]


def random_value(chance: random.Random, depth: int) -> Any:
    kind = chance.random()
    if depth == 0 or kind < 0.6:
        return chance.choice(_SCALARS)
    if kind < 0.8:
        return [random_value(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    return {name: random_value(chance, depth - 1) for name in chance.sample(NAMES, chance.randint(0, 3))}


def random_schema(chance: random.Random) -> dict[str, Any]:
    """A schema of draft 2020-12 with two definitions; its references form no circle."""
    schema = _schema(chance, 2, ["p", "q"])
    schema["$defs"] = {"p": _schema(chance, 0, []), "q": _schema(chance, 1, ["p"])}
    return schema


def _schema(chance: random.Random, depth: int, names: list[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}

    def below() -> Any:
        if depth == 0:
            return chance.choice([True, {"type": "string"}, {"type": "integer"}, {}, {"const": "a"}, {"minimum": 2}])
        return _schema(chance, depth - 1, names)

    for _ in range(chance.randint(1, 3)):
        kind = chance.choice(_KINDS)
        if kind == "type":
            out["type"] = chance.choice(_TYPES)
        elif kind == "properties":
            _properties(chance, out, below)
        elif kind == "items":
            _items(chance, out, below)
        elif kind in ("anyOf", "oneOf", "allOf"):
            out[kind] = [below() for _ in range(chance.randint(1, 3))]
        elif kind == "not":
            out["not"] = below()
        elif kind == "if":
            out |= {"if": below(), "then": below()} | ({"else": below()} if chance.random() < 0.5 else {})
        elif kind == "$ref" and names:
            out["$ref"] = f"#/$defs/{chance.choice(names)}"
        elif kind == "enum":
            out["enum"] = [random_value(chance, 1) for _ in range(chance.randint(1, 4))]
        elif kind == "const":
            out["const"] = random_value(chance, 1)
        elif kind == "number":
            word = chance.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
            out[word] = chance.choice([1, 2, 5])
        elif kind == "string":
            word = chance.choice(["minLength", "maxLength", "pattern"])
            out[word] = chance.choice(_PATTERNS) if word == "pattern" else chance.choice([1, 2])
        elif kind == "count":
            out[chance.choice(["minProperties", "maxProperties"])] = chance.randint(0, 2)
        elif kind == "names":
            out["propertyNames"] = chance.choice([{"maxLength": 1}, {"pattern": "^[a-c]"}, {"enum": ["a", "b"]}])
        elif kind == "depend":
            out["dependentRequired"] = {chance.choice(NAMES): [chance.choice(NAMES)]}
        elif kind == "contains":
            out["contains"] = below()
            if chance.random() < 0.5:
                out[chance.choice(["minContains", "maxContains"])] = chance.randint(0, 2)
        elif kind == "unique":
            out["uniqueItems"] = True
        elif kind == "unevaluated" and "properties" in out:
            out["unevaluatedProperties"] = False
    return out


def _properties(chance: random.Random, out: dict[str, Any], below: Any) -> None:
    out["properties"] = {name: below() for name in chance.sample(NAMES, chance.randint(1, 3))}
    if chance.random() < 0.4:
        out["required"] = chance.sample(NAMES, chance.randint(1, 2))
    if chance.random() < 0.3:
        out["additionalProperties"] = chance.choice([False, True, below()])
    if chance.random() < 0.2:
        out["patternProperties"] = {chance.choice(["^x-", "a", "^[ab]$"]): below()}


def _items(chance: random.Random, out: dict[str, Any], below: Any) -> None:
    out["items"] = below()
    if chance.random() < 0.3:
        out["prefixItems"] = [below() for _ in range(chance.randint(1, 2))]
    if chance.random() < 0.3:
        out["minItems"] = chance.randint(0, 2)
    if chance.random() < 0.3:
        out["maxItems"] = chance.randint(0, 3)
