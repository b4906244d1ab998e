"""Exported programs that the tests share: tiny language models, and one with a device baked in at every place."""

import io
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.node import map_aggregate
from transformers import PreTrainedModel

from tests.helpers import tiny_model

LONGEST = 64
PROMPTS = ["a", "to be or not to be", "x = [1, 2, 3]", "über, ja"]


class Logits(nn.Module):
    """A transformers model in a form for export: tensors in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        ).logits
        return logits


class Everything(nn.Module):
    """A causal language model that holds tensors in every possible way; its head is tied to its embedding."""

    def __init__(self, vocab_size: int = 300, hidden: int = 16) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding = nn.Embedding(vocab_size, hidden)
        self.head = nn.Linear(hidden, vocab_size, bias=False)
        self.embedding.weight = nn.Parameter(torch.randn(vocab_size, hidden, generator=generator))
        self.head.weight = self.embedding.weight
        self.register_buffer("kept", torch.randn(hidden, generator=generator))
        self.register_buffer("not_kept", torch.randn(hidden, generator=generator), persistent=False)
        self.constant = torch.randn(hidden, generator=generator)

    def forward(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        hidden = self.embedding(input_ids) + self.get_buffer("kept") + self.get_buffer("not_kept") + self.constant
        hidden = hidden * torch.tensor([1.0, -1.0] * 8)  # a literal
        hidden = hidden + torch.arange(length, device=input_ids.device)[:, None] * 0.1
        seen = torch.ones(length, length, dtype=torch.bool, device=torch.device("cpu")).tril()
        hidden = hidden + nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, attn_mask=seen)
        logits: Tensor = self.head(hidden)
        return logits


class Bigrams(nn.Module):
    """The smallest language model, since an export takes as long as there are operations: a token decides the next."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.following = nn.Embedding(300, 300)
        self.following.weight = nn.Parameter(torch.randn(300, 300, generator=generator))

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.following(input_ids)
        return logits


class Positioned(nn.Module):
    """Attention of one head between tokens and their positions."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embedding, self.places = nn.Embedding(300, 16), nn.Embedding(LONGEST, 16)
        for part in (self.embedding, self.places):
            part.weight = nn.Parameter(torch.randn(part.weight.shape, generator=generator))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        hidden = self.embedding(input_ids) + self.places(position_ids)
        seen = torch.ones(length, length, dtype=torch.bool).tril() & attention_mask.bool()[:, None]
        hidden = hidden + nn.functional.scaled_dot_product_attention(hidden, hidden, hidden, attn_mask=seen)
        return nn.functional.linear(hidden, self.embedding.weight)

    @torch.inference_mode()
    def likeliest(self, prompt_ids: Sequence[int], new_tokens: int, known: int = 259) -> list[int]:
        """The likeliest tokens below `known` after a prompt alone, with a forward of the whole text for every token."""
        token_ids = list(prompt_ids)
        for _ in range(new_tokens):
            given = torch.tensor([token_ids])
            logits = self(given, torch.ones_like(given), torch.arange(len(token_ids))[None])
            token_ids.append(int(logits[0, -1, :known].argmax()))
        return token_ids[len(prompt_ids) :]


def dynamic(names: tuple[str, ...] = ("input_ids",)) -> dict[str, Any]:
    batch, length = Dim("batch", min=1, max=64), Dim("length", min=1, max=LONGEST)
    return {name: {0: batch, 1: length} for name in names}


def ids(rows: int, length: int) -> Tensor:
    return torch.zeros((rows, length), dtype=torch.int64)


@cache
def exported(shape: str = "one layer") -> ExportedProgram:
    """A tiny transformers model with a dynamic batch and length."""
    arguments = (ids(2, 5), torch.ones_like(ids(2, 5)), torch.arange(5).expand(2, -1))
    options: dict[str, Any] = {"dynamic_shapes": dynamic(("input_ids", "attention_mask", "position_ids"))}
    options |= {"prefer_deferred_runtime_asserts_over_guards": True}  # for torch 2.10 and 2.11
    return program_of(Logits(one_layer(shape)), *arguments, **options)


def one_layer(shape: str = "one layer") -> PreTrainedModel:
    """A tiny transformers model of one layer, since an export takes as long as the model is deep."""
    layers: dict[str, Any] = {"n_layer": 1} if shape == "gpt2" else {"num_hidden_layers": 1}
    return tiny_model(shape, **layers)


@cache
def of_everything() -> ExportedProgram:
    """`Everything` with a dynamic batch and length; shared, so that it stays as it is."""
    return program_of(Everything())


def program_of(model: nn.Module, *arguments: Tensor, **options: Any) -> ExportedProgram:
    """A program with a dynamic batch and length, or with the options given."""
    options = options or {"dynamic_shapes": dynamic()}
    with torch.no_grad():
        return torch.export.export(model.eval(), arguments or (ids(2, 5),), **options)


def written_on(program: ExportedProgram, device: str) -> ExportedProgram:
    """A copy like an export on that device: every device in the graph has its name."""

    def leaf(value: Any) -> Any:
        return torch.device(device) if isinstance(value, torch.device) else value

    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")  # torch before 2.12 reads weights so
        copied = torch.export.load(file)
    for node in copied.graph.nodes:
        node.args, node.kwargs = map_aggregate(node.args, leaf), map_aggregate(node.kwargs, leaf)
    return copied


def devices_in_code(module: torch.fx.GraphModule) -> set[str]:
    """Every device that is written in a graph and its subgraphs."""
    found: list[str] = []
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                map_aggregate(
                    (node.args, node.kwargs),
                    lambda value: found.append(str(value)) if isinstance(value, torch.device) else None,
                )
    return set(found)


def devices_of_tensors(module: nn.Module) -> set[str]:
    """Every device that a parameter, buffer or attribute is on."""
    values = [v for part in module.modules() for d in (part._parameters, part._buffers, vars(part)) for v in d.values()]
    return {str(value.device) for value in values if isinstance(value, Tensor)}
