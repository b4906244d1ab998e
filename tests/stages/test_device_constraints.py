"""Which tokens rows may choose, compared with a walk along every token's bytes; the tokens left are counted by hand."""

import math
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gen.constraints.automata.regexes import regex_table
from gen.constraints.composing.trees import Word
from gen.constraints.constraint import Constraint
from gen.constraints.tables import arena
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.constraints.tables.vocabulary import Vocabulary
from gen.devices import to_device
from gen.requests.request import Request
from gen.samplers import greedy
from gen.stages.device_constraints import DeviceConstraints
from gen.stages.stage import Places, Room
from tests.constraints.samples import tables
from tests.constraints.vocabularies import spelled, walk, walk_all
from virtual_gpus import no_host_sync, virtual_gpus

CPU = torch.device("cpu")
WORDY = Vocabulary(spelled())
EOS, PAD, SIZE = WORDY.size - 4, WORDY.size - 3, WORDY.size
PROMPT = [1, 2]


def request_of(
    automaton: TokenAutomaton | None, limit: int, eos: Sequence[int] = (EOS,), seeds: tuple[int, ...] = (0,)
) -> Request:
    constraint = None
    if automaton is not None:
        constraint = Constraint(
            engine="device",
            states=automaton.states,
            least_tokens=automaton.least_tokens,
            vocabulary=WORDY,
            automaton=automaton,
            tree=Word(""),
        )
    return Request(
        prompt_ids=PROMPT,
        sampler=greedy(),
        seeds=seeds,
        limit=limit,
        eos_token_ids=tuple(eos),
        constraint=constraint,
    )


def admit(stage: DeviceConstraints, row: int, request: Request, made: Sequence[int] = ()) -> None:
    stage.admit(slice(row, row + len(request.seeds)), [request], [[*PROMPT, *made]])


def masked(stage: DeviceConstraints, logits: Tensor, generated: Sequence[int]) -> Tensor:
    here, nothing = slice(0, len(logits)), torch.empty(0)
    stage.prepare(here)
    made = torch.tensor([*generated], device=logits.device).unsqueeze(1)
    return stage(logits.clone(), here, nothing, nothing, made)  # it may change its copy


def room_in(stage: DeviceConstraints, changed: Tensor, generated: Sequence[int]) -> Room:
    """The room that the limits leave, after `masked`."""
    made = torch.tensor([*generated], device=changed.device).unsqueeze(1)
    squeezed = torch.zeros(len(changed), dtype=torch.bool, device=changed.device)
    return stage.room(changed.clone(), slice(0, len(changed)), made, squeezed)


class Text:
    """A text that is held to an automaton, followed by plain walks."""

    def __init__(self, automaton: TokenAutomaton, limit: int, eos: Sequence[int] = (EOS,)) -> None:
        self.automaton, self.limit, self.eos = automaton, limit, eos
        self.state, self.made, self.ended = 1, 0, False
        self._walked: dict[int, dict[int, int]] = {}

    def allowed(self) -> list[int]:
        """The tokens that the type allows."""
        return self._with_ends([*self._changes()])

    def sure(self) -> list[int]:
        """The tokens that are surely safe. If a token might leave too few, only those that do not raise the number
        needed; at the last moment only those that lower it.
        """
        left, now, changes = self.limit - self.made, int(self.automaton.needed[self.state]), self._changes()
        if left - 1 < now + max([0, *changes.values()]):
            changes = {token_id: one for token_id, one in changes.items() if one <= (0 if left - 1 >= now else -1)}
        return self._with_ends([*changes])

    def fits(self, token_id: int) -> bool:
        """Whether the tokens left after an allowed token suffice for an end."""
        change = 0 if token_id in (*self.eos, WORDY.end) else self._changes()[token_id]
        return int(self.automaton.needed[self.state]) + change <= self.limit - self.made - 1

    def _changes(self) -> dict[int, int]:
        """By how much each allowed token changes the number of tokens needed."""
        if self.state not in self._walked:
            needed, after = self.automaton.needed, walk_all(self.automaton.table, self.state, WORDY.tokens)
            changes = {token_id: int(needed[to]) - int(needed[self.state]) for token_id, to in enumerate(after) if to}
            self._walked[self.state] = changes
        return self._walked[self.state]

    def _with_ends(self, token_ids: list[int]) -> list[int]:
        if not token_ids:  # only the end can come: one of the tokens that mean it
            return [self.eos[0] if self.eos else WORDY.end]
        return [*token_ids, *(self.eos if self.automaton.table.final[self.state] else ())]

    def take(self, token_id: int) -> None:
        self.made += 1
        if token_id in (*self.eos, WORDY.end):
            assert self.automaton.table.final[self.state]
            self.ended = True
            return
        self.state = walk(self.automaton.table, self.state, WORDY.tokens[token_id])
        assert self.state
        self.ended = self.made == self.limit


@pytest.mark.parametrize("number", range(100))
def test_masks_are_what_a_walk_of_every_token_says_and_every_text_ends_whole(number: int) -> None:
    eos = [(EOS,), (), (PAD, EOS)][number % 3]
    automaton = TokenAutomaton(tables()[number], WORDY)
    chance = random.Random(number)
    extra = [0, 1, chance.randrange(2, 14)]
    texts = [Text(automaton, max(1, automaton.least_tokens) + more, eos) for more in extra]
    stage = DeviceConstraints(3, CPU)
    for row, text in enumerate(texts):
        admit(stage, row, request_of(automaton, text.limit, eos))
    while not all(text.ended for text in texts):
        logits, made = torch.randn(3, SIZE), [text.made for text in texts]
        changed = masked(stage, logits, made)
        room = room_in(stage, changed, made)
        narrowed, took = room.took(changed)
        assert not narrowed.isneginf().all(1).any()  # a text that has ended has a token to choose, too
        short = took.tolist()
        chosen = []
        for row, text in enumerate(texts):
            allowed, sure = (one[row].isfinite().nonzero().squeeze(1).tolist() for one in (changed, narrowed))
            if text.ended:
                chosen.append(chance.choice(allowed))
                continue
            assert (sorted(text.allowed()), sorted(text.sure())) == (allowed, sure)
            assert short[row] == (allowed != sure)
            for left, some in ((changed, allowed), (narrowed, sure)):
                if len(some) > 1:
                    assert torch.equal(left[row, some], logits[row, some])
            fits = room.fits(torch.tensor([allowed]), torch.full((1, len(allowed)), row))[0].tolist()
            assert fits == [text.fits(token_id) for token_id in allowed]
            assert all(fits) or text.limit - text.made <= max(1, automaton.most_tokens)  # the host knew it might be
            assert all(text.fits(token_id) for token_id in sure)
            token_id = chance.choice(allowed)
            if not text.fits(token_id):
                token_id = chance.choice(sure)
            text.take(token_id)
            chosen.append(token_id)
        stage.advance(slice(0, 3), torch.tensor(chosen).unsqueeze(1), None)
    assert all(automaton.table.final[text.state] for text in texts)


def test_at_the_end_one_token_is_allowed_at_no_cost_whatever_came_before() -> None:
    stage = DeviceConstraints(2, CPU)
    for row, eos in enumerate(((PAD, EOS), ())):
        admit(stage, row, request_of(TokenAutomaton(regex_table(""), WORDY), 5, eos))
    logits = torch.full((2, SIZE), -math.inf)
    changed = masked(stage, logits, [0, 0])
    assert changed[0, PAD] == 0 == changed[1, WORDY.end]
    assert changed.isfinite().sum() == 2


def test_a_ban_of_the_end_stays_where_more_may_come() -> None:
    stage = DeviceConstraints(1, CPU)
    automaton = TokenAutomaton(regex_table("a*"), WORDY)
    admit(stage, 0, request_of(automaton, 5))
    logits = torch.zeros(1, SIZE)
    logits[0, EOS] = -math.inf
    assert masked(stage, logits, [0])[0, EOS] == -math.inf


def test_rows_that_are_held_to_nothing_are_left_as_they_are() -> None:
    stage = DeviceConstraints(3, CPU)
    assert stage.key() is None
    admit(stage, 0, request_of(None, 9))
    assert stage.key() is None  # then the stage costs nothing
    admit(stage, 1, request_of(TokenAutomaton(regex_table("[0-9]+"), WORDY), 9))
    admit(stage, 2, request_of(None, 9, ()))
    assert stage.key() is not None
    for made in range(9):
        logits = torch.randn(3, SIZE)
        changed = masked(stage, logits, [made] * 3)
        assert torch.equal(changed[[0, 2]], logits[[0, 2]])
        assert not torch.equal(changed[1], logits[1])
        room = room_in(stage, changed, [made] * 3)
        assert room.fits(torch.full((3, 1), 50)).squeeze(1).tolist() == [True] * 3
        stage.advance(slice(0, 3), torch.full((3, 1), 49), None)
    stage.begin()
    assert stage.key() is None


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_rows_come_and_go_each_with_its_own_constraint(device: str) -> None:
    chance = random.Random(3)
    with virtual_gpus(2):
        stage = DeviceConstraints(4, torch.device(device))
        texts: list[Text | None] = [None] * 4
        automaton = [TokenAutomaton(table, WORDY) for table in chance.sample(tables(), 20)]
        for step in range(45):
            for row, text in enumerate(texts):
                if (text is None or text.ended) and chance.random() < 0.5:
                    eos = chance.choice([(), (EOS,), (EOS, PAD, 5)])
                    one = chance.choice([None, *automaton])
                    limit = chance.randrange(1, 20) + (one.least_tokens if one is not None else 0)
                    admit(stage, row, request_of(one, limit, eos))
                    texts[row] = None if one is None else Text(one, limit, eos if 5 not in eos else (EOS, PAD))
                    if one is not None and 5 in eos:  # texts do not end by a token that spells something
                        admit(stage, row, request_of(one, limit, (EOS, PAD)))
            if stage.key() is None:
                continue
            if step % 9 == 8:  # a row moves to another one's place
                source, target = chance.sample(range(4), 2)
                for tensor in stage.tensors():
                    tensor[target].copy_(tensor[source])
                stage.move(source, target)
                texts[target] = None
            generated = [0 if text is None else text.made for text in texts]
            changed = masked(stage, torch.zeros(4, SIZE, device=device), generated)
            sure, changed = room_in(stage, changed, generated).narrow(None).cpu(), changed.cpu()
            chosen = []
            for row, text in enumerate(texts):
                allowed, fitting = (one[row].isfinite().nonzero().squeeze(1).tolist() for one in (changed, sure))
                chosen.append(chance.choice(fitting))
                if text is not None and not text.ended:
                    assert (sorted(text.allowed()), sorted(text.sure())) == (allowed, fitting)
                    text.take(chosen[-1])
            token_ids = to_device(torch.tensor(chosen).unsqueeze(1), torch.device(device))
            with no_host_sync():
                stage.advance(slice(0, 4), token_ids, None)


def test_a_text_that_was_begun_before_goes_on() -> None:
    stage = DeviceConstraints(1, CPU)
    admit(stage, 0, request_of(TokenAutomaton(regex_table("(ab|cd)[0-9]"), WORDY), 9), made=[ord("c"), ord("d")])
    assert masked(stage, torch.zeros(1, SIZE), [2])[0].isfinite().nonzero().squeeze(1).tolist() == [*range(48, 58)]


def test_a_step_on_a_gpu_has_no_host_sync() -> None:
    automaton = TokenAutomaton(regex_table("[a-z]{3,30}"), WORDY)
    with virtual_gpus(1):
        device = torch.device("cuda:0")
        automaton.place(device)
        stage = DeviceConstraints(2, device)
        logits = torch.zeros(2, SIZE, device=device)
        generated = torch.zeros(2, 1, dtype=torch.int64, device=device)
        with no_host_sync():
            admit(stage, 0, request_of(automaton, 40, seeds=(0, 1)))
            for _ in range(5):
                stage.prepare(slice(0, 2))
                changed = stage(logits, slice(0, 2), generated, generated, generated)
                room = stage.room(changed, slice(0, 2), generated, generated.bool().squeeze(1))
                chosen = changed.argmax(1, keepdim=True)
                fits = room.fits(chosen)
                room.narrow(~fits.squeeze(1))
                stage.advance(slice(0, 2), torch.where(fits, chosen, 0), None)
                generated += 1


def test_a_text_whose_masks_come_where_those_of_another_were_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arena, "_MORE_ROWS", 3)  # one row beside the permanent ones
    stage = DeviceConstraints(1, CPU)
    for letter in "abc":
        admit(stage, 0, request_of(TokenAutomaton(regex_table(letter), WORDY), 9))
        assert masked(stage, torch.zeros(1, SIZE), [0]).isfinite().nonzero().tolist() == [[0, ord(letter)]]
    assert stage.memory() < 10**6


def test_a_step_that_reads_drafts_leaves_free_rows_alone_whatever_they_were_held_to_before() -> None:
    """A table without the automata of earlier texts has no place for their states."""
    stage, nothing = DeviceConstraints(2, CPU), torch.empty(0)
    digits = TokenAutomaton(regex_table("[0-9]{3}"), WORDY)
    for row in (0, 1):
        admit(stage, row, request_of(digits, 9))
        assert stage.ahead(row, 1) is not None
    stage.begin()
    admit(stage, 0, request_of(digits, 9))
    assert stage.ahead(0, 1) is not None
    stage.prepare(slice(0, 2), 2)
    logits = torch.zeros(4, SIZE)
    places = Places(slice(0, 2), 2, torch.tensor([0, 0, 1, 1]))
    changed = stage(logits.clone(), places, nothing, nothing, torch.tensor([[0], [1], [0], [1]]))
    assert not torch.equal(changed[0], logits[0])
    assert torch.equal(changed[2:], logits[2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_logits_of_any_dtype_are_masked(dtype: torch.dtype) -> None:
    stage = DeviceConstraints(1, CPU)
    admit(stage, 0, request_of(TokenAutomaton(regex_table("[0-9]+"), WORDY), 9))
    logits = torch.randn(1, SIZE).to(dtype)
    changed = masked(stage, logits, [0])
    allowed = changed[0].isfinite().nonzero().squeeze(1)
    assert allowed.tolist() == [token for token, spelt in enumerate(WORDY.tokens) if spelt.isdigit()]
    assert torch.equal(changed[0, allowed], logits[0, allowed].to(changed.dtype))
