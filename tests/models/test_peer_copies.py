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
from tests.helpers import byte_tokenizer, stored, tiny_model
from tests.virtual_gpus.whole_programs.test_transformers import split
from virtual_gpus import virtual_gpus
from virtual_gpus.faults import PartialCopy
from virtual_gpus.virtual_tensor import VirtualTensor

DEVICE_MAP = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.layers.0": 0}
DEVICE_MAP |= {"model.layers.1": 1, "model.norm": 1, "lm_head": 1}
GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")


@pytest.mark.parametrize("part", [0.0, 1 - 1e-5], ids=["zeros", "the last number"])
@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0)])
def test_a_broken_copy_is_refused_at_load_and_names_both_devices(source: int, target: int, part: float) -> None:
    broken = PartialCopy(source=source, target=target, part=part)
    with virtual_gpus(2, faults=[broken]):
        model = split(tiny_model("llama"), "llama")
        with pytest.raises(
            gen.DeviceError, match=f"a copy from cuda:{source} to cuda:{target} came out wrong in [0-9]"
        ):
            gen.from_transformers(model, byte_tokenizer())


@pytest.mark.parametrize(
    "fault",
    [
        PartialCopy(chain=True),
        PartialCopy(chain=True, source=2, target=1),
        PartialCopy(chain=True, at_least=2**24),
        PartialCopy(busy=200),
        PartialCopy(busy=200, source=2, target=0, at_least=2**24),
    ],
    ids=repr,
)
def test_what_only_chains_and_busy_gpus_break_is_seen_where_each_pair_is_right(fault: PartialCopy) -> None:
    with virtual_gpus(3, faults=[fault]):
        with pytest.raises(gen.DeviceError, match="copies that cuda:0, cuda:1, cuda:2 pass on to each other"):
            check_peer_copies([GPU0, GPU1, torch.device("cuda:2")])
        assert fault.happened


@pytest.mark.parametrize("devices", [2, 3])
def test_large_copies_are_tried(devices: int) -> None:
    said = f"from cuda:0 to cuda:1 came out wrong in [0-9]+ of {2**22} numbers"
    large = PartialCopy(source=0, target=1, at_least=2**24)
    with virtual_gpus(devices, faults=[large]), pytest.raises(gen.DeviceError, match=said):
        check_peer_copies([torch.device("cuda", index) for index in range(devices)])


def test_gpus_with_little_memory_left_try_smaller_copies() -> None:
    with virtual_gpus(2, memory="4MiB"):
        check_peer_copies([GPU0, GPU1])


def test_a_model_on_one_device_copies_nothing() -> None:
    broken = PartialCopy()
    with virtual_gpus(2, faults=[broken]):
        model = gen.from_transformers(tiny_model().to("cuda:1"), byte_tokenizer())
        assert model.placement.devices == (GPU1,)
        assert not broken.happened


def test_copies_that_arrive_are_let_pass(two_gpus: None) -> None:
    check_peer_copies([GPU0, GPU1, torch.device("cpu"), GPU0])


@pytest.mark.parametrize("sampler", ["greedy", "beams"])
def test_a_step_copies_ids_once_and_columns_and_ancestors_once_a_device(
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
    stored(tiny_model("llama"), tmp_path)
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
    assert steps == {"_forward cuda:1 cuda:0": 1, "on cuda:0 cuda:1": 1} | ancestors


def test_each_layers_cache_is_on_its_device(two_gpus: None) -> None:
    model = gen.from_transformers(split(tiny_model("llama"), "llama"), byte_tokenizer())
    with torch.inference_mode():
        rows = model.new_rows(2, 8)
        rows.prefill(slice(0, 2), [[1, 2], [3]])
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
