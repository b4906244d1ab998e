"""Exports the demo model with torch.export, and runs the program: it gives the same text without the model's code.

    python examples/export_demo.py [MODEL [FILE]]

MODEL is a directory in Hugging Face format, FILE the program's file.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from transformers import AutoTokenizer

import gen

DEMO = Path(gen.__file__).parent / "models" / "demo"
PROMPT = "Once upon a time"


class Logits(nn.Module):
    """The model as a program: tensors in, logits out, and no cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        output = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        )
        logits: Tensor = output.logits
        return logits


def export(model: nn.Module, longest: int) -> ExportedProgram:
    """A program for batches of up to 256 texts of up to `longest` tokens."""
    token_ids = torch.zeros((2, 8), dtype=torch.int64)
    positions = torch.arange(8).expand(2, 8)
    dynamic = {0: Dim("batch", min=1, max=256), 1: Dim("length", min=1, max=longest)}
    shapes = {name: dynamic for name in ("input_ids", "attention_mask", "position_ids")}
    with torch.no_grad():
        return torch.export.export(
            Logits(model),
            (token_ids, torch.ones_like(token_ids), positions),
            dynamic_shapes=shapes,
            prefer_deferred_runtime_asserts_over_guards=True,  # torch 2.10 and 2.11 refuse heads that share keys else
        )


def main(source: Path = DEMO, file: Path = Path("demo.pt2")) -> None:
    model = gen.load(source, device="cpu", dtype="float32")
    torch.export.save(export(model.hf_model, model.context_length), file)
    program = gen.from_exported(file, AutoTokenizer.from_pretrained(source), eos_token_id=model.eos_token_ids)
    text = gen.generate(program, PROMPT, seed=7, max_new_tokens=48)
    print(f"{file} on {program.placement}\n\n{PROMPT}{text}\n")
    same = text == gen.generate(model, PROMPT, seed=7, max_new_tokens=48)
    print("the same text as the model's own" if same else "another text than the model's own")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
