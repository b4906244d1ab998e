"""exact=True: the same bits alone and in any batch, and what cannot promise it is refused with its reason."""

from typing import Any

import pytest
import torch
from torch.nn import functional

import gen
from benchmarks.same_bits import compare
from gen.loop.batch import Batch
from gen.models.transformers import exactness
from gen.samplers import greedy, multinomial
from tests.helpers import byte_tokenizer, tiny_model


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_texts_and_logprobs_have_the_same_bits_alone_in_batches_refilled_and_through_an_engine(dtype: str) -> None:
    model = gen.load("demo", device="cpu", dtype=dtype)
    found = compare(model, 12, longest=70, new_tokens=9)
    assert found.none, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 2])
def test_prompts_have_the_same_bits_alone_in_batches_and_in_parts(dtype: torch.dtype, threads: int) -> None:
    """The rules rest on layers that give 16 rows, and whole multiples, the same bits: that is looked at here first."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model: Any = gen.load("demo", device="cpu", dtype=dtype)
        for layer in exactness._kinds_of_layers(model):
            if exactness._least(layer) is None:
                pytest.skip("on this machine linear layers give other bits with 16 rows than with more")
        check_prompts(model)
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
def check_prompts(model: Any) -> None:
    drawn = torch.Generator().manual_seed(0)
    lengths = [int(torch.randint(1, 200, (), generator=drawn)) for _ in range(12)]
    prompts = [torch.randint(0, model.vocab_size, (length,), generator=drawn).tolist() for length in lengths]

    def read(rows: Any, place: int, logits: torch.Tensor, prompt: list[int]) -> list[torch.Tensor]:
        kept = [tensor[place, :, : len(prompt)] for name, tensor, _ in rows.parts() if "cache" in name]
        return [logits, *(each.clone() for each in kept)]

    alone = []
    for prompt in prompts:
        rows = model.new_rows(1, 256)
        alone.append(read(rows, 0, rows.fill(slice(0, 1), [prompt])[0], prompt))
        cut = int(torch.randint(0, len(prompt), (), generator=drawn))
        if cut:
            parts = model.new_rows(1, 224)
            parts.fill(slice(0, 1), [prompt[:cut]])
            logits = parts.fill(slice(0, 1), [prompt[cut:]], cut)[0]
            assert all(map(torch.equal, read(parts, 0, logits, prompt), alone[-1]))
    for first, last in ((0, 5), (5, 12)):
        rows = model.new_rows(last - first, 320)
        logits = rows.fill(slice(0, last - first), prompts[first:last])
        for place, prompt in enumerate(prompts[first:last]):
            assert all(map(torch.equal, read(rows, place, logits[place], prompt), alone[first + place]))


def test_the_rows_that_a_step_needs_are_found_on_the_machine() -> None:
    model: Any = gen.load("demo", device="cpu", dtype="float32")
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
        ("qwen3_5", {}, "it has layers of the kind Conv1d, which may depend on the batch"),
        ("bloom", {}, r"it runs transformers' \(eager\) attention instead of gen's own"),
        ("llama", {"attn_implementation": "eager"}, r"it runs transformers' \(eager\) attention instead of gen's own"),
    ],
)
def test_what_cannot_promise_it_is_refused_with_the_reason(shape: str, changes: dict[str, Any], reason: str) -> None:
    model = gen.from_transformers(tiny_model(shape, **changes), byte_tokenizer())
    with pytest.raises(gen.ModelError, match=rf"exact=True is not to be had of \w+: {reason}"):
        gen.generate(model, "abc", exact=True)
    with pytest.raises(gen.ModelError, match="exact=True is not to be had"):
        gen.Engine(model, exact=True)


def test_models_of_other_kinds_and_values_that_are_no_bool_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gen.from_transformers(tiny_model(), byte_tokenizer())
    with pytest.raises(gen.ArgumentError, match="exact"):
        gen.generate(model, "abc", exact="yes")  # type: ignore[call-overload]
    monkeypatch.setattr(exactness, "_least", lambda layer: None)
    with pytest.raises(gen.ModelError, match="gives a row other bits with 16 rows than with more"):
        gen.generate(model, "abc", exact=True)


@pytest.mark.parametrize("sampler", [greedy(), multinomial(temperature=0.9)])
def test_a_text_that_goes_on_in_other_rows_after_an_error_has_the_same_bits(
    sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
    arguments: Any = {"sampler": sampler, "seed": 3, "max_new_tokens": 20, "details": True, "exact": True}
    expected = gen.generate(model, ["once upon", "a"], **arguments)
    step, steps = Batch._step, iter(range(100))

    def failing(own: Any) -> None:
        if next(steps) == 7:
            raise torch.OutOfMemoryError("planted")
        step(own)

    many = gen.from_transformers(tiny_model(vocab_size=259), byte_tokenizer())
    monkeypatch.setattr(Batch, "_step", failing)
    found = gen.generate(many, ["once upon", "a", *"bcdefgh"], **arguments)
    assert found[:2] == expected
    assert next(steps) > 20
