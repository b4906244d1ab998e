"""Types as trees: those that are made of others, strings in them, and plans, which are not made of others.

Example: gen.sequence("<b>", gen.either(int, "none")) is Row((Word("<b>"), OneOf((plan of int, Word("none"))))). The
pieces of the text "<b>7" are (b"<b>", (0, b"7")), with the number of the branch; its value is ("<b>", 7).
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gen.constraints.automata.table import Table
from gen.constraints.output_types import Composed, Made, Repeat, Sequence
from gen.errors import ConstraintError, show

if TYPE_CHECKING:
    from gen.tools.call_pieces import Heads


@dataclass(frozen=True)
class Word:
    """A string that stands there as it is; special tokens that it names are written as such."""

    text: str

    @property
    def key(self) -> Hashable:
        """Equal for output types with equal texts."""
        return ("word", self.text)

    def value(self, piece: Any) -> str:
        """What a piece of a text stands for."""
        return self.text


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a type that is not made of others is written for both engines, and how its texts are read.

    Attributes:
        key: equal for output types with equal texts.
        table: makes the automaton, and raises what is in its way; None where llguidance alone can say it.
        grammar: writes the grammar for llguidance. Raises ConstraintError where it cannot.
        parse: reads a whole text. Raises ValueError where the type refuses the value.
    """

    key: Hashable
    table: Callable[[], Table] | None
    grammar: Callable[[], str]
    parse: Callable[[str], Any]

    def value(self, piece: Any) -> Any:
        """As of a `Word`. Raises ValueError where the type refuses the value."""
        return self.parse(piece.decode())


@dataclass(frozen=True)
class Row:
    """Parts one after another."""

    parts: tuple["Tree", ...]

    @property
    def key(self) -> Hashable:
        """As of a `Word`."""
        return ("sequence", *(part.key for part in self.parts))

    def value(self, piece: Any) -> tuple[Any, ...]:
        """As of a `Plan`."""
        return tuple(part.value(one) for part, one in zip(self.parts, piece, strict=True))


@dataclass(frozen=True)
class OneOf:
    """One of several branches."""

    branches: tuple["Tree", ...]

    @property
    def key(self) -> Hashable:
        """As of a `Word`."""
        return ("either", *(branch.key for branch in self.branches))

    def value(self, piece: Any) -> Any:
        """As of a `Plan`."""
        number, one = piece
        return self.branches[number].value(one)


@dataclass(frozen=True)
class Again:
    """A part from `least` to `most` times (None: any number), with a string between each two."""

    part: "Tree"
    separator: Word
    least: int
    most: int | None

    @property
    def key(self) -> Hashable:
        """As of a `Word`."""
        return ("repeat", self.part.key, self.separator.text, self.least, self.most)

    def value(self, piece: Any) -> list[Any]:
        """As of a `Plan`."""
        return [self.part.value(one) for one in piece]


@dataclass(frozen=True)
class Remade:
    """A tree whose value is made into another one."""

    part: "Tree"
    make: Callable[[Any], Any]

    @property
    def key(self) -> Hashable:
        """As of a `Word`."""
        return self.part.key

    def value(self, piece: Any) -> Any:
        """As of a `Plan`."""
        return self.make(self.part.value(piece))


@dataclass(frozen=True)
class Told:
    """A tree whose texts may have a thought in them, which is no part of what is read.

    Attributes:
        written: what texts are held to.
        read: what they are read by: with the thought or without it.
        begun: what they are held to where the prompt has begun the thought; None where that cannot be.
        heads: what calls of tools begin with; None for texts without.
    """

    written: "Tree"
    read: "Tree"
    begun: "Tree | None" = None
    heads: "Heads | None" = None

    @property
    def key(self) -> Hashable:
        """As of a `Word`."""
        return ("told", self.written.key)

    def value(self, piece: Any) -> Any:
        """As of a `Plan`."""
        return self.read.value(piece)


Tree = Plan | Word | Row | OneOf | Again | Remade
"""What stands within a tree; a `Told` is one as a whole."""


def bare(tree: Tree) -> Tree:
    """A tree that has the same texts and pieces, without what makes values into others."""
    if isinstance(tree, Remade):
        return bare(tree.part)
    if isinstance(tree, Row):
        return Row(tuple(map(bare, tree.parts)))
    if isinstance(tree, OneOf):
        return OneOf(tuple(map(bare, tree.branches)))
    if isinstance(tree, Again):
        return Again(bare(tree.part), tree.separator, tree.least, tree.most)
    return tree


def read_tree(output_type: Composed, read_plan: Callable[[Any], Plan]) -> Tree:
    """The tree of a type that is made of others.

    Args:
        read_plan: gives the plan of one that is not.
    Raises:
        ConstraintError: one of its types is none, or two branches are equal.
    """

    def read(part: Any) -> Tree:
        if isinstance(part, str):
            return Word(part)
        return read_tree(part, read_plan) if isinstance(part, Composed) else read_plan(part)

    if isinstance(output_type, Made):
        return Remade(read(output_type.part), output_type.make)
    if isinstance(output_type, Sequence):
        return Row(tuple(map(read, output_type.parts)))
    if isinstance(output_type, Repeat):
        return Again(read(output_type.part), Word(output_type.separator), output_type.least, output_type.most)
    branches = tuple(map(read, output_type.branches))
    keys = [branch.key for branch in branches]
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise ConstraintError(
                f"gen.either has two equal branches, {show(output_type.branches[number])}; give one of them."
            )
    return OneOf(branches)
