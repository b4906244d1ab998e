"""Automata: determinising, bounds, tables. Oracle: Python's re, and sets of texts written out."""

from itertools import product

import pytest

from gen.constraints.automata.determinising import determinise
from gen.constraints.automata.limits import Empty, TooLarge, check_deadline, deadline_in
from gen.constraints.automata.nfa import Nfa
from gen.constraints.automata.table import table


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


def test_a_table_accepts_the_texts_of_its_automaton() -> None:
    found = table(determinise(*third_from_the_end(97, 98, 3)))
    for length in range(7):
        for text in product(b"ab", repeat=length):
            assert found.accepts(bytes(text)) == (length >= 3 and text[-3] == 97)
    assert not found.accepts(b"cab")


def test_a_table_has_one_class_for_bytes_that_no_state_tells_apart() -> None:
    nfa = Nfa()
    start = nfa.state()
    end = nfa.reads(nfa.reads(start, [(97, 110), (105, 122)]), [(48, 57)])
    found = table(determinise(nfa, start, end))
    assert len(set(found.classes[97:123].tolist())) == 1
    assert len(set(found.classes.tolist())) == found.next.shape[1] == 3
    assert not found.next[0].any() and not found.final[0]
    assert found.next.dtype == "int32" and found.classes.dtype == "uint8" and found.classes.shape == (256,)


def test_the_empty_text_alone_is_an_automaton() -> None:
    nfa = Nfa()
    start = nfa.state()
    found = table(determinise(nfa, start, nfa.after(start)))
    assert found.accepts(b"") and not found.accepts(b"a")


def test_no_text_at_all_is_an_error() -> None:
    nfa = Nfa()
    start, end = nfa.state(), nfa.state()
    nfa.reads(start, [(97, 97)])
    with pytest.raises(Empty):
        determinise(nfa, start, end)


def test_bounds_on_states_and_time_are_kept() -> None:
    with pytest.raises(TooLarge, match="more than 1000 states"):
        determinise(*third_from_the_end(97, 98, 12), max_states=1000)
    nfa = Nfa(max_states=10)
    with pytest.raises(TooLarge, match="more than 10 states"):
        for _ in range(11):
            nfa.state()
    with pytest.raises(TooLarge, match="too long"):
        check_deadline(deadline_in(-1))
