"""Texts into vectors: batches of like length through an encoder, pooled and put back into order."""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from gen.arguments import as_lists, check_flag, check_text, read_token_ids, read_whole
from gen.devices import current, to_device
from gen.errors import ArgumentError, show
from gen.isolation import isolated
from gen.models.encoders.encoder import Encoder
from gen.models.encoders.sentence_folders import POOLINGS, Pooling, Recipe


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
    """Turn each text into a vector; the vectors of like texts point the same way.

    A vector depends on its text alone, up to rounding: 1e-5 in float32.

    Args:
        model: from `gen.load_encoder` or `gen.from_transformers_encoder`.
        texts: at least one, each with at least one token. Lists of token ids may be given instead. They are read as
            they are: no special tokens are added, and no prompt.
        pooling: how the vectors of all tokens, special ones with them, become one: "mean", "cls" (the first), "max"
            (of each column), "lasttoken", "weightedmean" (by place) or "mean_sqrt_len_tokens" (the sum over the root
            of their number). None is what the model's folder says, else the mean.
        normalize: whether to scale each vector to length 1, so that a dot product is the cosine; None is what the
            model's sentence-transformers folder says, else True.
        prompt_name: which of the folder's prompts (`model.recipe.prompts`) goes before each text; None is the
            folder's default, which mostly is none.
        batch_size: how many texts to run at once; texts of like length are run together, of equal length where
            padding would change an encoder's vectors.
        truncate: cut texts that are longer than the model's context; they are refused otherwise.
        progress: whether to show a progress bar on stderr.
    Returns:
        (len(texts), width) float32 in the order of the texts, on the model's device; the width is the hidden_size,
        or that of the folder's last layer.
    Raises:
        ArgumentError: an argument cannot be used; nothing has run.
    Host sync: on CUDA one a batch, where transformers looks whether the mask has padding.
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
        raise ArgumentError("texts are token ids, and prompt_name is for texts; give the prompt's ids before theirs.")
    prompt = "" if has_ids else _read_prompt(recipe, prompt_name)
    skip = 0 if recipe.pools_prompt or not prompt else model.prompt_length(prompt)
    rows = _read_ids(model, texts, truncate=truncate) if has_ids else _tokenize(model, texts, prompt, truncate=truncate)
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))  # a batch that is too large shows at once
    done = []
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
    if not texts:
        raise ArgumentError("texts is empty; give at least one text.")
    if isinstance(as_lists(texts[0]), list | tuple):
        return True
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(f"text {number} must be a str, got {type(text).__name__}")
        check_text(f"text {number}", text)
    return False


def _read_ids(model: Encoder, texts: Sequence[Any], *, truncate: bool) -> list[list[int]]:
    """The token ids that were given; what is too long loses its last ones."""
    most = model.context_length if truncate else None
    rows = [read_token_ids(f"text {number}", row, model.vocab_size)[:most] for number, row in enumerate(texts)]
    return _checked(model, rows, texts)


def _tokenize(model: Encoder, texts: Sequence[Any], prompt: str, *, truncate: bool) -> list[list[int]]:
    """Each text's token ids with those of the prompt before it, checked."""
    return _checked(model, model.tokenize([prompt + text for text in texts], truncate=truncate), texts)


def _checked(model: Encoder, rows: list[list[int]], texts: Sequence[Any]) -> list[list[int]]:
    """Rows of token ids, none of them empty or too long."""
    for number, row in enumerate(rows):
        if not row:
            raise ArgumentError(f"text {number}, {show(texts[number])}, has no tokens and so no vector; leave it out.")
        if len(row) > model.context_length:
            raise ArgumentError(
                f"text {number} has {len(row)} tokens, the encoder's context is {model.context_length}: split it, or "
                "give truncate=True to leave out what is beyond."
            )
    return rows


def _read_prompt(recipe: Recipe, name: str | None) -> str:
    """The prompt of a name, "" where none is asked for."""
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
        raise ArgumentError(f"the model's layers take the poolings {', '.join(recipe.pooling)} together; leave it out.")
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
    """One vector (rows, hidden) of those of the tokens in the mask (rows, width) of (rows, width, hidden)."""
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
