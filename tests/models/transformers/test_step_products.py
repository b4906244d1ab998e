"""Products of few rows in steps: the oracle is float64, and the same model without them."""

import threading
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

import gen
from benchmarks.same_bits import compare, compare_prompts
from gen.models.transformers import step_products
from gen.models.transformers.step_products import Products, exchanged, product
from tests.helpers import byte_tokenizer, tiny_model

pytestmark = pytest.mark.skipif(not torch._C._has_mkldnn, reason="torch has no oneDNN here")


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make all linear layers count as large enough, on any CPU; the list has the number of rows of each product."""
    monkeypatch.setattr(step_products, "_LARGE", 1)
    monkeypatch.setattr(step_products, "_BEYOND_CACHES", 1)
    monkeypatch.setattr(step_products, "_rows", lambda: range(1, 2**31))
    monkeypatch.setattr(step_products, "_maker", lambda: "AuthenticAMD")
    rows: list[int] = []

    def counted(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows.append(input.numel() // input.shape[-1])
        return product(input, weight, bias)

    monkeypatch.setattr(step_products, "product", counted)
    return rows


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 1), (3, 1), (8, 1), (3, 4)])
@pytest.mark.parametrize("kernel", [product, exchanged])
@torch.inference_mode()
def test_products_are_those_of_float64(kernel: Any, shape: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(300, 70, bias=bias)
    given = torch.randn(*shape, 300)
    found = kernel(given, layer.weight, layer.bias)
    expected = functional.linear(given.double(), layer.weight.double(), layer.bias.double() if bias else None)
    assert found.shape == (*shape, 70) and found.is_contiguous()
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_only_large_plain_float32_parameters_on_a_cpu_are_multiplied_so(
    everywhere: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, given = nn.Parameter(torch.randn(6, 4)), torch.randn(3, 4)

    def calls(weight: Any, given: Any = given) -> int:
        everywhere.clear()
        with Products():
            found = functional.linear(given, weight)
        assert torch.allclose(found, given @ weight.mT)
        return len(everywhere)

    assert calls(weight) == 1
    assert calls(weight.detach()) == 0  # made by another kind of layer
    assert calls(nn.Parameter(torch.randn(4, 6)).t()) == 0
    assert calls(nn.Parameter(torch.randn(6, 4).bfloat16()), given.bfloat16()) == 0
    assert calls(weight, given[:0]) == 0
    monkeypatch.setattr(step_products, "_rows", lambda: range(2, 3))
    assert calls(weight) == 0 and calls(weight, given[:2]) == 1
    monkeypatch.setattr(step_products, "_rows", lambda: range(1, 99))
    with torch.inference_mode(False), torch.enable_grad():
        assert calls(nn.Parameter(torch.randn(6, 4)), torch.randn(3, 4)) == 0
    torch.set_float32_matmul_precision("high")
    try:
        assert calls(weight) == 0
    finally:
        torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(step_products, "_LARGE", 25)
    assert calls(weight) == 0


@torch.inference_mode()
def test_few_short_rows_of_a_wide_step_are_exchanged_with_columns(
    everywhere: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    for kernel in (product, exchanged):

        def noted(*args: Any, kernel: Any = kernel, **kwargs: Any) -> torch.Tensor:
            seen.append(kernel.__name__)
            made: torch.Tensor = kernel(*args, **kwargs)
            return made

        monkeypatch.setattr(step_products, kernel.__name__, noted)

    def kernel_of(rows: int, length: int, wide: bool = True) -> str:
        seen.clear()
        weight, given = nn.Parameter(torch.randn(5, length)), torch.randn(1, rows, length)
        with Products(wide=wide):
            found = functional.linear(given, weight=weight)
        torch.testing.assert_close(found, given @ weight.mT, rtol=1e-4, atol=1e-4)
        return "".join(seen)

    assert [kernel_of(rows, 896) for rows in (1, 2, 4, 5)] == ["product", "exchanged", "exchanged", "product"]
    assert kernel_of(4, 897) == kernel_of(4, 896, wide=False) == "product"
    monkeypatch.setattr(step_products, "_maker", lambda: "GenuineIntel")
    assert kernel_of(4, 896) == "product"


def test_wide_steps_of_a_text_have_them_recorded_or_not(
    everywhere: list[int], monkeypatch: pytest.MonkeyPatch, soon_worth_it: None
) -> None:
    rows: list[int] = []

    def counted(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows.append(input.numel() // input.shape[-1])
        return exchanged(input, weight, bias)

    monkeypatch.setattr(step_products, "exchanged", counted)
    model: Any = gen.load("demo", device="cpu", dtype="float32")
    arguments: Any = {"sampler": gen.samplers.greedy(), "max_new_tokens": 40, "details": True, "seed": 1}
    arguments |= {"eos_token_id": [], "speculate": gen.Speculation(most=3)}
    rows.clear()
    recorded = gen.generate(model, "ha ha ha ha ha ha", **arguments)
    assert recorded.accepted and {*rows} == {4}
    assert recorded == gen.generate(model, "ha ha ha ha ha ha", **arguments, replay=False)
    assert recorded.token_ids == gen.generate(model, "ha ha ha ha ha ha", **{**arguments, "speculate": False}).token_ids


def test_what_is_small_or_on_another_cpu_or_wrapped_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    assert not gen.from_transformers(model, byte_tokenizer()).has_products
    monkeypatch.setattr(step_products, "_LARGE", 1)
    monkeypatch.setattr(step_products, "_BEYOND_CACHES", 1)
    monkeypatch.setattr(step_products, "_rows", lambda: range(0))
    assert not gen.from_transformers(model, byte_tokenizer()).has_products
    monkeypatch.setattr(step_products, "_rows", lambda: range(1, 99))
    assert gen.from_transformers(model, byte_tokenizer()).has_products
    assert not gen.from_transformers(torch.compile(model, backend="eager"), byte_tokenizer(), probe=False).has_products
    assert not gen.from_transformers(model.bfloat16(), byte_tokenizer()).has_products


@pytest.mark.parametrize("shape", ["llama", "gpt2", "gpt_neo", "qwen3_5", "mixtral"])
def test_steps_have_them_recorded_or_not_and_prompts_do_not(shape: str, everywhere: list[int]) -> None:
    model = gen.from_transformers(tiny_model(shape), byte_tokenizer())
    arguments: Any = {"sampler": gen.samplers.multinomial(), "seed": 1, "max_new_tokens": 24, "details": True}
    arguments["speculate"] = False  # a wide step has more rows
    everywhere.clear()
    gen.generate(model, ["abc" * 5], max_new_tokens=1, sampler=gen.samplers.greedy())
    assert not everywhere
    for prompts in (["abc"], ["abc", "d"]):
        recorded = gen.generate(model, prompts, **arguments)
        assert not everywhere or {*everywhere} == {len(prompts)}  # Conv1D is no linear layer
        assert everywhere or shape == "gpt2"
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
