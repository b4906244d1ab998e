"""Checks the objects that a user gives as a model and its tokenizer, before anything else is read from them."""

from os import PathLike

from torch import nn

from gen.errors import ArgumentError, show


def check_model(function: str, model: object, tokenizer: object, *, load: str) -> None:
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


def check_tokenizer(function: str, tokenizer: object, *, processor: bool = False, model: object = None) -> None:
    """Raise an ArgumentError unless this may be a tokenizer of transformers.

    Args:
        processor: whether a processor may come in its place.
        model: the model that needs the tokenizer; for a hint if there is none.
    """
    of_processor = hasattr(getattr(tokenizer, "tokenizer", None), "get_vocab")
    if hasattr(tokenizer, "get_vocab") and hasattr(tokenizer, "bos_token_id") and not isinstance(tokenizer, type):
        return
    if processor and of_processor:
        return
    path = getattr(model, "name_or_path", None)
    hint = f"; AutoTokenizer.from_pretrained({show(path) if path else 'path'}) loads one"
    if type(tokenizer).__module__.partition(".")[0] == "tokenizers":
        hint = "; wrap it: transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=...)"
    elif isinstance(tokenizer, nn.Module):
        hint = f"; the model comes first: {function}(model, tokenizer)"
    elif of_processor:
        hint = "; give processor.tokenizer"
    raise ArgumentError(f"{function} takes the model's tokenizer, of transformers, got {kind_of(tokenizer)}{hint}.")


def kind_of(value: object) -> str:
    """A value itself if it is short, otherwise the name of its type."""
    return show(value) if isinstance(value, str | int | float | PathLike | type | None) else type(value).__name__
