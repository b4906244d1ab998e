"""A schema with `additionalProperties: false` written in where an object lists its properties, for other engines."""

import copy
from typing import Any

from gen.constraints.automata.limits import Unsupported
from gen.constraints.schema.keywords import own_part
from gen.constraints.schema.references import References

_ONE = ("items", "additionalItems", "additionalProperties", "then", "else", "unevaluatedItems", "unevaluatedProperties")
_MANY = ("prefixItems", "allOf", "anyOf", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_BESIDE = ("allOf", "anyOf", "$ref", "then", "else", "dependentSchemas", "dependencies")
_UNTOUCHED = ("not", "if", "contains", "propertyNames", "oneOf")


def closed_schema(schema: Any) -> Any:
    """A copy of the schema in which objects have only the properties they list, unless additional ones are written.

    Raises:
        Unsupported: where two schemas list properties of one object, or where a closed object would change what a
            `oneOf`, `not`, `if` or `contains` means.
    """
    root = copy.deepcopy(schema)
    _Closer(root).close(root, "#")
    return root


class _Closer:
    def __init__(self, root: Any) -> None:
        self._references = References(root)
        self._seen: set[int] = set()
        self._counts: dict[int, int] = {}

    def close(self, node: Any, path: str) -> None:
        """Close an object's schema and all below it, in place."""
        if not isinstance(node, dict) or id(node) in self._seen:
            return
        self._seen.add(id(node))
        for word in _UNTOUCHED:
            if word in node and self._lists(node[word], set()):
                raise Unsupported(f"{word} at {path} with a list of properties cannot be closed")
        if self._listings(node, path) > 1:
            raise Unsupported(f"objects at {path} whose properties are listed in several schemas cannot be closed")
        if _is_list(node):
            own_part(node, path)  # what is no list of names, and no object of schemas, is refused there
            required = node.get("required", [])
            for name in required if isinstance(required, list) else []:
                node.setdefault("properties", {}).setdefault(name, True)
            node["additionalProperties"] = False
        for word in _ONE:
            self.close(node.get(word), f"{path}/{word}")
        for word in _MANY:
            if isinstance(node.get(word), list):
                for number, one in enumerate(node[word]):
                    self.close(one, f"{path}/{word}/{number}")
        for word in _NAMED:
            if isinstance(node.get(word), dict):
                for name, one in node[word].items():
                    self.close(one, f"{path}/{word}/{name}")
        if "$ref" in node:
            self.close(self._references.resolve(node, path), path)

    def _listings(self, node: Any, path: str) -> int:
        """How many schemas list properties of one object, on the way through a schema that has most; 2 for more."""
        if not isinstance(node, dict):
            return 0
        known = self._counts.get(id(node))
        if known is not None:
            return known
        self._counts[id(node)] = 0  # a schema that refers to itself counts once
        count = int(_is_list(node))
        for word in _BESIDE:
            said = node.get(word)
            if word == "$ref" and word in node:
                count += self._listings(self._references.resolve(node, path), path)
            elif isinstance(said, list):
                each = [self._listings(one, path) for one in said]
                count += sum(each) if word == "allOf" else max(each, default=0)
            elif isinstance(said, dict) and word.startswith("depend"):
                count += sum(self._listings(one, path) for one in said.values())
            else:
                count += self._listings(said, path)
        self._counts[id(node)] = min(count, 2)
        return self._counts[id(node)]

    def _lists(self, node: Any, seen: set[int]) -> bool:
        """Whether an object's properties are listed anywhere in a schema."""
        if id(node) in seen:
            return False
        seen.add(id(node))
        if isinstance(node, list):
            return any(self._lists(one, seen) for one in node)
        if not isinstance(node, dict):
            return False
        if "$ref" in node and isinstance(node["$ref"], str):
            return _is_list(node) or self._lists(self._references.resolve(node, "$ref"), seen)
        return _is_list(node) or any(self._lists(one, seen) for one in node.values())


def _is_list(node: dict[str, Any]) -> bool:
    """Whether a schema lists what an object may have, without a word on all else."""
    lists = any(isinstance(node.get(word), dict) and node[word] for word in ("properties", "patternProperties"))
    return lists and "additionalProperties" not in node and "unevaluatedProperties" not in node
