"""Which tokens a state allows, compared with a walk along every token's bytes, one by one."""

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import gen
from gen.constraints.automata.limits import Empty, TooLarge
from gen.constraints.automata.regexes import regex_table
from gen.constraints.schema import schema_table
from gen.constraints.tables import device_rows, host_rows
from gen.constraints.tables.device_rows import Placed
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.constraints.tables.vocabulary import Vocabulary, vocabulary_of
from tests.constraints.samples import tables
from tests.constraints.vocabularies import spelled, walk, walk_all
from virtual_gpus import no_host_sync, virtual_gpus

CPU, GPU1 = torch.device("cpu"), torch.device("cuda:1")
WORDY = Vocabulary(spelled())


def rows_of_state(automaton: TokenAutomaton, state: int) -> list[list[int]]:
    rows, _ = automaton.rows(int(automaton.group_of[state]))
    size = automaton.vocabulary.size
    return [np.unpackbits(row, count=size, bitorder="little").tolist() for row in rows]


def brute_force(automaton: TokenAutomaton, state: int) -> tuple[list[list[int]], int]:
    """The three rows of a state, and by how much a token may raise the number of tokens needed."""
    needed = automaton.needed
    after = walk_all(automaton.table, state, automaton.vocabulary.tokens)
    change = [int(needed[to]) - int(needed[state]) if to else 10**6 for to in after]
    rows = [[int(to > 0) for to in after], [int(one <= 0) for one in change], [int(one < 0) for one in change]]
    return rows, max([0, *(one for one, to in zip(change, after, strict=True) if to)])


@pytest.fixture(scope="module")
def of_the_demo() -> Vocabulary:
    return vocabulary_of(gen.load("demo", device="cpu"))


@pytest.mark.parametrize("number", range(100))
def test_the_rows_of_a_state_are_what_a_walk_of_every_token_says(number: int, of_the_demo: Vocabulary) -> None:
    for vocabulary, most in ((WORDY, 25), (of_the_demo, 4)):
        automaton = TokenAutomaton(tables()[number], vocabulary)
        states = range(1, automaton.states + 1)
        for state in random.Random(number).sample(states, min(most, len(states))):
            rows, raised = brute_force(automaton, state)
            assert rows_of_state(automaton, state) == rows
            assert automaton.rows(int(automaton.group_of[state]))[1] == raised


def test_a_walk_along_all_tokens_at_once_is_that_along_each() -> None:
    for table in tables()[::9]:
        each = [walk(table, 1, token) if token else 0 for token in WORDY.tokens]
        assert walk_all(table, 1, WORDY.tokens) == each


@pytest.mark.parametrize("few", [0, 2, 10**9])  # all nodes are few; some; none
def test_however_many_nodes_are_looked_at_rows_are_the_same(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(host_rows, "_FEW", few)
    for number in range(0, 100, 7):
        automaton = TokenAutomaton(tables()[number], WORDY)
        for state in range(1, automaton.states + 1, 1 + automaton.states // 10):
            rows, raised = brute_force(automaton, state)
            assert rows_of_state(automaton, state) == rows
            assert automaton.rows(int(automaton.group_of[state]))[1] == raised


def test_it_counts_the_bytes_that_it_holds_by_now() -> None:
    automaton = TokenAutomaton(regex_table("[a-z]{3}|x*"), WORDY)
    before = automaton.nbytes
    automaton.rows(1)
    walked = automaton.nbytes
    assert walked - before > 3 * automaton.row_bytes
    with virtual_gpus(2):
        placed = automaton.place(GPU1)
        assert automaton.nbytes - walked >= placed.rows.nbytes + placed.after.nbytes


def unpacked(placed: Placed, size: int) -> "np.ndarray[Any, Any]":
    return np.unpackbits(placed.rows.cpu().numpy(), axis=1, count=size, bitorder="little")


def test_made_ahead_on_a_device_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rows, "_CHUNK", 20 * WORDY.nodes)
    for number in range(0, 100, 3):
        automaton = TokenAutomaton(tables()[number], WORDY)
        with virtual_gpus(2):
            placed = automaton.place(GPU1)
            assert {tensor.device for tensor in vars(placed).values()} == {GPU1}
            rows, which = unpacked(placed, WORDY.size), placed.row_of.tolist()
            worst, needed = placed.worst.tolist(), placed.needed.tolist()
            assert placed.after.tolist() == automaton.table.next[1:].tolist()
        assert len({row.tobytes() for row in rows}) == len(rows)  # each is kept once
        for state in range(1, automaton.states + 1):
            group = int(automaton.group_of[state])
            assert [rows[one].tolist() for one in which[state - 1]] == rows_of_state(automaton, state)
            assert needed[state - 1] == automaton.needed[state]
            assert worst[state - 1] == automaton.needed[state] + automaton.rows(group)[1]


def test_it_is_placed_once_with_one_host_sync() -> None:
    automaton = TokenAutomaton(regex_table("[a-z]{3,9}"), WORDY)
    with virtual_gpus(2):
        with no_host_sync(count=True) as report:
            placed = automaton.place(GPU1)
        assert report.count == 1, report
        with no_host_sync():
            assert automaton.place(GPU1) is placed


def test_equal_rows_are_kept_once() -> None:
    automaton = TokenAutomaton(regex_table(r'\{("[a-z]{0,9}": \d, )*"x": (true|false)\}'), WORDY)
    kept = {id(row) for group in range(automaton.group_of.max() + 1) for row in automaton.rows(group)[0]}
    contents = {row.tobytes() for group in range(automaton.group_of.max() + 1) for row in automaton.rows(group)[0]}
    assert len(kept) == len(contents)


def test_texts_are_followed_token_by_token() -> None:
    automaton = TokenAutomaton(regex_table("(the|ab) (true|false)"), WORDY)
    ids = {token: token_id for token_id, token in enumerate(WORDY.tokens) if token}
    assert automaton.states == len(automaton.table.next) - 1
    assert automaton.least_tokens == 3
    state = automaton.follow([ids[b"the"], ids[b" "]])
    assert state == walk(automaton.table, 1, b"the ")
    assert not automaton.is_complete(state)
    assert automaton.next_state(state, ids[b"the"]) == 0
    assert automaton.next_state(0, ids[b"the"]) == 0
    assert automaton.next_state(state, WORDY.end) == 0
    assert automaton.is_complete(automaton.next_state(state, ids[b"true"]))
    assert automaton.accepts(b"ab true")
    assert not automaton.accepts(b"ab tru")


@pytest.mark.parametrize(("pattern", "complete"), [("a?", [False, True]), ("a*", [False, False]), ("", [True])])
def test_a_text_is_complete_where_it_is_whole_and_nothing_can_follow(pattern: str, complete: list[bool]) -> None:
    automaton = TokenAutomaton(regex_table(pattern), WORDY)
    states = [walk(automaton.table, 1, b"a" * length) for length in range(len(complete))]
    assert [automaton.is_complete(state) for state in states] == complete


def test_what_no_tokens_spell_is_refused() -> None:
    with pytest.raises(Empty, match="no tokens that spell"):
        TokenAutomaton(regex_table("b+"), Vocabulary([b"a", b"c"]))


def test_only_distinct_rows_are_bounded_and_a_cpu_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    automaton = TokenAutomaton(regex_table("[a-c]{3}"), WORDY)
    distinct = {row.tobytes() for group in range(automaton.group_of.max() + 1) for row in automaton.rows(group)[0]}
    bytes_ = len(distinct) * automaton.row_bytes
    monkeypatch.setattr(device_rows, "MOST_BYTES", bytes_ - 1)
    automaton.place(CPU)
    with virtual_gpus(2):
        with pytest.raises(TooLarge, match=f"its {len(distinct)} kinds of rows need 0 MB on cuda:1"):
            automaton.place(GPU1)
        monkeypatch.setattr(device_rows, "MOST_BYTES", bytes_)
        assert automaton.place(GPU1).rows.nbytes == bytes_


def test_many_strings_have_few_distinct_rows_with_every_size_of_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their states differ in what is left to write: there are thousands of groups, and some hundred kinds of rows."""
    schema = {"type": "object", "properties": {f"field_{n}": {"type": "string", "maxLength": 30} for n in range(9)}}
    table = schema_table(schema, closed=True, whitespace="line")
    monkeypatch.setattr(device_rows, "_CHUNK", 2**20)
    for size in (WORDY.size, 10_007):
        filled = [b"zq%07d" % number for number in range(size - WORDY.size)]
        automaton = TokenAutomaton(table, Vocabulary([*WORDY.tokens, *filled]))
        groups = len(automaton.found.examples)
        with virtual_gpus(2):
            rows = automaton.place(GPU1).rows
            assert 10 * len(rows) < 3 * groups


def test_a_type_whose_rows_a_device_has_no_room_for_goes_to_the_host_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output_type = gen.regex("(yes|no|perhaps), or never")
    elsewhere = gen.compile(gen.load("demo", device="cpu"), output_type)
    monkeypatch.setattr(device_rows, "MOST_BYTES", 1000)
    with virtual_gpus(2):
        model = gen.load("demo", device="cuda:1")
        constraint = gen.compile(model, output_type)
        assert constraint.engine == "host"
        assert "kinds of rows need 0 MB on cuda:1" in constraint.reason
        sampler = gen.samplers.greedy()
        assert elsewhere.accepts(gen.generate(model, "Is it so?", output_type, sampler=sampler, max_new_tokens=30))
        with pytest.raises(gen.ConstraintError, match="compile the type for this model"):
            gen.generate(model, "Is it so?", elsewhere)
    assert elsewhere.engine == "device"


def test_threads_may_share_it() -> None:
    automaton, alone = (TokenAutomaton(regex_table("[a-z ]{0,200}[0-9]"), WORDY) for _ in range(2))
    groups = [int(group) for group in automaton.group_of] * 4
    with ThreadPoolExecutor(4) as pool:
        made = [*pool.map(automaton.rows, groups)]
    for group, (rows, raised) in zip(groups, made, strict=True):
        assert raised == alone.rows(group)[1]
        assert all(np.array_equal(*pair) for pair in zip(rows, alone.rows(group)[0], strict=True))
