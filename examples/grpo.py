"""Teach the demo model a form of answers by GRPO, without a constraint: one short sentence that ends.

    pip install '.[trl]'
    python examples/grpo.py

A reward says how near each text is to the form: a sentence of at most eight words, with a full stop, after which the
text ends. `gen` writes the rollouts with the trainer's own model. It takes less than two minutes on a CPU, and prints
the share of texts in that form before and after.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gen
from gen.integrations.trl import Rollouts

PROMPTS = ["Once upon a time", "One morning", "Tom said:", "The old house", "In the garden", "A small bird"]
PROMPTS += ["Every day", "It was late"]
TOKENS, WORDS, STEPS = 40, 8, 20


def reward(completions: list[str], **_: Any) -> list[float]:
    """1 for the form; less for each word and each sentence too many."""
    found = []
    for text in completions:
        sentences = max(1, len(re.findall(r"[.!?\n]", text)))
        too_many = 0.1 * max(0, len(text.split()) - WORDS) + 0.2 * (sentences - 1)
        found.append(text.rstrip().endswith(".") - too_many)
    return found


def share(model: Any) -> float:
    """The share of texts in the form."""
    sampler = gen.samplers.multinomial(8)
    texts: Any = gen.generate(model, PROMPTS, sampler=sampler, seed=1, max_new_tokens=TOKENS, details=True)
    made = [one for of_prompt in texts for one in of_prompt]
    fit = [one.finish_reason == "eos" and len(one.text.split()) <= WORDS and one.text.count(".") == 1 for one in made]
    return fit.count(True) / len(fit)


def main() -> None:
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    torch.manual_seed(0)
    before = share(gen.load("demo"))
    demo = Path(gen.__file__).parent / "models" / "demo"
    hf_model, tokenizer = AutoModelForCausalLM.from_pretrained(demo), AutoTokenizer.from_pretrained(demo)
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=32,
            num_generations=8,
            max_completion_length=TOKENS,
            learning_rate=5e-3,
            lr_scheduler_type="constant",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            hf_model,
            reward,
            args,
            Dataset.from_dict({"prompt": PROMPTS * 8}),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
            rollout_func=Rollouts(),
        )
        trainer.train()
    after = share(gen.from_transformers(trainer.model.eval(), tokenizer))
    print(f"texts in the form: {before:.0%} before, {after:.0%} after")


if __name__ == "__main__":
    main()
