"""States that share rows agree on every token, whatever the vocabulary."""

from typing import Any

import numpy as np
import pytest

from gen.constraints.automata.dfa import Table
from gen.constraints.automata.regexes import regex_table
from gen.constraints.composing.composition import Composition
from gen.constraints.composing.trees import read_tree
from gen.constraints.output_types import either, sequence
from gen.constraints.plans import read_plan
from gen.constraints.tables.groups import groups_of
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.constraints.tables.tokens_needed import closable
from gen.constraints.tables.vocabulary import Vocabulary
from tests.constraints.samples import tables
from tests.constraints.vocabularies import spelled, walk_all


@pytest.mark.parametrize("number", range(0, 100, 2))
def test_states_of_a_group_agree_on_all_tokens_and_on_the_tokens_needed_after_them(number: int) -> None:
    table, tokens = tables()[number], spelled()
    vocabulary = Vocabulary(tokens)
    table, needed = closable(table, vocabulary)
    groups, examples = groups_of(table, needed, vocabulary.longest)
    assert groups[0] == 0 == examples[0]
    assert (groups[1:] > 0).all()
    assert (groups[examples] == np.arange(len(examples))).all()
    shared = [state for state in range(1, len(groups)) if examples[groups[state]] != state]
    for state in shared[:20]:
        for one, other in zip(
            walk_all(table, state, tokens), walk_all(table, int(examples[groups[state]]), tokens), strict=True
        ):
            assert (one > 0) == (other > 0)
            if one:
                assert needed[one] - needed[state] == needed[other] - needed[examples[groups[state]]]


def test_a_long_text_of_anything_has_few_groups() -> None:
    table = regex_table("[a-z]{0,500}")
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(128)), b"a" * 9, b""])
    groups, examples = groups_of(*closable(table, vocabulary), vocabulary.longest)
    assert len(groups) == 502
    assert len(examples) == 11  # nothing can follow in the dead state; 0 to 8 more bytes; any token


def test_states_that_differ_only_farther_than_a_token_reaches_are_one_group() -> None:
    table = regex_table("x[ab]{6}1|y[ab]{6}2")
    table, needed = closable(table, Vocabulary([b"a", b"b", b"x", b"y", b"1", b"2", b""]))
    after_x, after_y = (table.next[1, table.classes[ord(letter)]] for letter in "xy")
    near, _ = groups_of(table, needed, 6)
    far, _ = groups_of(table, needed, 7)
    assert near[after_x] == near[after_y]
    assert far[after_x] != far[after_y]


@pytest.mark.parametrize(
    "pattern", ["x(ab1|ba2)|y(ba1|ab2)", "xa?|ya", "x(aab|bba)|y(abb|baa)", "x([a-c]d|de)|y(d[a-c]|ed)"]
)
def test_states_differ_by_the_order_of_bytes_and_by_what_may_end(pattern: str) -> None:
    table, needed = closable(regex_table(pattern), Vocabulary([*(bytes([byte]) for byte in range(128)), b""]))
    groups, _ = groups_of(table, needed, 8)
    after_x, after_y = (table.next[1, table.classes[ord(letter)]] for letter in "xy")
    assert groups[after_x] != groups[after_y]


def test_states_before_different_special_tokens_are_different_groups() -> None:
    """Of many special tokens two begin with the same byte."""
    tokens = [b"a", b"b", *[b""] * 14]
    vocabulary = Vocabulary(tokens, {number: f"<{number}>" for number in range(3, 16)})
    names = sorted(vocabulary.specials, key=vocabulary.specials.__getitem__)[:2]
    tree = read_tree(either(*map(sequence, "ab", names)), read_plan)
    automaton = TokenAutomaton(Composition(tree, vocabulary).table(), vocabulary)
    for first, name in enumerate(names):
        state = automaton.follow([first])
        allowed = np.unpackbits(automaton.rows(int(automaton.group_of[state]))[0][0], bitorder="little")
        assert [vocabulary.names[token] for token in np.flatnonzero(allowed).tolist()] == [name]


@pytest.mark.parametrize("number", range(1, 100, 5))
@pytest.mark.parametrize("depth", [1, 2, 5, 40])
def test_there_are_as_few_groups_as_can_be(number: int, depth: int) -> None:
    table, needed = closable(tables()[number], Vocabulary(spelled()))
    groups, examples = groups_of(table, needed, depth)
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
