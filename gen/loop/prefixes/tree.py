"""What was read before: a radix tree over token ids, whose nodes have runs of tokens with their columns.

Example: after ABCD and ABEF have been kept there are three nodes, AB with the children CD and EF. A prompt ABEG has
the columns of AB and of the first token of EF. If room is wanted, the leaf goes that was not used for the longest time.
Recurrent states stand for all tokens before them: they are kept where a pinned text ends, and found there alone.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock

import torch

from gen.forking import new_lock
from gen.loop.memory import kept_bytes
from gen.loop.prefixes.beginnings import common
from gen.loop.prefixes.columns import Columns, Kept
from gen.models.base import Model
from gen.models.idle_rows import Idle

Salt = str | None
_EMPTY = 64  # salts without a text that are borne


def tree_of(model: Model) -> "PrefixTree | None":
    """The tree that belongs to a model, made at the first call; None where a model keeps nothing from call to call."""
    idle = getattr(model, "idle", None)
    return idle.prefixes(PrefixTree) if isinstance(idle, Idle) else None


def usual_bytes(model: Model) -> int:
    """The usual number of bytes of texts that are kept, together with the rows that the model keeps idle."""
    return sum(map(kept_bytes, model.placement.devices))


@dataclass(eq=False)
class _Node:
    """A run of tokens after those of its parent.

    Attributes:
        siblings: the children of its parent, or the first nodes of a salt: by first token.
        pins: how many pinned texts go through it, or end at its end.
        states: recurrent states after its last token, where a pinned text has ended there.
    """

    tokens: Sequence[int]
    columns: Columns
    siblings: dict[int, "_Node"]
    pins: int = 0
    states: Columns | None = None
    children: dict[int, "_Node"] = field(default_factory=dict)

    @property
    def sizes(self) -> Mapping[torch.device, int]:
        """How many bytes it takes of each device."""
        if self.states is None:
            return self.columns.sizes
        devices = self.columns.sizes.keys() | self.states.sizes.keys()
        return {on: self.columns.sizes.get(on, 0) + self.states.sizes.get(on, 0) for on in devices}


class PrefixTree:
    """What a model has read, for calls and engines in any thread.

    It has as many bytes of columns as the engine asks for that asks for most, and what is pinned beside these. All of
    them rest on one version of the model: with another one they go, the pinned ones too.
    """

    def __init__(self) -> None:
        self._lock = new_lock(RLock)
        self._bounds: dict[object, tuple[int, bool]] = {}  # of engines that are open, and whether idle rows count too
        self._idle_bytes = 0
        self._version: object = None
        self.forget()

    def forget(self) -> None:
        """Keep nothing of what was read; what is pinned goes too."""
        with self._lock:
            self._salts: dict[Salt, dict[int, _Node]] = {}
            # nodes that are not pinned, what was used longest ago first; children come before their parents
            self._free: OrderedDict[_Node, None] = OrderedDict()
            self._sizes: dict[torch.device, int] = {}  # of these, their bytes
            self._era = object()

    def open(self, engine: object, most_bytes: int, *, with_rows: bool = False) -> None:
        """An engine lets so many bytes be kept, until it closes; if `with_rows`, those of idle rows are among them."""
        with self._lock:
            self._bounds[engine] = most_bytes, with_rows

    def leave(self, idle_bytes: int) -> None:
        """The model keeps so many bytes of idle rows from now on."""
        with self._lock:
            self._idle_bytes = idle_bytes
            self._shrink(self._most)

    def close(self, engine: object) -> None:
        """An engine has closed; with the last one all goes that is not pinned."""
        with self._lock:
            self._bounds.pop(engine, None)
            self._shrink(self._most)

    def find(
        self, tokens: Sequence[int], version: object, salt: Salt, *, pinned: bool, states: bool = False
    ) -> tuple[int, Kept]:
        """How many of these tokens a kept text begins with, and what is kept of it.

        Args:
            version: what the model is now.
            pinned: whether only pinned texts count.
            states: whether there must be recurrent states after them.
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
            version: what the model was when it read them, and is now.
            save: copies the columns from one token on to another one; called for those that are not kept yet.
            least: with fewer new tokens nothing is done.
            pin: whether they stay until `unpin`.
            states: copies the recurrent states after the last token, which are kept with it; None for none.
        Returns:
            How many bytes the text has, and what `unpin` takes.
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
        """A text is not pinned any more; `era` as `add` gave it. Nothing is done where it has gone meanwhile."""
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
        """Others need the memory: only what is pinned stays. Whether there was anything else."""
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
        """How many tokens are there, and the nodes that have them, each with how many of its own count."""
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
        """Cut a node in two; the first one, whose child the other one is."""
        if not node.pins:
            self._take(node)
        first = _Node(node.tokens[:count], node.columns.cut(0, count), node.siblings, node.pins)
        node.siblings[first.tokens[0]] = first
        node.columns = node.columns.cut(count, len(node.tokens))
        node.tokens, node.siblings = node.tokens[count:], first.children
        first.children[node.tokens[0]] = node
        if not node.pins:
            self._set_free(node)
            self._set_free(first)
        return first

    def _touch(self, path: Sequence[_Node]) -> None:
        """These nodes, one the child of the other, are used now."""
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
        """Drop what is not pinned, until it has at most so many bytes."""
        while self._free and sum(self._sizes.values()) > most:
            leaf = next(iter(self._free))
            self._take(leaf)
            del leaf.siblings[leaf.tokens[0]]
        if len(self._salts) > len(self._free) + _EMPTY:
            self._salts = {salt: first for salt, first in self._salts.items() if first}
