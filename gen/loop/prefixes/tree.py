"""The texts that a model has kept: a radix tree over token ids, whose nodes have runs of tokens with their columns.

Example: after ABCD and ABEF have been kept there are three nodes, AB with the children CD and EF. A prompt ABEG finds
the columns of AB and of the first token of EF. If room is needed, the leaf is dropped that was not used for the longest
time. Recurrent states stand for all tokens before them: they are kept where a pinned text ends, and only found there.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock

import torch

from gen.loop.memory import kept_bytes
from gen.loop.prefixes.columns import Columns, Kept, common
from gen.models.base import Model
from gen.runtime.forking import new_lock

Salt = str | None
_EMPTY = 64  # salts without a text that may stay


def tree_of(model: Model) -> "PrefixTree | None":
    """The tree that belongs to a model, made at the first call; None if the model keeps nothing from call to call."""
    return None if model.idle is None else model.idle.prefixes(PrefixTree)


def usual_bytes(model: Model) -> int:
    """The usual limit for the bytes of kept texts and of the model's idle rows together."""
    return sum(map(kept_bytes, model.placement.devices))


@dataclass(eq=False)
class _Node:
    """A run of tokens after those of its parent.

    Attributes:
        siblings: the children of its parent, or the first nodes of a salt, by their first tokens.
        pins: how many pinned texts go through it, or end at its end.
        states: recurrent states after its last token, if a pinned text ends there.
    """

    tokens: Sequence[int]
    columns: Columns
    siblings: dict[int, "_Node"]
    pins: int = 0
    states: Columns | None = None
    children: dict[int, "_Node"] = field(default_factory=dict)

    @property
    def sizes(self) -> Mapping[torch.device, int]:
        """How many bytes it takes on each device."""
        if self.states is None:
            return self.columns.sizes
        devices = self.columns.sizes.keys() | self.states.sizes.keys()
        return {on: self.columns.sizes.get(on, 0) + self.states.sizes.get(on, 0) for on in devices}


class PrefixTree:
    """The texts that a model has kept, for calls and engines in any thread.

    Open engines set limits for the bytes of its columns, and the largest limit counts; pinned columns come on top. All
    columns depend on one version of the model: with another version they are dropped, the pinned ones too.
    """

    def __init__(self) -> None:
        self._lock = new_lock(RLock)
        self._bounds: dict[object, tuple[int, bool]] = {}  # each open engine's limit, and whether idle rows count too
        self._idle_bytes = 0
        self._version: object = None
        self.forget()

    def forget(self) -> None:
        """Drop everything that was read, pinned texts too."""
        with self._lock:
            self._salts: dict[Salt, dict[int, _Node]] = {}
            # nodes that are not pinned, the least recently used first; children come before their parents
            self._free: OrderedDict[_Node, None] = OrderedDict()
            self._sizes: dict[torch.device, int] = {}  # how many bytes these nodes have on each device
            self._era = object()

    @property
    def nbytes(self) -> int:
        """How many bytes it has that are not pinned."""
        with self._lock:
            return sum(self._sizes.values())

    def open(self, engine: object, most_bytes: int, *, with_rows: bool = False) -> None:
        """An engine allows so many bytes until it closes; with `with_rows`, the bytes of idle rows count too."""
        with self._lock:
            self._bounds[engine] = most_bytes, with_rows

    def leave(self, idle_bytes: int) -> None:
        """The model keeps so many bytes of idle rows from now on."""
        with self._lock:
            self._idle_bytes = idle_bytes
            self._shrink(self._most)

    def close(self, engine: object) -> None:
        """An engine has closed. With the last one, everything that is not pinned is dropped."""
        with self._lock:
            self._bounds.pop(engine, None)
            self._shrink(self._most)

    def find(
        self, tokens: Sequence[int], version: object, salt: Salt, *, pinned: bool, states: bool = False
    ) -> tuple[int, Kept]:
        """How many of these tokens a kept text begins with, and what is kept of them.

        Args:
            version: the model's version now.
            pinned: whether only pinned texts count.
            states: whether there must be recurrent states after these tokens.
        """
        with self._lock:
            self._rest_on(version)
            count, path = self._walk(tokens, salt, pinned=pinned)
            while states and path and (path[-1][1] < len(path[-1][0].tokens) or path[-1][0].states is None):
                count -= path.pop()[1]
            self._touch([node for node, _ in path])
            runs = [(node.columns, same) for node, same in path]
            return count, Kept(runs, path[-1][0].states if states and path else None)

    def add(
        self,
        tokens: Sequence[int],
        version: object,
        salt: Salt,
        save: Callable[[int, int], Columns],
        *,
        least: int = 1,
        pin: bool = False,
        states: Callable[[], Columns] | None = None,
    ) -> tuple[int, object]:
        """Keep a text.

        Args:
            version: the model's version when it read the tokens, which it still has.
            save: copies the columns from a start up to an end; called for the tokens that are not kept yet.
            least: with fewer new tokens nothing is done.
            pin: whether the text stays until `unpin`.
            states: copies the recurrent states after the last token, which are kept with it; None to keep none.
        Returns:
            How many bytes the text has, and the `era` for `unpin`.
        """
        with self._lock:
            self._rest_on(version)
            if not pin and not self._most:
                return 0, self._era
            count, path = self._walk(tokens, salt, pinned=False)
            if len(tokens) - count < least and not pin:
                self._touch([node for node, _ in path])
                return 0, self._era
            if path and path[-1][1] < len(path[-1][0].tokens):
                path[-1] = self._split(*path[-1]), path[-1][1]
            nodes = [node for node, _ in path]
            if count < len(tokens):
                columns = save(count, len(tokens))
                siblings = nodes[-1].children if nodes else self._salts.setdefault(salt, {})
                if pin or columns.nbytes <= self._most:
                    nodes.append(_Node(tuple(tokens[count:]), columns, siblings))
                    siblings[tokens[count]] = nodes[-1]
                    self._set_free(nodes[-1])
            self._touch(nodes)
            if pin:
                after = states() if states is not None and nodes[-1].states is None else nodes[-1].states
                for node in nodes:
                    if not node.pins:
                        self._take(node)
                    node.pins += 1
                nodes[-1].states = after
            self._shrink(self._most)
            return sum(sum(node.sizes.values()) for node in nodes), self._era

    def unpin(self, tokens: Sequence[int], salt: Salt, era: object) -> None:
        """A text is not pinned any more; `era` is from `add`. If the text was dropped meanwhile, nothing is done."""
        with self._lock:
            if era is not self._era:
                return
            for node, _ in reversed(self._walk(tokens, salt, pinned=True)[1]):
                node.pins -= 1
                if not node.pins:
                    self._set_free(node)
            self._shrink(self._most)

    def spare(self, device: torch.device) -> int:
        """How many bytes of a device `give_way` would free."""
        return self._sizes.get(device, 0)

    def give_way(self) -> bool:
        """Drop everything that is not pinned, because others need the memory; whether there was anything to drop."""
        with self._lock:
            found = bool(self._free)
            self._shrink(0)
            return found

    @property
    def _most(self) -> int:
        bounds = (most - (self._idle_bytes if with_rows else 0) for most, with_rows in self._bounds.values())
        return max((0, *bounds))

    def _rest_on(self, version: object) -> None:
        if version != self._version:
            self.forget()
            self._version = version

    def _walk(self, tokens: Sequence[int], salt: Salt, *, pinned: bool) -> tuple[int, list[tuple[_Node, int]]]:
        """How many of the tokens are in the tree, and their nodes, each with how many of the node's tokens match."""
        count, path = 0, list[tuple[_Node, int]]()
        children: Mapping[int, _Node] = self._salts.get(salt, {})
        while count < len(tokens) and (node := children.get(tokens[count])) and (node.pins or not pinned):
            same = common(node.tokens, tuple(tokens[count : count + len(node.tokens)]))
            path.append((node, same))
            count += same
            if same < len(node.tokens):
                break
            children = node.children
        return count, path

    def _split(self, node: _Node, count: int) -> _Node:
        """Cut a node in two, and return the first one; the second one becomes its child."""
        columns, others = node.columns.cut(0, count), node.columns.cut(count, len(node.tokens))  # may fail: first
        if not node.pins:
            self._take(node)
        first = _Node(node.tokens[:count], columns, node.siblings, node.pins)
        node.siblings[first.tokens[0]] = first
        node.columns = others
        node.tokens, node.siblings = node.tokens[count:], first.children
        first.children[node.tokens[0]] = node
        if not node.pins:
            self._set_free(node)
            self._set_free(first)
        return first

    def _touch(self, path: Sequence[_Node]) -> None:
        """Mark the nodes of a path as used now; each is the child of the one before."""
        for node in reversed(path):
            if not node.pins:
                self._free.move_to_end(node)

    def _set_free(self, node: _Node) -> None:
        self._free[node] = None
        for device, size in node.sizes.items():
            self._sizes[device] = self._sizes.get(device, 0) + size

    def _take(self, node: _Node) -> None:
        del self._free[node]
        for device, size in node.sizes.items():
            self._sizes[device] -= size

    def _shrink(self, most: int) -> None:
        """Drop nodes that are not pinned, until these have at most so many bytes."""
        while self._free and sum(self._sizes.values()) > most:
            leaf = next(iter(self._free))
            self._take(leaf)
            del leaf.siblings[leaf.tokens[0]]
        if len(self._salts) > len(self._free) + _EMPTY:
            self._salts = {salt: first for salt, first in self._salts.items() if first}
