"""Characters as bytes. Oracle: how Python encodes texts, and the fewest states that an automaton can have."""

import json

import pytest

from gen.constraints.automata.determinising import determinise
from gen.constraints.automata.dfa import Table, table
from gen.constraints.automata.limits import Budget
from gen.constraints.automata.nfa import Nfa
from gen.constraints.automata.spelling import Encode, json_content, spell, utf8
from gen.constraints.automata.texts import ANY, both, listed

NAMES = ["height", "heights", "radius", "über", 'a"b', "日本", "😀", "tab\there"]
OTHERS = [
    "",
    "h",
    "heigh",
    "heightss",
    "ü",
    "ube",
    "é",
    "日",
    "日本本",
    "😁",
    'a"',
    "a\\b",
    "\n",
    "\x00",
    "\x1f",
    "\x7f",
    "~",
]


def all_but(names: list[str], encode: Encode) -> Table:
    """All texts except the names, in bytes."""
    nfa = Nfa()
    start = nfa.state()
    texts = both(ANY, listed(names), Budget(), without=True)
    assert texts is not None
    return table(determinise(nfa, start, spell(nfa, texts, start, encode)))


def fewest_states(automaton: Table) -> int:
    """The fewest states that tell the texts apart (Moore 1956), without the dead one."""
    lines = [tuple(line) for line in automaton.next.tolist()]
    part: list[int] = automaton.final.astype(int).tolist()
    while True:
        number: dict[object, int] = {}
        finer = [
            number.setdefault((part[state], tuple(part[to] for to in line)), len(number))
            for state, line in enumerate(lines)
        ]
        if len(set(finer)) == len(set(part)):
            return len(set(finer)) - 1
        part = finer


@pytest.mark.parametrize("text", [*NAMES, *OTHERS])
def test_texts_are_written_as_python_writes_them(text: str) -> None:
    written = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    assert all_but(NAMES, json_content).accepts(written) == (text not in NAMES)
    assert all_but(NAMES, utf8).accepts(text.encode()) == (text not in NAMES)


@pytest.mark.parametrize("encode", [json_content, utf8])
def test_characters_that_lead_to_one_state_share_the_bytes_after_the_first(encode: Encode) -> None:
    automaton = all_but(["height", "heights"], encode)
    assert len(automaton.next) - 1 == fewest_states(automaton)
