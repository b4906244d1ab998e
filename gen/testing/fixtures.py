"""pytest fixtures: `gen_virtual_gpus` and `gen_no_host_sync`.

Ask for them with `pytest_plugins = ["gen.testing.fixtures"]` in a test module or the top conftest.py, or with
`-p gen.testing.fixtures`. They are no entry point, so they cost nothing if you do not use them.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch

from gen.testing.emulator import virtual_gpus
from gen.testing.syncs.no_host_sync import no_host_sync
from gen.testing.syncs.reports import SyncReport


@pytest.fixture
def gen_virtual_gpus(request: pytest.FixtureRequest) -> Iterator[int]:
    """The test runs with virtual GPUs: two, or as many as an indirect parameter says. The value is their number."""
    gpus = int(getattr(request, "param", 2))
    with virtual_gpus(gpus):
        yield gpus


@pytest.fixture
def gen_no_host_sync(request: pytest.FixtureRequest) -> Callable[..., AbstractContextManager[SyncReport]]:
    """`gen.testing.no_host_sync`, to use in the test: on real CUDA, or on virtual GPUs if there is none.

    If the test also asks for `gen_virtual_gpus`, in any order, it is for virtual GPUs.
    """
    if "gen_virtual_gpus" in request.fixturenames or not torch.cuda.is_available():
        request.getfixturevalue("gen_virtual_gpus")
    return no_host_sync
