"""Turns texts into vectors: an encoder runs batches of similar length, whose vectors are pooled and put into order."""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from gen.arguments import as_lists, check_flag, check_text, read_token_ids, read_whole
from gen.devices import current, to_device
from gen.embedding.encoder import Encoder
from gen.embedding.sentence_folders import POOLINGS, Pooling, Recipe
from gen.errors import ArgumentError, show
from gen.runtime.isolation import isolated


@isolated
@torch.no_grad()
def embed(
    model: Encoder,
    texts: Sequence[str] | Sequence[Sequence[int]],
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    prompt_name: str | None = None,
    batch_size: int = 32,
    truncate: bool = False,
    progress: bool = False,
) -> Tensor:
    """Turn each text into a vector; the vectors of similar texts point in similar directions.

    A vector depends on its text alone, up to rounding: 1e-5 in float32.

    Args:
        model: from `gen.load_encoder` or `gen.from_transformers_encoder`.
        texts: texts with at least one token each. You may give lists of token ids instead. They are read
            as they are: no special tokens and no prompt are added.
        pooling: how the vectors of all tokens, special ones included, become one: "mean", "cls" (the first one), "max"
            (of each column), "lasttoken", "weightedmean" (weighted by position) or "mean_sqrt_len_tokens" (the sum
            divided by the square root of their number). None is the pooling of the model's folder, or the mean if it
            names none.
        normalize: whether to scale each vector to length 1, so that a dot product is the cosine. None is the setting of
            the model's sentence-transformers folder, or True if it has none.
        prompt_name: which of the folder's prompts (`model.recipe.prompts`) goes before each text. None is the folder's
            default; most folders have none.
        batch_size: how many texts to run at once. Texts of similar length are run together; if padding would change
            an encoder's vectors, only texts of equal length.
        truncate: whether to cut texts that are longer than the model's context; otherwise they are refused.
        progress: whether to show a progress bar on stderr.
    Returns:
        (len(texts), width) float32 in the order of the texts, on the model's device. The width is the hidden_size, or
        the width of the folder's last layer, or its truncate_dim.
    Raises:
        ArgumentError: an argument cannot be used; nothing has run.
    Host sync: on CUDA one for each batch, because transformers checks whether the mask has padding.
    """
    has_ids = _check(model, texts)
    for name, flag in (("truncate", truncate), ("progress", progress)):
        check_flag(name, flag)
    if normalize is not None:
        check_flag("normalize", normalize)
    recipe, device = model.recipe, model.placement.input_device
    poolings = _read_pooling(recipe, pooling)
    batch_size = read_whole("batch_size", batch_size, minimum=1)
    if has_ids and prompt_name is not None:
        raise ArgumentError(
            "texts are token ids, and prompt_name is for texts; begin each list with the prompt's token ids."
        )
    prompt = "" if has_ids else read_prompt(recipe, prompt_name)
    skip = 0 if recipe.pools_prompt or not prompt else model.prompt_length(prompt)
    if has_ids:
        rows = _read_ids(model, texts, truncate)
    else:
        rows = model.tokenize([f"{prompt}{text}" for text in texts], truncate=truncate) if texts else []
    _check_lengths(model, rows, texts, skip)
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))  # if memory is short, the first batch fails
    done = [] if rows else [model.finish(torch.zeros(0, model.hidden_size * len(poolings), device=device))]
    bar = tqdm(total=len(rows), desc="embed", unit="text", file=sys.stderr, disable=not progress)
    with bar, current(device):
        for numbers in _batches(rows, order, batch_size, mixed=model.may_pad):
            batch = [rows[number] for number in numbers]
            token_ids, mask = (to_device(part, device) for part in model.pad(batch))
            hidden = model.encode(token_ids, mask).float()
            mask[:, :skip] = False
            done.append(model.finish(torch.cat([_pool(hidden, mask, kind) for kind in poolings], -1)))
            bar.update(len(batch))
    places = torch.tensor(order, device="cpu").argsort()
    vectors = torch.cat(done).index_select(0, to_device(places, device))
    wanted = recipe.normalize if normalize is None else normalize
    return torch.nn.functional.normalize(vectors, dim=-1) if wanted else vectors


def _check(model: Encoder, texts: Sequence[Any]) -> bool:
    """Whether these are lists of token ids. Raises an ArgumentError if they are no texts either, or for no encoder."""
    if not isinstance(model, Encoder):
        raise ArgumentError(
            f"embed takes an encoder, as from gen.load_encoder(path), got {type(model).__name__}: text models are for "
            "gen.generate."
        )
    if isinstance(texts, str | bytes | bytearray | memoryview) or not isinstance(texts, Sequence):
        hint = "; give [text] for one." if isinstance(texts, str) else "; make a list of them."
        raise ArgumentError(f"texts must be a list of texts, got {type(texts).__name__}{hint}")
    if texts and isinstance(as_lists(texts[0]), list | tuple):
        return True
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(f"text {number} must be a str, got {type(text).__name__}")
        check_text(f"text {number}", text)
    return False


def _read_ids(model: Encoder, texts: Sequence[Any], truncate: bool) -> list[list[int]]:
    """The token ids that were given; with `truncate`, lists that are too long lose their last ids."""
    most = model.context_length if truncate else None
    return [read_token_ids(f"text {number}", row, model.vocab_size)[:most] for number, row in enumerate(texts)]


def _check_lengths(model: Encoder, rows: list[list[int]], texts: Sequence[Any], skip: int) -> None:
    """Check that each row of token ids has some behind those that are skipped, and not too many."""
    for number, row in enumerate(rows):
        if len(row) <= skip:
            where = " behind the prompt" if skip else ""
            raise ArgumentError(
                f"text {number}, {show(texts[number])}, has no tokens{where} and so no vector; leave it out."
            )
        if len(row) > model.context_length:
            raise ArgumentError(
                f"text {number} has {len(row)} tokens, the encoder's context is {model.context_length}: split it, or "
                "give truncate=True to leave out its end."
            )


def read_prompt(recipe: Recipe, name: str | None) -> str:
    """The prompt with this name, or the folder's default; "" if there is neither."""
    name = recipe.default_prompt_name if name is None else name
    if name is None:
        return ""
    if not isinstance(name, str) or name not in recipe.prompts:
        known = ", ".join(map(repr, recipe.prompts)) or "none"
        raise ArgumentError(f"prompt_name must be one of the model's prompts, which are {known}; got {show(name)}")
    return recipe.prompts[name]


def _read_pooling(recipe: Recipe, pooling: Pooling | None) -> tuple[Pooling, ...]:
    if pooling is None:
        return recipe.pooling
    if not isinstance(pooling, str) or pooling not in POOLINGS:
        raise ArgumentError(f"pooling must be one of {', '.join(map(repr, POOLINGS))}, got {show(pooling)}")
    if len(recipe.layers) and len(recipe.pooling) != 1:
        raise ArgumentError(f"the model's layers need the poolings {', '.join(recipe.pooling)} together; give none.")
    return (pooling,)


def _batches(
    rows: Sequence[Sequence[int]], order: Sequence[int], batch_size: int, *, mixed: bool
) -> Iterator[Sequence[int]]:
    """The numbers of the rows of each batch; rows of one batch have equal lengths unless `mixed`."""
    groups = [order] if mixed else [list(equal) for _, equal in groupby(order, key=lambda number: len(rows[number]))]
    for group in groups:
        for start in range(0, len(group), batch_size):
            yield group[start : start + batch_size]


def _pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool hidden (rows, width, hidden) into a vector a row (rows, hidden), over the tokens in mask (rows, width)."""
    if pooling in ("cls", "lasttoken"):
        last = mask.shape[1] - 1
        column = mask.int().argmax(1) if pooling == "cls" else last - mask.flip(1).int().argmax(1)
        return hidden.take_along_dim(column.view(-1, 1, 1), 1).squeeze(1)
    if pooling == "max":
        return hidden.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1)
    weights = mask.to(hidden.dtype)
    if pooling == "weightedmean":
        weights = weights * torch.arange(1, mask.shape[1] + 1, device=mask.device)
    total = weights.sum(1, keepdim=True).clamp(min=1e-9)
    return (hidden * weights.unsqueeze(-1)).sum(1) / (total.sqrt() if pooling == "mean_sqrt_len_tokens" else total)
