"""`hf_model.half()` and `.to(dtype)` after calls: texts are the model's own.

Oracle: its plain forward, or a fresh model of gen, which has no rows yet and records nothing.
"""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import gen
from gen.models.transformers.model import TransformersModel
from tests.helpers import byte_tokenizer, needs_kernels_that_agree, plain_choices, plain_greedy, stored, tiny_model

PROMPTS = [[1, 2, 3, 4, 5], [9, 8]]
SETTINGS: dict[str, Any] = {"sampler": gen.samplers.greedy(), "max_new_tokens": 12, "eos_token_id": [], "details": True}

LONG: dict[str, Any] = {"sampler": gen.samplers.greedy(), "max_new_tokens": 100, "eos_token_id": []}


def texts(model: TransformersModel, **settings: Any) -> list[list[int]]:
    return [one.token_ids for one in gen.generate(model, PROMPTS, **(SETTINGS | settings))]


def fresh(hf_model: Any) -> list[list[int]]:
    return texts(gen.from_transformers(hf_model, byte_tokenizer(), probe=False), replay=False)


@pytest.mark.parametrize("shape", ["llama", "gpt_neo", "lfm2", "bloom"])
def test_the_next_call_computes_in_the_models_new_dtype(shape: str) -> None:
    hf_model = tiny_model(shape)
    model = gen.from_transformers(hf_model, byte_tokenizer(), probe=False)
    for _ in range(2):
        texts(model)
    hf_model.double()
    made = texts(model)
    assert model.placement.dtype == torch.float64
    for prompt, token_ids in zip(PROMPTS, made, strict=True):
        assert token_ids == plain_choices(hf_model, prompt, token_ids)
    hf_model.float()
    assert texts(model) == fresh(hf_model)
    assert model.placement.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_an_engine_goes_on_in_the_models_new_dtype(dtype: torch.dtype) -> None:
    hf_model: Any = tiny_model()
    model, changed = gen.from_transformers(hf_model, byte_tokenizer()), threading.Event()

    def change(token_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        hf_model.to(dtype)  # between two steps: during one, its layers would differ
        changed.set()
        return logits

    with gen.Engine(model) as engine:
        engine.generate(PROMPTS[1], **SETTINGS)
        hf_model.to(dtype)  # nothing runs
        expected = fresh(hf_model)
        assert [engine.generate(prompt, **SETTINGS).token_ids for prompt in PROMPTS] == expected
        hf_model.float()
        running = engine.submit(PROMPTS[0], logits_processors=[change], **LONG)  # it goes on
        assert changed.wait(60)
        assert [engine.generate(prompt, **SETTINGS).token_ids for prompt in PROMPTS] == expected
        assert len(running.completion().token_ids) == 100
    assert f"({str(dtype).removeprefix('torch.')})" in str(model)


def test_a_packed_model_can_become_float16(tmp_path: Path) -> None:
    model = gen.load(stored(tiny_model(hidden_size=256, intermediate_size=256).half(), tmp_path), device="cpu")
    texts(model)
    model.hf_model.half()
    made = texts(model)
    assert (model.placement.dtype, model.placement.packed_dtype) == (torch.float16, None)
    assert made == fresh(model.hf_model)


@pytest.mark.parametrize("window", [3, None])
def test_another_window_counts_from_the_next_call_on(window: int | None) -> None:
    hf_model = tiny_model("mistral")
    model = gen.from_transformers(hf_model, byte_tokenizer())
    for one in (8, window):
        hf_model.config.sliding_window = one
        for prompt, token_ids in zip(PROMPTS, texts(model), strict=True):
            assert token_ids == plain_greedy(hf_model, prompt, 12)


def test_scores_and_prefixes_follow_too() -> None:
    hf_model = tiny_model()
    model = gen.from_transformers(hf_model, byte_tokenizer())
    with gen.prefix(model, "to be or"):
        before = gen.score(model, "to be or", " not").sum
        gen.generate(model, "to be or not", **SETTINGS)
        hf_model.double()
        after = gen.generate(model, "to be or not", **SETTINGS).token_ids
        assert after == plain_choices(hf_model, model.tokenizer.encode("to be or not"), after)
        assert abs(gen.score(model, "to be or", " not").sum - before) < 1e-3


def test_an_exact_engine_asks_for_another_one_where_steps_need_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    hf_model = tiny_model("llama")
    model = gen.from_transformers(hf_model, byte_tokenizer())
    needs_kernels_that_agree(model)
    with gen.Engine(model, exact=True) as engine:
        engine.generate("a", **SETTINGS)
        monkeypatch.setattr(model, "_step_rows", {})
        monkeypatch.setattr("gen.models.transformers.exactness.find_step_rows", lambda model: 16)
        with pytest.raises(gen.ModelError, match=r"steps of 16 rows now, and this engine .* make another engine"):
            engine.generate("a", **SETTINGS)
