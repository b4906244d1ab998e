"""States that share rows agree on all that follows, as far as a token reaches; test_token_automaton.py has the rows."""

from typing import Any

import numpy as np
import pytest

from gen.constraints.automata.dfa import Table
from gen.constraints.automata.regexes import regex_table
from gen.constraints.composing.composition import Composition
from gen.constraints.output_types import either, sequence
from gen.constraints.plans import read_tree
from gen.constraints.tables.groups import groups_of
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.constraints.tables.tokens_needed import closable
from gen.constraints.tables.vocabulary import Vocabulary
from tests.constraints.samples import tables
from tests.constraints.vocabularies import spelled


def test_states_before_different_special_tokens_are_different_groups() -> None:
    """Of many special tokens two begin with the same byte."""
    tokens = [b"a", b"b", *[b""] * 14]
    vocabulary = Vocabulary(tokens, {number: f"<{number}>" for number in range(3, 16)})
    names = sorted(vocabulary.specials, key=vocabulary.specials.__getitem__)[:2]
    tree = read_tree(either(*map(sequence, "ab", names)))
    automaton = TokenAutomaton(Composition(tree, vocabulary).table(), vocabulary)
    for first, name in enumerate(names):
        state = automaton.follow([first])
        allowed = np.unpackbits(automaton.rows(int(automaton.group_of[state]))[0][0], bitorder="little")
        assert [vocabulary.names[token] for token in np.flatnonzero(allowed).tolist()] == [name]


# what follows "x" and "y" differs after six bytes, in its order, or in what may end
PATTERNS = ["x[ab]{6}1|y[ab]{6}2", "x(ab1|ba2)|y(ba1|ab2)", "xa?|ya", "x(aab|bba)|y(abb|baa)"]
PATTERNS += ["x([a-c]d|de)|y(d[a-c]|ed)", "[a-z]{0,90}"]


@pytest.mark.parametrize("kind", [*range(1, 100, 5), *PATTERNS])
@pytest.mark.parametrize("depth", [1, 2, 5, 6, 40])
def test_states_of_a_group_agree_on_what_follows_and_there_are_as_few_groups_as_can_be(
    kind: int | str, depth: int
) -> None:
    table = tables()[kind] if isinstance(kind, int) else regex_table(kind)
    table, needed = closable(table, Vocabulary(spelled()))
    groups, examples = groups_of(table, needed, depth)
    assert groups[0] == 0 and (groups[1:] > 0).all()
    assert (groups[examples] == np.arange(len(examples))).all()
    slowly = refined(table, needed, depth)
    assert len(examples) == len(set(slowly)) == len(set(zip(groups.tolist(), slowly, strict=True)))


def refined(table: Table, needed: Any, depth: int) -> list[int]:
    """The group of each state, refined round by round: states in a group have the same needs and successors."""
    after, tokens = table.next.tolist(), needed.tolist()
    group = [min(state, 1) for state in range(len(after))]
    for length in range(depth):
        number: dict[Any, int] = {}
        seen = [
            (group[state], tuple(to and (tokens[to] - tokens[state] if not length else group[to], 1) for to in line))
            for state, line in enumerate(after)
        ]
        group = [number.setdefault(one, len(number)) for one in seen]
    return group
