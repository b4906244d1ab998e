"""EXL2 weights on virtual GPUs: exllamav2's own Python code, compared with the same values in transformers."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import gen
from gen.doctor import examine
from tests.helpers.waits import waits
from tests.models.exllama import checks
from tests.models.exllama.checkpoints import save
from tests.models.exllama.exl2 import BITS, random_exl2, save_exl2
from tests.models.exllama.oracle import NEAR, Plain, generated, ids, logits_of, plain_of, tokens_of
from tests.models.exllama.packages import exllamav2

PROMPTS = ["Ada", "hello there, world", "x"]
GPU1 = torch.device("cuda:1")
pytestmark = pytest.mark.usefixtures("gpus", "short_examinations")


@pytest.fixture(scope="session", params=["llama", "qwen3"])
def exl2(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint in EXL2, and one with the same values in float16."""
    folder = tmp_path_factory.mktemp("exl2")
    save(folder / "plain", request.param)
    save_exl2(folder / "exl2", folder / "plain")
    return folder


@pytest.mark.parametrize("bits", [BITS, *((size,) for size in BITS), (5, 3)], ids=str)
def test_weights_of_all_sizes_are_what_they_were_made_from(bits: tuple[int, ...]) -> None:
    package = exllamav2()
    tensors, values = random_exl2(192, 64, torch.Generator().manual_seed(1), bits=bits)
    tensors = {name: tensor.to(GPU1) for name, tensor in tensors.items()}
    tensors["q_perm"] = torch.argsort(tensors["q_invperm"]).to(torch.int)
    handle = package.ext.make_q_matrix(tensors, package.ext.none_tensor)
    found = torch.empty(192, 64, dtype=torch.float16, device=GPU1)
    package.ext.ext_c.reconstruct(handle, found)
    assert torch.allclose(found.T.cpu(), values, rtol=2e-3, atol=1e-6)


def test_logits_are_those_of_the_same_values_in_float16(exl2: Path) -> None:
    checks.logits_are_those_of(plain_of(exl2 / "plain"), gen.from_exllamav2(exl2 / "exl2", device=1), 2 * NEAR)


@pytest.mark.parametrize(
    ("options", "exl2"),
    [({}, "qwen3"), *((options, "llama") for options in ({"cache": "q4"}, {"gpu_split": [0.0118, 80]}))],
    indirect=["exl2"],
    ids=str,
)
def test_texts_are_the_same_alone_and_in_a_batch_and_no_token_is_waited_for(
    options: dict[str, Any], exl2: Path
) -> None:
    model = gen.from_exllamav2(exl2 / "exl2", **({} if "gpu_split" in options else {"device": 1}) | options)
    assert examine(model).problems == []
    assert {tensor.device for _, tensor, _ in model.weights()} == set(model.placement.devices)
    sampler = gen.samplers.multinomial(top_k=20)
    together = tokens_of(generated(model, PROMPTS, sampler))
    if options.get("cache") is None:
        assert [tokens_of(generated(model, prompt, sampler)) for prompt in PROMPTS] == together
    (short, long), _ = waits(partial(generated, model, PROMPTS, sampler), 2, 4)
    assert short == long


@pytest.mark.parametrize("part", ["self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"])
def test_a_lora_goes_where_the_weights_are(part: str, exl2: Path, tmp_path: Path) -> None:
    """exllamav2 keeps the columns of gate_proj and up_proj in the order of down_proj's rows, but no LoRA on them."""
    key = f"model.layers.1.{part}"
    weights = load_file(exl2 / "plain" / "model.safetensors")
    outputs, inputs = weights[f"{key}.weight"].shape
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=generator).half() * 0.2 for shape in ((4, inputs), (outputs, 4)))
    (tmp_path / "lora").mkdir()
    names = {f"base_model.model.{key}.lora_{which}.weight": tensor for which, tensor in (("A", a), ("B", b))}
    save_file(names, tmp_path / "lora" / "adapter_model.safetensors")
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    merged = Plain(exl2 / "plain")
    merged.model.get_submodule(key).weight.data += 2 * (b.float() @ a.float()).half()
    prompts, new = ids("The quick brown fox"), ids("jump")
    expected = merged.logits(prompts[0], new[0])
    model = gen.from_exllamav2(exl2 / "exl2", device=1, lora=tmp_path / "lora")
    assert (logits_of(model, prompts, new)[0] - expected).abs().max() < 2 * NEAR
    plain = plain_of(exl2 / "plain").logits(prompts[0], new[0])
    assert (plain - expected).abs().max() > 5 * NEAR
    model.load_lora(tmp_path / "lora")  # again: columns are not reordered twice, and the LoRA does not count twice
    assert (logits_of(model, prompts, new)[0] - expected).abs().max() < 2 * NEAR
    model.load_lora(None)
    assert (logits_of(model, prompts, new)[0] - plain).abs().max() < 2 * NEAR
    assert not any(
        part.lora_a_tensors
        for part in model.exl2_model.modules_dict.values()
        if hasattr(part, "q_handle") and hasattr(part, "lora_a_tensors")
    )
