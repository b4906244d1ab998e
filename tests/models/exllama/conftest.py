"""Virtual GPUs for exllamav2 and exllamav3 with stubs of what they compile."""

from collections.abc import Iterator

import pytest
import torch

from tests.models.exllama.packages import two_gpus


@pytest.fixture
def gpus() -> Iterator[None]:
    """The test runs with two; afterwards the first one is current, as before."""
    with two_gpus():
        yield
        assert torch.cuda.current_device() == 0
