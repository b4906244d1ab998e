"""Linear layers on a CPU: the oracle is float64, and the same model without them."""

import copy
import gc
import threading
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

import gen
from benchmarks.same_bits import compare, compare_prompts
from gen.models.transformers import products
from gen.models.transformers.products import Products, product
from gen.models.transformers.weight_copies import WeightCopies, copy_of, fits
from tests.helpers import byte_tokenizer, tiny_model

pytestmark = pytest.mark.skipif(not torch._C._has_mkldnn, reason="torch has no oneDNN here")


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make all linear layers count as large enough, on any CPU; the list has the number of rows of each product."""
    monkeypatch.setattr(products, "_LARGE", 1)
    monkeypatch.setattr(products, "_BEYOND_CACHES", 1)
    monkeypatch.setattr(products, "_rows", lambda dtype: range(1, 2**31))
    rows: list[int] = []

    def counted(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows.append(input.numel() // input.shape[-1])
        return product(input, weight, bias)

    monkeypatch.setattr(products, "product", counted)
    return rows


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (3, 1), (8, 1), (3, 4)])
@pytest.mark.parametrize("copied", [True, False])
@torch.inference_mode()
def test_products_are_those_of_float64(shape: tuple[int, int], bias: bool, copied: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(300, 70, bias=bias)
    given = torch.randn(*shape, 300)
    copies = WeightCopies([layer.weight] if copied else [])
    found = product(given, layer.weight, layer.bias)
    assert (copy_of(layer.weight) is not None) == copied
    del copies
    assert copy_of(layer.weight) is None
    expected = functional.linear(given.double(), layer.weight.double(), layer.bias.double() if bias else None)
    assert found.shape == (*shape, 70) and found.is_contiguous()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


needs_bfloat16 = pytest.mark.skipif(
    not products._multiplies_bfloat16(), reason="this CPU has no instructions for bfloat16"
)


@needs_bfloat16
@pytest.mark.parametrize("rows", [1, 3, 4, 40])
@torch.inference_mode()
def test_in_bfloat16_they_are_as_exact_as_torchs_of_several_rows(rows: int) -> None:
    torch.manual_seed(0)
    layer, given = nn.Linear(300, 70).bfloat16(), torch.randn(rows, 300).bfloat16()
    copies = WeightCopies([layer.weight])
    expected = functional.linear(given.double(), layer.weight.double(), layer.bias.double())
    found = product(given, layer.weight, layer.bias)
    torchs = layer(functional.pad(given, (0, 0, 0, 4)))[:rows]  # a single row has a kernel of its own there
    assert found.dtype == torch.bfloat16
    assert (found - expected).square().mean() <= 1.05 * (torchs - expected).square().mean()
    del copies
    assert torch.equal(product(given, layer.weight, layer.bias), layer(given))


@needs_bfloat16
def test_models_in_bfloat16_have_them_recorded_or_not(everywhere: list[int]) -> None:
    model: Any = gen.load("demo", device="cpu", dtype="bfloat16")
    arguments: Any = {"seed": 1, "max_new_tokens": 24, "details": True}
    everywhere.clear()
    recorded = gen.generate(model, ["abc", "d"], **arguments)
    assert everywhere
    assert recorded == gen.generate(model, ["abc", "d"], **arguments, replay=False)


@torch.inference_mode()
def test_only_large_plain_parameters_on_a_cpu_are_multiplied_so(
    everywhere: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, given = nn.Parameter(torch.randn(6, 4)), torch.randn(3, 4)

    def calls(weight: Any, given: Any = given) -> int:
        everywhere.clear()
        with Products():
            found = functional.linear(given, weight)
        assert torch.allclose(found, given @ weight.mT)
        return len(everywhere)

    monkeypatch.setattr(products, "_multiplies_bfloat16", lambda: False)
    assert calls(nn.Parameter(torch.randn(6, 4).bfloat16()), given.bfloat16()) == 0

    assert calls(weight) == 1
    assert calls(weight.detach()) == 0  # made by another kind of layer
    assert calls(nn.Parameter(torch.randn(4, 6)).t()) == 0
    assert calls(nn.Parameter(torch.randn(6, 4).half()), given.half()) == 0
    assert calls(weight, given[:0]) == 0
    monkeypatch.setattr(products, "_rows", lambda dtype: range(2, 3))
    assert calls(weight) == 0 and calls(weight, given[:2]) == 1
    monkeypatch.setattr(products, "_rows", lambda dtype: range(1, 99))
    with torch.inference_mode(False), torch.enable_grad():
        assert calls(nn.Parameter(torch.randn(6, 4)), torch.randn(3, 4)) == 0
    torch.set_float32_matmul_precision("high")
    try:
        assert calls(weight) == 0
    finally:
        torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(products, "_LARGE", 25)
    assert calls(weight) == 0


def test_what_is_small_or_on_another_cpu_or_wrapped_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    assert not gen.from_transformers(model, byte_tokenizer()).has_products
    monkeypatch.setattr(products, "_LARGE", 1)
    monkeypatch.setattr(products, "_BEYOND_CACHES", 1)
    monkeypatch.setattr(products, "_rows", lambda dtype: range(0))
    assert not gen.from_transformers(model, byte_tokenizer()).has_products
    monkeypatch.setattr(products, "_rows", lambda dtype: range(1, 99))
    assert gen.from_transformers(model, byte_tokenizer()).has_products
    assert not gen.from_transformers(torch.compile(model, backend="eager"), byte_tokenizer(), probe=False).has_products
    monkeypatch.setattr(products, "_multiplies_bfloat16", lambda: False)
    assert not gen.from_transformers(model.bfloat16(), byte_tokenizer()).has_products


@pytest.mark.parametrize("shape", ["llama", "gpt2", "gpt_neo", "qwen3_5", "mixtral"])
def test_prompts_and_steps_have_them_recorded_or_not(shape: str, everywhere: list[int]) -> None:
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer())
    arguments: Any = {"sampler": gen.samplers.multinomial(), "seed": 1, "max_new_tokens": 24, "details": True}
    arguments["speculate"] = False  # a wide step has more rows
    everywhere.clear()
    gen.generate(model, ["abc" * 5], max_new_tokens=1, sampler=gen.samplers.greedy())
    assert shape == "gpt2" or max(everywhere) >= 15  # a prompt's tokens
    everywhere.clear()
    for prompts in (["abc"], ["abc", "d"]):
        recorded = gen.generate(model, prompts, **arguments)
        assert len(prompts) in everywhere or shape == "gpt2"  # its Conv1D is no linear layer
        everywhere.clear()
        assert recorded == gen.generate(model, prompts, **arguments, replay=False)
        everywhere.clear()


def test_the_callers_model_gives_its_own_bits_before_during_and_after(everywhere: list[int]) -> None:
    theirs = tiny_model()
    token_ids = torch.arange(1, 9)[None]
    with torch.inference_mode():
        expected = [theirs(token_ids[:, :count]).logits for count in (1, 8)]
    model = gen.from_transformers(theirs, byte_tokenizer())
    different: list[bool] = []

    def look() -> None:
        with torch.inference_mode():
            found = [theirs(token_ids[:, :count]).logits for count in (1, 8)]
        different.append(not all(map(torch.equal, found, expected)))

    everywhere.clear()
    for _ in gen.stream(model, "abc", max_new_tokens=20, eos_token_id=[]):
        look()
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    look()
    assert everywhere and len(different) > 10 and not any(different)


def test_a_parameter_that_is_replaced_is_seen_by_recorded_steps(everywhere: list[int]) -> None:
    theirs = tiny_model()
    model = gen.from_transformers(theirs, byte_tokenizer())
    arguments: Any = {"sampler": gen.samplers.greedy(), "max_new_tokens": 30, "eos_token_id": []}
    before = gen.generate(model, "abc", **arguments)
    theirs.lm_head.weight = nn.Parameter(-theirs.lm_head.weight.detach(), requires_grad=False)
    changed = gen.generate(model, "abc", **arguments)
    assert changed != before
    assert changed == gen.generate(gen.from_transformers(theirs, byte_tokenizer()), "abc", **arguments)


@torch.no_grad()
def test_a_copy_has_the_numbers_that_its_weight_has_now() -> None:
    weight, other = (nn.Parameter(torch.randn(90, 40), requires_grad=False) for _ in range(2))
    given = torch.randn(4, 40)
    copies = WeightCopies([weight, other])

    def is_right() -> bool:
        return torch.allclose(product(given, weight), given @ weight.mT, atol=1e-5)

    first = copy_of(weight)
    assert is_right() and copy_of(weight) is first
    weight.add_(1.0)  # an optimiser's step
    assert is_right() and copy_of(weight) is not first
    weight.data = torch.randn(90, 40)  # other memory
    assert is_right()
    weight.data += 1.0  # as LoRAs are merged, which torch does not count
    copies.drop_changed()
    assert is_right()
    weight.data[3, 5] += 1.0  # one number
    copies.drop_changed()
    copies.release()
    assert is_right()
    kept = copy_of(other)
    copies.drop_changed()
    assert copy_of(other) is kept


def test_changed_weights_give_the_texts_of_a_model_that_begins_with_them(everywhere: list[int]) -> None:
    theirs = tiny_model()
    model = gen.from_transformers(theirs, byte_tokenizer())
    arguments: Any = {"sampler": gen.samplers.greedy(), "max_new_tokens": 30, "eos_token_id": []}
    texts = [gen.generate(model, "abc", **arguments)]
    for change in (nn.init.normal_, lambda weight: weight.data.neg_()):
        change(theirs.lm_head.weight)
        texts.append(gen.generate(model, "abc", **arguments))
        assert texts[-1] == gen.generate(
            gen.from_transformers(copy.deepcopy(theirs), byte_tokenizer()), "abc", **arguments
        )
    assert len({*texts}) == 3
    model.release()
    assert texts[-1] == gen.generate(model, "abc", **arguments)


def test_models_of_the_same_weights_share_copies_and_the_last_one_frees_them() -> None:
    weight = nn.Parameter(torch.randn(90, 40))
    copies = [WeightCopies([weight]) for _ in range(2)]
    shared = copy_of(weight)
    copies.pop()
    assert copy_of(weight) is shared
    copies.pop()
    assert copy_of(weight) is None


def test_copies_take_a_tenth_of_the_memory_at_most() -> None:
    weights = [torch.empty(10, 25), torch.empty(10, 25)]
    assert fits(weights, 20_000) and not fits(weights, 19_999) and not fits(weights, None)


def test_without_room_for_copies_the_weights_are_read_as_they_are(
    everywhere: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = tiny_model()
    arguments: Any = {"sampler": gen.samplers.greedy(), "max_new_tokens": 30, "eos_token_id": []}
    with caplog.at_level("INFO", "gen"):
        copied = gen.from_transformers(theirs, byte_tokenizer())
    assert "weights are copied" in caplog.text
    assert copy_of(theirs.lm_head.weight) is not None
    text = gen.generate(copied, ["abc", "d"], **arguments)
    del copied
    gc.collect()
    monkeypatch.setattr(products, "total_bytes", lambda: 100)
    caplog.clear()
    model = gen.from_transformers(theirs, byte_tokenizer())
    assert "weights are copied" not in caplog.text
    everywhere.clear()
    assert gen.generate(model, ["abc", "d"], **arguments) == text
    assert everywhere and copy_of(theirs.lm_head.weight) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wide_steps_give_the_bits_of_plain_steps(
    dtype: str, everywhere: list[int], soon_worth_it: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen.loop.speculation.widths.Widths.choose", lambda widths, count, texts: widths.widest)
    model: Any = gen.load("demo", device="cpu", dtype=dtype)
    try:
        rows = model.find_step_rows()
    except gen.ModelError as reason:
        pytest.skip(f"this machine promises no equal bits: {reason}")
    if rows > 1 or not model.has_products:
        pytest.skip("on this machine a single row is summed in another order than several")
    arguments: Any = {"max_new_tokens": 20, "details": True, "seed": [1, 2, 3], "top_logprobs": 3}
    prompts = ["ha ha ha ha ha ha", "Once upon a time", "Describe Ada as JSON.\n"]
    plain = gen.generate(model, prompts, **arguments, speculate=False)
    wide = gen.generate(model, prompts, **arguments, speculate=gen.Speculation(most=7))
    assert sum(one.accepted for one in wide) > 1
    assert wide == plain


def test_with_them_texts_are_exact_and_prompts_have_the_same_bits(everywhere: list[int]) -> None:
    model, plain = (cast(Any, gen.load("demo", device="cpu", dtype="float32")) for _ in range(2))
    assert model.has_products
    plain.has_products = False
    try:
        plain.find_step_rows()
    except gen.ModelError as reason:
        pytest.skip(f"this machine promises no equal bits without them either: {reason}")
    model.find_step_rows()
    assert everywhere
    assert compare(model, 12, longest=70, new_tokens=9).none
    assert compare_prompts(model, 12, longest=200) == 0
