"""A tree of types for a vocabulary: its automaton if it has one, its grammar, and the splitter of its texts."""

from collections.abc import Hashable, Mapping
from functools import cached_property
from types import MappingProxyType

from gen.constraints.automata.dfa import Table
from gen.constraints.automata.limits import Empty, TooLarge
from gen.constraints.composing.host_grammars import host_grammar
from gen.constraints.composing.joining import joined_table, word_pieces, word_table
from gen.constraints.composing.splitting import HostRecogniser, Recogniser, Splitter, TableRecogniser, recogniser
from gen.constraints.composing.trees import Calls, Plan, Tree, Word, bare, inside
from gen.constraints.output_types import Repeat
from gen.constraints.tables.vocabulary import Vocabulary
from gen.errors import ConstraintError

Tables = Mapping[Hashable, Table | str]
"""For the key of each plan, its table or the reason why it has none."""


class Composition:
    """A tree for a vocabulary.

    Args:
        known: what was found out about its parts before.

    Attributes:
        special_ids: the special tokens that its strings name.

    Raises:
        ConstraintError: a part cannot be enforced, or has no text; a repeated part may be empty; or a string names a
            token that ends the model's texts.
    """

    def __init__(self, tree: Tree | Calls, vocabulary: Vocabulary, known: Tables = MappingProxyType({})) -> None:
        calls = tree if isinstance(tree, Calls) else Calls(tree, tree)
        self._tree, self._read, self._vocabulary = bare(calls.written), bare(calls.read), vocabulary
        self._readers: dict[object, Recogniser] = {}
        every = [*inside(self._tree), *inside(self._read)]
        ends = [one for one in every if isinstance(one, Plan | Word)]
        words = {one.text for one in ends if isinstance(one, Word)}
        for text in words:
            for name in vocabulary.end_names:
                if name in text:
                    raise ConstraintError(
                        f"the string {text!r} names {name!r}, which ends this model's texts; leave it out."
                    )
        named = {piece for text in words for piece in word_pieces(text, vocabulary.specials)}
        self.special_ids = frozenset(token_id for token_id, name in vocabulary.names.items() if name in named)
        for one in ends:
            if one.key not in self._readers:
                self._readers[one.key] = self._reader(one, known.get(one.key))
        for part in every:
            if isinstance(part, Repeat) and Splitter(part.part, self._readers).split(b"") is not None:
                raise ConstraintError(
                    "gen.repeat repeats a part that may be empty; take one that has at least one character."
                )

    def table(self) -> Table:
        """The automaton. Raises TooLarge or Empty where there is none."""
        leaves = {}
        for key, reader in self._readers.items():
            if isinstance(reader, HostRecogniser):
                raise TooLarge(f"one of its parts: {reader.reason}")
            leaves[key] = reader.table
        return joined_table(self._tree, leaves, self._vocabulary.specials)

    def grammar(self) -> str:
        """The grammar for llguidance. Raises ConstraintError where it has none."""
        return host_grammar(self._tree, self._readers, self._vocabulary)

    @cached_property
    def splitter(self) -> Splitter:
        """What splits its texts."""
        return Splitter(self._read, self._readers)

    def tables(self) -> Tables:
        """What was found out about its parts, in the form of `known`."""
        return {
            key: reader.reason if isinstance(reader, HostRecogniser) else reader.table
            for key, reader in self._readers.items()
        }

    def _reader(self, end: Plan | Word, known: Table | str | None) -> Recogniser:
        if isinstance(end, Word):
            return TableRecogniser(word_table(end, self._vocabulary.specials))
        try:
            return recogniser(end, known)
        except Empty as error:
            raise ConstraintError(f"no text meets {end.about or 'one of its parts'}: {error}") from error
        except ConstraintError as error:
            raise ConstraintError(f"{end.about}: {error}" if end.about else str(error)) from error
