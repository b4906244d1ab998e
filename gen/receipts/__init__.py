"""Receipts: texts with all that made them, and what can be shown with them: that a model still makes the same."""

from functools import cache
from importlib.metadata import version


@cache
def versions() -> dict[str, str]:
    """The versions of gen and of the packages that compute. It needs no torch."""
    from gen import __version__

    return {"gen": __version__} | {name: version(name) for name in ("torch", "transformers")}
