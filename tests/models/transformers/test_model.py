"""The transformers adapter: placement, checkpoints and training mode; what it refuses. Texts are in `test_rows.py`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

import gen
from tests.helpers import byte_tokenizer, spaced_tokenizer, stored, tiny_model
from virtual_gpus import virtual_gpus


def test_rows_may_reach_the_end_of_a_learned_position_table_while_others_go_on() -> None:
    model = gen.from_transformers(tiny_model("gpt2", n_positions=40), byte_tokenizer())
    long, short = "x" * 38, "y"
    both = gen.generate(model, [long, short], sampler=gen.samplers.greedy(), max_new_tokens=30, details=True)
    assert [len(completion.token_ids) for completion in both] == [2, 30]
    assert {completion.finish_reason for completion in both} == {"length"}
    assert both[1].text == gen.generate(model, short, sampler=gen.samplers.greedy(), max_new_tokens=30)


def test_the_callers_model_tokenizer_and_torch_settings_are_left_alone() -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = (tokenizer.padding_side, tokenizer.pad_token, len(tokenizer), torch.is_grad_enabled())
    gen.generate(gen.from_transformers(model, tokenizer), ["a", "bcd"], max_new_tokens=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert settings == (tokenizer.padding_side, tokenizer.pad_token, len(tokenizer), torch.is_grad_enabled())


def test_load_reads_a_directory_and_its_eos_ids(tmp_path: Path) -> None:
    saved = tiny_model()
    saved.generation_config.eos_token_id = [257, 258]
    model = gen.load(stored(saved, tmp_path), device="cpu", dtype="float64", attn_implementation="sdpa")
    assert model.placement.dtype == torch.float64
    assert model.eos_token_ids == (257, 258)
    assert gen.load(str(tmp_path)).placement.dtype == torch.float32


def test_a_checkpoint_without_a_language_models_head_is_refused(tmp_path: Path) -> None:
    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, is_decoder=True
    )
    stored(BertModel(config), tmp_path)
    with pytest.raises(gen.ModelError, match=r"lacks .* weights of a language model, such as cls"):
        gen.load(tmp_path)


def test_models_that_cannot_be_used_are_refused_with_the_reason() -> None:
    small = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1}
    with pytest.raises(gen.ModelError, match=r"training mode, where Dropout\(p=0.1\) of transformer.drop would"):
        gen.from_transformers(tiny_model("gpt2").train(), byte_tokenizer())
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=300, d_model=16, d_ff=16, num_layers=1, num_heads=2)).eval()
    with pytest.raises(gen.ModelError, match="T5ForConditionalGeneration is no decoder language model"):
        gen.from_transformers(t5, byte_tokenizer())
    bert = BertForMaskedLM(BertConfig(num_attention_heads=2, intermediate_size=32, **small)).eval()
    with pytest.raises(gen.ModelError, match="BertForMaskedLM is no decoder language model"):
        gen.from_transformers(bert, byte_tokenizer())
    with pytest.raises(gen.ModelError, match="MambaForCausalLM has no attention cache"):
        gen.from_transformers(MambaForCausalLM(MambaConfig(**small)).eval(), byte_tokenizer())
    flash = tiny_model()
    flash.config._attn_implementation = "flash_attention_2"
    with pytest.raises(gen.ModelError, match="flash_attention_2 takes no static cache"):
        gen.from_transformers(flash, byte_tokenizer())


@pytest.mark.parametrize("attention", ["flex_attention", "paged|eager"])
def test_an_attention_without_a_static_cache_is_refused_whenever_it_is_chosen(attention: str) -> None:
    """On a CPU, torch's compiled kernels for flex_attention ended the process."""
    hf_model = tiny_model()
    model: Any = gen.from_transformers(hf_model, byte_tokenizer())
    text = gen.generate(model, "hello", max_new_tokens=4, seed=1)
    hf_model.set_attn_implementation(attention)
    for call in (gen.generate, gen.stream):
        with pytest.raises(gen.ModelError, match="takes no static cache; load with attn_implementation='sdpa'"):
            list(call(model, "hello", max_new_tokens=4, seed=1))
    with pytest.raises(gen.ModelError, match="takes no static cache"):
        gen.score(model, "hello", "you")
    hf_model.set_attn_implementation("sdpa")
    assert gen.generate(model, "hello", max_new_tokens=4, seed=1) == text


def test_a_model_that_was_moved_is_refused_before_its_next_text() -> None:
    with virtual_gpus(2):
        hf_model = tiny_model().to("cuda:1")
        model = gen.from_transformers(hf_model, byte_tokenizer())
        text = gen.generate(model, "hello", max_new_tokens=4, seed=1)
        hf_model.to("cuda:0")
        with pytest.raises(gen.ModelError, match=r"was on cuda:1 when you .* gen, and is on cuda:0 now; move it back"):
            gen.generate(model, "hello", max_new_tokens=4, seed=1)
        hf_model.to("cuda:1")
        assert gen.generate(model, "hello", max_new_tokens=4, seed=1) == text
    with pytest.raises(gen.DeviceError, match="device cuda:1 does not exist; this machine has cpu"):
        gen.generate(model, "hello", max_new_tokens=4, seed=1)


@pytest.mark.parametrize("part", ["whole", "layer"])
def test_a_model_put_back_into_training_mode_is_refused_before_its_next_text(part: str) -> None:
    hf_model = tiny_model("gpt2")
    model = gen.from_transformers(hf_model, byte_tokenizer())
    text = gen.generate(model, "hello", max_new_tokens=4, seed=1)
    ran: list[object] = []
    hf_model.register_forward_pre_hook(lambda *_: ran.append(1))
    (hf_model if part == "whole" else hf_model.get_submodule("transformer.h.1.attn")).train()
    with pytest.raises(gen.ModelError, match=r"GPT2LMHeadModel is in training mode.*call model.eval\(\)"):
        gen.generate(model, "hello", max_new_tokens=4, seed=1)
    with pytest.raises(gen.ModelError, match="in training mode"):
        list(gen.stream(model, "hello", max_new_tokens=4, seed=1))
    with pytest.raises(gen.ModelError, match="in training mode"):
        gen.generate(model, "hello", sampler=gen.samplers.beam_search(2), max_new_tokens=4)
    assert not ran
    hf_model.eval()
    assert gen.generate(model, "hello", max_new_tokens=4, seed=1) == text


class OwnHead(nn.Linear):
    """A layer of an unknown package."""


def test_a_model_in_training_mode_is_read_if_nothing_in_it_is_random() -> None:
    hf_model = tiny_model()
    model = gen.from_transformers(hf_model, byte_tokenizer())
    text = gen.generate(model, "hello", max_new_tokens=9, seed=1)
    assert gen.generate(model, "hello", max_new_tokens=9, seed=1) == text
    hf_model.train()
    assert gen.generate(model, "hello", max_new_tokens=9, seed=1) == text
    assert gen.generate(gen.from_transformers(hf_model, byte_tokenizer()), "hello", max_new_tokens=9, seed=1) == text


@pytest.mark.parametrize("what", ["attention_dropout=0.1", "gradient checkpointing", "OwnHead, whose code"])
def test_what_acts_in_training_mode_is_named(what: str) -> None:
    hf_model: Any = tiny_model()
    if what.startswith("Own"):
        hf_model.lm_head = OwnHead(hf_model.config.hidden_size, hf_model.config.vocab_size, bias=False).eval()
    model = gen.from_transformers(hf_model, byte_tokenizer())
    hf_model.train()
    if what.startswith("attention"):
        hf_model.model.layers[0].self_attn.attention_dropout = 0.1
    elif what.startswith("gradient"):
        hf_model.activation_checkpointing_enable()
    with pytest.raises(gen.ModelError, match=f"in training mode, where {what}"):
        gen.generate(model, "hello", max_new_tokens=4)


def test_a_tokenizer_with_more_ids_than_the_embedding_is_refused() -> None:
    with pytest.raises(gen.ModelError, match="ids up to 264, the embedding of LlamaForCausalLM only 100 rows"):
        gen.from_transformers(tiny_model(vocab_size=100), spaced_tokenizer())


def test_tokens_that_were_added_later_are_refused_until_the_model_is_given_again() -> None:
    """Token ids without a row of the embedding would end a CUDA context, and log-probabilities would lack them."""
    hf_model, tokenizer = tiny_model(vocab_size=264), byte_tokenizer()
    model = gen.from_transformers(hf_model, tokenizer)
    text = gen.generate(model, "hello", max_new_tokens=4, seed=1)
    tokenizer.add_tokens(["<new>"])
    assert gen.generate(model, "hello", max_new_tokens=4, seed=1) == text
    for call in (gen.generate, gen.score):
        with pytest.raises(gen.ArgumentError, match=r"has the token 259, and .* ids up to 258 when .* give model and"):
            call(model, "hello<new>")
    hf_model.resize_token_embeddings(270, mean_resizing=False)
    with pytest.raises(gen.ModelError, match=r"embedding of LlamaForCausalLM had 264 rows .* and has 270 now; call"):
        gen.generate(model, "hello", max_new_tokens=4, seed=1)
    again = gen.from_transformers(hf_model, tokenizer)
    assert gen.score(again, "hello", "<new>").token_ids == [259]
