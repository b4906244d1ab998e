"""Remembers which models have passed the probe, so that a model that equals an earlier one is not probed again.

A tiny model is taken over in a millisecond, and its probe takes ten, or a hundred on virtual GPUs. Two models are equal
if they have the same classes, settings and weights in the same places, and torch has the same settings.
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gen.models.transformers.model import TransformersModel
from gen.runtime.isolation import settings_of_the_process
from virtual_gpus.plain_tensors import plain

_TABLES = vars(nn.Module()).keys() - {"training"}  # of weights, parts and hooks
_COMPUTING = ("gen.attention", "gen.devices", "gen.models", "torch", "transformers")  # what a probe may show
_found: dict[Hashable, dict[str, Any]] = {}


class Unknown(Exception):
    """The probe's outcome depends on something that has no key."""


def remembered(
    probe: Callable[[TransformersModel], None], patches: pytest.MonkeyPatch
) -> Callable[[TransformersModel], None]:
    """The probe for a model that equals no earlier one; a model that does gets what the probe found then.

    Args:
        patches: of the test, which may change what computes.
    """

    def probe_once(model: TransformersModel) -> None:
        try:
            key = _changes(patches), _key(model)
        except Unknown:
            key = None
        if key is None or key not in _found:
            probe(model)
            if key is not None:
                used = (
                    None if model.attention is None else vars(model.attention) | {"reasons": {*model.attention.reasons}}
                )
                _found[key] = {"goes_wide": model.goes_wide, "wide_difference": model.wide_difference, "used": used}
            return
        found = _found[key]
        model.goes_wide, model.wide_difference = found["goes_wide"], found["wide_difference"]
        if model.attention is not None:
            vars(model.attention).update(found["used"] | {"reasons": {*found["used"]["reasons"]}})

    return probe_once


def _changes(patches: Any) -> Hashable:
    """The numbers that a test has changed in modules that compute.

    Raises:
        Unknown: it has changed something else there.
    """
    if patches._setitem:
        raise Unknown
    found = []
    for target, name, _ in patches._setattr:
        module = target.__name__ if isinstance(target, ModuleType) else getattr(target, "__module__", "")
        if str(module).startswith(_COMPUTING):
            value = getattr(target, name, None)
            if not isinstance(target, ModuleType) or not isinstance(value, bool | int | float):
                raise Unknown
            found.append((module, name, value))
    return tuple(found)


def _key(model: TransformersModel) -> Hashable:
    """All that the probe's outcome depends on.

    Raises:
        Unknown: the model has hooks, functions of its own or weights that are no plain memory.
    """
    outer: Any = model.hf_model
    config = outer.config
    weights = [(name, _digest(tensor)) for name, tensor in (*outer.named_parameters(), *outer.named_buffers())]
    return (
        type(model),
        tuple((name, type(module), *_settings(module)) for name, module in outer.named_modules()),
        tuple(weights),
        json.dumps(config.to_dict(), default=str, sort_keys=True),
        (config._attn_implementation, model.decoder_config._attn_implementation),
        str(model.placement),
        (model.tokenizer.vocab_size, model.tokenizer.added_ids),
        (settings_of_the_process(), torch.get_default_dtype(), torch.get_num_threads(), torch.cuda.device_count()),
        (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
    )


def _digest(tensor: Tensor) -> Hashable:
    kind = type(tensor)
    if tensor.is_meta or tensor.layout is not torch.strided:
        raise Unknown
    if kind not in (Tensor, nn.Parameter) and not hasattr(kind, "in_host_memory"):
        raise Unknown
    values = plain(tensor.detach()).contiguous().reshape(-1).view(torch.uint8).numpy()
    where = str(tensor.device), tensor.dtype, tensor.shape, tensor.stride(), kind
    return *where, hashlib.blake2b(values.tobytes()).digest()


def _settings(module: nn.Module) -> Iterable[Hashable]:
    """The attributes of a module, as far as they are plain values, and the kinds of all others."""
    for name, value in vars(module).items():
        if name in _TABLES:
            if value and "hooks" in name:
                raise Unknown
        elif isinstance(value, bool | int | float | str | torch.dtype | type | None):
            yield name, value
        elif isinstance(value, partial) and isinstance(value.func, BuiltinFunctionType):
            yield name, value.func, repr((value.args, value.keywords))
        elif isinstance(value, BuiltinFunctionType | FunctionType) and "<locals>" not in value.__qualname__:
            yield name, value
        elif callable(value) and not isinstance(value, nn.Module):
            raise Unknown
        else:
            yield name, type(value), repr(value)[:200] if isinstance(value, list | tuple | dict | set) else None
