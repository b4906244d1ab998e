"""PEFT adapters: a folder of a few weights, for a base model that it names."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gen.errors import ModelError, show_path
from gen.models.checkpoints import ADAPTER, Source, check_safetensors, find_source, has_weights, read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

_WEIGHTS = "adapter_model.safetensors", "adapter_model.bin"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter and its base model.

    Attributes:
        source: where the adapter is.
        base: where the model that it was trained on is.
    """

    source: Source
    base: Source

    def texts(self, images: bool) -> Source:
        """Where the tokenizer is, or the processor of a model that reads images: the adapter's own if it has one, since
        training may have added tokens; else the base model's."""
        files = ("processor_config.json", "preprocessor_config.json") if images else ("tokenizer_config.json",)
        return self.source if any(map(self.source.find, files)) else self.base

    def put_on(
        self, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase | ProcessorMixin"
    ) -> "PreTrainedModel":
        """The base model with the adapter, as peft.AutoPeftModelForCausalLM makes it."""
        from peft import PeftModel

        words = tokenizer if hasattr(tokenizer, "get_vocab") else tokenizer.tokenizer  # a processor's
        if len(words) > model.get_input_embeddings().weight.shape[0]:
            model.resize_token_embeddings(len(words))
        options = self.source.options
        # torch_device: where peft reads the file to; its own choice is the first CUDA device
        adapted: PreTrainedModel = PeftModel.from_pretrained(model, self.source.name, torch_device="cpu", **options)
        return adapted


def find_adapter(source: Source) -> Adapter | None:
    """The adapter that a checkpoint is, if it is one.

    A directory that has a whole model and an adapter is no adapter here: transformers loads both from it.

    Raises:
        ModelError: its weights are missing or cut, its config cannot be read, peft is not installed, or the base model
            is not found.
    """
    path = source.find(ADAPTER)
    if path is None:
        return None
    try:
        import peft  # noqa: F401
    except ImportError as error:
        raise ModelError(f"{source.name!r} is a PEFT adapter, which needs peft: pip install peft ({error})") from error
    if source.folder and has_weights(source.folder):
        return None
    if source.folder:
        _check_weights(source.folder)
    config = read_json(path)
    name = config.get("base_model_name_or_path") if isinstance(config, dict) else None
    if not name:
        raise ModelError(f"{str(path)!r} names no base_model_name_or_path, so its base model is not known.")
    try:
        base = find_source(name, config.get("revision"))
    except ModelError as error:
        raise ModelError(
            f"{source.name!r} is an adapter for the base model {name!r}, which is not found: {error} If it is "
            "elsewhere, load it with transformers, put peft.PeftModel on it, and give that to gen.from_transformers."
        ) from error
    return Adapter(source=source, base=base)


def _check_weights(folder: Path) -> None:
    """Raise unless an adapter's folder has its weights whole."""
    path = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        raise ModelError(
            f"{show_path(folder)} is a PEFT adapter without weights: it has {ADAPTER}, but no "
            f"{' or '.join(_WEIGHTS)}; save it again, or fetch the missing file."
        )
    if path.suffix == ".safetensors":
        check_safetensors(path)
