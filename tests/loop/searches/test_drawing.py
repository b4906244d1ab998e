"""Kernels that are compiled at their first use are compiled before a request's prompt is read."""

from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.devices import runs_triton
from gen.loop.searches import drawing
from gen.samplers.backends import choosing
from tests.helpers import byte_tokenizer, tiny_model
from virtual_gpus import virtual_gpus

Shape = tuple[torch.dtype, tuple[int, ...], int, tuple[bool, ...]]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In order: "forward" for the model, and for each draw its dtype, columns, stride and given parameters."""
    seen: list[Any] = []

    def watched(function: Any) -> Any:
        def sampling(logits: Tensor, *rest: Any) -> Any:
            given = rest[1].for_rows(logits) if rest else ()
            kernels = tuple(value is not None for value in given)
            seen.append((logits.dtype, logits.shape[1], logits.stride(0), kernels))
            return function(logits, *rest)

        return sampling

    monkeypatch.setattr(drawing, "runs_triton", lambda tensor: True)
    monkeypatch.setattr(drawing, "draw", watched(choosing.draw))
    monkeypatch.setattr(drawing, "most_likely", watched(choosing.most_likely))
    monkeypatch.setattr("gen.samplers.multinomial_sampler.draw", watched(choosing.draw))
    monkeypatch.setattr("gen.samplers.greedy_sampler.most_likely", watched(choosing.most_likely))
    return seen


SAMPLERS: dict[str, Any] = {
    "greedy": gen.samplers.greedy(),
    "cut": gen.samplers.multinomial(temperature=0.7, top_k=5),
    "penalised": gen.samplers.multinomial(top_p=0.9, repetition_penalty=1.3),
    "mixed": [gen.samplers.greedy(), gen.samplers.multinomial(top_k=4), gen.samplers.multinomial(min_p=0.1)],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SAMPLERS)
def test_all_that_is_drawn_from_has_been_compiled_before_its_prompt(
    name: str, dtype: torch.dtype, events: list[Any]
) -> None:
    with virtual_gpus(1):
        hf_model = tiny_model().to(dtype).to("cuda")
        model = gen.from_transformers(hf_model, byte_tokenizer(), probe=False)
        hf_model.register_forward_pre_hook(lambda *_: events.append("forward"))
        events.clear()
        gen.generate(model, ["a", "bcd", "efg hij"], sampler=SAMPLERS[name], max_new_tokens=4)
    first = events.index("forward")
    compiled, later = set(events[:first]), {event for event in events[first:] if event != "forward"}
    assert later and later <= compiled


def test_a_request_that_joins_later_is_compiled_for_before_its_prompt_and_none_twice(events: list[Any]) -> None:
    with virtual_gpus(1):
        hf_model = tiny_model().to("cuda")
        model = gen.from_transformers(hf_model, byte_tokenizer(), probe=False)
        for _ in range(2):
            samplers = [gen.samplers.multinomial(top_k=9), gen.samplers.multinomial(top_p=0.5)]
            gen.generate(model, ["a", "b"], sampler=samplers, max_new_tokens=[9, 2], max_batch_tokens=32)
            # each reading of a prompt and each step draws once; besides, each kind is compiled once
        hf_model.register_forward_pre_hook(lambda *_: events.append("forward"))
        events.clear()
        gen.generate(model, ["a", "b"], sampler=samplers, max_new_tokens=[9, 2], max_batch_tokens=32)
    draws = [event for event in events if event != "forward"]
    assert len(draws) == events.count("forward")


def test_nothing_is_compiled_where_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_TRITON", "1")
    with virtual_gpus(1):
        assert not runs_triton(torch.zeros(1, device="cuda"))
    assert not runs_triton(torch.zeros(1))
