"""The models of the corpus: the demo model, and tiny ones with a token for each byte; and the data of its cases."""

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import gen
from benchmarks.architectures.tiny_models import tiny_model, tokenizer

DATA: dict[str, Any] = json.loads(Path(__file__).with_name("data.json").read_text(encoding="utf-8"))
TINY = ["llama", "gpt2", "gemma3_text", "mixtral", "bloom", "deepseek_v3", "gpt_neo", "opt", "phi3", "cohere2"]
TINY += ["qwen3_next", "bamba", "lfm2", "jamba"]  # with layers that keep a state
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% if think is defined and think %}<think>{% endif %}{% endif %}"
)


def new_model(name: str) -> Any:
    """A model by its name, or from a folder; a tiny one has a chat template, and 512 tokens of context where it has a
    limit."""
    if name == "demo" or Path(name).is_dir():
        return gen.load(name, device="cpu")
    with warnings.catch_warnings(action="ignore"):
        bytes_alone = tokenizer()
        bytes_alone.chat_template = TEMPLATE
        return gen.from_transformers(tiny_model(name), bytes_alone)


model = cache(new_model)
