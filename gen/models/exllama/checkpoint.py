"""Reads what the folder of a checkpoint for exllamav2 or exllamav3 has beside its weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gen.errors import ArgumentError, ModelError, show, show_path
from gen.models.checkpoint_files import check_safetensors, read_config
from gen.models.generation_config import read_eos, recommended_sampler
from gen.models.loading import load_tokenizer
from gen.models.sources import find_path
from gen.samplers import Sampler
from gen.tokens.tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import GenerationConfig


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What a folder has beside its weights.

    Attributes:
        folder: the directory.
        config: of the text part, as config.json has it.
        generation: the generation config.
        tokenizer: the checkpoint's own.
        window: how many tokens layers with a sliding window attend to; None if all layers attend to everything.
    """

    folder: Path
    config: dict[str, Any]
    generation: "GenerationConfig"
    tokenizer: Tokenizer
    window: int | None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All ids that end a text, of the generation config, else of the config."""
        ids = self.generation.eos_token_id
        return read_eos(self.config.get("eos_token_id") if ids is None else ids)

    def recommended_sampler(self, vocab_size: int) -> Sampler:
        """See `gen.models.generation_config.recommended_sampler`."""
        known = min(vocab_size, self.tokenizer.vocab_size)
        return recommended_sampler(self.generation, known, self.eos_token_ids)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a folder, and check that its files are whole.

    Raises:
        ArgumentError: something else than a path.
        ModelError: it is no folder, its files are not whole, or its tokenizer has ids that the model does not know.
    """
    from transformers import GenerationConfig

    if not isinstance(path, str | Path) or not str(path):
        raise ArgumentError(f"give the folder of a checkpoint, got {show(path)}")
    folder = find_path(path)
    if not folder.is_dir():
        raise ModelError(f"no directory {show_path(folder)}; give the folder of a checkpoint in Hugging Face format.")
    whole = read_config(folder)
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        check_safetensors(file)
    if not files:
        raise ModelError(f"{show_path(folder)} has no weights: expected files in safetensors format.")
    config = whole | (whole.get("text_config") or {})
    try:
        has_own = (folder / "generation_config.json").is_file()
        generation = GenerationConfig.from_pretrained(folder) if has_own else GenerationConfig()
    except Exception as error:  # no JSON, or settings of types that it does not take
        raise ModelError(f"{show_path(folder)}/generation_config.json cannot be read: {error}") from error
    tokenizer = Tokenizer(load_tokenizer(folder))
    vocab_size = config.get("vocab_size")
    if isinstance(vocab_size, int) and tokenizer.vocab_size > vocab_size:
        raise ModelError(
            f"the tokenizer of {show_path(folder)} has ids up to {tokenizer.vocab_size - 1}, its model knows "
            f"{vocab_size}: give the model's own tokenizer."
        )
    return Checkpoint(folder=folder, config=config, generation=generation, tokenizer=tokenizer, window=_window(config))


def _window(config: dict[str, Any]) -> int | None:
    """How far layers of a sliding window look back, as transformers reads it."""
    kinds = config.get("layer_types")
    by_default = not str(config.get("model_type", "")).startswith("qwen")
    if not config.get("use_sliding_window", by_default) or (kinds and "sliding_attention" not in kinds):
        return None
    return config.get("sliding_window") or None
