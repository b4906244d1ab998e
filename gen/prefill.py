"""Prompts into the model: padding, one prefill, and a row for each text that continues a prompt."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gen.models.base import DecodeState, ImageReader, Inputs, Model


def prefill(
    model: Model, prompts: Sequence[Sequence[int]], texts: int, new_tokens: int, inputs: Sequence[Inputs] = ()
) -> tuple[Tensor, DecodeState]:
    """Read each prompt once and give it `texts` rows, side by side.

    Args:
        inputs: what goes with each prompt's images; nothing where no prompt has any.
    Returns:
        The logits (prompts x texts, vocab_size) after the prompts, on the logits device, and the state to go on.
    """
    if isinstance(model, ImageReader):
        logits, state = model.prefill(*pad_left(prompts), new_tokens, inputs)
    else:
        logits, state = model.prefill(*pad_left(prompts), new_tokens)
    if texts > 1:
        ancestors = torch.arange(len(prompts) * texts, device=logits.device) // texts
        state.reorder(ancestors)
        logits = logits.index_select(0, ancestors)
    return logits, state


def pad_left(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids (rows, width) int64 and their mask (rows, width) bool, on the CPU; padding is id 0, masked out."""
    width = max(map(len, prompts))
    token_ids = torch.zeros((len(prompts), width), dtype=torch.int64, device="cpu")
    mask = torch.zeros((len(prompts), width), dtype=torch.bool, device="cpu")
    for row, prompt in enumerate(prompts):
        token_ids[row, width - len(prompt) :] = torch.tensor(prompt, device="cpu")
        mask[row, width - len(prompt) :] = True
    return token_ids, mask
