"""What a model's forward does otherwise in training mode: nothing at random may change a text.

Example: a Llama for which `train()` was called computes what it computed before, since its dropout is 0. A GPT-2 drops
a tenth of its numbers at random: its texts would be others in each call.
"""

from collections.abc import Container, Iterable
from typing import Any

from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from gen.models.transformers.contents import is_known

_RANDOM = ("drop", "jitter")  # in the names of attributes, which forwards then read
_OTHERS = ("classifier", "summary")  # in the names of settings of other heads than a language model's


def acts_in_training(modules: Iterable[Module], root: Module, known: Container[Module]) -> str:
    """What the first of these modules that does something else in training mode does; "" if none of them is.

    Args:
        root: has all modules.
        known: modules that count even if their package is unknown; others may never run.
    """
    for one in modules:
        if one.training and (what := _acts(one, one in known)):
            names = [name for name, part in root.named_modules() if part is one]
            return f"{what} of {names[0]}" if names and names[0] else what
    settings = _numbers(vars(getattr(root, "config", root))) if getattr(root, "training", False) else {}
    return next((f"config.{name}={number}" for name, number in settings.items()), "")


def _acts(module: Module, counts: bool) -> str:
    kind = type(module).__name__
    if isinstance(module, _DropoutNd):
        return f"{kind}(p={module.p})" if module.p else ""
    if isinstance(module, _BatchNorm):
        return kind
    state = vars(module)
    if state.get("gradient_checkpointing"):
        return "gradient checkpointing, which keeps no cache,"
    if counts and not is_known(type(module).__module__):
        return f"{kind}, whose code gen does not know,"
    return next((f"{name}={number}" for name, number in _numbers(state).items()), "")


def _numbers(state: dict[str, Any]) -> dict[str, float]:
    """The numbers above 0 that stand for something random."""
    return {
        name: value
        for name, value in state.items()
        if any(part in name for part in _RANDOM)
        and not any(part in name for part in _OTHERS)
        and type(value) in (int, float)
        and value > 0
    }
