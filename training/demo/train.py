"""Train the demo model from scratch, on one CPU thread: python -m training.demo.train --out DIR

Everything is fixed: the corpus by its seed, the number of steps, the schedule. Writes into DIR the tokenizer, the model
(bfloat16), loss.csv, and samples.md.
"""

import argparse
import copy
import csv
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from training.demo.corpus import HELD_OUT_NAMES, SEEN_NAMES, Document, build_corpus
from training.demo.evaluate import names_right, report, samples
from training.demo.tokenizer import BOS, EOS, PAD, train_tokenizer

VOCAB_SIZE = 2000
CONTEXT = 1024


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Warm-up, constant, linear decay to zero; the last part of the decay runs on rows as long as the context.

    `steps` is the number of updates, each of `tokens` tokens in rows of `row_length`. After the share `long_from` of
    the steps, rows have CONTEXT tokens, and the batch shrinks so that the number of tokens stays the same.
    """

    steps: int
    warmup: int = 100
    decay_from: float = 0.55
    long_from: float = 0.85
    tokens: int = 3072
    row_length: int = 512
    muon_lr: float = 0.02
    adamw_lr: float = 4e-3

    def __post_init__(self) -> None:
        """Refuse schedules without room for the warm-up."""
        if self.steps <= self.warmup:
            raise ValueError(f"steps must be more than the warm-up of {self.warmup}, got {self.steps}")

    def lr_scale(self, step: int) -> float:
        """What both learning rates are multiplied by at `step`, counted from 0."""
        progress = step / self.steps
        decay = 1.0 if progress < self.decay_from else (1 - progress) / (1 - self.decay_from)
        return min(1.0, (step + 1) / self.warmup) * decay

    def rows(self, step: int) -> tuple[int, int]:
        """(batch, row length) at `step`."""
        length = CONTEXT if step >= self.long_from * self.steps else self.row_length
        return self.tokens // length, length


class Rows:
    """Packed documents, bos and eos around each, and where rows may start: at a document, and within long ones."""

    def __init__(self, documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase) -> None:
        encoded = tokenizer([document.text for document in documents], add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        stream: list[int] = []
        starts: list[int] = []
        for ids in encoded:
            starts.extend(range(len(stream), len(stream) + len(ids) + 2, CONTEXT // 2))
            stream += [BOS, *ids, EOS]
        self.token_ids = torch.tensor(stream)
        self.starts = torch.tensor([start for start in starts if start + CONTEXT <= len(stream)])

    def draw(self, batch: int, length: int, generator: torch.Generator) -> Tensor:
        """(batch, length) int64 token ids of rows drawn at random, with replacement."""
        picked = self.starts[torch.randint(len(self.starts), (batch,), generator=generator)]
        return self.token_ids[picked[:, None] + torch.arange(length)]


def new_model() -> LlamaForCausalLM:
    """The untrained model, float32: 1.36 million parameters."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
    return model


def save(model: LlamaForCausalLM, folder: Path) -> None:
    """Write a bfloat16 copy of the model."""
    copy.deepcopy(model).bfloat16().save_pretrained(folder)


@torch.no_grad()
def validation_loss(model: LlamaForCausalLM, rows: Rows, *, length: int = 512, count: int = 32) -> float:
    """Mean loss in nats a token over the first `count` packed rows of the validation stream."""
    token_ids = rows.token_ids[: count * length].view(-1, 8, length)
    losses = [float(model(input_ids=part, labels=part).loss) for part in token_ids.unbind()]
    return sum(losses) / len(losses)


def make_optimizers(model: LlamaForCausalLM, schedule: Schedule) -> list[tuple[torch.optim.Optimizer, float]]:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms; each with its peak rate."""
    hidden = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        (torch.optim.Muon(hidden, lr=schedule.muon_lr, weight_decay=0.01, momentum=0.95), schedule.muon_lr),
        (torch.optim.AdamW(others, lr=schedule.adamw_lr, betas=(0.9, 0.98), weight_decay=0.0), schedule.adamw_lr),
    ]


def update_(
    model: LlamaForCausalLM,
    optimizers: Sequence[tuple[torch.optim.Optimizer, float]],
    token_ids: Tensor,
    *,
    lr_scale: float,
) -> float:
    """One step on (batch, length) token ids, forward in bfloat16 autocast; returns the loss in nats a token."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(input_ids=token_ids, labels=token_ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer, peak_lr in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = peak_lr * lr_scale
        optimizer.step()
        optimizer.zero_grad()
    return float(loss)


def train(folder: Path, *, schedule: Schedule, seed: int, every: int) -> None:
    """Train, saving the model and a line of loss.csv every `every` steps and at the end; then evaluate what was saved.

    The columns are the step, the tokens seen, the mean training loss since the last line, the loss on packed rows of
    validation documents (both in nats a token), and that loss in bits a character.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    corpus = build_corpus(seed=seed)
    texts = (document.text for document in corpus.train[::4])
    tokenizer = train_tokenizer(texts, vocab_size=VOCAB_SIZE, model_max_length=CONTEXT)
    tokenizer.save_pretrained(folder)
    rows, validation_rows = Rows(corpus.train, tokenizer), Rows(corpus.validation, tokenizer)
    characters = sum(len(document.text) for document in corpus.validation)
    bits_a_nat = len(validation_rows.token_ids) / characters / math.log(2)
    model = new_model()
    print(f"{model.num_parameters()} parameters, {len(rows.token_ids)} training tokens")

    optimizers = make_optimizers(model, schedule)
    losses: list[float] = []
    began = time.monotonic()
    with (folder / "loss.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["step", "tokens", "train_loss", "validation_loss", "bits_per_character"])
        for step in range(schedule.steps):
            token_ids = rows.draw(*schedule.rows(step), generator)
            losses.append(update_(model, optimizers, token_ids, lr_scale=schedule.lr_scale(step)))
            done = step + 1
            if done % every and done != schedule.steps:
                continue
            save(model, folder)
            mean, validation = sum(losses) / len(losses), validation_loss(model, validation_rows)
            losses.clear()
            row = (f"{mean:.4f}", f"{validation:.4f}", f"{validation * bits_a_nat:.4f}")
            table.writerow([done, done * schedule.tokens, *row])
            file.flush()
            seen, unseen = (sum(names_right(model, tokenizer, names)) for names in (SEEN_NAMES, HELD_OUT_NAMES))
            print(
                f"step {done} train {mean:.3f} validation {validation:.3f} records seen {seen}/{len(SEEN_NAMES)} "
                f"unseen {unseen}/{len(HELD_OUT_NAMES)} after {time.monotonic() - began:.0f} s",
                flush=True,
            )
    print(report(folder, seed=seed))
    (folder / "samples.md").write_text(samples(folder), encoding="utf-8")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--steps", type=int, default=6000, help="updates; the shipped model has the default")
    parser.add_argument("--seed", type=int, default=0, help="for the corpus, the weights and the order of the rows")
    parser.add_argument("--every", type=int, default=250, help="steps between lines of loss.csv")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    train(arguments.out, schedule=Schedule(steps=arguments.steps), seed=arguments.seed, every=arguments.every)


if __name__ == "__main__":
    main()
