"""Train a tiny model that reads shopping lists, for `benchmarks.extraction`: python -m training.lists --out DIR

It is the demo model, taught further for half a minute on one CPU thread. It learns messages as the benchmark has them,
with other numbers, and their things as JSON, in the layouts "line", "compact" and "indent" in turn, so that it prefers
none. Half of the things are words made up of syllables. The folder gets the model and the demo's tokenizer.
"""

import argparse
import json
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from benchmarks.extraction import FOODS, lists
from training.demo.evaluate import load
from training.demo.tokenizer import EOS, PAD

DEMO = Path(__file__).resolve().parents[1] / "gen" / "models" / "demo"
LAYOUTS: tuple[dict[str, Any], ...] = ({}, {"separators": (",", ":")}, {"indent": 2})
ROWS = 4
PEAK, WARM_UP, DECAY_FROM = 2e-3, 20, 0.4
NOT_LEARNT = -100  # the label of what is only read


def made_up(count: int, random: Random) -> list[str]:
    """Words of one to three syllables in the plural."""
    consonants: list[str] = [*"bcdfghjklmnprstvw", "br", "ch", "cl", "gr", "pl", "st"]
    vowels, ends = ("a", "e", "i", "o", "u", "ea", "oo"), ("", "", "l", "m", "n", "r", "pp", "rr", "gg")

    def syllable() -> str:
        return random.choice(consonants) + random.choice(vowels) + random.choice(ends)

    return ["".join(syllable() for _ in range(random.randint(1, 3))) + "s" for _ in range(count)]


def rows_of(tokenizer: PreTrainedTokenizerBase, random: Random) -> tuple[Tensor, Tensor]:
    """Messages and answers, (ROWS, length) int64 token ids, and their labels, of which only the answers count."""
    things = [*FOODS, *made_up(len(FOODS), random)]
    rows, labels = [], []
    for number, (text, found) in enumerate(lists(ROWS, things, seed=random.getrandbits(32))):
        chat = [{"role": "user", "content": text}]
        asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        layout = LAYOUTS[number % len(LAYOUTS)]
        answer = json.dumps([{"name": name, "count": count} for name, count in found], **layout)
        written = [*tokenizer(answer, add_special_tokens=False)["input_ids"], EOS]
        rows.append(torch.tensor([*asked, *written]))
        labels.append(torch.tensor([NOT_LEARNT] * len(asked) + written))
    return pad_sequence(rows, True, PAD), pad_sequence(labels, True, NOT_LEARNT)


def train(folder: Path, *, steps: int, seed: int) -> None:
    """Train, saving the model every 25 steps."""
    random = Random(seed)
    model, tokenizer = load(DEMO)
    tokenizer.save_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.0)
    losses, begun = [], time.process_time()
    for step in range(steps):
        left = (steps - step) / steps / (1 - DECAY_FROM)
        optimizer.param_groups[0]["lr"] = PEAK * min(1.0, (step + 1) / WARM_UP, left)
        token_ids, labels = rows_of(tokenizer, random)
        loss = model(input_ids=token_ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 25 == 0:
            print(f"step {step + 1} loss {sum(losses[-25:]) / 25:.3f} {time.process_time() - begun:.0f} s", flush=True)
            model.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--seed", type=int, default=0, help="for the texts")
    given = parser.parse_args()
    torch.set_num_threads(1)
    train(given.out, steps=given.steps, seed=given.seed)


if __name__ == "__main__":
    main()
