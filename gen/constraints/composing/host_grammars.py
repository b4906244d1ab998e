"""A tree as one grammar for llguidance, which reads lexemes greedily: one that can go on does, and is never taken back.

So regular parts that stand side by side become one lexeme. Example: gen.sequence(gen.regex("[0-9]*"), "5", T) with a
recursive T has the rules `start: A @b` and `A: /[0-9]*/ "5"`; as two lexemes, the digits would take the 5. If a lexeme
may go on with a byte that the next part may begin with, nothing tells where it ends, so the tree is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gen.constraints.automata.arrays import Ints
from gen.constraints.automata.dfa import Table
from gen.constraints.automata.limits import TooLarge
from gen.constraints.automata.rust_syntax import NO_FORCING, ONE_TERMINAL
from gen.constraints.composing.joining import joined_table, word_pieces
from gen.constraints.composing.splitting import HostRecogniser, Recogniser, TableRecogniser
from gen.constraints.composing.trees import Plan, Tree, Word
from gen.constraints.output_types import Either, Repeat, Sequence
from gen.constraints.tables.vocabulary import Vocabulary
from gen.errors import ConstraintError

_DEEPEST = 8  # parts that are taken apart within one another
_EVERY = frozenset(range(256))


def host_grammar(tree: Tree, readers: Mapping[object, Recogniser], vocabulary: Vocabulary) -> str:
    """The grammar of a tree.

    Args:
        readers: of each leaf and word, by key.
    Raises:
        ConstraintError: a part cannot be written as a grammar, or nothing tells where it ends.
    """
    writer = _Writer(readers, vocabulary)
    rules = [f"start: {writer.rule(tree)}", *writer.rules]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules) + NO_FORCING}, *writer.grammars]})


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
        self._written: dict[object, dict[str, Any]] = {}

    def rule(self, tree: Tree) -> str:
        """A tree as an expression of rules."""
        return self._in_order(self._items(tree), 0)

    def _in_order(self, items: list[_Lexeme | Tree], depth: int) -> str:
        """Items one after another; where the end of a lexeme cannot be told, the next item is taken apart."""
        items = self._merged(items)
        for place, (item, after) in enumerate(pairwise(items)):
            if self._goes_on(item) & self._begins(after):
                ways = self._ways(after)
                if depth > _DEEPEST or not ways:
                    raise ConstraintError(
                        "the host engine cannot tell where one part ends and the next one begins; put a string between "
                        "them that the first one does not have, as gen.sequence(gen.text(without=['\\n']), '\\n', ...)"
                    )
                before, behind = items[: place + 1], items[place + 2 :]
                return f"({' | '.join(self._in_order([*before, *way, *behind], depth + 1) for way in ways)})"
        return " ".join(self._named(item) for item in items) or '""'

    def _ways(self, item: _Lexeme | Tree) -> list[list[_Lexeme | Tree]]:
        """The ways to write an item: its branches, or its repeats as zero and as one or more; [] for any other item."""
        if isinstance(item, Either):
            return [self._items(branch) for branch in item.branches]
        if not isinstance(item, Repeat):
            return []
        most = None if item.most is None else item.most - 1
        further = Repeat(Sequence((Word(item.separator), item.part)), "", max(item.least - 1, 0), most)
        once = [*self._items(item.part), *([] if most == 0 else [further])]
        return [once] if item.least else [[], once]

    def _items(self, tree: Tree) -> list[_Lexeme | Tree]:
        """A tree as lexemes and other trees, one after another."""
        lexeme = self._lexeme(tree)
        if lexeme is not None:
            return [_Lexeme((tree,), lexeme)]
        if isinstance(tree, Sequence):
            return [item for part in tree.parts for item in self._items(part)]
        if isinstance(tree, Word):
            pieces = word_pieces(tree.text, self._specials)
            return [
                _Lexeme((Word(one),), json.dumps(one)) if one not in self._specials else Word(one) for one in pieces
            ]
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
            return None if {*word_pieces(tree.text, self._specials)} & {*self._specials} else json.dumps(tree.text)
        if isinstance(tree, Sequence | Either):
            parts = [self._lexeme(part) for part in (tree.parts if isinstance(tree, Sequence) else tree.branches)]
            joined = (" " if isinstance(tree, Sequence) else " | ").join(part for part in parts if part is not None)
            return None if None in parts else f"({joined})"
        if isinstance(tree, Repeat):
            part, separator = self._lexeme(tree.part), self._lexeme(Word(tree.separator))
            return None if part is None or separator is None else _again(tree, part, f"{separator} {part}")
        assert isinstance(tree, Plan)  # the only other kind in a bare tree; tells mypy
        grammar = self._grammar(tree)
        return f"({grammar['lark_grammar'].removeprefix(ONE_TERMINAL)})" if grammar.get("name") == "regex" else None

    def _named(self, item: _Lexeme | Tree) -> str:
        """An item as it stands in a rule."""
        if isinstance(item, _Lexeme):
            return self._add("LEXEME", item.written)
        if isinstance(item, Word):
            return f"<[{self._ids[item.text]}]>"
        if isinstance(item, Either):
            return f"({' | '.join(self.rule(branch) for branch in item.branches)})"
        if isinstance(item, Repeat):
            part = self._add("rule", self.rule(item.part))
            further = self._add("rule", self.rule(Sequence((Word(item.separator), item.part))))
            return _again(item, part, further)
        assert isinstance(item, Plan)  # a row was split into its parts before; tells mypy
        if item.key not in self._known:
            name = self._known[item.key] = f"part{len(self.grammars)}"
            self.grammars.append(self._grammar(item) | {"name": name})
        return f"@{self._known[item.key]}"

    def _grammar(self, plan: Plan) -> dict[str, Any]:
        """The grammar of a plan, written once."""
        if plan.key not in self._written:
            given = plan.grammar()
            lark = {"lark_grammar": given}
            self._written[plan.key] = json.loads(given)["grammars"][0] if given.startswith('{"grammars"') else lark
        return self._written[plan.key]

    def _add(self, kind: str, written: str) -> str:
        self.rules.append(f"{kind}{len(self.rules)}: {written}")
        return f"{kind}{len(self.rules) - 1}"

    def _goes_on(self, item: _Lexeme | Tree) -> frozenset[int]:
        """The bytes that an item may go on with where it may end: those of a lexeme, or of JSON that is a number."""
        if isinstance(item, Either | Repeat):
            branches = item.branches if isinstance(item, Either) else (item.part,)
            return frozenset[int]().union(*(self._goes_on(self._items(one)[-1]) for one in branches if one != Word("")))
        if isinstance(item, Plan) and item.schema is not None:
            reader = self._readers[item.key]
            return reader.in_numbers() if isinstance(reader, HostRecogniser) else _after_ends(reader.table)
        return _after_ends(self._table(item)) if isinstance(item, _Lexeme) else frozenset()

    def _table(self, lexeme: _Lexeme) -> Table | None:
        """The table of a lexeme; None if it is too large."""
        leaves = {key: one.table for key, one in self._readers.items() if isinstance(one, TableRecogniser)}
        try:
            return joined_table(Sequence(lexeme.trees), leaves, {})
        except (KeyError, TooLarge):  # KeyError: a part is too large itself and has no table
            return None

    def _begins(self, item: _Lexeme | Tree) -> frozenset[int]:
        """The bytes that an item may begin with, a special token by none; all bytes where it may be empty, but for a
        lexeme, which may be the last item.
        """
        if isinstance(item, _Lexeme):
            table = self._table(item)
            return _EVERY if table is None else _bytes_of(table.edges[table.edges[:, 0] == 0])
        if isinstance(item, Sequence):
            parts = [part for part in item.parts if part != Word("")]
            return self._begins(parts[0]) if parts else _EVERY
        if isinstance(item, Either):
            return frozenset().union(*map(self._begins, item.branches))
        if isinstance(item, Repeat):
            return self._begins(item.part) if item.least else _EVERY
        if isinstance(item, Word):
            pieces = word_pieces(item.text, self._specials)
            special = bool(pieces) and pieces[0] in self._specials
            return frozenset() if special else frozenset(item.text.encode()[:1]) or _EVERY
        reader = self._readers[item.key]
        if isinstance(reader, HostRecogniser):
            return reader.first_bytes()
        table = reader.table
        return _EVERY if table.final[1] else _bytes_of(table.edges[table.edges[:, 0] == 0])


def _after_ends(table: Table | None) -> frozenset[int]:
    """The bytes that follow where a text may end; all bytes without a table."""
    return _EVERY if table is None else _bytes_of(table.edges[table.final[table.edges[:, 0] + 1]])


def _bytes_of(edges: Ints) -> frozenset[int]:
    return frozenset(byte for _, low, high, _ in edges.tolist() for byte in range(low, high + 1))


def _again(tree: Repeat, part: str, further: str) -> str:
    """A repeat: its first part, and further ones with the separator before each."""
    most = "" if tree.most is None else tree.most - 1
    written = part if most == 0 else f"({part} ({further}){{{max(tree.least - 1, 0)},{most}}})"
    return written if tree.least else f"({written})?"
