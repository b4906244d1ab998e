"""An exllamav2 model with Outlines 0.0.46's interface: it takes token ids, a mask and a state, and gives logits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gen.errors import ArgumentError, show
from gen.models.exllama.exllamav2 import from_exllamav2
from gen.models.exllama.exllamav2_model import Exllamav2Model, Exllamav2Rows

_HEADROOM = 64  # how many new tokens a cache has room for before it grows


class OutlinesExl2:
    """Takes the place of `outlines.models.exllamav2.ExLlamaV2Model`; several prompts, samples and beams work too.

    Attributes:
        gen_model: the model of gen.
        model: the ExLlamaV2 itself.
        tokenizer: Outlines' own kind.
        device: the logits' device; token ids, weights and random numbers go there too.
    """

    def __init__(self, gen_model: Exllamav2Model, tokenizer: Any) -> None:
        self.gen_model, self.tokenizer = gen_model, tokenizer
        self.model = gen_model.exl2_model
        self.device = gen_model.placement.logits_device

    def update_lora(self, lora_path: str | None = None) -> None:
        """Use a LoRA from now on; None for none."""
        self.gen_model.load_lora(lora_path)

    @torch.inference_mode()
    def __call__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        kv_cache: "OutlinesState | None" = None,
        *,
        reorders: bool = True,
    ) -> tuple[Tensor, "OutlinesState"]:
        """The logits (rows, vocab) in float32 after the last token, and the state for the next call.

        Args:
            reorders: whether the sampler may continue another row.
        Raises:
            IndexError: a text is longer than the context; Outlines expects this error.
        Host sync: one for the prompts; then none.
        """
        rows, width = input_ids.shape
        if width > self.gen_model.context_length:
            raise IndexError(f"a text has {width} tokens, and the model's context {self.gen_model.context_length}.")
        if (state := kv_cache) is None:
            kept = zip(input_ids.tolist(), attention_mask.tolist(), strict=True)
            prompts = [[token for token, shown in zip(*row, strict=True) if shown] for row in kept]
            made = self.gen_model.new_rows(rows, width + _HEADROOM)
            state = OutlinesState(made, width, self.device, reorders=reorders)
            logits = state.rows.prefill(slice(0, rows), prompts)
        else:
            state.columns = width
            logits = state.rows.step(input_ids[:, -1:].to(self.device), width)
        return logits.float(), state


class OutlinesState:
    """The rows of one call, used as Outlines' kv_cache.

    Args:
        columns: how many tokens the longest row has.
        device: the logits' device.
        reorders: whether a sampler may continue another row.
    """

    def __init__(self, rows: Exllamav2Rows, columns: int, device: torch.device, *, reorders: bool) -> None:
        self.rows, self.columns = rows, columns
        self._device = device
        self._reorders = reorders and rows.count > 1

    @torch.inference_mode()
    def reorder(self, ancestors: Tensor) -> None:
        """Make row i continue the text of row ancestors[i]. Host sync: none."""
        if self._reorders:
            self.rows.reorder(ancestors.to(self._device), self.columns)


def exl2(
    model_path: str,
    device: str,
    max_seq_len: int | None = None,
    scale_pos_emb: float | None = None,
    scale_alpha_value: float | None = None,
    no_flash_attn: bool | None = None,
    num_experts_per_token: int | None = None,
    cache_8bit: bool = False,
    cache_q4: bool = False,
    tokenizer_kwargs: Mapping[str, Any] | None = None,
    gpu_split: str | None = None,
    low_mem: bool | None = None,
    verbose: bool | None = None,
) -> OutlinesExl2:
    """Load a model with `gen.from_exllamav2`; the arguments of `outlines.models.exl2`.

    Args:
        model_path: a folder.
        device: where the whole model goes, unless gpu_split divides it.
        max_seq_len: the length of the context.
        cache_8bit, cache_q4: store keys and values in fewer bits.
        tokenizer_kwargs: for AutoTokenizer.from_pretrained; prompts are padded on the left.
        gpu_split: gigabytes for each GPU, such as "10,20".
        verbose: has no effect: nothing is printed.
    Raises:
        ArgumentError: an argument that gen does not take, such as scale_pos_emb; set it in config.json. Or cache_8bit
            and cache_q4 are given together.
        As `gen.from_exllamav2`.
    """
    unknown = {
        "scale_pos_emb": scale_pos_emb,
        "scale_alpha_value": scale_alpha_value,
        "no_flash_attn": no_flash_attn,
        "num_experts_per_token": num_experts_per_token,
        "low_mem": low_mem,
    }
    for name, value in unknown.items():
        if value not in (None, False):
            raise ArgumentError(f"exl2 by gen takes no {name}, got {show(value)}; set it in config.json.")
    if cache_8bit and cache_q4:
        raise ArgumentError("give cache_8bit or cache_q4, not both.")
    split = None
    if gpu_split:
        try:
            split = [float(size) for size in gpu_split.split(",")]
        except ValueError as error:
            raise ArgumentError(
                f"gpu_split must be gigabytes for each GPU, as '10,20', got {show(gpu_split)}"
            ) from error
    from outlines.models.transformers import TransformerTokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path, **{"padding_side": "left", **(tokenizer_kwargs or {})})
    model = from_exllamav2(
        Path(model_path),
        device=device if split is None else None,
        gpu_split=split,
        max_seq_len=max_seq_len,
        cache="q4" if cache_q4 else "q8" if cache_8bit else "fp16",
    )
    return OutlinesExl2(model, TransformerTokenizer(tokenizer))
