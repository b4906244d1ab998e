"""What `$ref` refers to within one schema, and which draft the schema is written in."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from gen.constraints.automata.limits import Unsupported

_IGNORES_SIBLINGS = re.compile(r"json-schema\.org/(schema|draft-0[3-7]/)")


class References:
    """The schemas within a schema, by their references.

    Attributes:
        alone: whether what stands beside a `$ref` is ignored, as up to draft 7.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        dialect = root.get("$schema") if isinstance(root, dict) else None
        self.alone = isinstance(dialect, str) and _IGNORES_SIBLINGS.search(dialect) is not None
        self._names: dict[str, Any] | None = None

    def resolve(self, ref: Any, path: str) -> Any:
        """The schema that a `$ref` at a path refers to. Raises Unsupported if it is none of this schema."""
        if not isinstance(ref, str):
            raise Unsupported(f"$ref at {path} is no text")
        own = self._root.get("$id", self._root.get("id")) if isinstance(self._root, dict) else None
        base, _, fragment = ref.partition("#")
        if base and base != (own.partition("#")[0] if isinstance(own, str) else None):
            raise Unsupported(f"$ref {ref[:80]!r} at {path}: only references within the schema are supported")
        if fragment and not fragment.startswith("/"):
            return self._named(fragment, ref, path)
        self._named("", ref, path)
        node = self._root
        for step in unquote(fragment).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(step)] if isinstance(node, list) else node[step]
            except (KeyError, ValueError, IndexError, TypeError):
                raise Unsupported(f"$ref {ref[:80]!r} at {path}: there is no such place in the schema") from None
        return node

    def _named(self, name: str, ref: str, path: str) -> Any:
        """The schema with this anchor; and a check that no part of the schema has an address of its own."""
        if self._names is None:
            self._names = self._anchors()
        if name not in self._names:
            raise Unsupported(f"$ref {ref[:80]!r} at {path}: there is no such anchor in the schema")
        return self._names[name]

    def _anchors(self) -> dict[str, Any]:
        names = {"": self._root}
        for node in _inside(self._root):
            address = node.get("$id", node.get("id") if "$ref" in node else None)
            moved = isinstance(address, str) and node is not self._root and not address.startswith("#")
            if moved and any("$ref" in below for below in _inside(node)):
                raise Unsupported(f"$ref below $id {str(address)[:80]!r}: a schema has one address here")
            for anchor in (node.get("$anchor"), address):
                if isinstance(anchor, str):
                    names[anchor.removeprefix("#")] = node
        return names


def _inside(node: Any) -> Iterator[dict[str, Any]]:
    """Every object within a schema, itself included."""
    todo = [node]
    while todo:
        here = todo.pop()
        if isinstance(here, dict):
            yield here
            todo += here.values()
        elif isinstance(here, list):
            todo += here
