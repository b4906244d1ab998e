"""Receipts: texts with all that made them, and what can be shown with them: that a model still makes the same."""

from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = (
    *("torch", "transformers", "tokenizers", "llguidance", "pydantic", "jinja2"),
    *("peft", "gguf", "exllamav2", "exllamav3", "pillow", "torchvision"),  # where they are installed
)


@cache
def versions() -> dict[str, str]:
    """The versions of gen and of the packages that affect texts, as far as they are installed. It needs no torch."""
    from gen import __version__

    found = {"gen": __version__}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
