"""Virtual GPUs of other types than "cuda": the same rules under another name, and no CUDA beside them."""

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from accelerate import dispatch_model  # type: ignore[import-untyped]
from torch import nn

from tests.helpers import tiny_model
from tests.helpers.forked import Forked
from tests.virtual_gpus.whole_programs.test_transformers import PROMPTS, generate
from virtual_gpus import ArgumentError, DeviceMismatchError, HostSyncError, no_host_sync, virtual_gpus

TYPES = {"xpu": 2, "hpu": 2, "mps": 1}  # how many devices each has here; "npu" has a process of its own below


@pytest.fixture(params=TYPES)
def last(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The last device of a block of each type."""
    with virtual_gpus(TYPES[request.param], device=request.param):
        yield torch.device(request.param, TYPES[request.param] - 1)


def test_tensors_are_made_and_moved_there(last: torch.device) -> None:
    moved = [
        torch.zeros(2, device=last),
        torch.tensor([1.0, 2.0], device=str(last)),
        torch.rand(2, generator=torch.Generator(last), device=last),
        torch.ones(2).to(last),
        torch.ones(2).pin_memory().to(last, non_blocking=True),
        nn.Linear(2, 2).to(last)(torch.ones(1, 2, device=last)),
    ]
    with last:
        moved.append(torch.ones(2))
    assert [tensor.device for tensor in moved] == [last] * 7
    assert torch.zeros(1, device=last.type).device == torch.device(last.type, 0)
    assert moved[0].is_cuda is False
    assert moved[0].is_xpu == (last.type == "xpu")
    assert moved[0].is_mps == (last.type == "mps")
    assert repr(moved[0]) == f"tensor([0., 0.], device='{last}')"


def test_a_mix_is_refused_and_a_wait_is_found(last: torch.device) -> None:
    x = torch.ones(2, device=last)
    with pytest.raises(DeviceMismatchError, match=rf"found at least two devices, {last} and cpu!.*\n(.*\n)*.*wrapper_"):
        x + torch.ones(2)
    with pytest.raises(HostSyncError), no_host_sync():
        x.sum().item()


def test_cuda_is_not_there(last: torch.device) -> None:
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
        torch.zeros(2, device="cuda:0")
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|cuda devices|NVIDIA"):
        torch.zeros(2).cuda()


def test_torchs_own_module_answers(last: torch.device) -> None:
    module = getattr(torch, last.type)
    assert module.device_count() == torch.accelerator.device_count() == TYPES[last.type]
    assert torch.accelerator.current_accelerator() == torch.device(last.type)
    assert module.is_available() if last.type != "mps" else torch.backends.mps.is_available()
    with pytest.raises(HostSyncError), no_host_sync():
        module.synchronize()
    if last.type != "mps":
        assert getattr(torch.ones(2), last.type)().device == torch.device(last.type, 0)
        stream = module.Stream(last)
        with module.stream(stream):
            assert module.current_stream() == stream
            assert module.current_device() == last.index


def test_autocast_files_and_a_training_step(last: torch.device) -> None:
    model = nn.Linear(2, 2).to(last)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast(last.type, torch.bfloat16):
        out = model(torch.ones(1, 2, device=last))
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file)
    assert loaded["weight"].device == last
    assert torch.equal(loaded["weight"].cpu(), model.weight.detach().cpu())


def test_mps_has_no_float64() -> None:
    with virtual_gpus(1, device="mps"), pytest.raises(TypeError, match="doesn't support float64"):
        torch.ones(2, dtype=torch.float64).to("mps")


@pytest.mark.parametrize("kind", TYPES)
def test_transformers_and_accelerate_generate_the_cpus_texts(kind: str) -> None:
    model = tiny_model("llama")
    expected = generate(model, PROMPTS)
    with virtual_gpus(TYPES[kind], device=kind):
        device = torch.device(kind, TYPES[kind] - 1)
        moved = copy.deepcopy(model).to(device)
        assert torch.equal(generate(moved, PROMPTS.to(device)).cpu(), expected)
        if kind == "xpu":
            places = {"model.embed_tokens": "xpu:0", "model.rotary_emb": "xpu:0", "model.layers.0": "xpu:0"}
            places |= {"model.layers.1": "xpu:1", "model.norm": "xpu:1", "lm_head": "xpu:1"}
            spread = dispatch_model(model, places)
            assert torch.equal(generate(spread, PROMPTS.to("xpu:0")).cpu(), expected)


PROGRAM = """
import torch
from virtual_gpus import DeviceMismatchError, virtual_gpus

with virtual_gpus(2, device="npu"):
    x = torch.ones(2, device="npu:1")
    assert torch.npu.is_available() and x.npu().device == torch.device("npu:0")
    with torch.autocast("npu", torch.bfloat16):
        assert (torch.ones(2, 2, device="npu") @ torch.ones(2, 2, device="npu")).dtype == torch.bfloat16
    try:
        x + torch.ones(2, device="npu:0")
    except DeviceMismatchError as error:
        print(error)
assert not hasattr(torch, "npu")
with virtual_gpus(2):
    print(torch.ones(1, device="cuda:1"))
"""


def test_npu_takes_torchs_one_name_for_other_types() -> None:
    code, out, err = Forked(lambda: exec(PROGRAM, {})).end()
    assert code == 0, err
    assert "found at least two devices, npu:1 and npu:0!" in out
    assert "tensor([1.], device='cuda:1')" in out


def test_blocks_of_different_types_follow_each_other() -> None:
    for kind in ("cuda", "xpu", "cuda", "hpu", "mps", "xpu"):
        with virtual_gpus(1, device=kind):
            assert torch.zeros(2, device=kind).add_(1).sum().item() == 2
            assert torch.cuda.is_available() == (kind == "cuda")
    assert not hasattr(torch, "hpu")
    assert not torch.xpu.is_available()


@pytest.mark.parametrize(("device", "gpus"), [("tpu", 1), ("cuda:1", 2), ("mps", 2)])
def test_other_names_are_refused(device: str, gpus: int) -> None:
    with pytest.raises(ArgumentError, match="takes one of cuda, xpu, mps"), virtual_gpus(gpus, device=device):
        pass
