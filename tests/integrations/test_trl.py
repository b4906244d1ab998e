"""GRPO of TRL with rollouts of gen, in one process; the oracle of log-probabilities is the trainer's own forward."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from tests.helpers import byte_tokenizer, tiny_model

datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install 'gen-torch[trl]'")
trl = pytest.importorskip("trl", reason="trl is not installed: pip install 'gen-torch[trl]'")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
PROMPTS = ["hello", "to be or not to be", "x = [1", "a"]


def trained(rollouts: Any, folder: Path, reward: Any, steps: int = 3, **arguments: Any) -> Any:
    """A trainer of LoRA on a tiny model, after some steps."""
    tokenizer = byte_tokenizer()
    args = trl.GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        learning_rate=0.05,
        use_cpu=True,
        gradient_checkpointing=False,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **arguments,
    )
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
    model = tiny_model()
    model.resize_token_embeddings(len(tokenizer))  # else the trainer's softmax has ids that are no tokens
    trainer = trl.GRPOTrainer(
        model,
        reward,
        args,
        datasets.Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer,
        peft_config=lora,
        rollout_func=rollouts,
    )
    trainer.train()
    return trainer


def forward_logprobs(trainer: Any, found: dict[str, Any], number: int) -> torch.Tensor:
    """What the trainer's own forward gives for a text, in evaluation mode."""
    prompt_ids, completion_ids = found["prompt_ids"][number], found["completion_ids"][number]
    token_ids = torch.tensor([[*prompt_ids, *completion_ids]])
    trainer.model.eval()
    with torch.no_grad():
        logprobs = trainer._get_per_token_logps_and_entropies(
            trainer.model, token_ids, torch.ones_like(token_ids), len(completion_ids)
        )[0]
    trainer.model.train()
    return torch.as_tensor(logprobs[0])


def test_logprobs_are_those_of_the_trainers_forward_after_each_step(tmp_path: Path) -> None:
    from gen.integrations.trl import Rollouts

    worst, seen = [], list[Any]()

    class Watched(Rollouts):
        def __call__(self, prompts: Any, trainer: Any) -> Any:
            found = super().__call__(prompts, trainer)
            assert trainer.model.training
            for number, logprobs in enumerate(found["logprobs"]):
                own = forward_logprobs(trainer, found, number)
                worst.append(float((own - torch.tensor(logprobs)).abs().max()))
            seen.append((prompts, found["completion_ids"]))
            return found

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [float(text.count("e")) for text in completions]

    trainer = trained(Watched(), tmp_path, reward)
    weights = dict(trainer.model.named_parameters())
    assert any("lora_B" in name and one.abs().max() > 0.01 for name, one in weights.items())  # steps have changed it
    assert len(worst) == 3 * 8 and max(worst) < 1e-5
    for prompts, completions in seen:  # samples of one prompt are others
        assert len(prompts) == 8 and len({*map(tuple, completions)}) == 8
    again = list[Any]()

    class Noted(Rollouts):
        def __call__(self, prompts: Any, trainer: Any) -> Any:
            found = super().__call__(prompts, trainer)
            again.append((prompts, found["completion_ids"]))
            return found

    trained(Noted(), tmp_path, reward)
    assert again == seen  # seeds follow from the trainer's


def test_constrained_rollouts_keep_to_the_type_and_give_values(tmp_path: Path) -> None:
    import gen
    from gen.integrations.trl import Rollouts

    texts, values = list[str](), list[Any]()

    def reward(completions: list[str], **given: Any) -> list[float]:
        texts.extend(completions)
        values.extend(given["values"])
        return [float(value == "yes") for value in given["values"]]

    trained(Rollouts(gen.choice(["yes", "no"])), tmp_path, reward, steps=2, temperature=0.9)
    assert len(texts) == 16 and all(re.fullmatch("yes|no", text) for text in texts) and values == texts
    assert {"yes", "no"} == {*texts}
