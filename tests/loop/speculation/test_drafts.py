"""Drafts, compared with a plain search, and with what an automaton allows."""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

import gen
from gen.constraints.automata.regexes import regex_table
from gen.constraints.tables.arena import Arena
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.constraints.tables.vocabulary import Vocabulary, vocabulary_of
from gen.loop.row_set import RowSet
from gen.loop.speculation.drafts import ENDING, FORCED, NGRAM, look_up
from gen.loop.speculation.host_drafts import drafts_of, found_before
from gen.loop.speculation.settings import MOST
from gen.models.transformers.model import TransformersModel
from gen.stages.ahead import Ahead
from tests.constraints.vocabularies import spelled, walk_all


def found_by_hand(tokens: list[int]) -> tuple[list[int], int]:
    """What followed the newest earlier place with the most of the last tokens, and the number of these tokens."""
    for count in range(NGRAM, 0, -1):
        for end in range(len(tokens) - 1, count - 1, -1):  # the tokens before it
            if tokens[end - count : end] == tokens[-count:]:
                follow = tokens[end:]
                return [follow[place % len(follow)] for place in range(MOST)], count
    return [], 0


def test_drafts_are_what_followed_the_newest_of_the_longest_repetitions() -> None:
    draw = random.Random(0)
    texts = [[draw.randrange(letters) for _ in range(draw.randint(1, 29))] for letters in (2, 4) for _ in range(100)]
    history = torch.full((200, 32), -1)
    for row, text in zip(history, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    lengths = torch.tensor([[len(text)] for text in texts])
    drafts, kinds = look_up(history, lengths, torch.arange(8))
    expected = [found_by_hand(text) for text in texts]
    assert kinds.squeeze(1).tolist() == [kind for _, kind in expected]
    assert {kind for _, kind in expected} == {*range(NGRAM + 1)}
    for row, (tokens, kind) in zip(drafts.tolist(), expected, strict=True):
        assert row == tokens or not kind
    assert [found_before(np.array(text)) for text in texts] == expected


@pytest.mark.parametrize("pattern", ['\\{"name": "[a-z]+", "age": [0-9]+\\}', "(yes|no, never)", "abc(aa)?abc", "日本"])
def test_what_is_forced_spells_the_one_way_on(pattern: str) -> None:
    vocabulary = Vocabulary(spelled())
    automaton = TokenAutomaton(regex_table(pattern), vocabulary)
    tokens, after = automaton.guesses.forced_tokens()
    assert (tokens[1:] >= 0).any()
    for state in range(1, automaton.states + 1):
        bytes_on = {byte for byte in range(256) if automaton.table.next[state, automaton.table.classes[byte]]}
        only = len(bytes_on) == 1 and not automaton.table.final[state]
        assert (tokens[state] >= 0) == only
        if only:
            assert after[state] == walk_all(automaton.table, state, vocabulary.tokens)[tokens[state]] > 0


def test_what_is_forced_is_spelled_as_the_tokenizer_does() -> None:
    model = gen.load("demo")
    automaton = TokenAutomaton(regex_table('\\{"name": "x"\\}'), vocabulary_of(model))
    state, made = 1, list[int]()
    while (guess := automaton.guesses.of(state)).forced:
        made.append(guess.token)
        state = guess.after
    assert made == model.tokenizer.encode_plain('{"name": "x"}')


def test_one_source_of_drafts_goes_on_where_another_one_ends() -> None:
    model = gen.load("demo")
    automaton = TokenAutomaton(regex_table('\\{"name": "[^"]{1,20}", "age": [0-9]{1,3}\\}'), vocabulary_of(model))
    arena = Arena(automaton.row_bytes, torch.device("cpu"))
    arena.place(automaton, [automaton])

    def drafts(prompt: str, text: str) -> tuple[str, list[int]]:
        made = model.tokenizer.encode_plain(text)
        records = np.zeros(1 + MOST, np.int32)
        records[0] = arena.record(automaton, automaton.follow(made))
        tokens, kinds = drafts_of(
            np.array(model.tokenizer.encode_plain(prompt) + made), gen.Speculation(), Ahead(arena, automaton, records)
        )
        states = [automaton.follow([*made, *tokens[: 1 + place]]) for place in range(len(tokens))]
        assert records.tolist()[1 : 1 + len(tokens)] == [arena.record(automaton, state) for state in states]
        assert not records[1 + len(tokens) :].any()
        return model.tokenizer.decode(tokens), kinds

    told, kinds = drafts("xyz", "{")
    assert told == '"name": "' and {*kinds} == {FORCED}  # no empty name follows
    told, kinds = drafts("This is Tom Brown, and 7", '{"name": "Tom Brown')
    assert told.startswith('", "age') and kinds[0] == ENDING and {*kinds[1:]} == {FORCED}
    told, kinds = drafts("This is old Mr. Tom Brown and Mr. Tom Jones", '{"name": "old Mr. Tom')
    assert told.startswith(" Jones") and kinds[0] <= NGRAM
    assert drafts("xyz", '{"name": "Ada') == ("", [])  # nothing shows that the name ends


def test_what_is_no_draft_does_not_count_though_it_is_what_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gen.load("demo")
    assert isinstance(model, TransformersModel)
    settings: dict[str, Any] = {
        "sampler": gen.samplers.greedy(),
        "max_new_tokens": 25,
        "details": True,
        "eos_token_id": [],
    }
    plain = gen.generate(model, "Once upon a time", speculate=False, **settings)

    def padded(rows: RowSet, of: Iterable[tuple[int, Any]]) -> list[tuple[list[int], list[int]]]:
        assert rows.drafts is not None and [row for row, _ in of] == [0]
        made = int(rows._generated[0]) + 1
        coming = plain.token_ids[made : made + MOST]
        rows.drafts.write(0, plain.token_ids[made - 1], coming)
        rows.drafts.real[0] = len(coming[:1])
        return [(coming[:1], [1][: len(coming)])]

    monkeypatch.setattr(RowSet, "draft", padded)
    monkeypatch.setattr("gen.loop.speculation.widths.Widths.choose", lambda *_: 8)
    found = gen.generate(model, "Once upon a time", speculate=gen.Speculation(), **settings)
    assert found.token_ids == plain.token_ids
    assert found.drafted == found.accepted > 8  # one in each step, although the others are right too
