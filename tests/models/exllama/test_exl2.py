"""EXL2 weights on virtual GPUs: exllamav2's own Python code, compared with the same values in transformers."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import gen
from gen.doctor import examine
from gen.receipts.digests import weights_digest
from tests.helpers.waits import waits
from tests.models.exllama.oracle import NEAR, Plain, generated, ids, logits_of, plain_of, tokens_of

PROMPTS = ["Ada", "hello there, world", "x"]
GPU1 = torch.device("cuda:1")
pytestmark = pytest.mark.usefixtures("gpus", "short_examinations")


@pytest.mark.parametrize(
    ("options", "shape"),
    [({}, "qwen3"), *((options, "llama") for options in ({"cache": "q4"}, {"gpu_split": [0.0118, 80]}))],
    ids=str,
)
def test_texts_are_the_same_alone_and_in_a_batch_and_no_token_is_waited_for(
    options: dict[str, Any], shape: str, exl2: Callable[[str], Path]
) -> None:
    model = gen.from_exllamav2(exl2(shape) / "exl2", **({} if "gpu_split" in options else {"device": 1}) | options)
    assert examine(model).problems == []
    assert {tensor.device for _, tensor, _ in model.weights()} == set(model.placement.devices)
    sampler = gen.samplers.multinomial(top_k=20)
    together = tokens_of(generated(model, PROMPTS, sampler))
    if options.get("cache") is None:
        assert [tokens_of(generated(model, prompt, sampler)) for prompt in PROMPTS] == together
    (short, long), _ = waits(partial(generated, model, PROMPTS, sampler), 2, 4)
    assert short == long


def test_the_digest_is_that_of_the_weights_alone(exl2: Callable[[str], Path]) -> None:
    """Scratch memory has what was there before, and what forwards leave there."""
    models = [gen.from_exllamav2(exl2("llama") / "exl2", device=1) for _ in range(2)]
    with torch.inference_mode():
        for number, model in enumerate(models):
            for context in filter(None, model.exl2_model.device_context):
                context.scratch.fill_(number)
    assert weights_digest(models[0]) == weights_digest(models[1])


PARTS = ["self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


@pytest.mark.parametrize(
    ("weights", "part", "shape"),
    [*(("exl2", part, shape) for part in PARTS for shape in ("llama", "qwen3")), ("plain", PARTS[0], "llama")],
)
def test_a_lora_goes_where_the_weights_are(
    weights: str, part: str, shape: str, exl2: Callable[[str], Path], tmp_path: Path
) -> None:
    """exllamav2 keeps the columns of gate_proj and up_proj in the order of down_proj's rows, but no LoRA on them."""
    folder, near = exl2(shape), NEAR if weights == "plain" else 2 * NEAR
    key = f"model.layers.1.{part}"
    outputs, inputs = load_file(folder / "plain" / "model.safetensors")[f"{key}.weight"].shape
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=generator).half() * 0.2 for shape in ((4, inputs), (outputs, 4)))
    (tmp_path / "lora").mkdir()
    names = {f"base_model.model.{key}.lora_{which}.weight": tensor for which, tensor in (("A", a), ("B", b))}
    save_file(names, tmp_path / "lora" / "adapter_model.safetensors")
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    merged = Plain(folder / "plain")
    merged.model.get_submodule(key).weight.data += 2 * (b.float() @ a.float()).half()
    prompts, new = ids("The quick brown fox"), ids("jump")
    expected = merged.logits(prompts[0], new[0])
    model = gen.from_exllamav2(folder / weights, device=1, lora=tmp_path / "lora")
    assert (logits_of(model, prompts, new)[0] - expected).abs().max() < near
    plain = plain_of(folder / "plain").logits(prompts[0], new[0])
    assert (plain - expected).abs().max() > 5 * NEAR
    model.load_lora(tmp_path / "lora")  # again: columns are not reordered twice, and the LoRA does not count twice
    assert (logits_of(model, prompts, new)[0] - expected).abs().max() < near
    model.load_lora(None)
    assert (logits_of(model, prompts, new)[0] - plain).abs().max() < near
    assert not any(
        part.lora_a_tensors
        for part in model.exl2_model.modules_dict.values()
        if hasattr(part, "q_handle") and hasattr(part, "lora_a_tensors")
    )
