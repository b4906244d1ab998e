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
from gen.loop.decoder import Decoder
from gen.loop.speculation.drafts import ENDING, FORCED, LIKELY, NGRAM, WORD, look_up
from gen.loop.speculation.host_drafts import SoFar, drafts_of
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
    assert [SoFar(text).found_before() for text in texts] == expected


def test_an_earlier_text_is_looked_through_too() -> None:
    history = torch.tensor([[1, 2, 3, 1, 2, -1, -1], [7, 8, 9, 7, 5, 6, -1]])
    earlier = torch.tensor([[9, 1, 2, 4, 5, -1, -1], [8, 9, -1, -1, -1, -1, -1]])
    lengths, numbers = torch.tensor([[5], [4]]), torch.arange(8)
    drafts, kinds = look_up(history, lengths, numbers, earlier)
    assert drafts[:, :3].tolist() == [[4, 5, 0], [8, 9, 7]] and kinds.tolist() == [
        [2],
        [1],
    ]  # of equals, the earlier text
    drafts, kinds = look_up(history, lengths, numbers, earlier, own=False)
    assert drafts[0, :2].tolist() == [4, 5] and kinds.tolist() == [[2], [0]]
    drafts, kinds = look_up(history, lengths, numbers, earlier[:, :0])
    assert drafts[0, :2].tolist() == [3, 1] and kinds.tolist() == [[2], [1]]


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


class Typed:
    """Drafts of texts of the demo model that are held to a regular expression."""

    def __init__(self, pattern: str) -> None:
        self.model = gen.load("demo")
        self.automaton = TokenAutomaton(regex_table(pattern), vocabulary_of(self.model))
        self.arena = Arena(self.automaton.row_bytes, torch.device("cpu"))
        self.arena.place(self.automaton, [self.automaton])

    def __call__(self, prompt: str, text: str, *, looks_up: bool = True) -> tuple[str, list[int]]:
        tokenizer, automaton, arena = self.model.tokenizer, self.automaton, self.arena
        made = tokenizer.encode_plain(text)
        records = np.zeros(1 + MOST, np.int32)
        records[0] = arena.record(automaton, automaton.follow(made))
        tokens, kinds = drafts_of(
            SoFar(tokenizer.encode_plain(prompt)).take(made),
            gen.Speculation(prompt=looks_up),
            Ahead(arena, automaton, records, lambda record, place: record),
        )
        states = [automaton.follow([*made, *tokens[: 1 + place]]) for place in range(len(tokens))]
        assert records.tolist()[1 : 1 + len(tokens)] == [arena.record(automaton, state) for state in states]
        assert not records[1 + len(tokens) :].any()
        return tokenizer.decode(tokens), kinds


def test_one_source_of_drafts_goes_on_where_another_one_ends() -> None:
    drafts = Typed('\\{"name": "[^"]{1,20}", "age": [0-9]{1,3}\\}')
    told, kinds = drafts("xyz", "{")
    assert told == '"name": "' and {*kinds} == {FORCED}  # no empty name follows
    told, kinds = drafts("This is Tom Brown, and 7", '{"name": "Tom Brown')
    assert told.startswith('", "age') and kinds[0] == ENDING and {*kinds[1:5]} == {FORCED}
    told, kinds = drafts("This is old Mr. Tom Brown and Mr. Tom Jones", '{"name": "old Mr. Tom')
    assert told.startswith(" Jones") and kinds[0] <= NGRAM
    assert drafts("xyz", '{"name": "Ada') == ("", [])  # nothing shows that the name ends


def test_a_word_of_the_prompt_goes_on_though_the_prompt_has_other_tokens() -> None:
    drafts = Typed('\\{"name": "[^"]{1,20}", "age": [0-9]{1,3}\\}')
    told, kinds = drafts("She hated to sing with Sarah.", '{"name": "S')  # where " sing" and " Sarah" have one token
    assert told.startswith('arah", "') and kinds[0] == WORD and FORCED in kinds
    assert drafts("She hated to sing with Sarah Miller", '{"name": "Sarah')[0] == " Miller"
    assert WORD not in [*drafts("xyz Sarah", '{"name": "Sx')[1], *drafts("xyz Sarah", '{"name": "arah')[1]]
    assert WORD not in drafts("She is happy.", '{"name": "so ha')[1]  # it has its space there, too
    assert drafts("Sarah", '{"name": "S', looks_up=False) == ("", [])
    assert drafts("I saw Mr. Tom", '{"name": "Mr')[0].startswith(". Tom")
    assert drafts("Tom saw Sarah.", '{"name": "Sarah')[1][0] == ENDING
    assert drafts("日本語" * 3000 + " Zoë", '{"name": "日')[0].startswith("本語")
    told, kinds = drafts("Bär, Zoë", '{"name": "Zo')
    assert told.startswith("ë") and kinds[0] == WORD


def test_a_word_that_the_type_allows_is_a_draft_before_it_begins() -> None:
    drafts = Typed('\\{"colour": "(red|green|blue)", "count": [0-9]{1,2}, "name": "[a-z]{1,9}"\\}')
    told, kinds = drafts("I want 12 green things", '{"colour": "')
    assert told.startswith("green") and kinds[0] == LIKELY
    told, kinds = drafts("I want 12 green things", '{"colour":')
    assert told.startswith(' "green') and kinds[0] == FORCED and LIKELY in kinds
    assert drafts("I want 12 greenish things, or red ones", '{"colour": "')[0].startswith("red")
    assert drafts("I want green things, or red ones", '{"colour": "')[0].startswith("red")  # the newest
    assert drafts("I want 123 things, or 45", '{"colour": "green", "count": ')[0].startswith("45")
    assert drafts("1, 2, 3 or 4 things", '{"colour": "green", "count": ')[1][0] != LIKELY  # too many may be it
    assert LIKELY not in drafts("a b c", '{"colour": "green", "count": 1, "name": "')[1]  # the type says nothing
    assert drafts("12 things", '{"colour": "green", "count": 1')[1][:1] != [LIKELY]
    assert drafts("I want 12 green things", '{"colour": "', looks_up=False) == ("", [])


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

    def padded(rows: Decoder, of: Iterable[tuple[int, Any]], *, least: int) -> list[tuple[list[int], list[int]]]:
        assert rows.drafts is not None and [row for row, _ in of] == [0]
        made = int(rows._generated[0]) + 1
        coming = plain.token_ids[made : made + MOST]
        rows.drafts.write(0, plain.token_ids[made - 1], coming)
        rows.drafts.real[0] = len(coming[:1])
        return [(coming[:1], [1][: len(coming)])]

    monkeypatch.setattr(Decoder, "draft", padded)
    monkeypatch.setattr("gen.loop.speculation.widths.Widths.choose", lambda *_: 8)
    found = gen.generate(model, "Once upon a time", speculate=gen.Speculation(), **settings)
    assert found.token_ids == plain.token_ids
    assert found.drafted == found.accepted > 8  # one in each step, although the others are right too
