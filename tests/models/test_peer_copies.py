"""Copies between the GPUs of a sharded model: broken ones are refused at load, and a step makes as few as possible."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.models.peer_copies import check_peer_copies
from tests.helpers import byte_tokenizer, tiny_model
from tests.virtual_gpus.whole_programs.test_transformers import split
from virtual_gpus import virtual_gpus
from virtual_gpus.virtual_tensor import VirtualTensor

DEVICE_MAP = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0}
DEVICE_MAP |= {"model.layers.1": 1, "model.norm": 1, "lm_head": 1}
GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")


def break_copies(patch: pytest.MonkeyPatch, source: torch.device, target: torch.device, damage: Any) -> None:
    """Let copies from one GPU to another arrive changed, as on machines whose IOMMU breaks them."""
    to: Callable[..., Tensor] = VirtualTensor.to

    def broken(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        moved = to(tensor, *args, **kwargs)
        if tensor.device == source and moved.device == target:
            return damage(moved)  # type: ignore[no-any-return]
        return moved

    patch.setattr(VirtualTensor, "to", broken)


def last_wrong(tensor: Tensor) -> Tensor:
    tensor[-1] = 0
    return tensor


@pytest.mark.parametrize("damage", [torch.zeros_like, last_wrong], ids=["zeros", "one number"])
@pytest.mark.parametrize(("source", "target"), [(GPU0, GPU1), (GPU1, GPU0)])
def test_a_broken_copy_is_refused_at_load_and_names_both_devices(
    source: torch.device, target: torch.device, damage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with virtual_gpus(2):
        model = split(tiny_model("llama"), "llama")
        break_copies(monkeypatch, source, target, damage)
        with pytest.raises(gen.DeviceError, match=f"a copy from {source} to {target} came out wrong in [0-9]+ of"):
            gen.from_transformers(model, byte_tokenizer())


def test_a_model_on_one_device_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with virtual_gpus(2):
        break_copies(monkeypatch, GPU0, GPU1, torch.zeros_like)
        model = gen.from_transformers(tiny_model().to("cuda:1"), byte_tokenizer())
        assert model.placement.devices == (GPU1,)


def test_copies_that_arrive_are_let_pass(two_gpus: None) -> None:
    check_peer_copies([GPU0, GPU1, torch.device("cpu"), GPU0])


@pytest.mark.parametrize("sampler", ["greedy", "beams"])
def test_a_step_copies_the_ids_once_and_ancestors_once_a_device(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only gen's own copies are counted, not those of accelerate's hooks."""
    samplers: dict[str, Any] = {"greedy": gen.samplers.greedy(), "beams": gen.samplers.beam_search(2)}
    copies: Counter[str] = Counter()
    to: Callable[..., Tensor] = VirtualTensor.to

    def counting(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        moved = to(tensor, *args, **kwargs)
        caller = sys._getframe(1)
        module = caller.f_globals["__name__"]
        if moved.device != tensor.device and module.startswith("gen.") and not module.startswith("virtual_gpus."):
            copies[f"{caller.f_code.co_name} {tensor.device} {moved.device}"] += 1
        return moved

    monkeypatch.setattr(VirtualTensor, "to", counting)
    counts = []
    tiny_model("llama").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with virtual_gpus(2):
        model = gen.load(tmp_path, device_map=DEVICE_MAP)
        assert (model.placement.input_device, model.placement.logits_device) == (GPU0, GPU1)
        for new_tokens in (4, 8):
            copies.clear()
            gen.generate(model, ["ab", "c"], sampler=samplers[sampler], max_new_tokens=new_tokens, eos_token_id=[])
            counts.append(Counter(copies))
    more = counts[1]
    more.subtract(counts[0])
    steps = {name: count / 4 for name, count in more.items() if count}
    ancestors = {"reorder cuda:1 cuda:0": 1} if sampler == "beams" else {}
    assert steps == {"step cuda:1 cuda:0": 1} | ancestors


def test_each_layers_cache_is_on_its_device(two_gpus: None) -> None:
    model = gen.from_transformers(split(tiny_model("llama"), "llama"), byte_tokenizer())
    with torch.inference_mode():
        rows = model.new_rows(2, 8)
        rows.fill(slice(0, 2), [[1, 2], [3]])
        parts = [(what, tensor.device, device) for what, tensor, device in rows.parts()]
    assert all(found == wanted for _, found, wanted in parts)
    assert {device for what, device, _ in parts if "cache" in what} == {GPU0, GPU1}


@pytest.mark.usefixtures("soon_worth_it")
def test_a_sharded_model_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny_model("llama")
    arguments: dict[str, Any] = {"max_new_tokens": 10, "seed": 2, "eos_token_id": []}
    expected = gen.generate(gen.from_transformers(whole, byte_tokenizer()), ["ab", "c"], **arguments)
    with virtual_gpus(2):
        monkeypatch.setattr(torch.cuda, "CUDAGraph", None)
        model = gen.from_transformers(split(whole, "llama"), byte_tokenizer())
        assert gen.generate(model, ["ab", "c"], **arguments) == expected
