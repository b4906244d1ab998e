"""What `$ref` refers to within one schema, and which draft the schema is written in.

A schema with an `$id` is a document of its own: references below it start from there. Example: in
{"$id": "http://a/b", "$defs": {"c": {"$id": "c", "$ref": "#d", "$defs": {"e": {"$anchor": "d"}}}}} the `$ref` means
http://a/c#d, which is the schema with the anchor.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin

from gen.constraints.automata.limits import Unsupported

_IGNORES_SIBLINGS = re.compile(r"json-schema\.org/(schema|draft-0[3-7]/)")
_HAS_PLAIN_ID = re.compile(r"json-schema\.org/draft-0[34]/")
_ONE = frozenset(f"{word}{about}" for word in ("additional", "unevaluated") for about in ("Items", "Properties")).union(
    ["contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then"]
)
_LISTS = frozenset(["allOf", "anyOf", "oneOf", "items", "prefixItems"])
_MAPS = frozenset(["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"])

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
        self._bases: dict[int, str] = {}
        self._of_openapi = dialect is None
        self._named: dict[str, Any] | None = None
        self._made: dict[tuple[int, str], dict[str, Any]] = {}
        self._opposites: dict[int, tuple[Any, dict[str, Any]]] = {}

    def resolve(self, schema: dict[str, Any], path: str) -> Any:
        """The schema that the `$ref` of a schema at a path refers to. Raises Unsupported if it is not in the root."""
        ref = schema["$ref"]
        if not isinstance(ref, str):
            raise Unsupported(f"$ref at {path} is no text")
        if self._named is None:
            self._named = {}
            if isinstance(self._root, dict):
                self._name(self._root)
        address, _, fragment = _joined(self._bases.get(id(schema), ""), ref).partition("#")
        fragment = unquote(fragment)
        if address not in self._named:
            raise Unsupported(f"$ref {ref[:80]!r} at {path}: only references within the schema are supported")
        if fragment and not fragment.startswith("/"):
            if f"{address}#{fragment}" not in self._named:
                raise Unsupported(f"$ref {ref[:80]!r} at {path}: there is no such anchor in the schema")
            return self._named[f"{address}#{fragment}"]
        node = self._named[address]
        for step in fragment.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(step)] if isinstance(node, list) else node[step]
            except (KeyError, ValueError, IndexError, TypeError):
                raise Unsupported(f"$ref {ref[:80]!r} at {path}: there is no such place in the schema") from None
        return node

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

    def _name(self, root: dict[str, Any]) -> None:
        """Note the addresses of a schema and of all schemas below it, and where their references start from."""
        assert self._named is not None  # set before; tells mypy
        self._named[""] = root
        todo = [(root, "")]
        while todo:
            node, base = todo.pop()
            address = node.get("$id", node.get("id") if self._plain_id or node is root else None)
            if isinstance(address, str) and not (self.alone and "$ref" in node):
                moved, _, anchor = _joined(base, address).partition("#")
                if moved != base:
                    base = moved
                    self._named.setdefault(base, node)
                if anchor:
                    self._named.setdefault(f"{base}#{anchor}", node)
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(node.get(word), str):
                    self._named.setdefault(f"{base}#{node[word]}", node)
            self._bases[id(node)] = base
            todo += [(one, base) for one in _inside(node)]


def _joined(base: str, ref: str) -> str:
    """The address of a reference below a base. urljoin cannot join a fragment to a URN."""
    return base + ref if ref.startswith("#") else urljoin(base, ref)


def _inside(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas directly in a schema; the values of enum, const and unknown keywords are no schemas."""
    for word, said in node.items():
        if word in _MAPS and isinstance(said, dict):
            found = list(said.values())
        elif word in _LISTS and isinstance(said, list):
            found = said
        else:
            found = [said] if word in _ONE else []
        yield from (one for one in found if isinstance(one, dict))
