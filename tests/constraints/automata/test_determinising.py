"""Automata: determinising, bounds, tables. Oracles: walks through random automata, and sets of texts written out."""

import random
from contextlib import suppress
from itertools import pairwise, product

import numpy as np
import pytest

from gen.constraints.automata import determinising
from gen.constraints.automata.determinising import determinise
from gen.constraints.automata.dfa import table
from gen.constraints.automata.limits import Budget, Empty, TooLarge
from gen.constraints.automata.nfa import Nfa


def third_from_the_end(letter: int, others: int, back: int) -> tuple[Nfa, int, int]:
    """Texts of two letters in which `letter` stands `back` places before the end: 2 ** back states."""
    nfa = Nfa()
    start = here = nfa.state()
    nfa.edge(start, letter, letter, start)
    nfa.edge(start, others, others, start)
    here = nfa.reads(here, [(letter, letter)])
    for _ in range(back - 1):
        here = nfa.reads(here, [(letter, letter), (others, others)])
    return nfa, start, here


def test_a_table_has_one_class_for_bytes_that_no_state_tells_apart() -> None:
    nfa = Nfa()
    start = nfa.state()
    end = nfa.reads(nfa.reads(start, [(97, 110), (105, 122)]), [(48, 57)])
    found = table(determinise(nfa, start, end))
    assert len(set(found.classes[97:123].tolist())) == 1
    assert len(set(found.classes.tolist())) == found.next.shape[1] == 3
    assert not found.next[0].any() and not found.final[0]
    assert found.next.dtype == "int32" and found.classes.dtype == "uint8" and found.classes.shape == (256,)


def test_no_text_at_all_is_an_error() -> None:
    nfa = Nfa()
    start, end = nfa.state(), nfa.state()
    nfa.reads(start, [(97, 97)])
    with pytest.raises(Empty):
        determinise(nfa, start, end)


def test_bounds_on_states_and_work_are_kept() -> None:
    with pytest.raises(TooLarge, match="more than 1000 states"):
        determinise(*third_from_the_end(97, 98, 12), max_states=1000)
    nfa = Nfa(max_states=10)
    with pytest.raises(TooLarge, match="more than 10 states"):
        for _ in range(11):
            nfa.state()
    with pytest.raises(TooLarge, match="too much work"):
        determinise(*third_from_the_end(97, 98, 12), budget=Budget(1000))


def test_members_of_sets_are_bounded_also_where_nothing_was_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(determinising, "_MEMBERS", 100)
    nfa = Nfa()
    states = [nfa.state() for _ in range(30)]
    for one, other in pairwise(states):  # optional letters: each state leads on to all later ones
        nfa.edge(one, 97, 97, other)
        nfa.join(one, other)
    with pytest.raises(TooLarge, match="more than 100 states"):
        determinise(nfa, states[0], states[-1])


def random_nfa(chance: random.Random, inserted: int = 0) -> tuple[Nfa, int, int]:
    """An automaton with few letters, edges of ranges that may overlap, and many empty edges, also in circles; and with
    deterministic automata that are inserted."""
    nfa = Nfa()
    states = [nfa.state() for _ in range(chance.randint(2, 12))]
    for _ in range(chance.randint(1, 16)):
        low = chance.randint(97, 100)
        nfa.edge(chance.choice(states), low, min(100, low + chance.randint(0, 2)), chance.choice(states))
    for _ in range(chance.randint(0, 14)):
        nfa.join(chance.choice(states), chance.choice(states))
    for _ in range(inserted):
        with suppress(Empty):
            nfa.join(nfa.insert(determinise(*random_nfa(chance)), chance.choice(states)), chance.choice(states))
    return nfa, chance.choice(states), chance.choice(states)


def accepts(nfa: Nfa, start: int, end: int, text: bytes) -> bool:
    """Whether a text leads from one state to another, following all ways at once."""
    edges, silent = (one.tolist() for one in nfa.arrays())
    here = {start}
    for number in [*text, None]:
        while more := {target for source, target in silent if source in here} - here:
            here |= more
        if number is not None:
            here = {target for source, low, high, target in edges if source in here and low <= number <= high}
    return end in here


@pytest.mark.parametrize("seed", range(120))
def test_it_accepts_what_a_walk_by_all_ways_does(seed: int) -> None:
    nfa, start, end = random_nfa(random.Random(seed), seed % 3)
    texts = [bytes(text) for length in range(5) for text in product(range(97, 101), repeat=length)]
    expected = [accepts(nfa, start, end, text) for text in texts]
    try:
        found = determinise(nfa, start, end)
    except Empty:
        assert not any(expected)
        return
    made = table(found)
    assert [made.accepts(text) for text in texts] == expected
    sources, lows, highs, targets = found.edges.T.tolist()
    assert set(targets) | {0} == set(range(len(found.final)))
    for state in range(len(found.final)):
        ranges = [(low, high) for source, low, high in zip(sources, lows, highs, strict=True) if source == state]
        assert all(one[1] < other[0] for one, other in pairwise(ranges))


def test_what_leads_to_no_end_is_left_out() -> None:
    nfa = Nfa()
    start, end = nfa.state(), nfa.state()
    nfa.edge(start, 97, 97, end)
    loop = nfa.reads(start, [(98, 98)])
    nfa.edge(loop, 98, 98, loop)
    assert len(determinise(nfa, start, end).final) == 2


def test_what_was_written_is_copied_between_marks() -> None:
    nfa = Nfa()
    start = nfa.state()
    first = nfa.after(start)
    begin = nfa.mark()._replace(states=first)
    end = nfa.after(nfa.spell(first, b"ab"))
    written = nfa.mark()
    between = nfa.spell(end, b"-")
    shift = nfa.copy(begin, written)
    nfa.join(between, first + shift)
    found = table(determinise(nfa, start, end + shift))
    assert [found.accepts(text) for text in (b"ab-ab", b"ab", b"ab-ab-ab", b"ab-")] == [True, False, False, False]


def test_edges_that_touch_become_one() -> None:
    nfa = Nfa()
    start = nfa.state()
    end = nfa.reads(start, [(50, 60), (61, 61), (10, 49), (70, 80)])
    assert np.array_equal(determinise(nfa, start, end).edges, [[0, 10, 61, 1], [0, 70, 80, 1]])
