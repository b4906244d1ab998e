"""Instances of a schema as compact texts with their keys in the schema's order, which is how gen writes them."""

import json
import re
from typing import Any

import jsonschema

Schema = dict[str, Any]


class SchemaOrder:
    """Orders the instances of one schema.

    Attributes:
        undeclared: whether the last instance has a property that its object's schemas do not list, though they list
            others.
    """

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._validator = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema)
        self.undeclared = False

    def text(self, instance: Any) -> str:
        self.undeclared = False
        return json.dumps(self._ordered([self._root], instance), ensure_ascii=False, separators=(",", ":"))

    def _ordered(self, schemas: list[Any], instance: Any) -> Any:
        nodes = [node for schema in schemas for node in self._in_place(schema, instance, ())]
        if isinstance(instance, list):
            return [self._ordered([_item(node, at) for node in nodes], one) for at, one in enumerate(instance)]
        if not isinstance(instance, dict):
            return instance
        listed = [name for node in nodes for name in node.get("properties", {})]
        required = [name for node in nodes for name in node.get("required", [])]
        lists = any(node.get("properties") or node.get("patternProperties") for node in nodes)
        closed = lists and not any("additionalProperties" in node for node in nodes)
        out = {}
        for name in dict.fromkeys([*listed, *required, *instance]):
            if name in instance:
                found = [schema for node in nodes for schema in _property(node, name)]
                self.undeclared |= closed and not found and name not in required
                others = [node.get("additionalProperties", True) for node in nodes if not _property(node, name)]
                out[name] = self._ordered([*found, *others], instance[name])
        return out

    def _in_place(self, schema: Any, instance: Any, followed: tuple[str, ...]) -> list[Schema]:
        """The schema and those that it applies to the same value, in the order in which gen merges them."""
        if not isinstance(schema, dict):
            return []
        nodes = [schema]
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref.startswith("#") and ref not in followed:
            nodes += self._in_place(self._resolve(ref), instance, (*followed, ref))
        beside = [*schema.get("allOf", [])]
        for word in ("anyOf", "oneOf"):
            beside += [one for one in schema.get(word, []) if self._meets(one, instance)][:1]
        if "if" in schema:
            taken = ("if", "then") if self._meets(schema["if"], instance) else ("else",)
            beside += [schema[word] for word in taken if word in schema]
        return nodes + [node for one in beside for node in self._in_place(one, instance, followed)]

    def _resolve(self, ref: str) -> Any:
        node = self._root
        for step in ref[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(step)] if isinstance(node, list) else node[step]
            except (KeyError, ValueError, IndexError, TypeError):
                return True
        return node

    def _meets(self, schema: Any, instance: Any) -> bool:
        try:
            return bool(self._validator.evolve(schema=schema).is_valid(instance))
        except Exception:  # references that the validator cannot follow
            return True


def _item(node: Schema, at: int) -> Any:
    first, rest = node.get("prefixItems", []), node.get("items", True)
    if isinstance(rest, list):
        first, rest = rest, node.get("additionalItems", True)
    return first[at] if at < len(first) else rest


def _property(node: Schema, name: str) -> list[Any]:
    """What a schema lists for a property."""
    found = [node["properties"][name]] if name in node.get("properties", {}) else []
    for pattern, schema in node.get("patternProperties", {}).items():
        try:
            found += [schema] if re.search(pattern, name) else []
        except re.error:  # of another dialect
            continue
    return found
