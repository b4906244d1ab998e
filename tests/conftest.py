"""Settings that every test needs: no network, no GPU surprises, one thread; and GPUs, virtual ones or the machine's."""

import os
from collections.abc import Iterator, Sequence

import pytest
import torch

from gen.testing import virtual_gpus

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Tests marked `gpu` run where there is a CUDA device, those marked `gpu(devices=2)` where there are two."""
    found = torch.cuda.device_count()
    for item in items:
        needed = max((mark.kwargs.get("devices", 1) for mark in item.iter_markers("gpu")), default=0)
        if found < needed:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA device(s), this machine has {found}"))


@pytest.fixture(params=["virtual", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The test runs with cuda:0: a virtual one, and the machine's own."""
    device = torch.device("cuda:0")
    if request.param == "real":
        yield device
    else:
        with virtual_gpus(1):
            yield device


@pytest.fixture(params=["virtual", pytest.param("real", marks=pytest.mark.gpu(devices=2))])
def two_gpus(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs with cuda:0 and cuda:1, virtual ones and the machine's own, and cuda:0 is current."""
    if request.param == "real":
        with torch.cuda.device(0):
            yield
    else:
        with virtual_gpus(2):
            yield
