"""A model that was saved: transformers and gen read it, with the same numbers, dtype, template and recommendations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import gen
from gen.models.transformers import packed_linear
from gen.models.transformers.packed_weight import PackedWeight
from tests.helpers import ScriptedModel, byte_tokenizer, stored, tiny_model

TOKENS = torch.tensor([[5, 9, 200, 31]])
SETTINGS: Any = {"seed": 3, "max_new_tokens": 12}


@pytest.mark.parametrize(
    ("dtype", "tied", "pack"),
    [("float32", False, False), ("float32", True, True), ("bfloat16", True, False), ("float16", False, True)],
)
def test_transformers_and_gen_read_what_was_saved(
    tmp_path: Path, dtype: str, tied: bool, pack: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_linear, "_LARGE", 1)
    plain: Any = tiny_model(tie_word_embeddings=tied, hidden_size=256 if pack else 32)
    frequencies = plain.model.rotary_emb.inv_freq
    plain.to(getattr(torch, dtype)).model.rotary_emb.inv_freq = frequencies  # float32, as in every model that is loaded
    plain.generation_config = GenerationConfig(do_sample=True, temperature=0.5, top_k=7)
    with torch.inference_mode():
        wanted = plain(TOKENS).logits
    numbers = {name: one.clone() for name, one in plain.state_dict().items()}
    model = gen.from_transformers(plain, byte_tokenizer(chat=True), pack=pack)
    model.tokenizer.use_chat_template("{{ messages[0].content }} ü!")
    text = gen.generate(model, "ab", **SETTINGS)
    model.save(tmp_path / "new")
    assert any(isinstance(one, PackedWeight) for one in plain.parameters()) == pack
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "new", dtype="auto")
    assert theirs.dtype == getattr(torch, dtype)
    assert all(torch.equal(theirs.state_dict()[name], one) for name, one in numbers.items())
    assert (theirs.lm_head.weight is theirs.model.embed_tokens.weight) == tied
    with torch.inference_mode():
        assert torch.equal(theirs(TOKENS).logits, wanted)
    assert theirs.generation_config.top_k == 7
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x ü!"
    again = gen.load(tmp_path / "new", pack=False)
    assert again.recommended_sampler == model.recommended_sampler
    assert again.tokenizer.encode("Zoë") == model.tokenizer.encode("Zoë")
    if not pack:
        assert gen.generate(again, "ab", **SETTINGS) == text
    assert gen.generate(again, "x", chat=True, **SETTINGS) == gen.generate(again, "x ü!", **SETTINGS)


def test_a_checkpoint_that_was_dequantised_is_saved_with_plain_weights(tmp_path: Path) -> None:
    plain = tiny_model().to(torch.bfloat16)
    stored(plain, tmp_path / "fp8")
    weights, wanted = load_file(tmp_path / "fp8" / "model.safetensors"), dict[str, torch.Tensor]()
    for name, weight in [*weights.items()]:
        wanted[name] = weight
        if "_proj" in name:  # one scale for the whole matrix
            scale = weight.float().abs().max() / 448
            weights[name] = (weight.float() / scale).to(torch.float8_e4m3fn)
            weights[f"{name}_scale_inv"] = scale.reshape(1, 1)
            wanted[name] = (weights[name].float() * scale).to(torch.bfloat16)
    save_file(weights, tmp_path / "fp8" / "model.safetensors", metadata={"format": "pt"})
    config = tmp_path / "fp8" / "config.json"
    block = weights["model.layers.0.self_attn.q_proj.weight"].shape
    quantization = {"quant_method": "fp8", "weight_block_size": [*block], "modules_to_not_convert": ["lm_head"]}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": quantization}))
    model = gen.load(tmp_path / "fp8", device="cpu", pack=False)  # without a GPU for it
    model.save(tmp_path / "new")
    saved = load_file(tmp_path / "new" / "model.safetensors")
    assert saved.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert torch.equal(model.hf_model.state_dict()[name], weight)
        assert torch.equal(saved[name], weight)
    again = gen.load(tmp_path / "new", device="cpu", pack=False)
    assert gen.generate(again, "ab", **SETTINGS) == gen.generate(model, "ab", **SETTINGS)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT reads what is going
def test_what_cannot_be_saved_says_why(tmp_path: Path) -> None:
    adapted: Any = get_peft_model(tiny_model(), LoraConfig(r=2, target_modules=["q_proj"]))
    model = gen.from_transformers(adapted.eval(), byte_tokenizer())
    with pytest.raises(gen.ModelError, match="an adapter of PEFT beside its weights"):
        model.save(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    merged = gen.from_transformers(adapted.merge_and_unload(), byte_tokenizer())
    merged.save(tmp_path / "new")
    assert gen.generate(gen.load(tmp_path / "new"), "ab", **SETTINGS) == gen.generate(merged, "ab", **SETTINGS)
    (tmp_path / "file").write_text("x")
    with pytest.raises(gen.ArgumentError, match="is a file"):
        merged.save(tmp_path / "file")
    wrong: list[Any] = ["", 5]
    for folder in wrong:
        with pytest.raises(gen.ArgumentError, match="save writes into a folder, got"):
            merged.save(folder)
    with pytest.raises(gen.ModelError, match="ScriptedModel cannot be saved"):
        ScriptedModel("x").save(tmp_path)
