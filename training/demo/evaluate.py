"""How good the demo model is: records that have the requested name, bits per character, and samples to read.

python -m training.demo.evaluate DIR
"""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from training.demo.corpus import HELD_OUT_NAMES, SEEN_NAMES, Document, build_corpus, record_prompt
from training.demo.tokenizer import BOS, EOS

PROMPTS = (
    "Once upon a time",
    "One morning",
    "There was once a fox named Beatrix",
    "Malik and Ada were best friends.",
    "Describe Ada as JSON.",
    "Describe Ingrid as JSON.\n",
    "Priya is 41 years old, lives in Lima, has a frog and is happy. Describe Priya as JSON.",
    "Question: What is the capital of Norway?\nAnswer:",
    "Question: What is 7 + 5?\nAnswer:",
    "Question: Keiko has a red drum, and Gustav has a small bell. Who has the drum?\nAnswer:",
    "Review: The soup was wonderful. I would buy it again.\nSentiment:",
    "def read(self, size):\n",
    "<|user|>Tell me a story about a kite.<|assistant|>",
    "<|user|>Describe Winifred as JSON.<|assistant|>",
)


def load(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """The saved model in float32 on the CPU, in evaluation mode, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not isinstance(model, LlamaForCausalLM) or not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(f"expected a Llama model with a tokenizer in {folder}, got {type(model)}, {type(tokenizer)}")
    return model, tokenizer


@torch.no_grad()
def complete(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[str]:
    """Continue every prompt up to eos.

    Args:
        model, tokenizer: as from `load`; the prompts are padded on the left and run as one batch.
        max_new_tokens: at least 1.
        temperature: 0 is greedy; else plain sampling, seeded by `seed`.
    Returns:
        The new text of each prompt, without special tokens.
    """
    inputs = tokenizer(list(prompts), return_tensors="pt", padding=True)
    torch.manual_seed(seed)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    token_ids = model.generate(**inputs, max_new_tokens=max_new_tokens, **sampling)
    new_ids = token_ids[:, inputs["input_ids"].shape[1] :]
    return list(tokenizer.batch_decode(new_ids, skip_special_tokens=True))


def names_right(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, names: Sequence[str], *, end: str = ""
) -> list[bool]:
    """For each name, whether the greedy answer to its prompt is JSON with this name under "name".

    `end` is added to the prompt: "" or a newline.
    """
    answers = complete(model, tokenizer, [record_prompt(name) + end for name in names], max_new_tokens=96)
    return [_bears(answer, name) for answer, name in zip(answers, names, strict=True)]


def _bears(answer: str, name: str) -> bool:
    try:
        parsed = json.loads(answer)
    except json.JSONDecodeError:
        return False
    return isinstance(parsed, dict) and parsed.get("name") == name


@torch.no_grad()
def bits_per_character(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, documents: Sequence[Document]
) -> tuple[float, float]:
    """Mean loss in nats a token, and bits a character, each document alone from bos to eos.

    Documents longer than the context are cut to it; the eos counts as a token and not as a character.
    """
    nats, tokens, characters = 0.0, 0, 0
    limit = model.config.max_position_embeddings
    for document in documents:
        encoded = tokenizer(document.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        row = torch.tensor([[BOS, *ids, EOS][:limit]])
        loss = model(input_ids=row, labels=row).loss.item()
        nats += loss * (row.shape[1] - 1)
        tokens += row.shape[1] - 1
        characters += offsets[min(len(ids), limit - 1) - 1][1]
    return nats / tokens, nats / math.log(2) / characters


def report(folder: Path, *, seed: int) -> str:
    """Everything measured on the saved model, as Markdown; `seed` is the corpus's."""
    model, tokenizer = load(folder)
    lines = ["| names | prompt ends with | records right |", "|---|---|---|"]
    for label, names in (("seen", SEEN_NAMES), ("unseen", HELD_OUT_NAMES)):
        for end in ("", "\n"):
            right = names_right(model, tokenizer, names, end=end)
            wrong = [name for name, is_right in zip(names, right, strict=True) if not is_right]
            note = f" (not {', '.join(wrong)})" if wrong else ""
            lines.append(f"| {label} | {'a newline' if end else 'the full stop'} | {sum(right)}/{len(right)}{note} |")
    lines += ["", "| validation documents | number | loss, nats a token | bits a character |", "|---|---|---|---|"]
    validation = build_corpus(seed=seed).validation
    for kind in ("all", *sorted({document.kind for document in validation})):
        documents = [document for document in validation if kind in ("all", document.kind)]
        loss, bits = bits_per_character(model, tokenizer, documents)
        lines.append(f"| {kind} | {len(documents)} | {loss:.3f} | {bits:.3f} |")
    return "\n".join(lines) + "\n"


def samples(folder: Path) -> str:
    """Greedy and sampled continuations of PROMPTS, as Markdown; the prompt is in the text, special tokens too."""
    model, tokenizer = load(folder)
    parts = ["# Samples\n\nUp to 256 new tokens; sampled ones at temperature 0.8 from the whole vocabulary, seed 0.\n"]
    for prompt in PROMPTS:
        parts.append(f"## `{json.dumps(prompt)}`\n")
        for label, temperature in (("Greedy", 0.0), ("Sampled", 0.8)):
            [text] = complete(model, tokenizer, [prompt], max_new_tokens=256, temperature=temperature)
            parts.append(f"{label}:\n\n```\n{prompt}{text}\n```\n")
    return "\n".join(parts)


def main() -> None:
    """Print the report of a saved model and write samples.md next to it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the model was saved")
    parser.add_argument("--seed", type=int, default=0, help="the corpus's seed")
    arguments = parser.parse_args()
    print(report(arguments.folder, seed=arguments.seed))
    (arguments.folder / "samples.md").write_text(samples(arguments.folder), encoding="utf-8")


if __name__ == "__main__":
    main()
