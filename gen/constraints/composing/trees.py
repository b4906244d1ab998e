"""Types as trees: those that are made of others, strings in them, and plans, which are not made of others.

Example: gen.sequence("<b>", gen.either(int, "none")) is Row((Word("<b>"), OneOf((plan of int, Word("none"))))). The
pieces of the text "<b>7" are (b"<b>", (0, b"7")), with the number of the branch; its value is ("<b>", 7).
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gen.constraints.automata.table import Table
from gen.constraints.output_types import Composed, Made, Repeat, Sequence
from gen.errors import ConstraintError, show

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
class Row:
    """Parts one after another."""

    parts: tuple["Tree", ...]

    @property
    def key(self) -> Hashable:
        return ("sequence", *(part.key for part in self.parts))

    def value(self, piece: Any) -> tuple[Any, ...]:
        return tuple(part.value(one) for part, one in zip(self.parts, piece, strict=True))


@dataclass(frozen=True)
class OneOf:
    """One of several branches."""

    branches: tuple["Tree", ...]

    @property
    def key(self) -> Hashable:
        return ("either", *(branch.key for branch in self.branches))

    def value(self, piece: Any) -> Any:
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
        return ("repeat", self.part.key, self.separator.text, self.least, self.most)

    def value(self, piece: Any) -> list[Any]:
        return [self.part.value(one) for one in piece]


@dataclass(frozen=True)
class Remade:
    """A tree, and a function that makes another value of its value."""

    part: "Tree"
    make: Callable[[Any], Any]

    @property
    def key(self) -> Hashable:
        return self.part.key

    def value(self, piece: Any) -> Any:
        return self.make(self.part.value(piece))


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


Tree = Plan | Word | Row | OneOf | Again | Remade
"""A tree, or a part of one; `Calls` are never a part."""


def bare(tree: Tree) -> Tree:
    """A tree with the same texts and pieces, without the functions that make other values."""
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
        read_plan: gives the plan of a type that is not.
    Raises:
        ConstraintError: one of its parts is no output type, or two branches are equal.
    """

    def read(part: Any) -> Tree:
        if isinstance(part, str):
            return Word(part)
        return read_tree(part, read_plan) if isinstance(part, Composed) else read_plan(part)

    if isinstance(output_type, Made):
        part = read(output_type.part)
        if output_type.about and isinstance(part, Plan):
            part = replace(part, about=output_type.about)
        return Remade(part, output_type.make)
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
