"""How many tokens a text needs, compared with a search through all tokens."""

import pytest

from gen.constraints.automata.dfa import FAR
from gen.constraints.automata.regexes import regex_table
from gen.constraints.tables.tokens_needed import closable, most_needed
from gen.constraints.tables.vocabulary import Vocabulary
from tests.constraints.samples import tables
from tests.constraints.vocabularies import fewest_tokens, spelled, walk_all


def test_the_example_of_the_file() -> None:
    letters = [*(bytes([byte]) for byte in range(32, 127)), b"es", b""]
    table = regex_table("yes|no, never")
    _, needed = closable(table, Vocabulary(letters))
    assert needed[1] == 2
    assert needed[table.next[1, table.classes[ord("n")]]] == 8


@pytest.mark.parametrize("number", range(100))
def test_so_many_tokens_suffice_and_one_of_them_always_leads_nearer(number: int) -> None:
    table, tokens = tables()[number], spelled()
    _, needed = closable(table, Vocabulary(tokens))
    assert needed[0] == FAR
    assert ((needed == 0) == table.final).all()
    for state in range(1, len(table.next)) if len(table.next) < 60 else range(1, len(table.next), 9):
        reached = {to for to in walk_all(table, state, tokens) if to}
        if not table.final[state]:
            assert needed[state] - 1 in {needed[to] for to in reached}


@pytest.mark.parametrize("number", range(0, 100, 4))
def test_the_most_that_can_yet_be_needed_is_that_of_all_states_that_can_be_reached(number: int) -> None:
    table, needed = closable(tables()[number], Vocabulary(spelled()))
    most = most_needed(table, needed)
    assert most[0] == 0
    for state in range(1, len(table.next), max(1, len(table.next) // 40)):
        reached, front = {state}, [state]
        for there in front:
            new = {*table.next[there].tolist()} - reached - {0}
            reached |= new
            front += new
        assert most[state] == max(needed[to] if needed[to] < FAR else 0 for to in reached)


@pytest.mark.parametrize(
    "pattern", ["true|false", "a{3,5}b", r'\{"name": "[a-z]+"\}', "(the|ab){3}", "é|日|😀", "12300"]
)
def test_they_are_the_fewest_where_the_shortest_text_is_alone(pattern: str) -> None:
    table, tokens = regex_table(pattern), spelled()
    fewest = fewest_tokens(table, tokens)
    _, needed = closable(table, Vocabulary(tokens))
    assert (needed[1:] >= fewest[1:]).all()
    assert needed[1] <= fewest[1] + 1


def test_texts_that_cannot_be_spelled_are_left_out() -> None:
    table = regex_table("a(b|cc)|x")
    vocabulary = Vocabulary([b"a", b"b", b"x", b"cc", b""])  # "c" is no token by itself
    smaller, needed = closable(table, vocabulary)
    assert [smaller.accepts(text) for text in (b"ab", b"x", b"acc")] == [True, True, False]
    assert needed[1] == 1


def test_long_texts_are_counted_too() -> None:
    _, needed = closable(regex_table("a{900}"), Vocabulary([b"a", b"b", b"aaa", b""]))
    assert needed[1] == 300
