"""Process groups of NCCL on virtual GPUs give, take and refuse the same as a group of real GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

from virtual_gpus import virtual_gpus

GPU1 = torch.device("cuda:1")


@contextmanager
def group(backend: str, folder: Path, rank: int = 0, size: int = 1) -> Iterator[None]:
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_a_group_talks_between_gpus_and_refuses_the_cpu(tmp_path: Path) -> None:
    before = dist.is_nccl_available()
    with virtual_gpus(2), group("nccl", tmp_path):
        assert dist.is_nccl_available() and dist.get_backend() == "nccl"
        numbers = torch.arange(12.0, device=GPU1).view(3, 4)
        dist.all_reduce(numbers)
        gathered = torch.empty(12, device=GPU1)  # another shape: NCCL takes it, gloo does not
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before 2.13
        gather(gathered, numbers)
        assert gathered.tolist() == list(range(12)) and gathered.device == numbers.device == GPU1
        objects = [None]
        dist.all_gather_object(objects, {"rank": 0})
        assert objects == [{"rank": 0}]
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(torch.ones(2))
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_gather([torch.ones(2)], torch.ones(2, device=GPU1))
        assert dist.new_group([0]).size() == 1
    assert dist.is_nccl_available() == before


@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:nccl", "cuda:nccl,cpu:gloo"])
def test_a_group_for_both_takes_both(backend: str, tmp_path: Path) -> None:
    with virtual_gpus(2), group(backend, tmp_path):
        for device in ("cpu", "cuda:1"):
            numbers = torch.ones(2, device=device)
            dist.all_reduce(numbers)
            assert numbers.tolist() == [1, 1] and numbers.device == torch.device(device)


def test_a_model_is_sharded_where_its_group_is(tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    with virtual_gpus(2), group("nccl", tmp_path):
        model = nn.Linear(4, 2, device="cuda:0")
        expected = torch.full((2, 4), 3.0)
        fully_shard(model)
        model(torch.full((1, 4), 3.0, device="cuda:0")).sum().backward()
        gradient: Any = model.weight.grad
        assert gradient.to_local().device == torch.device("cuda:0")
        torch.testing.assert_close(gradient.to_local().cpu(), expected)


def test_a_hook_of_the_gradients_finds_them_on_the_gpu(tmp_path: Path) -> None:
    from torch._C._distributed_c10d import GradBucket
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    seen = []

    def hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        seen.extend([bucket.buffer().device, *(gradient.device for gradient in bucket.gradients())])
        return fp16_compress_hook(state, bucket)

    with virtual_gpus(2), group("nccl", tmp_path):
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1, device=GPU1), device_ids=[1])
        model.register_comm_hook(None, hook)
        model(torch.full((1, 2), 3.0, device=GPU1)).sum().backward()
        gradient: Any = model.module.weight.grad
        assert gradient.tolist() == [[3, 3]] and gradient.device == GPU1
    assert seen == [GPU1] * 3


def train(rank: int, folder: Path, results: Any) -> None:
    """One of two processes, each on its GPU with its own half of the batch."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    with group("nccl", folder, rank, 2):
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1, device=device), device_ids=[rank])
        model(torch.full((1, 2), 1.0 + 2 * rank, device=device)).sum().backward()
        gradient = model.module.weight.grad
        results.put((str(gradient.device), gradient.tolist()))


def test_two_processes_average_their_gradients(tmp_path: Path) -> None:
    with virtual_gpus(2):
        context: Any = torch.multiprocessing.get_context("spawn")
        results = context.SimpleQueue()
        processes = [context.Process(target=train, args=(rank, tmp_path, results)) for rank in range(2)]
        for process in processes:
            process.start()
        found = sorted(results.get() for _ in processes)
        for process in processes:
            process.join()
    assert found == [("cuda:0", [[2.0, 2.0]]), ("cuda:1", [[2.0, 2.0]])], "the mean of 1 and 3"
