"""When steps are recorded: as often as they come, in one call or several, and run twice for the first shape alone."""

from collections.abc import Callable
from typing import Any

import pytest

import gen
from gen.loop.replay.recording import Replay, record
from gen.loop.row_set import RowSet
from gen.models.transformers.model import TransformersModel
from tests.helpers import byte_tokenizer, tiny_model

FOUR = [3, 4, 5, 6]


@pytest.fixture
def model() -> TransformersModel:
    made = gen.from_transformers(tiny_model(), byte_tokenizer())
    assert isinstance(made, TransformersModel)
    return made


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each recording so far whether the step ran a second time."""
    seen: list[bool] = []

    def logged(step: Callable[[], Any], *, again: Callable[[], None] | None = None) -> Replay[Any]:
        seen.append(again is not None)
        return record(step, again=again)

    monkeypatch.setattr("gen.loop.replay.steps.record", logged)
    return seen


def shapes(model: TransformersModel) -> set[tuple[int, int]]:
    """What the model's idle rows have recorded: rows and columns."""
    rows: Any = model.idle.take()
    assert isinstance(rows, RowSet)
    model.idle.put(rows)
    return {key[:2] for key in rows.recordings}  # type: ignore[index]


def test_steps_of_several_calls_count_together(model: TransformersModel) -> None:
    for _ in range(2):
        assert shapes_after(model, 8) == set()
    assert shapes_after(model, 8) == {(1, 32)}  # 7 steps a call


def shapes_after(model: TransformersModel, new_tokens: int) -> set[tuple[int, int]]:
    gen.generate(model, FOUR, sampler=gen.samplers.greedy(), max_new_tokens=new_tokens, eos_token_id=[])
    return shapes(model)


def test_a_step_runs_twice_for_the_first_shape_of_its_kind(model: TransformersModel, twice: list[bool]) -> None:
    assert shapes_after(model, 60) == {(1, 32), (1, 64)}
    assert twice == [True, False]
    gen.generate(model, FOUR, sampler=gen.samplers.multinomial(), max_new_tokens=25, eos_token_id=[])
    assert twice == [True, False, True]  # a step of another kind


def test_a_model_whose_parameters_have_changed_is_recorded_anew(model: TransformersModel, twice: list[bool]) -> None:
    assert shapes_after(model, 25) == {(1, 32)}
    head = model.hf_model.get_output_embeddings()
    head.weight = type(head.weight)(head.weight.detach().clone())
    assert shapes_after(model, 8) == set()
    assert shapes_after(model, 25) == {(1, 32)} and twice == [True, True]
