"""Two GPUs for the tests of this folder: virtual ones, and the machine's own where it has two."""

from collections.abc import Iterator

import pytest
import torch

from gen.testing import virtual_gpus


@pytest.fixture(params=["virtual", pytest.param("real", marks=pytest.mark.gpu)])
def two_gpus(request: pytest.FixtureRequest) -> Iterator[None]:
    """The test runs with cuda:0 and cuda:1, and cuda:0 is current."""
    if request.param == "real":
        if torch.cuda.device_count() < 2:
            pytest.skip(f"needs two GPUs, this machine has {torch.cuda.device_count()}")
        with torch.cuda.device(0):
            yield
    else:
        with virtual_gpus(2):
            yield
