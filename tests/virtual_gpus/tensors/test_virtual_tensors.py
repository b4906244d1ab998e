"""Virtual GPUs: torch works with them as with real ones, and is as before after they are gone."""

import copy
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode

from tests.helpers.imports import imports
from virtual_gpus import ArgumentError, DeviceError, DeviceMismatchError, VirtualGpuError, no_host_sync, virtual_gpus


def _snapshot() -> dict[tuple[str, str], int]:
    """The members of torch's modules and classes, by identity."""
    owners = {
        "torch": torch,
        "Tensor": torch.Tensor,
        "cuda": torch.cuda,
        "accelerator": torch.accelerator,
        "functional": nn.functional,
        "cudnn": torch.backends.cudnn,
    }
    return {(name, key): id(value) for name, owner in owners.items() for key, value in vars(owner).items()}


def test_torch_is_as_before_after_the_block() -> None:
    before = _snapshot()
    with virtual_gpus(2):
        assert _snapshot() != before
        torch.set_default_device("cuda:1")
    assert _snapshot() == before
    assert torch.get_default_device() == torch.device("cpu")
    assert torch.zeros(1).device.type == "cpu"
    with torch.device("meta"):
        assert torch.zeros(1).is_meta


def test_torch_is_as_before_after_an_exception() -> None:
    before = _snapshot()
    with pytest.raises(ZeroDivisionError), virtual_gpus(2):
        torch.zeros(1, device="cuda:1").item() / 0
        raise ZeroDivisionError
    assert _snapshot() == before


def test_importing_the_package_changes_nothing_in_torch() -> None:
    report = imports()["testing"]
    assert report["new"]
    assert report["changed"] == []


def test_importing_gen_does_not_import_this_package() -> None:
    script = "import gen, sys; assert not [name for name in sys.modules if name.startswith('virtual_gpus')]"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_block_can_be_entered_again() -> None:
    for gpus in (1, 3, 2):
        with virtual_gpus(gpus):
            assert torch.cuda.device_count() == gpus
            assert torch.cuda.current_device() == 0


def test_a_second_block_inside_is_refused_and_leaves_the_first() -> None:
    with virtual_gpus(2):
        with pytest.raises(DeviceError, match="do not nest"), virtual_gpus(3):
            pass
        assert torch.cuda.device_count() == 2
        assert torch.zeros(1, device="cuda:1").device == torch.device("cuda:1")


def test_a_second_block_in_another_thread_is_refused() -> None:
    def enter() -> None:
        with virtual_gpus(2):
            pass

    with virtual_gpus(2), ThreadPoolExecutor(1) as pool, pytest.raises(DeviceError, match="do not nest"):
        pool.submit(enter).result()


@pytest.mark.parametrize("gpus", [0, 65, True, 1.5, "2"])
def test_a_number_of_gpus_that_makes_no_sense_is_refused(gpus: Any) -> None:
    with pytest.raises(ArgumentError, match="1 to 64"), virtual_gpus(gpus):
        pass


def test_a_device_that_does_not_exist_is_refused() -> None:
    with virtual_gpus(2):
        for device in ("cuda:2", torch.device("cuda", 5), 7):
            with pytest.raises(DeviceError, match="cuda:0, cuda:1"):
                torch.zeros(1, device=device)
        with pytest.raises(VirtualGpuError):
            torch.cuda.set_device(2)


def test_a_bare_cuda_is_the_current_device_of_the_thread() -> None:
    with virtual_gpus(2):
        torch.cuda.set_device(1)
        assert torch.zeros(1, device="cuda").device == torch.device("cuda:1")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: torch.zeros(1, device="cuda").device).result() == torch.device("cuda:0")
        with torch.cuda.device(0):
            assert torch.ones(1).cuda().device == torch.device("cuda:0")
        assert torch.cuda.current_device() == 1


def test_a_block_for_no_device_keeps_what_is_set_in_it() -> None:
    with virtual_gpus(2):
        with torch.cuda.device(None):
            torch.cuda.set_device(1)
        assert torch.cuda.current_device() == 1


def test_a_thread_that_was_there_before_has_the_devices_too() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(threading.get_ident).result()
        with virtual_gpus(2):
            made = pool.submit(lambda: torch.zeros(2, device="cuda:1")).result()
            assert made.device == torch.device("cuda:1")
            assert pool.submit(lambda: made.to("cuda:0").device).result() == torch.device("cuda:0")


def test_device_contexts_and_default_devices_place_tensors() -> None:
    host = torch.ones(2)
    with virtual_gpus(2):
        with torch.device("cuda:1"):
            assert torch.as_tensor(host).device == torch.asarray(host).device == torch.device("cuda:1")
            assert torch.zeros(1).device == nn.Linear(2, 2).weight.device == torch.device("cuda:1")
            assert torch.zeros(1, device="cpu").device.type == "cpu"
            with torch.device("meta"):
                assert torch.zeros(1).is_meta
        assert torch.zeros(1).device.type == "cpu"
        torch.set_default_device("cuda")
        assert torch.tensor([1]).device == torch.device("cuda:0")


def test_the_mistake_is_explained() -> None:
    with virtual_gpus(2):
        hidden = torch.zeros(2, 3, device="cuda:1")
        weight = torch.ones(3, 4, device="cuda:0")
        with pytest.raises(DeviceMismatchError) as caught:
            hidden @ weight
    message = str(caught.value)
    line = test_the_mistake_is_explained.__code__.co_firstlineno
    assert (
        "Expected all tensors to be on the same device, but found at least two devices, cuda:1 and cuda:0!" in message
    )
    here = "tests/virtual_gpus/tensors/test_virtual_tensors.py"
    assert f"in aten::mm at {here}:{line + 5} in test_the_mistake_is_explained" in message
    assert f"self: (2, 3) float32 on cuda:1, made at {here}:{line + 2} " in message
    assert f"mat2: (3, 4) float32 on cuda:0, made at {here}:{line + 3} " in message
    assert "Move `mat2` with .to('cuda:1')" in message
    assert isinstance(caught.value, RuntimeError)


def test_a_cpu_tensor_that_was_computed_tells_which_variable_holds_it() -> None:
    def add(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return scores + mask

    with virtual_gpus(1):
        scores = torch.zeros(2, device="cuda")
        allowed = torch.ones(2) * 2
        if allowed[0] > 1:
            allowed = allowed + 1
        with pytest.raises(DeviceMismatchError) as caught:
            add(scores, allowed)
        with pytest.raises(DeviceMismatchError) as nameless:
            add(scores, torch.ones(2) * 2)
    test = test_a_cpu_tensor_that_was_computed_tells_which_variable_holds_it
    line = test.__code__.co_firstlineno
    told = (
        f"`allowed` at tests/virtual_gpus/tensors/test_virtual_tensors.py:{line + 6} or {line + 8} in {test.__name__}"
    )
    assert f"other: (2,) float32 on cpu, assigned to {told}\n" in str(caught.value)
    assert "other: (2,) float32 on cpu\n" in str(nameless.value)


@pytest.mark.parametrize(
    "derived",
    [
        lambda: torch.ones(3)[1:],
        lambda: nn.Parameter(torch.ones(2)),
        lambda: nn.Linear(2, 2).weight.detach()[0],
        lambda: torch.from_numpy(np.ones(2)),
        lambda: torch.ones(2, device="cuda").cpu(),
        lambda: torch.ones(4, device="cuda").to("cpu").view(2, 2)[1],
    ],
    ids=["a view", "a parameter", "a module's", "an array", "a copy", "a view of a copy"],
)
def test_what_shares_a_cpu_tensors_memory_tells_where_that_was_made(derived: Callable[[], torch.Tensor]) -> None:
    with virtual_gpus(1):
        scores, other = torch.zeros(2, device="cuda"), derived()
        line = derived.__code__.co_firstlineno
        with pytest.raises(DeviceMismatchError, match=rf"other: .* on cpu, made at .*virtual_tensors.py:{line} "):
            scores + other


def test_in_place_views_change_the_tensor_itself() -> None:
    with virtual_gpus(2):
        numbers = torch.arange(6, device="cuda:1")
        assert numbers.unsqueeze_(0) is numbers
        assert numbers.shape == (1, 6)
        numbers.resize_(2, 3).t_()
        assert numbers.shape == (3, 2)
        assert numbers.squeeze_().device == torch.device("cuda:1")
        assert numbers.cpu().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_out_is_resized_and_filled() -> None:
    with virtual_gpus(2):
        total = torch.empty(0, device="cuda:1")
        ones = torch.ones(3, device="cuda:1")
        assert torch.add(ones, 1, out=total) is total
        assert total.tolist() == [2, 2, 2]


def test_deepcopy_keeps_devices_and_parameters() -> None:
    with virtual_gpus(2):
        layer = nn.BatchNorm1d(3).to("cuda:1")
        layer.weight.note = 1  # type: ignore[attr-defined]
        twin = copy.deepcopy(layer)
        assert isinstance(twin.weight, nn.Parameter)
        assert not hasattr(twin.weight, "note") and twin.weight.is_shared()  # type: ignore[no-untyped-call]
        assert twin.running_mean is not None
        assert twin.weight.device == twin.running_mean.device == torch.device("cuda:1")
        with torch.no_grad():
            twin.weight.zero_()
        assert layer.weight.tolist() == [1, 1, 1]


def test_moving_a_module_keeps_its_parameters_and_ties() -> None:
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embedding"].weight
    weight = model["head"].weight
    with virtual_gpus(2):
        model.to("cuda:1")
        assert model["head"].weight is model["embedding"].weight is weight
        assert weight.device == torch.device("cuda:1")
        model.cuda(0)
        assert weight.device == torch.device("cuda:0")
        model.cpu()
    assert model["head"].weight is model["embedding"].weight is weight
    assert type(weight.data) is torch.Tensor


def test_tensors_print_as_those_of_cuda_do() -> None:
    with virtual_gpus(2):
        assert repr(torch.tensor([1, 2], device="cuda:1")) == "tensor([1, 2], device='cuda:1')"
        assert f"{torch.tensor(0.5, device='cuda'):.2f}" == "0.50"
        layer = nn.Linear(1, 1).to("cuda:1")
        assert str(layer.weight).startswith("Parameter containing:\ntensor([[")
        assert str(layer.weight).endswith("requires_grad=True, device='cuda:1')")


def test_numpy_needs_the_cpu() -> None:
    with virtual_gpus(1):
        numbers = torch.arange(3, device="cuda")
        with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
            numbers.numpy()
        assert numbers.cpu().numpy().tolist() == [0, 1, 2]


def test_a_tensor_can_be_read_after_its_block() -> None:
    with virtual_gpus(2):
        numbers = torch.arange(3, device="cuda:1")
        other = torch.arange(3, device="cuda:0")
    assert (numbers + 1).cpu().tolist() == [1, 2, 3]
    with pytest.raises(DeviceMismatchError):
        numbers + other
    with pytest.raises(DeviceError, match="only within"):
        numbers.to("cuda:0")


def test_generators_draw_what_the_cpus_draw() -> None:
    expected = torch.rand(4, generator=torch.Generator().manual_seed(5))
    with virtual_gpus(2):
        generator = torch.Generator(device="cuda:1").manual_seed(5)
        assert isinstance(generator, torch.Generator)
        assert generator.device == torch.device("cuda:1")
        assert torch.equal(torch.rand(4, generator=generator, device="cuda:1").cpu(), expected)
        generator.manual_seed(5)
        assert torch.equal(torch.empty(4, device="cuda:1").uniform_(generator=generator).cpu(), expected)


def test_each_gpu_has_a_random_state_of_its_own() -> None:
    with virtual_gpus(2):
        torch.manual_seed(1)
        first = torch.rand(3, device="cuda:0")
        assert torch.equal(torch.rand(3, device="cuda:1").cpu(), first.cpu())
        assert torch.equal(torch.rand(3), first.cpu())
        torch.cuda.manual_seed(1)
        assert torch.equal(torch.rand_like(first), first) and not torch.equal(torch.rand_like(first), first)
        state = torch.cuda.get_rng_state(0)
        drawn = nn.functional.dropout(torch.ones(50, device="cuda:0"))
        torch.cuda.set_rng_state(state, 0)
        assert torch.equal(nn.functional.dropout(torch.ones(50, device="cuda:0")), drawn)


def test_streams_events_and_pinned_memory_do_nothing_and_work() -> None:
    with virtual_gpus(2):
        stream = torch.cuda.Stream(device="cuda:1")  # type: ignore[no-untyped-call]
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        numbers = torch.arange(3, device="cuda:1")
        slot = torch.empty(3, dtype=torch.int64).pin_memory()
        assert slot.is_pinned() and slot[1:].is_pinned() and not torch.empty(3).is_pinned()
        assert torch.empty(3, pin_memory=True).is_pinned()
        with torch.cuda.stream(stream):
            assert torch.cuda.current_stream() is stream
            assert torch.cuda.current_device() == 1
            stream.wait_stream(torch.cuda.default_stream("cuda:1"))
            slot.copy_(numbers, non_blocking=True)
            numbers.record_stream(stream)
            event.record(stream)
        assert torch.cuda.current_device() == 0
        stream.wait_event(event)
        event.synchronize()
        assert event.query()  # type: ignore[no-untyped-call]
        assert slot.tolist() == [0, 1, 2] == slot.numpy().tolist()


def test_queries_of_the_hardware_have_answers() -> None:
    with virtual_gpus(2):
        assert torch.cuda.is_available() and torch.accelerator.is_available()
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.cuda.get_device_properties(1).total_memory == torch.cuda.mem_get_info(1)[1]
        assert torch.cuda.get_device_name(1) == "Virtual GPU"
        assert torch.cuda.memory_allocated() == 0
        assert not torch.cuda.is_current_stream_capturing()
        assert torch.device(1) == torch.device("cuda:1")


def test_factories_keep_requires_grad_and_copy_arrays() -> None:
    array = np.zeros(3)
    with virtual_gpus(1):
        assert torch.zeros(2, device="cuda", requires_grad=True).requires_grad
        assert torch.tensor([1.0], device="cuda", requires_grad=True).is_leaf
        for make in (torch.tensor, torch.as_tensor, torch.asarray):
            placed = make(array, device="cuda")
            placed.add_(1)
            assert array.tolist() == [0, 0, 0]


def test_what_is_imported_in_the_block_works_after_it() -> None:
    with virtual_gpus(2):
        zeros, as_tensor, generator, is_available = (
            torch.zeros,
            torch.as_tensor,
            torch.Generator,
            torch.cuda.is_available,
        )
        to, device = torch.Tensor.to, torch.device
    assert zeros(2, device="cpu").tolist() == as_tensor([0, 0]).tolist() == [0, 0]
    assert generator().device.type == to(torch.zeros(1), "cpu").device.type == device("cpu").type
    assert is_available() == torch.cuda.is_available()


def test_classes_of_torch_are_classes_in_the_block_so_that_annotations_can_name_them() -> None:
    owners = (torch, torch.cuda, torch.accelerator)
    classes = [(owner, name) for owner in owners for name, value in vars(owner).items() if isinstance(value, type)]
    with virtual_gpus(2):
        assert [name for owner, name in classes if not isinstance(getattr(owner, name), type)] == []
        assert torch.cuda.CUDAGraph | None


def test_fake_tensors_stay_fake() -> None:
    with virtual_gpus(1), FakeTensorMode():
        assert isinstance(torch.zeros(2, device="cuda"), FakeTensor)


def test_meta_tensors_hold_nothing_to_copy() -> None:
    with virtual_gpus(1):
        with pytest.raises(NotImplementedError, match="no data"):
            torch.zeros(2, device="meta").to("cuda")
        assert torch.zeros(2, device="cuda").to("meta").is_meta


def test_exporting_is_refused() -> None:
    with virtual_gpus(1), pytest.raises(DeviceError, match="before the block"):
        torch.export.export(nn.Linear(1, 1), (torch.zeros(1, 1),))


def test_a_size_or_value_on_a_gpu_is_read_and_places_nothing() -> None:
    with virtual_gpus(2):
        three: Any = torch.tensor(3, device="cuda:1")
        with no_host_sync(count=True) as report:
            assert torch.full((2,), three).device == torch.arange(three).device == torch.device("cpu")
            assert torch.full((2,), three, device="cuda:0").device == torch.device("cuda:0")
        assert report.count == 3


def test_normal_numbers_take_their_devices_from_tensors() -> None:
    with virtual_gpus(2):
        mean = torch.zeros(3, device="cuda:1")
        assert torch.normal(mean, 1.0).device == torch.device("cuda:1")
        assert torch.normal(0.0, 1.0, (3,), device="cuda:1").device == torch.device("cuda:1")
