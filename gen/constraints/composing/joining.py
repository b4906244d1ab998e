"""A tree as one automaton over bytes: copies of its leaves' automata, joined."""

import re
from collections.abc import Mapping

from gen.constraints.automata.determinising import determinise
from gen.constraints.automata.dfa import Dfa, Table, table
from gen.constraints.automata.limits import Budget
from gen.constraints.automata.nfa import Nfa
from gen.constraints.composing.trees import Tree, Word
from gen.constraints.output_types import Either, Repeat, Sequence

_WORK = 5  # of a node of the tree
_COPIED = 16  # edges that are copied as fast as one is looked at


def joined_table(tree: Tree, leaves: Mapping[object, Table], specials: Mapping[str, bytes]) -> Table:
    """The texts of a tree.

    Args:
        leaves: the table of each leaf, by key.
        specials: the bytes of special tokens, by their texts.
    Raises:
        TooLarge: too many states, or too much work.
        Empty: there is no such text.
    """
    budget = Budget()
    joiner = _Joiner(leaves, specials, budget)
    start = joiner.nfa.state()
    found = table(determinise(joiner.nfa, start, joiner.write(tree, start), budget=budget))
    return found._replace(depth=min((one.depth for one in leaves.values() if one.depth is not None), default=None))


def word_table(word: Word, specials: Mapping[str, bytes]) -> Table:
    """The texts that are read back as a word: a special token as its own bytes, or as its characters."""
    nfa = Nfa()
    at = start = nfa.state()
    for piece in word_pieces(word.text, specials):
        begin, at = at, nfa.after(nfa.spell(at, piece.encode()))
        if piece in specials:
            nfa.join(nfa.spell(begin, specials[piece]), at)
    return table(determinise(nfa, start, at))


def word_pieces(text: str, specials: Mapping[str, bytes]) -> list[str]:
    """A word cut into the special tokens that it names and what is between them."""
    names = sorted(specials, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return [piece for piece in pieces if piece]


class _Joiner:
    def __init__(self, leaves: Mapping[object, Table], specials: Mapping[str, bytes], budget: Budget) -> None:
        self.nfa = Nfa()
        self._leaves, self._specials, self._budget = leaves, specials, budget
        self._automata: dict[object, Dfa] = {}

    def write(self, tree: Tree, state: int) -> int:
        """Write a tree after `state`; returns the state after it, which nothing leads away from."""
        self._budget.spend(_WORK)
        if isinstance(tree, Word):
            pieces = word_pieces(tree.text, self._specials)
            spelled = b"".join(self._specials.get(piece, piece.encode()) for piece in pieces)
            return self.nfa.spell(self.nfa.after(state), spelled)
        if isinstance(tree, Sequence):
            for part in tree.parts:
                state = self.write(part, state)
            return state
        if isinstance(tree, Either):
            end = self.nfa.state()
            for branch in tree.branches:
                self.nfa.join(self.write(branch, self.nfa.after(state)), end)
            return end
        if isinstance(tree, Repeat):
            return self._again(tree, state)
        if tree.key not in self._automata:
            leaf = self._leaves[tree.key]
            self._automata[tree.key] = Dfa(leaf.edges, leaf.final[1:])
        automaton = self._automata[tree.key]
        self._budget.spend(len(automaton.edges) // _COPIED)
        return self.nfa.insert(automaton, self.nfa.after(state))

    def _again(self, tree: Repeat, state: int) -> int:
        end = self.nfa.state()
        if not tree.least:
            self.nfa.join(state, end)
        state = self.write(tree.part, state)
        for count in range(1, tree.least if tree.most is None else tree.most):
            if count >= tree.least:
                self.nfa.join(state, end)
            state = self.write(tree.part, self.write(Word(tree.separator), state))
        self.nfa.join(state, end)
        if tree.most is None:
            again = self.write(Word(tree.separator), self.nfa.after(state))
            self.nfa.join(self.write(tree.part, again), state)
        return end
