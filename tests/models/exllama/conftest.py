"""Virtual GPUs for exllamav2 and exllamav3 with stubs of what they compile, and checkpoints in EXL2, written once."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.models.exllama.checkpoints import save
from tests.models.exllama.exl2 import save_exl2
from tests.models.exllama.packages import two_gpus


@pytest.fixture
def gpus() -> Iterator[None]:
    """The test runs with two; afterwards the first one is current, as before."""
    with two_gpus():
        yield
        assert torch.cuda.current_device() == 0


@pytest.fixture(scope="session")
def exl2(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a shape: in it is a checkpoint in EXL2, and one with the same values in float16."""

    @cache
    def folder(shape: str) -> Path:
        made = tmp_path_factory.mktemp("exl2")
        save(made / "plain", shape)
        save_exl2(made / "exl2", made / "plain")
        return made

    return folder
