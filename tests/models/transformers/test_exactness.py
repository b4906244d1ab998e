"""exact=True: the same bits alone and in any batch; models that cannot promise it are refused with the reason."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

import gen
from benchmarks.cases.bits import compare, compare_prompts
from gen.loop.scheduler import Scheduler
from gen.models.transformers import exactness
from gen.samplers import greedy, multinomial
from tests.helpers import byte_tokenizer, needs_kernels_that_agree, tiny_model
from tests.helpers.demo import short_demo
from tests.helpers.noting import fails_once


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_texts_and_logprobs_have_the_same_bits_alone_in_batches_refilled_and_through_an_engine(dtype: str) -> None:
    demo: Any = short_demo()
    model: Any = gen.from_transformers(demo.hf_model.to(getattr(torch, dtype)), demo.tokenizer._tokenizer)
    needs_kernels_that_agree(model)
    found = compare(model, 12, longest=70, new_tokens=9)
    assert found.none, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_prompts_have_the_same_bits_alone_in_batches_and_in_parts(dtype: torch.dtype, threads: int) -> None:
    """The rules depend on this machine's kernels, so the test first looks at these."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        demo: Any = short_demo()
        model: Any = gen.from_transformers(demo.hf_model.to(dtype), demo.tokenizer._tokenizer)
        needs_kernels_that_agree(model)
        assert compare_prompts(model, 12, longest=200) == 0
    finally:
        torch.set_num_threads(before)


def test_the_rows_that_a_step_needs_are_found_on_the_machine() -> None:
    model: Any = gen.load("demo", device="cpu", dtype="float32")
    needs_kernels_that_agree(model)
    least = model.find_step_rows()
    assert least in (1, 2, 4, 8, 16)
    weight = model.hf_model.model.layers[0].mlp.up_proj.weight
    given = torch.randn((64, weight.shape[1]))
    expected = functional.linear(given, weight)
    for count in (least, 2 * least, 4 * least):
        assert torch.equal(functional.linear(given[:count], weight), expected[:count])


@pytest.mark.parametrize(
    ("shape", "changes", "reason"),
    [
        ("mixtral", {}, "its experts get other numbers of rows in every batch"),
        ("qwen3_5_text", {}, "it has layers of the kind Conv1d, which may depend on the batch"),
        ("bloom", {}, r"it runs transformers' \(eager\) attention instead of gen's own"),
        ("llama", {"attn_implementation": "eager"}, r"it runs transformers' \(eager\) attention instead of gen's own"),
    ],
)
def test_what_cannot_promise_it_is_refused_with_the_reason(shape: str, changes: dict[str, Any], reason: str) -> None:
    model = gen.from_transformers(tiny_model(shape, **changes), byte_tokenizer())
    with pytest.raises(gen.ModelError, match=rf"exact=True is not possible with \w+: {reason}"):
        gen.generate(model, "abc", exact=True)
    with pytest.raises(gen.ModelError, match="exact=True is not possible"):
        gen.Engine(model, exact=True)


def test_another_attention_is_refused_when_it_is_chosen_later() -> None:
    model = gen.from_transformers(tiny_model(), byte_tokenizer())
    needs_kernels_that_agree(model)
    with gen.Engine(model, exact=True) as engine:
        text = gen.generate(model, "abc", exact=True, max_new_tokens=4, seed=1)
        model.hf_model.set_attn_implementation("eager")
        for made in (partial(gen.generate, model, exact=True), engine.generate):
            with pytest.raises(gen.ModelError, match=r"exact=True is not possible with \w+: its attention is trans"):
                made("abc")
        model.hf_model.set_attn_implementation("sdpa")
        assert engine.generate("abc", max_new_tokens=4, seed=1) == text


def test_models_of_other_kinds_and_values_that_are_no_bool_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gen.from_transformers(tiny_model(), byte_tokenizer())
    with pytest.raises(gen.ArgumentError, match="exact"):
        gen.generate_iter(model, [], exact="yes")  # type: ignore[arg-type]
    monkeypatch.setattr(exactness, "_least", lambda layer: None)
    with pytest.raises(gen.ModelError, match="gives a row other bits with 16 rows than with more"):
        gen.generate(model, "abc", exact=True)
    monkeypatch.undo()
    monkeypatch.setattr(exactness, "attention_agrees", lambda *shape: False)
    with pytest.raises(gen.ModelError, match="its attention, 4 heads over 2 of 8 numbers, depends on the batch"):
        gen.generate(model, "abc", exact=True)


@pytest.mark.parametrize("sampler", [greedy(), multinomial(temperature=0.9)])
def test_a_text_that_goes_on_in_other_rows_after_an_error_has_the_same_bits(
    sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
    needs_kernels_that_agree(model)
    arguments: Any = {"sampler": sampler, "seed": 3, "max_new_tokens": 20, "details": True, "exact": True}
    expected = gen.generate(model, ["once upon", "a"], **arguments)
    with pytest.raises(gen.ArgumentError, match="exact=True is not possible with these: give numbers"):
        gen.generate(model, "abc", sampler=multinomial(temperature=torch.ones(1)), exact=True)
    prompts = ["once upon", "a", *"bcdefgh"]
    assert [one for _, one in sorted(gen.generate_iter(model, prompts, rows=3, **arguments))[:2]] == expected
    many = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
    steps = fails_once(monkeypatch, Scheduler, "_step", 7)
    found = gen.generate(many, prompts, **arguments)
    assert found[:2] == expected
    assert len(steps) > 20


@pytest.mark.gpu
@torch.inference_mode()
def test_on_cuda_a_row_has_the_same_bits_in_steps_and_prompts_of_one_shape_whatever_is_beside_it() -> None:
    """A promise on CUDA would depend on this; exact=True is refused there until it has been shown."""
    model: Any = gen.load("demo", device="cuda:0", dtype="bfloat16")
    found = []
    for other in (3, 90):
        rows = model.new_rows(8, 128)
        prompts = [[5, 6, 7, 8] * 4, *([other + row] * 16 for row in range(7))]
        logits = [rows.prefill(slice(0, 8), prompts)[0]]
        logits += [rows.step(torch.full((8, 1), token, device="cuda:0"), 64)[0] for token in (9, 4, 9)]
        found.append(torch.stack(logits))
    assert torch.equal(*found)
