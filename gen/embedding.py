"""Texts into vectors: batches of like length through an encoder, pooled and put back into order."""

import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor
from tqdm import tqdm

from gen.devices import to_device
from gen.errors import ArgumentError, check_number
from gen.models.encoder import Encoder


@torch.no_grad()
def embed(
    model: Encoder,
    texts: Sequence[str],
    *,
    pooling: Literal["mean", "cls"] = "mean",
    normalize: bool = True,
    batch_size: int = 32,
    truncate: bool = False,
    progress: bool = False,
) -> Tensor:
    """Turn each text into a vector; the vectors of like texts point the same way.

    A vector depends on its text alone, up to rounding: 1e-5 in float32.

    Args:
        model: from `gen.load_encoder` or `gen.from_transformers_encoder`.
        texts: at least one, each with at least one token.
        pooling: "mean" of the vectors of all tokens, special ones with them, or "cls" for that of the first token: as
            the model was trained, which its card says (sentence-transformers keeps it in 1_Pooling/config.json).
        normalize: whether to scale each vector to length 1, so that a dot product is the cosine.
        batch_size: how many texts to run at once; texts of like length are run together.
        truncate: cut texts that are longer than the model's context; they are refused otherwise.
        progress: whether to show a progress bar on stderr.
    Returns:
        (len(texts), hidden_size) float32 in the order of the texts, on the model's device.
    Raises:
        ArgumentError: an argument cannot be used; nothing has run.
    Host sync: on CUDA one a batch, where transformers looks whether the mask has padding.
    """
    rows = _read(model, texts, truncate=truncate)
    if pooling not in ("mean", "cls"):
        raise ArgumentError(f"pooling must be 'mean' or 'cls', got {pooling!r}")
    check_number("batch_size", batch_size, minimum=1, whole=True)
    device = model.placement.input_device
    result = torch.empty((len(rows), model.hidden_size), dtype=torch.float32, device=device)
    with tqdm(total=len(rows), desc="embed", unit="text", file=sys.stderr, disable=not progress) as bar:
        for batch in _batches(rows, batch_size):
            token_ids, mask = (to_device(part, device) for part in model.pad([rows[number] for number in batch]))
            vectors = _pool(model.encode(token_ids, mask).float(), mask, pooling)
            if normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            result.index_copy_(0, to_device(torch.tensor(batch, device="cpu"), device), vectors)
            bar.update(len(batch))
    return result


def _read(model: Encoder, texts: Sequence[str], *, truncate: bool) -> list[list[int]]:
    """Each text's token ids, checked."""
    if not isinstance(model, Encoder):
        raise ArgumentError(
            f"embed takes an encoder, as from gen.load_encoder(path), got {type(model).__name__}: text models are for "
            "gen.generate."
        )
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ArgumentError(f"texts must be a list of texts, got {type(texts).__name__}; give [text] for one.")
    if not texts:
        raise ArgumentError("texts is empty; give at least one text.")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(f"text {number} must be a str, got {type(text).__name__}")
    rows = model.tokenize(texts, truncate=truncate)
    for number, row in enumerate(rows):
        if not row:
            raise ArgumentError(f"text {number}, {texts[number]!r}, has no tokens and so no vector; leave it out.")
        if len(row) > model.context_length:
            raise ArgumentError(
                f"text {number} has {len(row)} tokens, the encoder's context is {model.context_length}: split it, or "
                "give truncate=True to leave out what is beyond."
            )
    return rows


def _batches(rows: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """The rows' numbers, longest first, so that a batch that is too large for the memory shows at once."""
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _pool(hidden: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """One vector (rows, hidden) of those of all tokens (rows, width, hidden)."""
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)
