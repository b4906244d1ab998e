"""Checks of the models, tokenizers and settings that users give, before anything else is read from them; and the lock
under which models are loaded."""

from collections.abc import Callable
from functools import wraps
from os import PathLike
from threading import RLock
from typing import ParamSpec, TypeVar

import torch
from torch import nn

from gen.errors import ArgumentError, show
from gen.models.base import Model, Rows
from gen.runtime.forking import new_lock, renew_threads

_LOADING = new_lock(RLock)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def check_model(model: Model) -> None:
    """Raise unless this is a loaded model that gen can still run."""
    check_loaded(model)
    model.check()


def check_usable(model: Model) -> None:
    """As `check_model`, but only as far as it is seen at once: the loop looks at all of the model when prompts join."""
    check_loaded(model)
    model.check_usable()


def check_loaded(model: Model) -> None:
    """Raise unless this is a loaded model."""
    needed = ("placement", "tokenizer", "vocab_size", "context_length", "eos_token_ids")
    missing = [name for name in needed if not hasattr(model, name)]
    if isinstance(model, Model) and not missing:
        return
    hint = "; an encoder is for gen.embed" if hasattr(model, "encode") else ""
    if isinstance(model, Model):
        hint = f" without {' and '.join(missing)}, which a gen.models.base.Model has"
    elif hasattr(model, "new_rows"):
        hint = "; an adapter inherits from gen.models.base.Model, and its rows from gen.models.base.Rows"
    elif hasattr(model, "config"):
        hint = "; give gen.from_transformers(model, tokenizer)"
    got = show(model) if isinstance(model, str | PathLike) else f"{type(model).__name__}{hint}"
    raise ArgumentError(f"model must be a loaded model, as from gen.load('demo'), got {got}")


def new_rows(model: Model, count: int, length: int) -> Rows:
    """Rows of a model; see `gen.models.base.Model.new_rows`. Raises an ArgumentError if they are no `Rows`."""
    rows = model.new_rows(count, length)
    if not isinstance(rows, Rows):
        raise ArgumentError(
            f"new_rows of {type(model).__name__} gives {type(rows).__name__}, which must inherit from "
            "gen.models.base.Rows"
        )
    return rows


def check_hf_model(function: str, model: object, tokenizer: object, *, load: str) -> None:
    """Raise an ArgumentError unless this may be a model of transformers.

    Args:
        function: the function that was called, as "from_transformers".
        tokenizer: what came as the tokenizer; for a hint if the two are swapped.
        load: what loads a model from a path, as "gen.load".
    """
    wrapped = isinstance(getattr(model, "module", None), nn.Module)
    if isinstance(model, nn.Module) and hasattr(model, "config") and not wrapped:
        return
    hint = ""
    if isinstance(model, str | PathLike):
        hint = f"; to load a model from a directory or the Hub use {load}({show(str(model))})"
    elif isinstance(tokenizer, nn.Module):
        hint = f"; the arguments are swapped: {function}(model, tokenizer)"
    elif wrapped:
        hint = "; a wrapper for training keeps the model as model.module: give that"
    elif isinstance(model, type):
        hint = f"; give a model, as {model.__name__}.from_pretrained(path) loads it"
    elif hasattr(model, "placement"):
        hint = "; it is a model of gen already"
    elif hasattr(model, "graph_signature"):
        hint = "; for a program of torch.export use gen.from_exported"
    elif isinstance(getattr(model, "model", None), nn.Module):
        hint = f"; of a pipeline give its parts: {function}(pipeline.model, pipeline.tokenizer)"
    raise ArgumentError(f"{function} takes a loaded model of transformers, got {kind_of(model)}{hint}.")


def check_hf_tokenizer(function: str, tokenizer: object, *, processor: bool = False, model: object = None) -> None:
    """Raise an ArgumentError unless this may be a tokenizer of transformers.

    Args:
        processor: whether a processor may come in its place.
        model: the model that needs the tokenizer; for a hint if there is none.
    """
    of_processor = hasattr(getattr(tokenizer, "tokenizer", None), "get_vocab")
    needed = ("get_vocab", "get_added_vocab", "bos_token_id")
    if all(hasattr(tokenizer, name) for name in needed) and not isinstance(tokenizer, type):
        return
    if processor and of_processor:
        return
    path = getattr(model, "name_or_path", None)
    hint = f"; AutoTokenizer.from_pretrained({show(path) if path else 'path'}) loads one"
    if type(tokenizer).__module__.partition(".")[0] == "tokenizers":
        hint = "; wrap it: transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=...)"
    elif type(tokenizer).__name__ == "MistralCommonBackend":
        hint = hint.replace(")", ", mistral_format=False)")
    elif isinstance(tokenizer, nn.Module):
        hint = f"; the model comes first: {function}(model, tokenizer)"
    elif of_processor:
        hint = "; give processor.tokenizer"
    raise ArgumentError(f"{function} takes the model's tokenizer, of transformers, got {kind_of(tokenizer)}{hint}.")


def kind_of(value: object) -> str:
    """A value itself if it is short, otherwise the name of its type."""
    return show(value) if isinstance(value, str | int | float | PathLike | type | None) else type(value).__name__


def one_at_a_time(load: Callable[_P, _R]) -> Callable[_P, _R]:
    """Let one thread load at a time.

    transformers replaces some of its own functions while it loads; two threads at once would leave them replaced, and
    every later model of the process would lack its tied weights.
    """

    @wraps(load)
    def alone(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _LOADING:
            renew_threads()
            return load(*args, **kwargs)

    return alone


def read_dtype(dtype: str | torch.dtype | None) -> torch.dtype | str:
    """A floating dtype, or "auto" for the checkpoint's."""
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if dtype is None:
        return "auto"
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ArgumentError(f"dtype must be a floating type such as 'float32' or 'bfloat16', got {show(dtype)}")
    return found
