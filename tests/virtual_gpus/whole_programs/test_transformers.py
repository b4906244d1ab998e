"""Models of transformers, whole and split by accelerate, generate on virtual GPUs what they generate on the CPU."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from accelerate import dispatch_model  # type: ignore[import-untyped]
from torch import Tensor
from transformers import PreTrainedModel

from tests.helpers import tiny_model
from tests.helpers.waits import waits
from virtual_gpus import virtual_gpus

SHAPES = ["llama", "gpt2", "mixtral"]
PROMPTS = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])

_SPLIT = {
    "gpt2": {"transformer.wte": 0, "transformer.wpe": 0, "transformer.drop": 0, "transformer.h.0": 0}
    | {"transformer.h.1": 1, "transformer.ln_f": 1, "lm_head": 1},
    "others": {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0}
    | {"model.layers.1": 1, "model.norm": 1, "lm_head": 1},
}


def split(model: PreTrainedModel, shape: str) -> PreTrainedModel:
    """A copy with its first half on cuda:0 and the rest on cuda:1."""
    device_map = _SPLIT.get(shape, _SPLIT["others"])
    spread: PreTrainedModel = dispatch_model(copy.deepcopy(model), device_map=device_map)
    return spread


def generate(model: Any, prompts: Tensor, new_tokens: int = 8, **options: Any) -> Tensor:
    options = {"do_sample": False, "pad_token_id": 0} | options
    token_ids: Tensor = model.generate(prompts, max_new_tokens=new_tokens, **options)
    return token_ids


@pytest.mark.parametrize(
    "options", [{}, {"cache_implementation": "static"}, {"do_sample": True, "top_k": 20}, {"num_beams": 3}]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_generate_on_gpu_1_equals_the_cpus(shape: str, options: dict[str, Any]) -> None:
    model = tiny_model(shape)
    torch.manual_seed(3)
    expected = generate(model, PROMPTS, **options)
    with virtual_gpus(2):
        moved = copy.deepcopy(model).to("cuda:1")
        assert torch.cuda.current_device() == 0
        torch.manual_seed(3)
        token_ids = generate(moved, PROMPTS.to("cuda:1"), **options)
        assert token_ids.device == torch.device("cuda:1")
        assert torch.equal(token_ids.cpu(), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_split_model_equals_the_cpus_from_any_thread(shape: str) -> None:
    model = tiny_model(shape)
    expected = generate(model, PROMPTS)
    with virtual_gpus(2), ThreadPoolExecutor(1) as pool:
        spread = split(model, shape)
        devices = {parameter.device for parameter in spread.parameters()}
        assert devices == {torch.device("cuda:0"), torch.device("cuda:1")}
        prompts = PROMPTS.to("cuda:0")
        assert torch.equal(generate(spread, prompts).cpu(), expected)
        assert torch.equal(pool.submit(generate, spread, prompts).result().cpu(), expected)


@pytest.mark.parametrize("device_map", [{"": 1}, "auto", "sequential"])
def test_from_pretrained_loads_onto_virtual_gpus(device_map: Any, tmp_path: Any) -> None:
    model = tiny_model("llama")
    expected = generate(model, PROMPTS)
    model.save_pretrained(tmp_path)
    with virtual_gpus(2):
        loaded = type(model).from_pretrained(tmp_path, device_map=device_map)
        assert {parameter.device.type for parameter in loaded.parameters()} == {"cuda"}
        assert torch.equal(generate(loaded, PROMPTS.to(loaded.device)).cpu(), expected)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        *((shape, {}) for shape in SHAPES),
        *(
            ("llama", options)
            for options in ({"cache_implementation": "static"}, {"do_sample": True}, {"num_beams": 2})
        ),
    ],
)
def test_transformers_waits_once_a_token(shape: str, options: dict[str, Any]) -> None:
    with virtual_gpus(2):
        moved = tiny_model(shape).to("cuda:1")
        prompts = PROMPTS.to("cuda:1")
        counts, _ = waits(lambda new_tokens: generate(moved, prompts, new_tokens, **options), 4, 12)
    assert (counts[1] - counts[0]) / 8 == 1


def test_prompts_on_the_wrong_gpu_are_found() -> None:
    with virtual_gpus(2):
        moved = tiny_model("llama").to("cuda:1")
        with pytest.raises(RuntimeError, match=r"aten::embedding at transformers/"):
            moved(PROMPTS.to("cuda:0"))
