"""Automata side by side in one table: each walks as it does alone, whichever others came and went before."""

import random

import numpy as np
import pytest
import torch

from gen.constraints.automata.regexes import regex_table
from gen.constraints.tables.arena import ALL, FIRST_CLASS, ITSELF, NEEDED, NOTHING, WORST, Arena
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.constraints.tables.vocabulary import Vocabulary
from tests.constraints.samples import tables
from tests.constraints.vocabularies import spelled
from virtual_gpus import virtual_gpus

CPU = torch.device("cpu")
WORDY = Vocabulary(spelled())
ROW_BYTES = -(-WORDY.size // 8)


def some(count: int, seed: int = 0) -> list[TokenAutomaton]:
    return [TokenAutomaton(table, WORDY) for table in random.Random(seed).sample(tables(), count)]


def check(arena: Arena, automaton: TokenAutomaton, states: range) -> None:
    """The records of states equal the automaton's; the record at 0 is empty."""
    table, rows = arena.table.tolist(), np.unpackbits(arena.rows.cpu().numpy(), axis=1, bitorder="little")
    assert not any(table[: FIRST_CLASS + 256])
    assert rows[ALL].all()
    assert not rows[NOTHING].any()
    for state in states:
        at = arena.record(automaton, state)
        needed, (wanted, raised) = int(automaton.needed[state]), automaton.rows(int(automaton.group_of[state]))
        assert table[at + ITSELF] == at
        assert table[at + NEEDED] == needed
        assert table[at + WORST] == needed + raised
        for kind, row in enumerate(wanted):
            shown = table[at + kind]
            assert rows[shown].tolist() == np.unpackbits(row, bitorder="little").tolist()
            assert (shown == NOTHING) == (not row.any())
        after = [arena.record(automaton, int(to)) for to in automaton.table.next[state]]
        assert table[at + FIRST_CLASS : at + FIRST_CLASS + len(after)] == after


def fill_all(arena: Arena, automaton: TokenAutomaton, held: list[TokenAutomaton | None]) -> None:
    for state in range(1, automaton.states + 1):
        arena.fill(automaton, arena.record(automaton, state), held)


def test_automata_stand_side_by_side() -> None:
    arena, held = Arena(ROW_BYTES, CPU), list(some(12))
    for automaton in held:
        assert arena.place(automaton, held) == arena.record(automaton, 1) > 0
    for automaton in held:
        fill_all(arena, automaton, [*held])
    for automaton in held:
        check(arena, automaton, range(1, automaton.states + 1))
        assert arena.record(automaton, 0) == 0


def test_on_a_gpu_they_stand_as_on_a_cpu() -> None:
    with virtual_gpus(1):
        arena, held = Arena(ROW_BYTES, torch.device("cuda:0")), list(some(6, seed=1))
        for automaton in held:
            arena.place(automaton, held)
        for automaton in held:
            check(arena, automaton, range(1, automaton.states + 1, 7))


@pytest.mark.parametrize("seed", range(3))
def test_they_come_and_go_and_those_that_are_held_stay_where_they_are(seed: int) -> None:
    chance = random.Random(seed)
    arena, everything = Arena(ROW_BYTES, CPU), some(30, seed)
    held: list[TokenAutomaton | None] = [None] * 3
    for _ in range(60):
        row, automaton = chance.randrange(3), chance.choice(everything)
        held[row] = automaton
        arena.place(automaton, held)
        before = {one: arena.record(one, 1) for one in held if one is not None}
        fill_all(arena, automaton, held)
        assert before == {one: arena.record(one, 1) for one in held if one is not None}
        for one in {one for one in held if one is not None}:
            check(arena, one, range(1, one.states + 1, 5))


def test_room_is_used_again_before_there_is_more_of_it() -> None:
    arena = Arena(ROW_BYTES, CPU)
    for number in range(40):
        automaton = TokenAutomaton(regex_table(f"[a-z]{{1,60}}{number}"), WORDY)
        arena.place(automaton, [automaton])
        fill_all(arena, automaton, [automaton])
        check(arena, automaton, range(1, automaton.states + 1, 9))
    assert arena.version == 0
    assert arena.memory() == arena.table.nbytes + arena.rows.nbytes


def test_where_room_is_short_there_is_more_and_the_version_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    automaton = TokenAutomaton(regex_table("([a-z]{0,9}[0-9]{1,7}){1,20}"), WORDY)
    for room in (2**9, 8):
        monkeypatch.setattr("gen.constraints.tables.arena._MORE_ROWS", room)
        arena = Arena(ROW_BYTES, CPU)
        arena.place(automaton, [automaton])
        placed = arena.version
        assert placed > 0  # its records need more room than there is at first
        fill_all(arena, automaton, [automaton])
        assert (arena.version > placed) == (len(arena.rows) > room) == (room == 8)
        check(arena, automaton, range(1, automaton.states + 1, 50))


def test_on_a_cpu_rows_that_come_later_have_room_from_the_start() -> None:
    """Steps are recorded with the rows, and would be recorded anew after each larger tensor."""
    sets = ["".join(letter for bit, letter in enumerate("abcdefgh") if number >> bit & 1) for number in range(1, 170)]
    pairs = (a + b for a in "abcdefghijklm" for b in "abcdefghijklm")
    automaton = TokenAutomaton(
        regex_table("|".join(f"{pair}[{one}]" for pair, one in zip(pairs, sets, strict=True))), WORDY
    )
    arena = Arena(ROW_BYTES, CPU)
    arena.place(automaton, [automaton])
    placed = arena.version
    fill_all(arena, automaton, [automaton])
    assert len({arena.rows[row].numpy().tobytes() for row in range(len(arena.rows))}) > len(sets)
    assert arena.version == placed
