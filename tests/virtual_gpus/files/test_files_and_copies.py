"""Saving, loading, pickling and copying: virtual tensors keep devices and shared memory as CUDA's do."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.serialization
from torch import Tensor, nn

from virtual_gpus import DeviceError, no_host_sync, virtual_gpus

GPU0, GPU1 = torch.device("cuda:0"), torch.device("cuda:1")


def _bytes(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.fixture
def from_hardware(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """A checkpoint like one from a machine with real GPUs: every storage is tagged "cuda:0"."""
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    file = _bytes({"weight": torch.arange(3.0)})
    monkeypatch.undo()
    return file


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize(
    ("map_location", "expected"),
    [
        (None, "cuda:0"),
        ("cuda:1", "cuda:1"),
        (GPU1, "cuda:1"),
        ("cpu", "cpu"),
        ({"cuda:0": "cuda:1"}, "cuda:1"),
        ({"cuda:0": "cpu"}, "cpu"),
        (lambda storage, location: storage.cuda(1), "cuda:1"),
        (lambda storage, location: storage, "cpu"),
    ],
)
def test_a_checkpoint_of_real_gpus_is_read(
    from_hardware: io.BytesIO, map_location: Any, expected: str, weights_only: bool
) -> None:
    with virtual_gpus(2):
        read = torch.load(from_hardware, map_location=map_location, weights_only=weights_only)["weight"]
        assert read.device == torch.device(expected)
        assert read.tolist() == [0, 1, 2]


def test_a_checkpoint_for_a_gpu_that_is_not_there_is_refused() -> None:
    with virtual_gpus(3):
        file = _bytes(torch.ones(2, device="cuda:2"))
    with virtual_gpus(2), pytest.raises(RuntimeError, match=r"CUDA device 2 but torch.cuda.device_count\(\) is 2"):
        torch.load(file)


def test_what_is_saved_is_loaded_where_it_was_and_shares_memory_as_before() -> None:
    with virtual_gpus(2):
        whole = torch.zeros(4, device="cuda:1")
        kept = _bytes([whole, whole[:2], nn.Parameter(torch.ones(2, device="cuda:0")), torch.ones(1)])
        whole, part, parameter, plain = torch.load(kept)
        assert (whole.device, part.device, parameter.device, plain.device.type) == (GPU1, GPU1, GPU0, "cpu")
        assert isinstance(parameter, nn.Parameter)
        part.fill_(1)
        assert whole.tolist() == [1, 1, 0, 0]
        kept.seek(0)
        assert torch.load(kept, map_location={"cuda:1": "cuda:0"})[0].device == GPU0
    kept.seek(0)
    assert type(torch.load(kept, map_location="cpu")[0]) is Tensor


def test_pickles_and_copies_keep_their_devices() -> None:
    with virtual_gpus(2):
        numbers = torch.ones(2, device="cuda:1")
        layer = nn.Linear(2, 2, device="cuda:1")
        assert pickle.loads(pickle.dumps(numbers)).device == GPU1
        assert pickle.loads(pickle.dumps(layer)).weight.device == GPU1
        with no_host_sync():
            shallow = copy.copy(numbers)
        assert shallow.device == GPU1
        shallow.zero_()
        assert numbers.tolist() == [0, 0]


def test_deep_copies_share_memory_as_their_originals_do() -> None:
    with virtual_gpus(2):
        whole = torch.zeros(4, device="cuda:1")
        whole.note = "kept"  # type: ignore[attr-defined]
        leaf = torch.ones(2, device="cuda:0", requires_grad=True)
        leaf.sum().backward()  # type: ignore[no-untyped-call]
        twin, part, other = copy.deepcopy([whole, whole[:2], leaf])
        part.fill_(1)
        assert twin.tolist() == [1, 1, 0, 0]
        assert whole.tolist() == [0, 0, 0, 0]
        assert twin.note == "kept" and twin.device == GPU1  # type: ignore[attr-defined]
        assert other.requires_grad and other.grad is not None and other.grad.device == GPU0
        moved = nn.LSTM(4, 4).cuda()
        assert copy.deepcopy(moved)(torch.ones(2, 1, 4, device="cuda"))[0].device == GPU0


def test_reading_storages_and_lists_of_gpu_numbers_waits() -> None:
    with virtual_gpus(1):
        losses = [torch.ones((), device="cuda") for _ in range(3)]
        makers: Any = (torch.tensor, torch.as_tensor, torch.asarray, torch.ones(1).new_tensor)
        for make in makers:
            with no_host_sync(count=True) as report:
                assert make(losses).tolist() == [1, 1, 1]
            assert report.count == 3, make
        storage = torch.ones(3, device="cuda").untyped_storage()
        reads: Any = (storage.tolist, storage.cpu, lambda: storage[0])
        for read in reads:
            with no_host_sync(count=True) as report:
                read()
            assert report.count == 1


def test_pinned_memory_is_saved_pickled_and_copied_as_memory_of_the_host() -> None:
    with virtual_gpus(2):
        whole = torch.arange(3.0).pin_memory()
        pair = {"whole": whole, "view": whole[1:], "weight": nn.Parameter(whole)}
        for made in (torch.load(_bytes(pair)), pickle.loads(pickle.dumps(pair)), copy.deepcopy(pair)):
            assert not any(tensor.is_pinned() for tensor in made.values())
            assert type(made["whole"]) is Tensor and isinstance(made["weight"], nn.Parameter)
            assert made["weight"].tolist() == [0, 1, 2] and made["weight"].requires_grad
            made["whole"][1] = 5
            assert made["whole"].tolist() == [0, 5, 2]
        for made in (torch.load(_bytes(pair)), copy.deepcopy(pair)):
            made["whole"][1] = 5
            assert made["view"].tolist() == [5, 2], "views of one memory stay views of one"
        twin = copy.copy(whole)
        assert twin.is_pinned() and twin.data_ptr() == whole.data_ptr()
        with pytest.raises(RuntimeError, match="created explicitly by the user"):
            copy.deepcopy(whole.requires_grad_()[1:])


def test_storages_say_where_they_are_and_tensors_take_those_of_their_own_device() -> None:
    with virtual_gpus(2):
        numbers = torch.arange(3.0, device="cuda:1")
        storage: Any = numbers.untyped_storage()
        assert storage.device == GPU1 and storage.is_cuda and storage.get_device() == 1
        assert storage.clone().device == copy.deepcopy(storage).device == GPU1
        assert storage.cuda(0).device == GPU0
        assert storage.cpu().device == numbers.cpu().untyped_storage().device == torch.device("cpu")
        assert torch.empty(0, device="cuda:1").set_(storage).tolist() == [0, 1, 2]
        for place, source in (("cpu", storage), ("cuda:0", storage), ("cuda:1", storage.cpu())):
            with pytest.raises(RuntimeError, match=f'on device "{place}" to a storage on different device'):
                torch.empty(0, device=place).set_(source)
        kept = storage.cpu()
        with no_host_sync(count=True) as report:
            kept.copy_(storage)
            storage.copy_(kept)
            storage.copy_(storage.cuda(0))  # between GPUs no host waits
        assert report.count == 2
        with pytest.raises(TypeError, match="only CPU memory can be pinned"):
            storage.pin_memory()
        assert [copied.device for copied in copy.deepcopy([numbers, numbers[1:]])] == [GPU1, GPU1]
    assert storage.device.type == "cpu"


def test_storages_are_made_for_a_gpu() -> None:
    make: Any = torch.UntypedStorage
    with virtual_gpus(2):
        storage = make(1000, device="cuda:1")
        assert len(storage) == 1000 and torch.cuda.memory_allocated(1) == 1024
        assert len(make(4, device="cpu")) == len(make([1, 2, 3, 4])) == 4
        assert make(4, device="meta").device.type == "meta"
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta"):
            make(4, device="meta").cuda()
        with pytest.raises(DeviceError, match="there is no cuda:2"):
            make(4, device="cuda:2")
    assert len(make(4)) == 4
