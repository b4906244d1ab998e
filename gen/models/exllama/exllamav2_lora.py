"""LoRAs of exllamav2: what it would compute wrongly is put in order here, or refused."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from gen.errors import ModelError, show, show_path
from gen.models.checkpoint_files import read_json
from gen.models.exllama.importing import import_exllama

_OF_ONE_MODULE = ("rank_pattern", "alpha_pattern")  # of adapter_config.json


def read_lora(model: Any, folder: str | Path) -> Any:
    """Put a LoRA on an ExLlamaV2; what its forward is to be given.

    Raises:
        ModelError: there is none in that folder, or exllamav2 cannot read it, or would not compute what it says.
    """
    config = Path(folder, "adapter_config.json")
    settings = read_json(config) if config.is_file() else None
    if isinstance(settings, dict) and (named := [name for name in _OF_ONE_MODULE if settings.get(name)]):
        raise ModelError(
            f"{show_path(config)} has {' and '.join(named)}: ranks or scales of single modules, which exllamav2 would "
            "leave out. Merge the adapter into its model, or load both with gen.load."
        )
    try:
        with redirect_stdout(sys.stderr):
            lora = import_exllama("exllamav2").ExLlamaV2Lora.from_directory(model, str(folder))
    except Exception as error:  # files of every kind
        told = f"{type(error).__name__}: {show(str(error), 200)}"
        raise ModelError(f"exllamav2 cannot load the LoRA {show_path(folder)}: {told}") from error
    for module in model.modules:
        _reorder_(module, lora)
    return lora


@torch.inference_mode()
def _reorder_(module: Any, lora: Any) -> None:
    """Let a LoRA on an MLP with EXL2 weights have their order.

    EXL2 sorts the rows of each matrix by how much they matter. exllamav2 leaves those of down_proj sorted, and sorts
    the columns of gate_proj and up_proj likewise, but not what a LoRA adds to them.
    """
    down = getattr(module, "down_proj", None)
    if down is None or down.q_handle is None:
        return
    found = down.load_multi(down.key, ["q_invperm"], cpu=True)
    if "q_invperm" not in found:  # GPTQ
        return
    order = torch.argsort(found["q_invperm"])
    for part in (module.gate_proj, module.up_proj):
        columns = part.lora_b_tensors.get(lora) if part is not None else None
        if columns is not None:
            columns.copy_(columns[:, order.to(columns.device)])
    rows = down.lora_a_tensors.get(lora)
    if rows is not None:
        rows.copy_(rows[order.to(rows.device)])
