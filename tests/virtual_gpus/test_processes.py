"""Child processes have the parent's virtual GPUs, and tensors that are sent between processes keep their devices."""

from typing import Any

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from virtual_gpus import virtual_gpus


def double(tensor: Tensor, results: Any) -> None:
    made = torch.ones(1, device="cuda:1")
    results.put((torch.cuda.device_count(), str(tensor.device), (tensor * 2).tolist(), str(made.device)))
    tensor.add_(1)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_sees_the_devices_and_the_tensors_that_it_is_given(method: str) -> None:
    with virtual_gpus(3):
        context: Any = torch.multiprocessing.get_context(method)
        results = context.SimpleQueue()
        shared = torch.ones(2, device="cuda:2")
        process = context.Process(target=double, args=(shared, results))
        process.start()
        assert results.get() == (3, "cuda:2", [2.0, 2.0], "cuda:1")
        process.join()
        assert process.exitcode == 0
        if method == "spawn":
            assert shared.tolist() == [2, 2], "as with CUDA's shared memory, both have the same values"


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(index)), torch.cuda.device_count()


def test_workers_of_a_loader_see_the_devices_and_their_batches_are_pinned() -> None:
    with virtual_gpus(2):
        batches = list(DataLoader(Numbers(), batch_size=2, num_workers=1, pin_memory=True))
        assert [batch[0].tolist() for batch in batches] == [[0, 1], [2, 3]]
        assert batches[0][1].tolist() == [2, 2]
        assert all(batch[0].is_pinned() for batch in batches)
        assert batches[0][0].to("cuda:1", non_blocking=True).device == torch.device("cuda:1")


class OnTheGpu(Dataset[Tensor]):
    """Two numbers; a worker puts them on a GPU."""

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((3,), index, device="cuda:1")

    def __len__(self) -> int:
        return 2


def test_a_worker_makes_batches_of_tensors_on_a_gpu() -> None:
    with virtual_gpus(2):
        (batch,) = DataLoader(OnTheGpu(), batch_size=2, num_workers=1)
        assert batch.device == torch.device("cuda:1")
        assert batch.tolist() == [[0, 0, 0], [1, 1, 1]]


def test_one_process_of_gloo_reduces_tensors_where_they_are(tmp_path: Any) -> None:
    with virtual_gpus(2):
        torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            numbers = torch.ones(2, device="cuda:1")
            torch.distributed.all_reduce(numbers)
            gathered = [torch.zeros(2, device="cuda:1")]
            torch.distributed.all_gather(gathered, numbers)
            assert numbers.device == gathered[0].device == torch.device("cuda:1")
            assert gathered[0].tolist() == [1, 1]
        finally:
            torch.distributed.destroy_process_group()
