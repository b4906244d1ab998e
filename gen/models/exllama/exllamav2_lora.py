"""LoRAs for exllamav2: corrects or refuses those that exllamav2 would compute wrongly."""

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
    """Load a LoRA for an ExLlamaV2; returns the object to give to its forward.

    Raises:
        ModelError: the folder has no LoRA, or one that exllamav2 cannot read or would compute wrongly.
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
    except Exception as error:  # broken files raise errors of every kind
        told = f"{type(error).__name__}: {show(str(error), 200)}"
        raise ModelError(f"exllamav2 cannot load the LoRA {show_path(folder)}: {told}") from error
    for module in model.modules:
        _reorder_(module, lora)
    return lora


@torch.inference_mode()
def _reorder_(module: Any, lora: Any) -> None:
    """Put a LoRA on an MLP with EXL2 weights into the order of these weights.

    EXL2 sorts the rows of each matrix by how much they matter. exllamav2 leaves the rows of down_proj sorted, and sorts
    the columns of gate_proj and up_proj in the same way, but not the matrices of a LoRA.
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
