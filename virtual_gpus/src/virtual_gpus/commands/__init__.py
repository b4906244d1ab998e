"""Gives a test's virtual GPUs to programs that the test starts as commands, if the environment says so.

Before anything else, Python runs `sitecustomize.py` of the first folder on its path that has one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

FOLDER = Path(__file__).parent
VARIABLE = "VIRTUAL_GPUS"


@contextmanager
def with_virtual_gpus(gpus: int, memory: int) -> Iterator[None]:
    """In the block, Python programs that are started open a block of their own when they import torch.

    Args:
        gpus: how many devices they have.
        memory: how many bytes each device has; each program counts its own use.
    """
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    with patch.dict(os.environ, {"PYTHONPATH": path, VARIABLE: f"{gpus} {memory}"}):
        yield
