"""Models in wrappers: adapters of PEFT, torch.compile, and modules that only pass arguments on."""

import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LilyConfig, LoraConfig, PrefixTuningConfig, PromptTuningConfig, PveraConfig, get_peft_model
from torch import nn
from transformers import LlamaForCausalLM

import gen
from tests.helpers import byte_tokenizer, plain_choices, plain_greedy, stored, tiny_model

PROMPTS = ["to be or not to be", "a"]


def lora(shape: str) -> Any:
    """A model whose adapter changes its texts."""
    targets = {"gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}[shape]
    config = LoraConfig(r=4, target_modules=targets, fan_in_fan_out=shape == "gpt2", init_lora_weights=False)
    return adapted(tiny_model(shape), config)


def adapted(model: Any, config: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # PEFT reads it
        return get_peft_model(model, config).eval()


def check_batch(wrapped: Any) -> None:
    """A batch of unequal prompts has the texts of the wrapper's own plain forward."""
    tokenizer = byte_tokenizer()
    model = gen.from_transformers(wrapped, tokenizer, probe=False)
    together = gen.generate(model, PROMPTS, sampler=gen.samplers.greedy(), max_new_tokens=12, details=True)
    for prompt, completion in zip(PROMPTS, together, strict=True):
        assert len(completion.token_ids) == 12
        assert completion.token_ids == plain_choices(wrapped, tokenizer(prompt)["input_ids"], completion.token_ids)
    gen.from_transformers(wrapped, tokenizer)


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_lora_is_used_in_batches(shape: str) -> None:
    wrapped = lora(shape)
    check_batch(wrapped)
    prompt = byte_tokenizer()(PROMPTS[0])["input_ids"]
    assert plain_greedy(wrapped, prompt, 12) != plain_greedy(tiny_model(shape), prompt, 12)


@pytest.mark.parametrize("shape", ["gpt2", "llama"])
def test_a_compiled_model_keeps_its_positions(shape: str) -> None:
    model = tiny_model(shape)
    with torch.compiler.set_stance("force_eager"):  # the wrapper is what is tested, not the compiler
        check_batch(torch.compile(model, backend="eager"))
        check_batch(torch.compile(lora(shape), backend="eager"))


def test_the_probe_does_not_compile() -> None:
    def refuse(*_: object) -> Any:
        raise AssertionError("the probe has compiled the model")

    compiled: Any = torch.compile(tiny_model("gpt2"), backend=refuse)
    gen.from_transformers(compiled, byte_tokenizer())


ACTIVATED = LoraConfig(target_modules=["q_proj"], alora_invocation_tokens=[40, 41], task_type="CAUSAL_LM")


@pytest.mark.parametrize("probe", [True, False])
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"), "prefix tuning, .* LoRA, are supported"),
        (PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"), "prompt tuning, .* LoRA, are supported"),
        (ACTIVATED, "an activated LoRA, .* are supported"),  # steps have no invocation tokens
        (LilyConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM"), "a Lily adapter, .* by the mean over all"),
        (
            PveraConfig(target_modules=["q_proj"], sample_at_inference=True, task_type="CAUSAL_LM"),
            "an adapter that draws at random",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_acts_by_more_than_the_token_itself_is_refused_by_name(config: Any, reason: str, probe: bool) -> None:
    wrapped = adapted(tiny_model().bfloat16(), config)  # in which the probe lets smaller effects pass
    with pytest.raises(gen.ModelError, match=f"PeftModelForCausalLM has {reason}"):
        gen.from_transformers(wrapped, byte_tokenizer(), probe=probe)


def test_an_activated_lora_is_refused_too_where_it_is_added_later() -> None:
    wrapped = adapted(tiny_model(), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    model = gen.from_transformers(wrapped, byte_tokenizer())
    wrapped.add_adapter("later", ACTIVATED)
    before = gen.generate(model, "a", max_new_tokens=4, seed=1)
    wrapped.set_adapter("later")
    with pytest.raises(gen.ModelError, match="has an activated LoRA"):
        gen.generate(model, "a", max_new_tokens=4, seed=1)
    wrapped.set_adapter("default")
    assert gen.generate(model, "a", max_new_tokens=4, seed=1) == before


@pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute")
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (ACTIVATED, "an activated LoRA"),
        (LilyConfig(r=4, target_modules=["q_proj"]), "a Lily adapter"),
    ],
)
def test_they_are_refused_too_where_transformers_has_put_them_in(
    config: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # transformers 5.24 asks for a version of PEFT that is not there yet, and works with the one before
    monkeypatch.setattr("transformers.integrations.peft.check_peft_version", lambda min_version: None)
    hf_model: Any = tiny_model()
    hf_model.add_adapter(LoraConfig(target_modules=["v_proj"]), "usual")
    model = gen.from_transformers(hf_model.eval(), byte_tokenizer())
    before = gen.generate(model, "a", max_new_tokens=4, seed=1)
    hf_model.add_adapter(config, "other")
    with pytest.raises(gen.ModelError, match=f"LlamaForCausalLM has {reason}"):
        gen.generate(model, "a", max_new_tokens=4, seed=1)
    hf_model.set_adapter("usual")
    hf_model.eval()
    assert gen.generate(model, "a", max_new_tokens=4, seed=1) == before


def test_a_folder_with_a_model_and_an_adapter_gives_what_transformers_gives(tmp_path: Path) -> None:
    """Its `active_adapters` asks for a version of PEFT that is not there yet, and its forward runs with the one before.

    Oracle: the same adapter put on by PEFT.
    """
    wrapped = adapted(tiny_model(), LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    expected = gen.generate(gen.from_transformers(wrapped, byte_tokenizer()), "a", max_new_tokens=8, seed=1)
    wrapped.save_pretrained(tmp_path)
    loaded = gen.load(stored(tiny_model(), tmp_path), device="cpu")
    assert gen.generate(loaded, "a", max_new_tokens=8, seed=1) == expected
    assert expected != gen.generate(
        gen.from_transformers(tiny_model(), byte_tokenizer()), "a", max_new_tokens=8, seed=1
    )


def test_an_adapter_in_training_mode_is_refused_if_it_has_dropout() -> None:
    wrapped = adapted(tiny_model(), LoraConfig(target_modules=["q_proj"], lora_dropout=0.2, task_type="CAUSAL_LM"))
    wrapped.base_model.model.model.layers[0].self_attn.train()
    with pytest.raises(
        gen.ModelError, match=r"LlamaForCausalLM is in training mode, where Dropout.p=0.2.*model.eval()"
    ):
        gen.from_transformers(wrapped, byte_tokenizer())


class Passing(nn.Module):
    """A wrapper that names no argument."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class Losing(Passing):
    """Passes on only the arguments that it knows."""

    def forward(self, *args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


@pytest.mark.parametrize("shape", ["gpt2", "bloom"])
def test_a_wrapper_that_only_passes_arguments_on_is_run_as_what_is_in_it(shape: str) -> None:
    prompts = ["to be or not to be", "a", "x = [1]"]
    plain, wrapped = tiny_model(shape), Passing(tiny_model(shape)).eval()
    expected, found = (
        gen.generate(gen.from_transformers(one, byte_tokenizer()), prompts, seed=1, max_new_tokens=12)
        for one in (plain, wrapped)
    )
    assert found == expected


def test_a_wrapper_that_loses_positions_is_refused_by_the_probe() -> None:
    with pytest.raises(gen.ModelError, match=r"gen would run Losing wrongly: its logits for row 1"):
        gen.from_transformers(Losing(tiny_model("gpt2")).eval(), byte_tokenizer())


class NamesItCache(LlamaForCausalLM):  # type: ignore[misc]
    """As models from transformers 5.24 on, whatever is installed."""

    def forward(self, cache: Any = None, **others: Any) -> Any:
        assert "past_key_values" not in others, "that name is deprecated"
        named = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"
        return super().forward(**{named: cache}, **others)


def test_the_cache_has_the_name_that_the_forward_gives_it() -> None:
    model, tokenizer = tiny_model("llama"), byte_tokenizer()
    expected = gen.generate(gen.from_transformers(model, tokenizer), PROMPTS, max_new_tokens=12, seed=1)
    model.__class__ = NamesItCache
    assert gen.generate(gen.from_transformers(model, tokenizer), PROMPTS, max_new_tokens=12, seed=1) == expected
