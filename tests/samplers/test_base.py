"""Users' samplers: objects that are none, and results of wrong shape, dtype, number or device, are refused by name."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.samplers import Penalties, greedy
from gen.samplers.base import check_sampled
from tests.helpers import ScriptedModel, byte_tokenizer, tiny_model


class Mine:
    """A greedy sampler whose results are changed."""

    samples: Any = 1
    penalties: Any = None

    def __init__(self, change: Callable[[Tensor, Tensor, Tensor], Any]) -> None:
        self._change = change

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> Any:
        return self._change(*greedy().step(logits, weights, keys))


def test_a_sampler_that_keeps_the_protocol_is_used() -> None:
    prompts = ["ab", "c"]
    model = gen.from_transformers(tiny_model(), byte_tokenizer())
    texts = gen.generate(model, prompts, sampler=greedy(), max_new_tokens=5)
    for change in (lambda *results: results, lambda *results: [*results], lambda t, a, w: (t, a, w.double())):
        assert gen.generate(model, prompts, sampler=Mine(change), max_new_tokens=5) == texts


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda t, a, w: t, r"it gave 1 results: Tensor \(2, 1\) int64 on cpu"),
        (lambda t, a, w: None, "it gave 1 results: None"),
        (lambda t, a, w: (), "it gave 0 results"),
        (lambda t, a, w: (t, a), r"it gave 2 results: Tensor \(2, 1\) int64 on cpu, Tensor \(2,\) int64 on cpu"),
        (lambda t, a, w: (t, a, w, w), "it gave 4 results"),
        (lambda t, a, w: (t.squeeze(1), a, w), r"it gave 3 results: Tensor \(2,\) int64 on cpu"),
        (lambda t, a, w: (t[:1], a, w), r"it gave 3 results: Tensor \(1, 1\) int64 on cpu"),
        (lambda t, a, w: (t.int(), a, w), r"it gave 3 results: Tensor \(2, 1\) int32 on cpu"),
        (lambda t, a, w: (t.float(), a, w), r"it gave 3 results: Tensor \(2, 1\) float32 on cpu"),
        (lambda t, a, w: (t, a.unsqueeze(1), w), r"Tensor \(2, 1\) int64 on cpu, Tensor \(2, 1\) int64 on cpu"),
        (lambda t, a, w: (t, a.bool(), w), r"Tensor \(2,\) bool on cpu"),
        (lambda t, a, w: (t, a, w.unsqueeze(1)), r"Tensor \(2, 1\) float32 on cpu$"),
        (lambda t, a, w: (t, a, w.long()), r"Tensor \(2,\) int64 on cpu, Tensor \(2,\) int64 on cpu$"),
        (lambda t, a, w: (t, a, w.sum()), "Tensor|tensor"),
        (lambda t, a, w: (t.tolist(), a, w), r"it gave 3 results: \[\[\d+\], \[\d+\]\], Tensor"),
        (lambda t, a, w: (t.to("meta"), a, w), r"it gave 3 results: Tensor \(2, 1\) int64 on meta"),
        (lambda t, a, w: (t, a, w.to("meta")), r"Tensor \(2,\) float32 on meta$"),
    ],
)
def test_results_of_the_wrong_shape_type_number_or_place_are_refused(change: Any, got: str) -> None:
    wanted = r"Mine.step must give next_token_ids \(2, 1\) int64, ancestors \(2,\) int64, weights .2,. floating, on cpu"
    model = ScriptedModel("hello")
    with pytest.raises(gen.ArgumentError, match=f"(?m){wanted}; .*{got}") as caught:
        gen.generate(model, ["a", "b"], sampler=Mine(change))
    assert len(str(caught.value)) < 400
    assert model.steps == 1


@pytest.mark.parametrize("token", [259, -1, 2**40])
def test_a_token_outside_of_the_vocabulary_is_refused_before_the_model_sees_it(token: int) -> None:
    model = ScriptedModel("hello")
    with pytest.raises(gen.SamplingError, match=f"the sampler chose the token {token}; the vocabulary is 0 to 258"):
        gen.generate(model, "x", sampler=Mine(lambda t, a, w: (t.fill_(token), a, w)))
    assert model.steps == 1


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (greedy, "sampler must be a sampler such as gen.samplers.greedy"),
        (SimpleNamespace(), "sampler must be a sampler such as"),
        (SimpleNamespace(step=3), "sampler must be a sampler such as"),
        (SimpleNamespace(step=print), "the sampler SimpleNamespace has no samples; see gen.samplers.Sampler"),
        (SimpleNamespace(step=print, samples=1), "the sampler SimpleNamespace has no penalties"),
        (SimpleNamespace(step=print, samples=0, penalties=None), "SimpleNamespace.samples must be a whole number at"),
        (SimpleNamespace(step=print, samples="1", penalties=None), "SimpleNamespace.samples must be a whole number"),
        (SimpleNamespace(step=print, samples=1, penalties={}), "SimpleNamespace.penalties must be a gen.samplers.Pe"),
    ],
)
def test_what_is_no_sampler_is_refused_before_the_model_runs(sampler: Any, message: str) -> None:
    model = ScriptedModel("hello")
    for call in (gen.generate, gen.stream):
        with pytest.raises(gen.ArgumentError, match=message):
            call(model, "x", sampler=sampler)
    assert model.steps == 0


def test_a_users_sampler_may_have_processors() -> None:
    sampler = Mine(lambda *results: results)
    sampler.penalties = Penalties(bad_words=["h"])
    with pytest.raises(gen.SamplingError):
        gen.generate(ScriptedModel("hello"), "x", sampler=sampler)


def test_the_check_reads_no_values() -> None:
    logits = torch.empty((2, 9), device="meta")
    token_ids, ancestors = (torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((2, 1), (2,)))
    check_sampled(greedy(), (token_ids, ancestors, torch.empty(2, device="meta")), logits)  # meta tensors have none
