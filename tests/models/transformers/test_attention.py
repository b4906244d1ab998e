"""Gen's own attention in models of transformers: where it runs, what it leaves alone, and that it copies no keys."""

import copy
import logging
import threading
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaAttention

import gen
from gen.models.transformers.model import TransformersModel
from tests.helpers import byte_tokenizer, plain_choices, tiny_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]


def its_own(hf_model: PreTrainedModel) -> list[torch.Tensor]:
    """What a caller's model computes by itself: logits over a mask, and a text."""
    token_ids = torch.tensor([PROMPT, PROMPT[::-1]])
    mask = torch.ones_like(token_ids)
    mask[1, :4] = 0
    with torch.inference_mode():
        logits = hf_model(input_ids=token_ids, attention_mask=mask).logits
    text = hf_model.generate(token_ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
    return [logits, text]


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, two))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_callers_model_keeps_its_attention_config_and_bits_in_any_thread(attention: str) -> None:
    hf_model = tiny_model(attn_implementation=attention)
    config, before = copy.deepcopy(hf_model.config), its_own(hf_model)
    model = gen.from_transformers(hf_model, byte_tokenizer())
    assert same(its_own(hf_model), before)
    during: list[list[torch.Tensor]] = []
    for number, _ in enumerate(gen.stream(model, "amid", max_new_tokens=12, eos_token_id=[], seed=0)):
        if number == 3:
            thread = threading.Thread(target=lambda: during.append(its_own(hf_model)))
            thread.start()
            thread.join()
            during.append(its_own(hf_model))
            assert hf_model.config.to_dict() == config.to_dict()
            assert hf_model.config._attn_implementation == attention
    assert len(during) == 2 and all(same(each, before) for each in during)
    assert same(its_own(hf_model), before)
    assert (model.attention is not None) == (attention == "sdpa")


def test_transformers_function_is_wrapped_once() -> None:
    first = gen.from_transformers(tiny_model(), byte_tokenizer())
    function: Any = ALL_ATTENTION_FUNCTIONS["sdpa"]
    gen.from_transformers(tiny_model("qwen3"), byte_tokenizer())
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is function
    assert not hasattr(function.theirs, "theirs")
    assert isinstance(first, TransformersModel)


@pytest.mark.parametrize(
    ("shape", "told"),
    [("llama", "gen's own"), ("gemma3", "gen's own"), ("mixtral", "gen's own"), ("bloom", "transformers' (eager)")],
)
def test_a_logged_line_says_which_attention_runs(shape: str, told: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gen"):
        gen.from_transformers(tiny_model(shape), byte_tokenizer())
    assert [line for line in caplog.messages if line.startswith("attention of")] == [
        f"attention of {tiny_model(shape).__class__.__name__}: {told}"
    ]


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the size of the largest tensor that an operation newly made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        given = {one.untyped_storage().data_ptr() for one in args if isinstance(one, torch.Tensor)}
        for one in made if isinstance(made, tuple) else (made,):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in given:
                self.size = max(self.size, one.numel())
        return made


@pytest.mark.parametrize("shape", ["llama", "qwen3", "gemma3"])
def test_steps_and_parts_of_prompts_copy_neither_keys_nor_values(shape: str) -> None:
    hf_model = tiny_model(shape, max_position_embeddings=4096)
    model = gen.from_transformers(hf_model, byte_tokenizer())
    rows, prompts = model.new_rows(8, 2048), [[7] * 1100] * 8
    with torch.inference_mode():
        rows.prefill(slice(0, 8), prompts)
        keys = next(tensor for name, tensor, _ in rows.parts() if "keys" in name)[:, :, :1152].numel()
        with Largest() as step:
            rows.step(torch.full((8, 1), 5), 1152)
        with Largest() as part:
            rows.prefill(slice(0, 8), [[5] * 9] * 8, [1100] * 8)
    assert 0 < step.size < keys
    assert 0 < part.size < keys


class Scaling(LlamaAttention):  # type: ignore[misc]
    """An attention that scales its keys after the cache, which takes their mark off."""

    def forward(self, hidden_states: Any, **others: Any) -> Any:
        named = "cache" if "cache" in others else "past_key_values"  # its name before transformers 5.24
        cache = others.pop(named, None)

        class Scaled:
            def update(self, *arguments: Any, **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
                keys, values = cache.update(*arguments, **settings)
                return keys * 1.0, values

        return super().forward(hidden_states, **{named: cache and Scaled()}, **others)


SHORT_AND_LONG = [[number + 3] * 4 + [5, 6, 7] for number in range(15)] + [[7 * n % 250 for n in range(700)]]


def texts(model: TransformersModel) -> list[list[int]]:
    settings: dict[str, Any] = {"sampler": gen.samplers.greedy(), "max_new_tokens": 6, "eos_token_id": []}
    return [one.token_ids for one in gen.generate(model, SHORT_AND_LONG, details=True, speculate=False, **settings)]


def test_keys_that_lose_their_mark_in_one_layer_are_found() -> None:
    hf_model: Any = tiny_model("llama", max_position_embeddings=1024)
    expected = gen.from_transformers(hf_model, byte_tokenizer())
    assert expected.parts_rows
    found = texts(expected)
    for layer in 0, 1:
        changed: Any = tiny_model("llama", max_position_embeddings=1024)
        changed.model.layers[layer].self_attn.__class__ = Scaling
        model = gen.from_transformers(changed, byte_tokenizer())
        assert not model.parts_rows
        assert model.told_attention == "gen's own and transformers' (keys without gen's mark)"
        assert texts(model) == found
        with pytest.raises(gen.ModelError, match=r"its attention is gen's own and transformers' .keys without"):
            gen.generate(model, "a", exact=True)


@pytest.mark.parametrize("engine", [False, True])
def test_rows_with_memory_of_their_own_end_where_a_layer_does_not_read_them_any_more(engine: bool) -> None:
    hf_model: Any = tiny_model("llama", max_position_embeddings=1024)
    model = gen.from_transformers(hf_model, byte_tokenizer())
    found = texts(model)
    rows: Any = model.idle.take()
    assert rows.decoder.rooms
    model.idle.put(rows)
    hf_model.model.layers[1].self_attn.__class__ = Scaling
    if engine:
        with gen.Engine(model, rows=16) as one:
            streams = [
                one.submit(prompt, sampler=gen.samplers.greedy(), max_new_tokens=6, eos_token_id=[])
                for prompt in SHORT_AND_LONG
            ]
            assert [stream.completion().token_ids for stream in streams if [*stream]] == found
    else:
        assert texts(model) == found
    assert not model.parts_rows
    hf_model.model.layers[1].self_attn.__class__ = LlamaAttention
    assert texts(model) == found


def test_a_layer_that_makes_values_of_its_own_of_the_caches_gets_no_rows_with_memory_of_their_own() -> None:
    hf_model = tiny_model("diffllama", max_position_embeddings=1024)
    model = gen.from_transformers(hf_model, byte_tokenizer())
    found = texts(model)
    assert found == [plain_choices(hf_model, *one) for one in zip(SHORT_AND_LONG, found, strict=True)]
    assert not model.parts_rows


def test_rows_of_a_compiled_model_have_no_memory_of_their_own() -> None:
    compiled: Any = torch.compile(tiny_model("llama"), backend="eager")
    assert not gen.from_transformers(compiled, byte_tokenizer()).parts_rows
