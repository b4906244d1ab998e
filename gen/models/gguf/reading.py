"""GGUF files: dequantised into plain transformers models, or written as folders in Hugging Face format.

Names and layouts of weights are transformers' own (`modeling_gguf_pytorch_utils`); here they are computed once for a
file, not once for each module, and the file's strings are read twice instead of six times.
"""

import json
import tempfile
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gen.errors import ArgumentError, ModelError, show_path
from gen.models.checkpoints import find_path
from gen.models.checks import one_at_a_time, read_dtype
from gen.models.gguf.config import end_of_text_ids, read_config
from gen.models.gguf.header import Header, dequantize, read_header
from gen.runtime.cpu_memory import available_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@one_at_a_time
def read_gguf(
    file: str | Path,
    *,
    device: torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    device_map: str | dict[str, Any] | None = None,
    attn_implementation: str | None = None,
) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    """A plain transformers model with dequantised weights, and its tokenizer with the file's chat template.

    Args:
        file: one GGUF file.
        device: where the model goes, with an index; None if you give device_map.
        dtype: of the weights, as "bfloat16"; None is float32 if any is quantised, else the file's own.
        device_map: how accelerate spreads the model, if device is None.
        attn_implementation: as for `gen.load`.
    Raises:
        ArgumentError: unknown dtype.
        ModelError: before weights are read, if the file is no GGUF, is cut or split, has an architecture or settings
            that gen does not support, or is too large for the free memory; later, if it lacks weights.
    """
    from transformers import GenerationConfig

    wanted = read_dtype(dtype)
    header = read_header(find_path(file))
    chosen = wanted if isinstance(wanted, torch.dtype) else header.dtype
    try:
        config = read_config(header)
        check_memory(header, chosen, device)
        tokenizer = _tokenizer(header)
        model, report = _model(header, config, chosen, device, device_map, attn_implementation)
    except ModelError:
        raise
    except Exception as error:  # a file that passes every check can still be wrong in many ways
        raise ModelError(f"cannot load {show_path(header.path)}: {error}") from error
    if missing := sorted(report["missing_keys"]):
        raise ModelError(f"{show_path(header.path)} lacks {len(missing)} weights, such as {', '.join(missing[:3])}.")
    _refuse_spare(header, sorted(report["unexpected_keys"]))
    ends = end_of_text_ids(header) or config.eos_token_id
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=ends, pad_token_id=config.pad_token_id
    )
    model.config.name_or_path = header.path.name
    return model.eval(), tokenizer


def convert(file: str | Path, folder: str | Path, *, dtype: str | torch.dtype | None = None) -> None:
    """Write a GGUF file as a folder in Hugging Face format: config, tokenizer, chat template, safetensors.

    The folder appears whole or not at all. The weights are dequantised on the CPU.

    Args:
        file: one GGUF file.
        folder: where to write; new or empty.
        dtype: of the weights, as for `read_gguf`.
    Raises:
        ArgumentError: the folder is not empty, or is a file.
        ModelError: the file cannot be read (see `read_gguf`), or the folder cannot be written.
    """
    target = find_path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ArgumentError(f"{show_path(target)} exists and is not an empty folder; give a new one.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".converting-") as work:
            whole = Path(work) / target.name
            model, tokenizer = read_gguf(file, device=torch.device("cpu"), dtype=dtype)
            model.save_pretrained(whole)
            tokenizer.save_pretrained(whole)
            whole.replace(target)
    except OSError as error:
        raise ModelError(f"cannot write {show_path(target)}: {error}") from error


def check_memory(header: Header, dtype: torch.dtype, device: torch.device | None) -> None:
    """Raise a ModelError if the dequantised weights are larger than the free memory at their destination."""
    numbers = [prod(tensor.shape) for tensor in header.tensors]
    weights = sum(numbers) * dtype.itemsize
    # two float32 copies of one tensor at a time; all experts of a mixture are joined in float32
    work = 4 * (sum(numbers) if header.get("expert_count") else 2 * max(numbers, default=0))
    left = available_bytes()
    needs = {} if left is None else {"memory": (weights + work, left)}
    if device is not None and device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        needs = {} if left is None else {"memory": (work, left)}
        needs[str(device)] = (weights, torch.cuda.mem_get_info(device)[0] + unused)
    for where, (needed, free) in needs.items():
        if needed > free:
            name = str(dtype).removeprefix("torch.")
            smaller = "dtype='bfloat16' or " if dtype.itemsize > 2 else ""
            raise ModelError(
                f"{show_path(header.path)} needs {needed / 1e9:.1f} GB of {where} in {name}, {free / 1e9:.1f} GB are "
                f"free: give {smaller}another device, or take a smaller model."
            )


def _tokenizer(header: Header) -> "PreTrainedTokenizerBase":
    """The file's tokenizer, without special tokens that transformers' classes add but the model has no rows for."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    loaded = PreTrainedTokenizerFast.from_pretrained(header.path.parent, gguf_file=str(header.path.absolute()))
    known = header.metadata["tokenizer.ggml.tokens"]
    if max(loaded.get_vocab().values()) < known:
        return loaded
    state = json.loads(loaded.backend_tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < known]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        bos_token=loaded.bos_token,
        eos_token=loaded.eos_token,
        unk_token=loaded.unk_token,
        pad_token=loaded.pad_token,
        chat_template=loaded.chat_template,
    )


def _model(
    header: Header,
    config: "PreTrainedConfig",
    dtype: torch.dtype,
    device: torch.device | None,
    device_map: str | dict[str, Any] | None,
    attn_implementation: str | None,
) -> tuple["PreTrainedModel", dict[str, Iterable[str]]]:
    """The model, and transformers' report of what was missing."""
    from transformers import GgufConfig
    from transformers.integrations.gguf import is_gguf_arch_supported
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if is_gguf_arch_supported(header.architecture):  # a newer reader of transformers', which is fast
        quantized = GgufConfig(dequantize=True)
        source = {"gguf_file": str(header.path.absolute()), "quantization_config": quantized}
    else:
        source = {"state_dict": _weights(header, config, model_class, dtype, device)}
    model, report = model_class.from_pretrained(
        header.path.parent if "gguf_file" in source else None,
        config=config,
        dtype=dtype,
        device_map=device_map if device is None else {"": device},
        attn_implementation=attn_implementation,
        output_loading_info=True,
        **source,
    )
    return model, report


def _weights(
    header: Header,
    config: "PreTrainedConfig",
    model_class: type["PreTrainedModel"],
    dtype: torch.dtype,
    device: torch.device | None,
) -> dict[str, Tensor]:
    """The dequantised tensors under the names of the transformers model."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map
    from transformers.utils import logging

    with torch.device("meta"):
        outline = _Outline(model_class(config))
    processor = TENSOR_PROCESSORS.get(header.architecture, TensorProcessor)(config=config.to_dict())
    names: dict[str, str] = get_gguf_hf_weights_map(outline, processor)
    _check_taken(header, names)
    parsed: dict[str, dict[str, Tensor]] = {"tensors": {}}
    for tensor in logging.tqdm(header.tensors, desc="Reading weights"):  # on stderr, unless transformers shows none
        result = processor.process(
            weights=dequantize(header, tensor),
            name=tensor.name,
            tensor_key_mapping=names,
            parsed_parameters=parsed,
        )
        if result.name in names:
            parsed["tensors"][names[result.name]] = torch.tensor(result.weights, dtype=dtype, device=device or "cpu")
    return parsed["tensors"]


def _check_taken(header: Header, names: Iterable[str]) -> None:
    """Refuse a file with weights that are not taken."""
    known = {*names, "output.weight", "rope_freqs.weight"}
    stored = (tensor.name for tensor in header.tensors)
    _refuse_spare(header, [one for one in stored if one not in known and one.removesuffix(".weight") not in known])


def _refuse_spare(header: Header, spare: Sequence[str]) -> None:
    """Refuse a file with weights that the model has no place for: without them, its texts would be wrong."""
    if spare:
        raise ModelError(
            f"{show_path(header.path)} has {len(spare)} weights, such as {', '.join(spare[:3])}, that transformers' "
            f"{header.architecture} has no place for: this kind of it is not supported."
        )


class _Outline:
    """A model as `get_gguf_hf_weights_map` needs it: the names of its weights, from itself and from its children.

    transformers would visit every module, and make its table of names anew for each; GGUF's names never start deeper.
    """

    def __init__(self, module: nn.Module, *, children: bool = True) -> None:
        self.config = getattr(module, "config", None)
        self._module = module
        self._children = children

    def state_dict(self) -> dict[str, Tensor]:
        return self._module.state_dict()

    def named_children(self) -> list[tuple[str, "_Outline"]]:
        children = self._module.named_children() if self._children else ()
        return [(name, _Outline(child, children=False)) for name, child in children]
