"""Automata side by side in one table: each walks as it does alone, whichever came and went before."""

import random

import numpy as np
import pytest
import torch

from gen.constraints.automata.regexes import regex_table
from gen.constraints.tables.compiled import Compiled
from gen.constraints.tables.records import ALL, FIRST_CLASS, ITSELF, NEEDED, NOTHING, WORST, Records
from gen.constraints.tables.vocabulary import Vocabulary
from gen.testing import virtual_gpus
from tests.constraints.samples import tables
from tests.constraints.vocabularies import spelled

CPU = torch.device("cpu")
WORDY = Vocabulary(spelled())
ROW_BYTES = -(-WORDY.size // 8)


def some(count: int, seed: int = 0) -> list[Compiled]:
    return [Compiled(table, WORDY) for table in random.Random(seed).sample(tables(), count)]


def check(records: Records, compiled: Compiled, states: range) -> None:
    """The records of states say what the automaton says; the record at 0 says nothing."""
    table, rows = records.table.tolist(), np.unpackbits(records.rows.cpu().numpy(), axis=1, bitorder="little")
    assert not any(table[: FIRST_CLASS + 256])
    assert rows[ALL].all()
    assert not rows[NOTHING].any()
    for state in states:
        at = records.record(compiled, state)
        needed, (wanted, raised) = int(compiled.needed[state]), compiled.rows(int(compiled.group_of[state]))
        assert table[at + ITSELF] == at
        assert table[at + NEEDED] == needed
        assert table[at + WORST] == needed + raised
        for kind, row in enumerate(wanted):
            shown = table[at + kind]
            assert rows[shown].tolist() == np.unpackbits(row, bitorder="little").tolist()
            assert (shown == NOTHING) == (not row.any())
        after = [records.record(compiled, int(to)) for to in compiled.table.next[state]]
        assert table[at + FIRST_CLASS : at + FIRST_CLASS + len(after)] == after


def fill_all(records: Records, compiled: Compiled, held: list[Compiled | None]) -> None:
    for state in range(1, compiled.states + 1):
        records.fill(compiled, records.record(compiled, state), held)


def test_automata_stand_side_by_side() -> None:
    records, held = Records(ROW_BYTES, CPU), list(some(12))
    for compiled in held:
        assert records.place(compiled, held) == records.record(compiled, 1) > 0
    for compiled in held:
        fill_all(records, compiled, [*held])
    for compiled in held:
        check(records, compiled, range(1, compiled.states + 1))
        assert records.record(compiled, 0) == 0


def test_on_a_gpu_they_stand_as_on_a_cpu() -> None:
    with virtual_gpus(1):
        records, held = Records(ROW_BYTES, torch.device("cuda:0")), list(some(6, seed=1))
        for compiled in held:
            records.place(compiled, held)
        for compiled in held:
            check(records, compiled, range(1, compiled.states + 1, 7))


@pytest.mark.parametrize("seed", range(3))
def test_they_come_and_go_and_those_that_are_held_stay_where_they_are(seed: int) -> None:
    chance = random.Random(seed)
    records, everything = Records(ROW_BYTES, CPU), some(30, seed)
    held: list[Compiled | None] = [None] * 3
    for _ in range(60):
        row, compiled = chance.randrange(3), chance.choice(everything)
        held[row] = compiled
        records.place(compiled, held)
        before = {one: records.record(one, 1) for one in held if one is not None}
        fill_all(records, compiled, held)
        assert before == {one: records.record(one, 1) for one in held if one is not None}
        for one in {one for one in held if one is not None}:
            check(records, one, range(1, one.states + 1, 5))


def test_room_is_used_again_before_there_is_more_of_it() -> None:
    records = Records(ROW_BYTES, CPU)
    for number in range(40):
        compiled = Compiled(regex_table(f"[a-z]{{1,60}}{number}"), WORDY)
        records.place(compiled, [compiled])
        fill_all(records, compiled, [compiled])
        check(records, compiled, range(1, compiled.states + 1, 9))
    assert records.version == 0
    assert records.memory() == records.table.nbytes + records.rows.nbytes


def test_where_room_is_short_there_is_more_and_the_version_tells() -> None:
    records = Records(ROW_BYTES, CPU)
    compiled = Compiled(regex_table("([a-z]{0,9}[0-9]{1,7}){1,40}"), WORDY)
    records.place(compiled, [compiled])
    fill_all(records, compiled, [compiled])
    assert records.version > 0
    check(records, compiled, range(1, compiled.states + 1, 50))
