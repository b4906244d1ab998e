"""What tests need of the machine that they run on."""

from typing import Any

import pytest

from gen.models.transformers.exactness import unlike


def needs_kernels_that_agree(model: Any) -> None:
    """The machine gives a row the same bits beside others; on one that does not, `gen` refuses exact=True."""
    if reason := unlike(model):
        pytest.skip(f"on this machine {reason}")
