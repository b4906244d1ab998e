"""Output types from their keys, which are plain values: so a type can be written to a file, and read where it is not.

Example: gen.sequence("n = ", int) has the key ("sequence", ("word", "n = "), ("json", '{"type": "integer"}', True,
"line", False)). The type of a key has the same texts on the same engine; its values are plain.
"""

import json
from typing import Any

from gen.constraints.composing.trees import Calls, Tree, Word
from gen.constraints.output_types import Choice, Either, Grammar, JsonSchema, Regex, Repeat, Sequence, Text
from gen.constraints.plans import read_plan, string_plan
from gen.errors import ArgumentError, show


def of_key(key: Any) -> Tree | Calls:
    """The tree of the output type with this key, which may have lists in the place of tuples.

    Raises:
        ArgumentError: it is no key.
    """
    try:
        if key[0] == "calls":
            tree = _tree(key[1])
            return Calls(tree, tree)
        return _tree(key)
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"{show(key)} is the form of no output type.") from error


def _tree(key: Any) -> Tree:
    kind, *parts = key
    if kind == "word":
        return Word(parts[0])
    if kind == "sequence":
        return Sequence(tuple(map(_tree, parts)))
    if kind == "either":
        return Either(tuple(map(_tree, parts)))
    if kind == "repeat":
        part, separator, least, most = parts
        return Repeat(_tree(part), separator, least, most)
    if kind == "text":
        return string_plan(json.loads(parts[0]))
    if kind == "any text":
        return read_plan(Text(tuple(parts[0]), parts[1]))
    if kind == "choice":
        return read_plan(Choice({text: text for text in parts}))
    kinds = {"json": JsonSchema, "regex": Regex, "grammar": Grammar}
    return read_plan(kinds[kind](*parts))
