"""What the loop guarantees to its rows, and what it may cost.

Costs are counted, not timed: embedded tokens, bytes that torch's operators read and write, and bytes that exist at
once.
"""

import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gen
from gen.loop.options import Options
from gen.loop.runner import run_all
from gen.models.transformers.model import TransformersModel
from gen.samplers import Sampler, beam_search, greedy, multinomial
from tests.helpers import byte_tokenizer, tiny_model
from tests.loop.calls import new_jobs, run_in_rows

PROMPTS = ["to be or not", "x = [1, 2]", "ab"]
# bytes of a token in the small Llama's cache: layers, keys and values, heads, their width, float32
COLUMN = 2 * 2 * 2 * 8 * 4
StorageRef: Any = StorageWeakRef  # its methods have no types


class Cost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The cost of the operators in the block.

    Attributes:
        moved: bytes that they read and write; views cost nothing.
        peak: the most bytes of tensors made in the block that existed at once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved = self.peak = 0
        self._alive: dict[Any, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            given, made = (_tensors(tree) for tree in ((args, kwargs), out))
            self.moved += sum(tensor.nbytes for tensor in given + made)
            fresh = {StorageRef(tensor.untyped_storage()): tensor.untyped_storage().nbytes() for tensor in made}
            for tensor in given:
                fresh.pop(StorageRef(tensor.untyped_storage()), None)
            alive = {storage: size for storage, size in self._alive.items() if not storage.expired()}
            self._alive = alive | fresh
            self.peak = max(self.peak, sum(self._alive.values()))
        return out


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@contextmanager
def address_space(more: int) -> Iterator[None]:
    """In the block the process may take that many more bytes of memory than it has."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def small(shape: str = "llama", **changes: Any) -> TransformersModel:
    model = gen.from_transformers(tiny_model(shape, **changes), byte_tokenizer())
    assert isinstance(model, TransformersModel)
    return model


def late_token(model: Any, prompt: str, *others: str, first: int = 3) -> int:
    """A token of a prompt's greedy text that is not among its `first` ones, and that comes with no other prompt."""
    text, *rest = gen.generate(model, [prompt, *others], sampler=greedy(), max_new_tokens=24, details=True)
    seen = {*text.token_ids[:first], *(token for other in rest for token in other.token_ids)}
    seen |= {token for other in others for token in model.tokenizer.encode(other)} | {0}  # 0 pads
    found: int = next(token for token in text.token_ids if token not in seen)
    return found


class Resampler:
    """Two texts a prompt: the first takes the best token after its ancestor, the second takes the second best.

    Args:
        ancestors: for both rows of a prompt, which of the two rows each continues.
    """

    samples = 2
    penalties = None

    def __init__(self, ancestors: Sequence[int]) -> None:
        self.ancestors = torch.tensor(ancestors)

    def step(self, logits: Tensor, weights: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row = torch.arange(len(logits))
        ancestors = row // 2 * 2 + self.ancestors.repeat(len(logits) // 2)
        best = logits[ancestors].topk(2).indices
        return best.gather(1, (row % 2).unsqueeze(1)), ancestors, weights[ancestors]


@torch.no_grad()
def followed(model: TransformersModel, prompt: str, ancestors: Sequence[int], steps: int) -> list[list[int]]:
    """The new tokens of both texts of a `Resampler`, from forwards of whole texts without a cache."""
    prompt_ids = model.tokenizer.encode(prompt)
    texts: list[list[int]] = [[], []]
    for _ in range(steps):
        texts = [texts[ancestor] for ancestor in ancestors]
        logits = [model.hf_model(torch.tensor([prompt_ids + text])).logits[0, -1] for text in texts]
        known = [row[: model.tokenizer.vocab_size] for row in logits]
        texts = [
            [*text, int(row.topk(2).indices[place])] for place, (text, row) in enumerate(zip(texts, known, strict=True))
        ]
    return texts


@pytest.mark.parametrize(
    "ancestors",
    [
        pytest.param((0, 1), id="kept"),
        pytest.param((1, 0), id="swapped"),
        pytest.param((0, 0), id="first copied"),
        pytest.param((1, 1), id="second copied"),
    ],
)
def test_texts_follow_a_custom_samplers_ancestors(ancestors: tuple[int, int]) -> None:
    model = small()
    groups: Any = gen.generate(model, PROMPTS, sampler=Resampler(ancestors), max_new_tokens=6, details=True)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        assert [completion.token_ids for completion in group] == followed(model, prompt, ancestors, 6)


@pytest.mark.parametrize("shape", ["llama", "gpt2", "gemma3", "qwen3_5_text"])
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("sampler", [greedy(), multinomial(3), beam_search(2)])
def test_a_dead_row_is_filled_anew_without_a_trace(shape: str, sampler: Sampler) -> None:
    model = small(shape)
    prompts = ["x =" + " 1" * 20, "to be or not", "= nothing comes of this", "ab"]
    with torch.no_grad():
        model.hf_model.get_input_embeddings().weight[ord("=")] = torch.nan
    arguments: Any = {"sampler": sampler, "seed": 3, "max_new_tokens": 5, "logits_processors": [without_equals]}
    alone = [run_in_rows(model, [prompt], sampler.samples, **arguments)[0] for prompt in prompts[1::2]]
    for rows, admit_tokens in ((1, 4096), (1, 5), (2, 4096)):
        model.release()
        jobs = new_jobs(model, prompts, **arguments)
        run_all(model, jobs, Options(rows=rows * sampler.samples, admit_tokens=admit_tokens))
        assert [[one.text for one in job.completions()] for job in jobs[1::2]] == [
            [one.text for one in group] for group in alone
        ]
        for job in jobs[::2]:
            with pytest.raises(gen.SamplingError, match="no token was left"):
                job.completions()


def without_equals(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
    """Keep the deadly token from being chosen by itself."""
    return logits.index_fill(1, torch.tensor([ord("=")]), -torch.inf)


def test_memory_and_work_follow_the_tokens_made_not_the_limit() -> None:
    model = small(max_position_embeddings=4096)
    ending = late_token(model, "once upon", first=12)
    costs = []
    for limit in (24, 2048):
        with Cost() as cost:
            text = gen.generate(
                model, "once upon", sampler=greedy(), max_new_tokens=limit, eos_token_id=ending, details=True
            )
        assert text.finish_reason == "eos"
        costs.append(cost)
    assert costs[1].peak <= costs[0].peak + 512 * COLUMN  # room to grow in large steps
    assert costs[1].moved <= 2 * costs[0].moved


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds a process's address space")
def test_a_limit_of_a_billion_needs_no_memory() -> None:
    model = small("bloom")  # its context has no end
    ending = late_token(model, "once upon")
    expected = gen.generate(model, "once upon", sampler=greedy(), max_new_tokens=24, eos_token_id=ending)
    with address_space(more=2**29):
        text = gen.generate(model, "once upon", sampler=greedy(), max_new_tokens=10**9, eos_token_id=ending)
    assert text == expected


LONG, SHORT = "x y " * 150, [f"short {number}" for number in range(30)]


def test_a_long_prompt_among_short_ones_reads_and_costs_no_more_than_split_by_hand() -> None:
    model = small(max_position_embeddings=1024)
    counts: list[int] = []
    model.hf_model.get_input_embeddings().register_forward_pre_hook(
        lambda module, given: counts.append(given[0].numel())
    )
    read, moved = [], []
    for prompts in ([LONG, *SHORT], [LONG], SHORT):
        counts.clear()
        with Cost() as cost:
            gen.generate(model, prompts, sampler=greedy(), max_new_tokens=8, speculate=False)
        read.append(sum(counts))
        moved.append(cost.moved)
    for together, *apart in (read, moved):
        assert together <= 1.1 * sum(apart)
