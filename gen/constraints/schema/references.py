"""What `$ref` refers to within one schema, and which draft the schema is written in.

A reference is the root's own address, or "#", with a JSON pointer or an anchor behind. Example: in
{"$ref": "#/$defs/a", "$defs": {"a": {"$anchor": "b"}}} it could be "#b" as well.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from gen.constraints.automata.limits import Unsupported

_IGNORES_SIBLINGS = re.compile(r"json-schema\.org/(schema|draft-0[3-7]/)")
_ONE = frozenset(f"{word}{about}" for word in ("additional", "unevaluated") for about in ("Items", "Properties")).union(
    ["contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then"]
)
_HAS_PLAIN_ID = re.compile(r"json-schema\.org/draft-0[34]/")
_LISTS = frozenset(["allOf", "anyOf", "oneOf", "items", "prefixItems"])
_MAPS = frozenset(["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"])

_CHOICES = frozenset(["$ref", "anyOf", "oneOf"])
_PARTS = frozenset(["additionalProperties", "allOf", "const", "enum", "format", "items", "prefixItems", "properties"])
_LATER = frozenset(["minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties"])  # newer than draft 7
_REMARKS = frozenset(["contentEncoding", "contentMediaType"])  # keywords that check nothing after draft 7


class References:
    """The schemas within a schema, by their references.

    Attributes:
        alone: whether keywords beside a `$ref` are ignored, as up to draft 7.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        dialect = root.get("$schema") if isinstance(root, dict) else None
        self.alone = isinstance(dialect, str) and _IGNORES_SIBLINGS.search(dialect) is not None
        self._plain_id = isinstance(dialect, str) and _HAS_PLAIN_ID.search(dialect) is not None
        self._of_openapi = dialect is None
        self._made: dict[tuple[int, str], dict[str, Any]] = {}
        self._opposites: dict[int, tuple[Any, dict[str, Any]]] = {}

    def resolve(self, schema: dict[str, Any], path: str) -> Any:
        """The schema that the `$ref` of a schema at a path refers to. Raises Unsupported if it is not in the root."""
        ref = schema["$ref"]
        if not isinstance(ref, str):
            raise Unsupported(f"$ref at {path} is no text")
        address, _, fragment = ref.partition("#")
        fragment = unquote(fragment)
        root = self._root if isinstance(self._root, dict) else {}
        if address and address not in [str(root.get(word, "")).partition("#")[0] for word in ("$id", "id")]:
            raise Unsupported(f"$ref {ref[:80]!r} at {path}: only references within the schema are supported")
        anchors, nested = self._names
        if id(schema) in nested:
            raise Unsupported(f"$ref {ref[:80]!r} at {path}, within a schema that has an $id of its own")
        if fragment and not fragment.startswith("/"):
            if fragment not in anchors:
                raise Unsupported(f"$ref {ref[:80]!r} at {path}: there is no such anchor in the schema")
            return anchors[fragment]
        node = self._root
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(step)] if isinstance(node, list) else node[step]
            except (KeyError, ValueError, IndexError, TypeError):
                raise Unsupported(f"$ref {ref[:80]!r} at {path}: there is no such place in the schema") from None
        return node

    def branches(self, schemas: Iterable[Any]) -> list[Any]:
        """The schemas among which others choose, each once, and what those say beside the choice: none is a reference,
        an `anyOf` or a `oneOf`. That of any value is {}, and one of no value is left out."""
        found, seen, todo = list[Any](), list[Any](), [*schemas]
        while todo:
            schema = {} if (first := todo.pop(0)) is True else first
            if schema in seen or not isinstance(schema, dict):
                continue
            seen.append(schema)
            if _CHOICES.isdisjoint(schema):
                found.append(schema)
                continue
            if not _PARTS.isdisjoint(schema) and not (self.alone and "$ref" in schema):
                found.append({word: said for word, said in schema.items() if word not in _CHOICES})
            todo += [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
            todo += [self.resolve(schema, "#")] if "$ref" in schema else []
        return found

    def below(self, schemas: Iterable[Any], step: str | int) -> list[Any]:
        """The schemas that a part of a value may have: the property of a name, or the item at a place."""
        found = list[Any]()
        for schema in self.branches(schemas):
            if "allOf" in schema:
                found += self.below(schema["allOf"], step)
            elif isinstance(step, str):
                named = schema.get("properties", {})
                others = schema.get("additionalProperties", not named and "type" not in schema)
                found.append(named.get(step, others))
            else:
                listed, rest = items_of(schema)
                rest = rest if "items" in schema else "array" in schema.get("type", "array")
                found.append(listed[step] if step < len(listed) else rest)
        return found

    def opposite(self, schema: Any) -> dict[str, Any]:
        """The schema that takes all values which a schema refuses: one object, so that it is read once."""
        return self._opposites.setdefault(id(schema), (schema, {"not": schema}))[1]

    def made(self, about: int, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema that was made from another one: the same object each time, as with `opposite`."""
        return self._made.setdefault((about, repr(schema)), schema)

    def own(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema without keywords that its draft does not know, or that check nothing there.

        `nullable` is a keyword of OpenAPI, whose schemas name no draft.
        """
        strange = _LATER if self.alone else _REMARKS
        if not strange.isdisjoint(schema):
            schema = {word: said for word, said in schema.items() if word not in strange}
        if schema.get("nullable") is True and "type" in schema and self._of_openapi:
            said = schema["type"]
            return schema | {"type": [*(said if isinstance(said, list) else [said]), "null"]}
        return schema

    @cached_property
    def _names(self) -> tuple[dict[str, Any], set[int]]:
        """The schemas with anchors; and the ids of schemas within one that has an `$id` of its own, where references
        start from another address.
        """
        anchors: dict[str, Any] = {}
        nested: set[int] = set()
        todo = [(self._root, False)] if isinstance(self._root, dict) else []
        while todo:
            node, within = todo.pop()
            own = node.get("id" if self._plain_id else "$id", "")
            if isinstance(own, str) and not (self.alone and "$ref" in node):
                within = within or (node is not self._root and own.partition("#")[0] != "")
                found = [own.partition("#")[2], node.get("$anchor"), node.get("$dynamicAnchor")]
                anchors |= {name: node for name in found if isinstance(name, str) and name and not within}
            if within:
                nested.add(id(node))
            todo += [(one, within) for _, one in _inside(node)]
        return anchors, nested


def items_of(schema: Mapping[str, Any]) -> tuple[Any, Any]:
    """The schemas of an array's first items, and that of all others."""
    rest = schema.get("items", True)
    if isinstance(rest, list):  # as up to draft 2019-09
        return rest, schema.get("additionalItems", True)
    return schema.get("prefixItems", []), rest


def schemas_in(schema: Any, path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all schemas in it, with their paths."""
    if isinstance(schema, dict):
        yield path, schema
        for step, one in _inside(schema):
            yield from schemas_in(one, f"{path}/{step}")


def _inside(node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The schemas directly in a schema, with the steps there; the values of enum, const and unknown keywords are no
    schemas.
    """
    for word, said in node.items():
        if word in _MAPS and isinstance(said, dict):
            found = [(f"{word}/{name}", one) for name, one in said.items()]
        elif word in _LISTS and isinstance(said, list):
            found = [(f"{word}/{number}", one) for number, one in enumerate(said)]
        else:
            found = [(word, said)] if word in _ONE else []
        yield from ((step, one) for step, one in found if isinstance(one, dict))
