"""Checkpoints for exllamav2 and exllamav3, written once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models.exllama.checkpoints import save


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a checkpoint of a shape, which is written when it is first asked for."""
    made: dict[str, Path] = {}

    def folder(shape: str) -> Path:
        if shape not in made:
            made[shape] = tmp_path_factory.mktemp("exllama")
            save(made[shape], shape)
        return made[shape]

    return folder


@pytest.fixture
def llama(folders: Callable[[str], Path]) -> Path:
    return folders("llama")
