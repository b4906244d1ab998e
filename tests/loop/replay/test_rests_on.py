"""Recorded steps are dropped when something that they depend on has changed. Oracle: the same with `replay=False`."""

import copy
import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

import gen
from gen.loop.options import Options
from gen.loop.runner import Runner
from gen.models.transformers.model import TransformersModel
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.noting import noted
from tests.loop.calls import kept_rows, new_jobs

Change = Callable[[Any], object]


def taken(hf_model: Any) -> TransformersModel:
    return gen.from_transformers(hf_model, byte_tokenizer(), replay=True, probe=False)


def text(model: TransformersModel, **options: Any) -> tuple[list[int], list[float]]:
    """The tokens of a text that has a recorded step, and their log-probabilities."""
    arguments: dict[str, Any] = {"sampler": gen.samplers.greedy(), "max_new_tokens": 28, "eos_token_id": []}
    made = gen.generate(model, "to be", details=True, **(arguments | options))
    return made.token_ids, made.logprobs


def changes_are_seen(hf_model: Any, changes: list[Change]) -> None:
    """After each of several changes, texts are those of the model as it is then."""
    model, before = taken(hf_model), None
    for change in [lambda _: None, *changes]:
        change(hf_model)
        first = text(model)
        assert kept_rows(model).recordings
        assert first == text(model) == text(taken(hf_model.eval()), replay=False)
        assert before is None or not torch.equal(torch.tensor(first[1]), torch.tensor(before[1])), change
        before = first


def set_activation(hf_model: Any) -> None:
    for layer in hf_model.model.layers:
        layer.mlp.act_fn = torch.nn.GELU()


def patch_forward(hf_model: Any) -> None:
    mlp = hf_model.model.layers[0].mlp
    plain = mlp.forward
    mlp.forward = lambda x: -plain(x)


def patch_class(hf_model: Any) -> None:
    class Doubled(type(hf_model.model.layers[0].mlp)):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return 2 * super().forward(x)

    hf_model.model.layers[1].mlp.__class__ = Doubled


def swap_layers(hf_model: Any) -> None:
    layers = hf_model.model.layers
    layers[0].mlp, layers[1].mlp = layers[1].mlp, layers[0].mlp


@torch.no_grad()
def transpose(hf_model: Any) -> None:
    weight = hf_model.model.layers[0].self_attn.q_proj.weight
    weight.data = weight.data.T


def test_any_state_of_modules_is_seen() -> None:
    changes: list[Change] = [
        set_activation,
        lambda one: setattr(one.model.layers[0].self_attn, "scaling", 0.1),
        lambda one: setattr(one.model.rotary_emb, "attention_scaling", 0.5),
        lambda one: setattr(one.model.norm, "variance_epsilon", 0.1),
        patch_forward,
        patch_class,
        swap_layers,
        transpose,
        lambda one: setattr(one.model.layers[0], "mlp", copy.deepcopy(one.model.layers[1].mlp)),
        lambda one: setattr(one.model, "layers", one.model.layers[:1]),
    ]
    changes_are_seen(tiny_model("llama", num_attention_heads=2, num_key_value_heads=2, hidden_size=16), changes)


def test_what_a_forward_reads_of_its_config_is_seen() -> None:
    hf_model = tiny_model("gemma2")
    changes_are_seen(hf_model, [lambda one: setattr(one.config, "final_logit_softcapping", 1.5)])


def test_adapters_of_peft_are_seen() -> None:
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # PEFT reads it
        hf_model: Any = get_peft_model(tiny_model(), config).eval()

    def add(one: Any) -> None:
        one.add_adapter("other", config)
        one.set_adapter("other")

    def rescale(one: Any) -> None:
        for module in one.modules():
            if isinstance(scaling := getattr(module, "scaling", None), dict):
                scaling["other"] *= 3

    changes: list[Change] = [
        add,
        rescale,
        lambda one: one.base_model.disable_adapter_layers(),
        lambda one: one.base_model.enable_adapter_layers(),
        lambda one: one.set_adapter("default"),
        lambda one: one.set_adapter("other") or one.delete_adapter("default"),
    ]
    changes_are_seen(hf_model, changes)
    # merging gives the same texts by other calls, except for rounding in float32
    model = taken(hf_model)
    for change in (hf_model.merge_adapter, hf_model.unmerge_adapter, hf_model.merge_and_unload):
        text(model)
        change()
        assert text(model) == text(model) == text(model, replay=False)


def test_a_new_adapter_that_drops_out_is_refused() -> None:
    hf_model = tiny_model("llama")
    model = taken(hf_model)
    text(model)
    hf_model.model.layers[0].mlp.act_fn = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Dropout(0.5))
    with pytest.raises(gen.ModelError, match=r"in training mode.*model.eval\(\)"):
        text(model)


def test_an_optimiser_step_drops_no_recording() -> None:
    hf_model = tiny_model("llama")
    model = taken(hf_model)
    before = text(model)
    recordings = dict(kept_rows(model).recordings)
    assert recordings
    checked = model.check()
    assert checked is not None
    columns = model.version(checked)
    optimizer = torch.optim.SGD(hf_model.parameters(), lr=1.0)
    hf_model(input_ids=torch.tensor([[5, 6, 7]]), labels=torch.tensor([[5, 6, 7]])).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    assert text(model) != before
    assert text(model) == text(taken(hf_model), replay=False)
    assert kept_rows(model).recordings.items() >= recordings.items()
    assert model.version(checked) != columns
    checked = model.check()
    assert checked is not None
    columns = model.version(checked)
    with torch.no_grad():
        hf_model.lm_head.weight.data.add_(1)  # torch does not count this
    assert model.version(checked) == columns


def test_texts_that_run_go_on_with_the_model_as_it_is_when_another_joins() -> None:
    prompts, texts = ["to be or not", "a"], []
    for replay in (True, False):
        hf_model = tiny_model("llama")
        model = taken(hf_model)
        text(model, max_batch_tokens=2 * 64, replay=replay)
        first, second = new_jobs(model, prompts, max_new_tokens=40, eos_token_id=[])
        with Runner(model, [first], Options(replay=replay), rows=2) as runner:
            for _ in range(25):
                runner.advance()
            looked = bool(runner._steps.recordings)
            set_activation(hf_model)
            runner.add(second)
            while not runner.idle:
                runner.advance()
        assert looked == replay
        texts.append([one.token_ids for job in (first, second) for one in job.completions()])
    assert texts[0] == texts[1]


def test_what_changes_at_every_call_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gen")
    hf_model: Any = tiny_model("llama")
    model = taken(hf_model)
    for number in range(6):
        hf_model.model.norm.calls = number
        text(model)
    [line] = [line for line in caplog.messages if "drafts" not in line]
    assert "what they rest on has changed each of 3 times" in line and "2 is 3 now" in line
    hf_model.model.norm.calls = -1
    text(model)
    text(model)
    assert kept_rows(model)._changes == 0


def test_a_call_looks_at_the_whole_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = taken(tiny_model())
    looks = noted(monkeypatch, "gen.models.transformers.model", "Snapshot", lambda *given, **more: given)
    text(model)
    assert len(looks) == 1
    assert "".join(gen.stream(model, "to be", max_new_tokens=4, seed=1)) and len(looks) == 2
    model.hf_model.train()
    model.hf_model.model.layers[0].self_attn.attention_dropout = 0.5
    for call in (text, lambda one: next(gen.stream(one, "to be"))):
        with pytest.raises(gen.ModelError, match="in training mode"):
            call(model)
