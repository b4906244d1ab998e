"""The pytest fixtures that users of the package ask for."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from virtual_gpus import HostSyncError, SyncReport

NoHostSync = Callable[..., AbstractContextManager[SyncReport]]


def test_there_are_two_virtual_gpus(gen_virtual_gpus: int) -> None:
    assert gen_virtual_gpus == torch.cuda.device_count() == 2
    assert torch.ones(2, device="cuda:1").sum().item() == 2


@pytest.mark.parametrize("gen_virtual_gpus", [3], indirect=True)
def test_a_parameter_says_how_many(gen_virtual_gpus: int) -> None:
    assert gen_virtual_gpus == torch.cuda.device_count() == 3


def test_the_check_is_for_the_virtual_gpus_even_if_asked_for_first(
    gen_no_host_sync: NoHostSync, gen_virtual_gpus: int
) -> None:
    numbers = torch.ones(2, device="cuda:1")
    with pytest.raises(HostSyncError, match=r"test_fixtures\.py"), gen_no_host_sync():
        numbers.tolist()


def test_the_check_alone_has_a_device_to_check(gen_no_host_sync: NoHostSync) -> None:
    numbers = torch.ones(2, device="cuda")
    with gen_no_host_sync(count=True) as report:
        numbers.add_(1)
        assert report.count == 0
        numbers.tolist()
    assert report.count == 1
