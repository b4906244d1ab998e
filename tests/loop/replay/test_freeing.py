"""Rows and their recordings are freed as soon as nothing needs them, not only when Python collects garbage."""

import gc
from collections.abc import Iterator
from typing import Any
from weakref import ref

import pytest
from torch import Tensor

import gen
from gen.loop.decoder import Decoder
from gen.models.transformers.layer_state import LayerState
from gen.models.transformers.model import TransformersModel
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.noting import fails_once, noted
from tests.loop.calls import kept_rows


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def model(no_garbage_collection: None) -> TransformersModel:
    return gen.from_transformers(tiny_model(), byte_tokenizer())


def generate(model: TransformersModel, texts: int = 1, new_tokens: int = 28, **options: Any) -> None:
    prompts = ["Ada", "Bob", "Cy", "Di"][:texts]
    arguments: dict[str, Any] = {"sampler": gen.samplers.greedy(), "max_new_tokens": new_tokens, "eos_token_id": []}
    arguments["speculate"] = False  # the room that these tests count is that for plain steps
    gen.generate(model, prompts, **(arguments | options))


def recorded(model: TransformersModel, *, whole: bool = True) -> list[ref[Tensor]]:
    """The cache tensors of the rows that the model keeps; steps have been recorded on them, or a part of a step."""
    rows = kept_rows(model)
    assert bool(rows.recordings) == whole and bool(rows.recording) != whole
    return [ref(tensor) for name, tensor, _ in rows.decoder.rows.parts() if "cache" in name]


def alive(tensors: list[ref[Tensor]]) -> int:
    return sum(one() is not None for one in tensors)


@pytest.mark.parametrize("whole", [True, False])
def test_release_frees_the_rows(model: TransformersModel, whole: bool) -> None:
    generate(model, new_tokens=28 if whole else 15)
    tensors = recorded(model, whole=whole)
    assert alive(tensors) == len(tensors) > 0
    model.release()
    assert alive(tensors) == 0


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("next_call", ["more rows", "another search", "memory is out"])
def test_rows_are_freed_before_others_are_made(
    model: TransformersModel, next_call: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(model, texts=2, new_tokens=28 if whole else 15)  # 15: their last two steps are watched
    tensors = recorded(model, whole=whole)
    seen = noted(monkeypatch, model, "new_rows", lambda *_: alive(tensors))
    if next_call == "memory is out":
        fails_once(monkeypatch, Decoder, "step")
        generate(model, texts=2, replay=False)
    else:
        other = next_call == "another search"
        generate(model, texts=4, sampler=gen.samplers.beam_search(2) if other else gen.samplers.greedy())
    assert seen and not any(seen)


def test_a_recording_that_is_not_complete_holds_nothing_that_is_given_up(model: TransformersModel) -> None:
    generate(model, new_tokens=15)  # its last two steps make the first parts of the recording
    tensors = recorded(model, whole=False)
    generate(model, new_tokens=60)  # the rows grow
    assert alive(tensors) == 0


def test_each_layer_is_freed_before_the_next_one_grows(
    model: TransformersModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(model)
    tensors = recorded(model)
    seen = noted(monkeypatch, LayerState, "grow", lambda *_: alive(tensors))
    generate(model, new_tokens=60)
    assert seen == [*range(len(tensors), 0, -2)]  # keys and values of a layer
    assert alive(tensors) == 0
