"""A tree as one grammar for llguidance, which reads lexemes greedily: one that can go on does, and is not taken back.

So what is regular and stands side by side becomes one lexeme. Example: gen.sequence(gen.regex("[0-9]*"), "5", T) with a
recursive T has the rules `start: A @b` and `A: /[0-9]*/ "5"`; as two lexemes the digits would take the 5. Where a
lexeme may go on with what the next part begins with, its end could not be told, so that this is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gen.constraints.automata.limits import TooLarge
from gen.constraints.composing.joining import joined_table, word_pieces
from gen.constraints.composing.recognisers import HostRecogniser, Recogniser, TableRecogniser
from gen.constraints.composing.trees import Again, OneOf, Plan, Row, Tree, Word
from gen.constraints.grammars import ONE_TERMINAL
from gen.constraints.tables.vocabulary import Vocabulary
from gen.errors import ConstraintError


def host_grammar(tree: Tree, readers: Mapping[object, Recogniser], vocabulary: Vocabulary) -> str:
    """The grammar of a tree.

    Args:
        readers: of each leaf and word, by key.
    Raises:
        ConstraintError: a part cannot be written, or it cannot be told where it ends.
    """
    writer = _Writer(readers, vocabulary)
    rules = [f"start: {writer.rule(tree)}", *writer.rules]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, *writer.grammars]})


@dataclass(frozen=True)
class _Lexeme:
    """Trees one after another that are one lexeme, and how it is written."""

    trees: tuple[Tree, ...]
    written: str


class _Writer:
    def __init__(self, readers: Mapping[object, Recogniser], vocabulary: Vocabulary) -> None:
        self._readers, self._specials = readers, vocabulary.specials
        self._ids = {text: token_id for token_id, text in vocabulary.names.items()}
        self.rules: list[str] = []
        self.grammars: list[dict[str, Any]] = []
        self._known: dict[object, str] = {}

    def rule(self, tree: Tree) -> str:
        """A tree as an expression of rules."""
        items = self._merged(self._items(tree))
        for item, after in pairwise(items):
            if isinstance(item, _Lexeme):
                self._check_end(item, after)
        return " ".join(self._named(item) for item in items) or '""'

    def _items(self, tree: Tree) -> list[_Lexeme | Tree]:
        """A tree as lexemes and what is none, one after another."""
        lexeme = self._lexeme(tree)
        if lexeme is not None:
            return [_Lexeme((tree,), lexeme)]
        if isinstance(tree, Row):
            return [item for part in tree.parts for item in self._items(part)]
        if isinstance(tree, Word):
            pieces = word_pieces(tree.text, self._specials)
            return [_Lexeme((Word(one),), _quoted(one)) if one not in self._specials else Word(one) for one in pieces]
        return [tree]

    def _merged(self, items: list[_Lexeme | Tree]) -> list[_Lexeme | Tree]:
        merged: list[_Lexeme | Tree] = []
        for item in items:
            last = merged[-1] if merged else None
            if isinstance(item, _Lexeme) and isinstance(last, _Lexeme):
                merged[-1] = _Lexeme((*last.trees, *item.trees), f"{last.written} {item.written}")
            else:
                merged.append(item)
        return merged

    def _lexeme(self, tree: Tree) -> str | None:
        """A tree as an expression of terminals; None where it is not regular, or has special tokens."""
        if isinstance(tree, Word):
            return None if {*word_pieces(tree.text, self._specials)} & {*self._specials} else _quoted(tree.text)
        if isinstance(tree, Row | OneOf):
            parts = [self._lexeme(part) for part in (tree.parts if isinstance(tree, Row) else tree.branches)]
            joined = (" " if isinstance(tree, Row) else " | ").join(part for part in parts if part is not None)
            return None if None in parts else f"({joined})"
        if isinstance(tree, Again):
            part, separator = self._lexeme(tree.part), self._lexeme(tree.separator)
            return None if part is None or separator is None else _again(tree, part, f"{separator} {part}")
        assert isinstance(tree, Plan)  # of a bare tree; tells mypy
        given = tree.grammar()
        grammar = json.loads(given)["grammars"][0] if given.startswith('{"grammars"') else {}
        return f"({grammar['lark_grammar'].removeprefix(ONE_TERMINAL)})" if grammar.get("name") == "regex" else None

    def _named(self, item: _Lexeme | Tree) -> str:
        """An item as it stands in a rule."""
        if isinstance(item, _Lexeme):
            return self._add("LEXEME", item.written)
        if isinstance(item, Word):
            return f"<[{self._ids[item.text]}]>"
        if isinstance(item, OneOf):
            return f"({' | '.join(self.rule(branch) for branch in item.branches)})"
        if isinstance(item, Again):
            part = self._add("rule", self.rule(item.part))
            further = self._add("rule", self.rule(Row((item.separator, item.part))))
            return _again(item, part, further)
        assert isinstance(item, Plan)  # the parts of a row are items; tells mypy
        if item.key not in self._known:
            name = self._known[item.key] = f"part{len(self.grammars)}"
            given = item.grammar()
            lark = {"lark_grammar": given}
            self.grammars.append((json.loads(given)["grammars"][0] if given.startswith("{") else lark) | {"name": name})
        return f"@{self._known[item.key]}"

    def _add(self, kind: str, written: str) -> str:
        self.rules.append(f"{kind}{len(self.rules)}: {written}")
        return f"{kind}{len(self.rules) - 1}"

    def _check_end(self, lexeme: _Lexeme, after: _Lexeme | Tree) -> None:
        """Raise a ConstraintError where a lexeme may go on with what comes after it."""
        leaves = {key: one.table for key, one in self._readers.items() if isinstance(one, TableRecogniser)}
        try:
            table = joined_table(Row(lexeme.trees), leaves, {})
        except (KeyError, TooLarge):  # of a part that is too large itself
            goes_on = frozenset(range(256))
        else:
            further = np.flatnonzero(table.next[table.final].any(axis=0))
            goes_on = frozenset(np.flatnonzero(np.isin(table.classes, further)).tolist())
        if goes_on & self._begins(after):
            raise ConstraintError(
                "the host engine cannot tell where one part ends and the next one begins; put a string between them "
                "that the first one does not have, as gen.sequence(gen.text(without=['\\n']), '\\n', ...)"
            )

    def _begins(self, item: _Lexeme | Tree) -> frozenset[int]:
        """The bytes that an item may begin with; all bytes where it may be empty."""
        if isinstance(item, _Lexeme):
            raise AssertionError("lexemes side by side are one")
        if isinstance(item, Word):
            return frozenset()  # a special token, which is no byte
        if isinstance(item, OneOf):
            return frozenset().union(*(self._first(branch) for branch in item.branches))
        if isinstance(item, Again):
            return self._first(item.part) if item.least else frozenset(range(256))
        return self._first(item)

    def _first(self, tree: Tree) -> frozenset[int]:
        if isinstance(tree, Row):
            return self._first(tree.parts[0])
        if isinstance(tree, OneOf | Again):
            return self._begins(tree)
        reader = self._readers[tree.key]
        if isinstance(reader, HostRecogniser):
            return reader.first_bytes()
        assert isinstance(reader, TableRecogniser)  # there are two kinds
        table = reader.table
        every = range(256)
        return frozenset(every if table.final[1] else (one for one in every if table.next[1, table.classes[one]]))


def _again(tree: Again, part: str, further: str) -> str:
    """A repeat, of its first part and of further ones with the separator before each."""
    most = "" if tree.most is None else tree.most - 1
    written = part if most == 0 else f"({part} ({further}){{{max(tree.least - 1, 0)},{most}}})"
    return written if tree.least else f"({written})?"


def _quoted(text: str) -> str:
    return json.dumps(text)
