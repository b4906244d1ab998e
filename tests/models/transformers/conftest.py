"""What tests of packed layers share."""

import pytest

from gen.models.transformers import packed_linear


@pytest.fixture
def small_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small layers be packed, too."""
    monkeypatch.setattr(packed_linear, "_LARGE", 1)
