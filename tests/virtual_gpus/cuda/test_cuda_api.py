"""The API of torch.cuda: memory, copies between devices, typed tensors, streams, events, debug mode."""

import gc
import importlib
import sys
import warnings
from typing import Any

import pytest
import torch
import torch.cuda.comm
from torch import nn

import gen
from virtual_gpus import ArgumentError, no_host_sync, virtual_gpus

GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")


def test_memory_is_counted_until_it_is_freed() -> None:
    with virtual_gpus(2):
        assert torch.cuda.memory_allocated(1) == 0
        numbers = torch.zeros(1024, device="cuda:1")
        view = numbers[:10]
        assert torch.cuda.memory_allocated(1) == 4096 and torch.cuda.memory_allocated(0) == 0
        more = numbers + 1
        assert torch.cuda.memory_allocated(1) == 8192
        assert torch.cuda.memory_reserved(1) == 2 * 2**20
        free, total = torch.cuda.mem_get_info(1)
        assert total - free == 2 * 2**20
        del numbers, more
        gc.collect()
        assert torch.cuda.memory_allocated(1) == 4096, "the view keeps its memory"
        del view
        gc.collect()
        assert torch.cuda.memory_allocated(1) == 0
        assert torch.cuda.max_memory_allocated(1) == 8192
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved(1) == 0
        torch.cuda.reset_peak_memory_stats(1)
        assert torch.cuda.max_memory_allocated(1) == 0
        small = torch.ones((), device="cuda")
        assert torch.cuda.memory_allocated() == 512
        assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 512
        assert "512 B" in torch.cuda.memory_summary()
        del small


def test_a_model_that_is_too_large_is_out_of_memory() -> None:
    with virtual_gpus(2, memory="1MiB"):
        assert torch.cuda.get_device_properties(0).total_memory == 2**20
        layer = nn.Linear(256, 512)
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 1.00 MiB"):
            nn.Sequential(nn.Linear(8, 8), nn.Linear(512, 512)).to("cuda:0")
        layer.to("cuda:1")
        numbers = torch.ones(128, 512, device="cuda:0")
        with pytest.raises(torch.OutOfMemoryError, match=r"GPU 0 has a total capacity of 1.00 MiB"):
            torch.cat([numbers] * 4)
        kept = [numbers]
        with pytest.raises(torch.OutOfMemoryError):
            for _ in range(10):
                kept.append(numbers + 1)
        assert torch.cuda.memory_stats()["num_ooms"] == 3


def test_a_model_is_loaded_on_a_gpu_smaller_than_what_transformers_leaves_free() -> None:
    with virtual_gpus(1, memory="60MiB"):
        model = gen.load("demo", device="cuda:0")
        assert 5e6 < torch.cuda.memory_allocated() < 60e6
        assert gen.generate(model, "Once", max_new_tokens=2, seed=0)
    with virtual_gpus(1, memory="3MiB"), pytest.raises(gen.ModelError, match="memory"):
        gen.load("demo", device="cuda:0")


def test_memory_that_is_not_there_is_refused_before_it_is_taken() -> None:
    with virtual_gpus(1, memory="80GB"):
        for make in (torch.ones, torch.zeros, torch.rand):
            with pytest.raises(torch.OutOfMemoryError):
                make(50_000, 1_000_000, device="cuda")
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert torch.cuda.get_per_process_memory_fraction() == 0.5
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(50 * 2**30, dtype=torch.uint8, device="cuda")
        with pytest.raises(ValueError, match="0~1"):
            torch.cuda.set_per_process_memory_fraction(2.0)


@pytest.mark.parametrize("memory", ["many", 0, -1, True, 1.5, "5 XB", ""])
def test_a_size_that_is_none_is_refused(memory: Any) -> None:
    with pytest.raises(ArgumentError, match="memory="), virtual_gpus(1, memory=memory):
        pass


def test_tensors_are_broadcast_scattered_and_gathered() -> None:
    with virtual_gpus(2):
        numbers = torch.arange(6.0, device="cuda:0").reshape(3, 2)
        copies = torch.cuda.comm.broadcast(numbers, (0, 1))  # type: ignore[no-untyped-call]
        assert [copy.device for copy in copies] == [GPU0, GPU1]
        parts = torch.cuda.comm.scatter(numbers, (0, 1))  # type: ignore[no-untyped-call]
        assert [part.tolist() for part in parts] == [[[0, 1], [2, 3]], [[4, 5]]]
        gathered = torch.cuda.comm.gather(parts, destination=1)  # type: ignore[no-untyped-call]
        assert gathered.device == GPU1 and torch.equal(gathered.cpu(), numbers.cpu())
        summed = torch.cuda.comm.reduce_add(copies, 1)  # type: ignore[no-untyped-call]
        assert summed.device == GPU1 and summed.sum().item() == 30
        first, second = torch.cuda.comm.broadcast_coalesced([numbers, numbers + 1], [0, 1])  # type: ignore[no-untyped-call]
        assert first[0].device == GPU0 and second[1].tolist() == (numbers + 1).tolist()


def test_data_parallel_computes_what_one_device_computes() -> None:
    torch.manual_seed(0)
    layer, numbers = nn.Linear(3, 2), torch.randn(4, 3)
    expected = layer(numbers)
    expected.sum().backward()
    gradient = layer.weight.grad
    layer.zero_grad()
    with virtual_gpus(2):
        parallel = nn.DataParallel(layer.to("cuda:0"))
        result = parallel(numbers.to("cuda:0"))
        assert result.device == GPU0
        torch.testing.assert_close(result.detach().cpu(), expected.detach())
        result.sum().backward()
        assert layer.weight.grad is not None and gradient is not None
        assert layer.weight.grad.device == GPU0
        torch.testing.assert_close(layer.weight.grad.cpu(), gradient)


def test_typed_tensors_stand_for_a_dtype_and_a_kind_of_device() -> None:
    cuda: Any = torch.cuda
    with virtual_gpus(2):
        numbers = cuda.FloatTensor([1, 2])
        assert numbers.device == GPU0 and numbers.dtype == torch.float32
        assert isinstance(numbers, cuda.FloatTensor) and not isinstance(numbers, torch.FloatTensor)
        assert isinstance(torch.ones(1), torch.FloatTensor)
        assert cuda.LongTensor(2, 3).shape == (2, 3)
        assert numbers.type() == "torch.cuda.FloatTensor"
        assert numbers.type(cuda.HalfTensor).dtype == torch.float16
        assert torch.ones(2).type(cuda.IntTensor).device == GPU0
        assert torch.ones(2).type("torch.cuda.DoubleTensor").dtype == torch.float64
        assert numbers.type(torch.LongTensor).device.type == "cpu"
        assert numbers.type(torch.float64).device == GPU0
        with no_host_sync(count=True) as report:
            torch.FloatTensor([numbers[0], numbers[1]])
        assert report.count == 2


def test_streams_are_told_apart() -> None:
    with virtual_gpus(2):
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert torch.cuda.default_stream().cuda_stream == 0 != side.cuda_stream
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side != torch.cuda.default_stream()
        assert side != torch.cuda.Stream() and len({side, side}) == 1  # type: ignore[no-untyped-call]
        assert torch.cuda.default_stream(1) != torch.cuda.default_stream(0)
        outside = torch.cuda.ExternalStream(side.cuda_stream)  # type: ignore[no-untyped-call]
        assert outside == side
        assert torch.cuda.Stream.priority_range() == (0, -5)  # type: ignore[call-arg]


@pytest.mark.parametrize("priority", [0, -1])
def test_the_33rd_stream_of_a_device_is_the_first_one_again(priority: int, gpu: torch.device) -> None:
    """Torch gives out streams in turn, for each priority."""
    made = [torch.cuda.Stream(gpu, priority=priority) for _ in range(33)]  # type: ignore[no-untyped-call]
    assert len({stream.cuda_stream for stream in made}) == 32 and made[32] == made[0]


def test_events_keep_the_hosts_time() -> None:
    with virtual_gpus(1):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with pytest.raises(RuntimeError, match="must be recorded"):
            first.elapsed_time(last)
        first.record()
        torch.ones(100, device="cuda").sum()
        last.record()
        assert first.elapsed_time(last) > 0
        with pytest.raises(RuntimeError, match="enable_timing"):
            first.elapsed_time(torch.cuda.Event())  # type: ignore[no-untyped-call]


def test_the_debug_mode_warns_and_raises_of_waits() -> None:
    with virtual_gpus(1):
        numbers = torch.ones(2, device="cuda")
        torch.cuda.set_sync_debug_mode("warn")
        assert torch.cuda.get_sync_debug_mode() == 1
        with pytest.warns(UserWarning, match="called a synchronizing CUDA operation"):
            numbers.sum().item()
        torch.cuda.set_sync_debug_mode(2)
        with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
            numbers.nonzero()
        torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match="expected one of"):
            torch.cuda.set_sync_debug_mode("loud")
    with virtual_gpus(1), warnings.catch_warnings(action="error"):
        assert torch.cuda.get_sync_debug_mode() == 0
        torch.ones(2, device="cuda").sum().item()


def test_the_rest_of_the_surface_answers() -> None:
    with virtual_gpus(2):
        properties = torch.cuda.get_device_properties(1)
        assert properties.is_integrated == 0 and properties.multi_processor_count == 108
        assert properties.uuid != torch.cuda.get_device_properties(0).uuid
        assert torch.version.cuda
        with torch.cuda.nvtx.range("step"):
            assert torch.cuda.nvtx.range_push("inner") == 1  # type: ignore[no-untyped-call]
            assert torch.cuda.nvtx.range_pop() == 1  # type: ignore[no-untyped-call]
        assert torch.cuda.get_device_capability(0) == (8, 0)


def test_the_accelerator_that_torch_finds_is_cuda() -> None:
    before = torch.get_device_module()
    with virtual_gpus(2):
        assert torch.get_device_module() is torch.cuda
        assert torch._C._get_accelerator() == torch.device("cuda")  # fully_shard and transformers ask it for their mesh
        assert not torch._C._cuda_isInBadFork()  # type: ignore[attr-defined]  # accelerate's launcher asks
    assert torch.get_device_module() is before


def test_what_other_libraries_ask_of_the_allocator_is_counted() -> None:
    with virtual_gpus(2):
        assert torch.cuda.get_allocator_backend() == "native"
        address = torch.cuda.caching_allocator_alloc(1000, device=1)
        assert torch.cuda.memory_allocated(1) == 1024 and torch.cuda.memory_allocated(0) == 0
        torch.cuda.caching_allocator_delete(address)  # type: ignore[no-untyped-call]
        assert torch.cuda.memory_allocated(1) == 0
        with pytest.raises(torch.OutOfMemoryError, match="more than 1EB memory"):
            torch.empty(2**31, 2**30, dtype=torch.uint8, device="cuda")


def test_errors_of_the_runtime_have_their_messages() -> None:
    with virtual_gpus(1):
        torch.cuda.check_error(0)
        with pytest.raises(torch.cuda.CudaError, match=r"out of memory \(2\)"):
            torch.cuda.check_error(2)
        with torch.cuda.profiler.profile():
            torch.ones(1, device="cuda")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_the_compiler_takes_torch_as_built_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "torch._inductor.cudagraph_trees"  # torch._dynamo.reset() imports it
    monkeypatch.delitem(sys.modules, name, raising=False)
    with virtual_gpus(1):
        assert torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
        importlib.import_module(name)


def test_streams_and_events_are_those_of_torchs_modules() -> None:
    with virtual_gpus(1):
        stream, event = torch.cuda.Stream(), torch.cuda.Event()  # type: ignore[no-untyped-call]
        assert isinstance(stream, torch.cuda.streams.Stream) and isinstance(event, torch.cuda.streams.Event)
        assert repr(event) == "<torch.cuda.Event uninitialized>" and event.event_id == 0
        stream.record_event(event)
        first = event.event_id
        stream.record_event(event)
        assert repr(event).startswith("<torch.cuda.Event 0x") and event.event_id == first != 0
        assert torch.cuda.current_stream().record_event().event_id != first


def test_no_class_is_derived_from_a_typed_tensor() -> None:
    with virtual_gpus(1):
        for kind in (torch.FloatTensor, vars(torch.cuda)["FloatTensor"]):
            with pytest.raises(TypeError, match=r"FloatTensor' is not an acceptable base type"):
                type("Derived", (kind,), {})


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_the_default_type_is_a_dtype_and_a_device() -> None:
    with virtual_gpus(2):
        try:
            for kind in (vars(torch.cuda)["DoubleTensor"], "torch.cuda.DoubleTensor"):
                torch.set_default_tensor_type(kind)
                assert torch.ones(2).type() == "torch.cuda.DoubleTensor"
                torch.set_default_tensor_type(torch.FloatTensor)
                assert torch.ones(2).type() == "torch.FloatTensor"
            with pytest.raises(TypeError, match="only floating-point types"):
                torch.set_default_tensor_type(torch.LongTensor)
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
        assert torch._efficientzerotensor(3, device="cuda:1").device == GPU1


def test_torchs_list_of_cached_tensors_is_its_own() -> None:
    """As in PyTorch's test_autograd.py (test_multiple_insert_removal_caching)."""
    kept: Any = torch._C
    with virtual_gpus(2):
        kept._set_cached_tensors_enabled(True)
        try:
            tensor = torch.rand(4)
            kept._add_cached_tensor(tensor)
            assert kept._is_cached_tensor(tensor)
            kept._remove_cached_tensor(tensor)
            assert not kept._is_cached_tensor(tensor)
        finally:
            kept._set_cached_tensors_enabled(False)
