"""Checks that a user gives a loaded model."""

from os import PathLike

from gen.errors import ArgumentError, show
from gen.models.base import Checked, Model, TellsAtOnce


def check_model(model: Model) -> None:
    """Raise unless this is a loaded model that gen can still run."""
    check_loaded(model)
    if isinstance(model, Checked):
        model.check()


def check_usable(model: Model) -> None:
    """As `check_model`, but only as far as it is seen at once: the loop looks at all of the model when prompts join."""
    check_loaded(model)
    if isinstance(model, TellsAtOnce):
        model.check_usable()


def check_loaded(model: Model) -> None:
    """Raise unless this is a loaded model."""
    needed = ("new_rows", "placement", "tokenizer", "vocab_size", "context_length", "eos_token_ids")
    if not all(hasattr(model, name) for name in needed):
        hint = "; an encoder is for gen.embed" if hasattr(model, "encode") else ""
        if hasattr(model, "config"):
            hint = "; give gen.from_transformers(model, tokenizer)"
        got = show(model) if isinstance(model, str | PathLike) else f"{type(model).__name__}{hint}"
        raise ArgumentError(f"model must be a loaded model, as from gen.load('demo'), got {got}")
