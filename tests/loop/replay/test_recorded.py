"""When steps are recorded: after enough steps, in one call or several; a new kind of step is run twice."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.loop.decoder import Decoder
from gen.loop.replay.recording import Replay, record_in_steps
from gen.loop.searches.by_sampler import kind_of_search
from gen.models.transformers.model import TransformersModel
from gen.requests.request import Request
from gen.runtime.streams import Streams
from gen.samplers import Sampler
from gen.stages.penalties import PenaltyStage
from tests.helpers import byte_tokenizer, tiny_model
from tests.loop.calls import kept_rows

FOUR = [3, 4, 5, 6]


@pytest.fixture
def model() -> TransformersModel:
    made = gen.from_transformers(tiny_model(), byte_tokenizer())
    assert isinstance(made, TransformersModel)
    return made


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each recording so far: whether the step was run again to compare."""
    seen: list[bool] = []

    def logged(*arguments: Any) -> Iterator[Replay[Any] | None]:
        steps = 0
        for steps, recorded in enumerate(record_in_steps(*arguments)):  # noqa: B007
            if recorded is None:
                yield None
        seen.append(steps > 0)
        yield recorded

    monkeypatch.setattr("gen.loop.replay.recorded.record_in_steps", logged)
    return seen


def shapes(model: TransformersModel) -> set[tuple[int, int]]:
    """The rows and columns of the steps that the model's idle rows have recorded."""
    return {key[:2] for key in kept_rows(model).recordings}  # type: ignore[index]


def recorded(model: TransformersModel) -> tuple[int, int]:
    """How many shapes and kinds of steps the model's idle rows have recorded, and how many are in recording."""
    rows = kept_rows(model)
    return len(rows.recordings), len(rows.recording)


def test_steps_of_several_calls_count_together(model: TransformersModel) -> None:
    assert shapes_after(model, 10) == set()
    assert shapes_after(model, 10) == {(1, 32)}  # 9 steps a call: it takes 15


def shapes_after(model: TransformersModel, new_tokens: int) -> set[tuple[int, int]]:
    plain(model, gen.samplers.greedy(), new_tokens)
    return shapes(model)


def plain(model: TransformersModel, sampler: Sampler, new_tokens: int) -> None:
    """Four texts of plain steps; all of these are looked at."""
    gen.generate(model, FOUR, sampler=sampler, max_new_tokens=new_tokens, eos_token_id=[], speculate=False)


def test_a_step_runs_twice_for_the_first_shape_of_its_kind(twice: list[bool]) -> None:
    # as many key heads as heads: older versions of transformers repeat fewer ones, with the view as a number
    model: Any = gen.from_transformers(tiny_model(num_key_value_heads=4), byte_tokenizer())
    assert shapes_after(model, 60) == {(1, 32), (1, 64)}
    assert twice == [True, False]
    plain(model, gen.samplers.multinomial(), 28)
    assert twice == [True, False, True]  # the last is another kind of step


CUTS: Sequence[dict[str, Any]] = ({}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1})


def test_shapes_that_take_turns_are_recorded_in_turn(model: TransformersModel) -> None:
    for turn in range(40):
        plain(model, gen.samplers.multinomial(**CUTS[turn % 4]), 6)
    assert recorded(model) == (4, 0)


def test_a_shape_that_comes_no_more_gives_way(model: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gen.loop.replay.recorded._AT_ONCE", 3)

    def texts(cut: int, steps: int) -> tuple[int, int]:
        for _ in range(steps // 2):
            plain(model, gen.samplers.multinomial(**CUTS[cut]), 3)
        return recorded(model)

    for cut in range(3):
        assert texts(cut, 14) == (0, 1 + cut)  # the 13th is watched, and one more is compared
    assert texts(3, 14) == (0, 3)
    assert texts(0, 2) == (0, 3)  # it begins anew
    assert texts(1, 2) == (1, 2)
    assert texts(0, 14) == (2, 2)


class Counting:
    """Claims that it may be replayed, but counts its runs on the host when it sees more than 32 columns."""

    replayable = True

    def __init__(self, how: str) -> None:
        self.how, self.runs, self.table = how, 0, torch.zeros(500, 259)

    def __call__(self, token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        if token_ids.shape[1] <= 32:
            return logits + 1 if self.how == "number" else logits + self.table[0]
        self.runs += 1
        if self.how == "number":
            return logits + self.runs
        if self.how == "row":
            return logits + self.table[self.runs]
        return (logits + self.table[0]) * (1.0 + self.runs)


def test_a_refused_kind_of_step_is_not_recorded_anew_before_what_it_rests_on_changes(
    model: TransformersModel, twice: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gen")
    layer: Any = model.hf_model.model.layers[0].mlp
    layer.act_fn = Reading()
    model.replay = True
    for prompts in (1, 1, 3, 2, 40, 1):  # some in rows that the model keeps, some in new ones
        gen.generate(model, [FOUR] * prompts, sampler=gen.samplers.greedy(), max_new_tokens=25, eos_token_id=[])
        assert shapes(model) == set()
    [line] = [record.getMessage() for record in caplog.records]
    assert "are not replayed: it reads on the host" in line
    layer.act_fn = torch.nn.SiLU()
    assert shapes_after(model, 28) == {(1, 32)}
    assert twice == [True]


class Reading(torch.nn.Module):
    """An activation that reads on the host."""

    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 1e30 else torch.nn.functional.silu(x)


@pytest.mark.parametrize("how", ["number", "row", "call"])
def test_what_the_host_counts_in_some_shapes_alone_is_refused_there(
    model: TransformersModel, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gen")
    gen.generate(
        model,
        FOUR,
        sampler=gen.samplers.greedy(),
        max_new_tokens=60,
        eos_token_id=[],
        logits_processors=[Counting(how)],
    )
    assert shapes(model) == {(1, 32)}
    assert "does something else at its next call" in caplog.text


@pytest.mark.parametrize("shape", ["llama", "gemma3", "lfm2", "qwen3_next"])
def test_beams_are_rehearsed_without_a_copy_of_the_cache(shape: str) -> None:
    """After a rehearsal only the tensors of `moving` are put back; the next steps equal those without a rehearsal."""
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer())
    sampler = gen.samplers.beam_search(4, repetition_penalty=1.2)
    kind = kind_of_search(sampler)
    requests = [Request(prompt_ids=[60 + row, 3, 4], sampler=sampler, seeds=(0,), limit=60) for row in range(2)]

    def steps(rehearsed: bool) -> list[Any]:
        found = []
        with torch.inference_mode():
            rows = Decoder(model, 8, 64, kind.key, kind.search, [PenaltyStage], Streams(model.placement))
            rows.begin()
            for number, request in enumerate(requests):
                rows.fill(slice(4 * number, 4 * number + 4), [request], [request.prompt_ids])
            for _ in range(20):
                if rehearsed:
                    before = [(tensor, tensor.clone()) for tensor in rows.moving()]
                    rows.step(8, 32, stays=True)
                    for tensor, value in before:
                        tensor.copy_(value)
                rows.step(8, 32)
                found.append([result.tolist() for result in rows.search.results])
            cache = {tensor.untyped_storage().data_ptr() for name, tensor, _ in rows.rows.parts() if "keys" in name}
            assert cache and not cache & {tensor.untyped_storage().data_ptr() for tensor in rows.moving()}
        return found

    plain = steps(False)
    assert any(parents != [0, 1, 2, 3] * 2 for _, _, parents, *_ in plain)
    assert repr(steps(True)) == repr(plain)


class Noted:
    """Greedy after a changing bias, as a processor or as a sampler; logs how many tokens there were."""

    samples, penalties = 1, None

    def __init__(self, most: int = 10**9) -> None:
        self.lengths: list[int] = []
        self.most = most

    def _bias(self, logits: Tensor) -> Tensor:
        if len(self.lengths) > self.most:
            raise TimeoutError("it took too long")
        return logits + torch.arange(logits.shape[1]).roll(3 * len(self.lengths)) * 0.02

    def __call__(self, token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        self.lengths.append(int(lengths[0]))
        return self._bias(logits)

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Any:
        self.lengths.append(len(self.lengths) + 4)
        return gen.samplers.greedy().step(self._bias(logits), weights, keys)


class NotedScores(Noted):
    """The same in the form of transformers' processors."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # type: ignore[override]
        self.lengths.append(input_ids.shape[1])
        return self._bias(scores)


def noted(model: TransformersModel, how: str, replay: bool, most: int = 10**9) -> tuple[Noted, list[int]]:
    functions = NotedScores(most) if how == "scores" else Noted(most)
    options: dict[str, Any] = {"replay": replay, "max_new_tokens": 60, "eos_token_id": [], "details": True}
    options["sampler"] = functions if how == "sampler" else gen.samplers.greedy()
    if how == "beams":
        options["sampler"] = gen.samplers.beam_search(2)
    made: Any = gen.generate(model, FOUR, logits_processors=[] if how == "sampler" else [functions], **options)
    return functions, made.token_ids


@pytest.mark.parametrize("how", ["processor", "scores", "sampler", "beams"])
def test_users_functions_run_once_at_every_step_beside_its_recording(model: TransformersModel, how: str) -> None:
    for _ in range(2):
        (eager, expected), (replayed, found) = (noted(model, how, replay) for replay in (False, True))
        assert found == expected
        assert replayed.lengths == eager.lengths == [*range(4, 64)]
    assert shapes(model) == {(2 if how == "beams" else 1, view) for view in (32, 64)}


def test_a_users_function_may_generate_with_functions_of_its_own(model: TransformersModel) -> None:
    inner = noted(model, "processor", True)[1]
    found = []

    class Asking(Noted):
        def __call__(self, token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
            found.append(noted(model, "processor", True)[1])
            return super().__call__(token_ids, lengths, logits)

    options: Any = {"max_new_tokens": 24, "eos_token_id": [], "sampler": gen.samplers.greedy(), "details": True}
    plain, asking = (gen.generate(model, FOUR, logits_processors=[one], **options) for one in (Noted(), Asking()))
    assert found == [inner] * 24
    assert asking.token_ids == plain.token_ids


@pytest.mark.parametrize("how", ["processor", "scores", "sampler"])
def test_what_a_users_function_raises_at_a_recorded_step_is_raised(model: TransformersModel, how: str) -> None:
    noted(model, how, True)
    for most in (20, 40, 59):
        with pytest.raises(TimeoutError, match="it took too long"):
            noted(model, how, True, most)


def test_recordings_serve_other_functions_of_a_users(model: TransformersModel, twice: list[bool]) -> None:
    for _ in range(20):
        noted(model, "processor", True)
    assert len(twice) == 2
