"""Types as trees: those that are made of others, with a plan for each part that is not, and a word for each string.

Example: gen.sequence("<b>", gen.either(int, "none")) is Sequence((Word("<b>"), Either((plan of int, Word("none"))))).
The pieces of the text "<b>7" are (b"<b>", (0, b"7")), with the number of the branch; its value is ("<b>", 7).
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from gen.constraints.automata.dfa import Table
from gen.constraints.output_types import Composed, Either, Made, Repeat, Sequence

if TYPE_CHECKING:
    from gen.tools.call_pieces import Heads


@dataclass(frozen=True)
class Word:
    """A string that stands in the text as it is; special tokens that it names are written as special tokens."""

    text: str

    @property
    def key(self) -> Hashable:
        """Equal for output types with equal texts."""
        return ("word", self.text)

    def value(self, piece: Any) -> str:
        """The value of a piece of a text."""
        return self.text


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a type that is not made of others is written for both engines, and how its texts are read.

    Attributes:
        key: equal for output types with equal texts.
        table: makes the automaton, or raises why there is none; None if only llguidance can enforce the type.
        grammar: writes the grammar for llguidance. Raises ConstraintError where it cannot.
        parse: reads a whole text. Raises ValueError where the type refuses the value.
        about: what it is, for errors; "" if it has no name.
        schema: the JSON schema, as a text, of a type whose texts are JSON; None for others.
        python_type: the Python type that it is the plan of, if it is one.
    """

    splitter: ClassVar[None] = None  # as in a `Composition`; its texts have no parts
    special_ids: ClassVar[frozenset[int]] = frozenset()
    key: Hashable
    table: Callable[[], Table] | None
    grammar: Callable[[], str]
    parse: Callable[[str], Any]
    about: str = ""
    schema: str | None = None
    python_type: Any = None

    def value(self, piece: Any) -> Any:
        """See `Word.value`. Raises ValueError where the type refuses the value."""
        return self.parse(piece.decode())


@dataclass(frozen=True)
class Calls:
    """The tree of texts with calls of tools.

    Attributes:
        written: the tree that texts must match.
        read: the tree that reads them, also where a stop has ended one.
        heads: what calls begin with; None for texts without calls.
    """

    written: "Tree"
    read: "Tree"
    heads: "Heads | None" = None

    @property
    def key(self) -> Hashable:
        return ("calls", self.written.key)

    def value(self, piece: Any) -> Any:
        return self.read.value(piece)


Tree = Plan | Word | Composed
"""A tree, or a part of one; `Calls` are never a part."""


def bare(tree: Tree) -> Tree:
    """A tree with the same texts and pieces, without the functions that make other values."""
    return bare(tree.part) if isinstance(tree, Made) else with_parts(tree, bare)


def inside(tree: Tree) -> Iterator[Tree]:
    """A tree and all trees in it, separators among them."""
    yield tree
    parts: tuple[Tree, ...] = ()
    if isinstance(tree, Sequence | Either):
        parts = tree.parts if isinstance(tree, Sequence) else tree.branches
    elif isinstance(tree, Repeat | Made):
        parts = (tree.part, Word(tree.separator)) if isinstance(tree, Repeat) else (tree.part,)
    for part in parts:
        yield from inside(part)


def with_parts(tree: Any, change: Callable[[Any], Any]) -> Any:
    """A tree with other parts."""
    if isinstance(tree, Sequence):
        return Sequence(tuple(map(change, tree.parts)))
    if isinstance(tree, Either):
        return Either(tuple(map(change, tree.branches)))
    return replace(tree, part=change(tree.part)) if isinstance(tree, Repeat | Made) else tree
