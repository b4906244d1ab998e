"""How many kernels and copies a step launches beside the model's own, counted on virtual GPUs, and a sampler by itself.

On a GPU each takes the host some microseconds: without CUDA graphs that is most of a small model's step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gen
from gen.loop.row_set import RowSet
from gen.loop.searches.drawing import Drawing
from gen.models.transformers.model import TransformersModel
from gen.samplers import BeamSearchSampler
from gen.samplers.backends import choosing, torch_backend
from gen.samplers.parameters import Parameters
from gen.testing import virtual_gpus
from gen.testing.tensors import virtual_tensor
from tests.helpers import byte_tokenizer, tiny_model
from tests.helpers.launches import launches


class Counter:
    """Counts launches on virtual GPUs by what they are for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: dict[str, int] = {}
        self._for = ["nothing"]
        operator = virtual_tensor.handlers.operator

        def counting(func: Any, args: Any, kwargs: Any) -> Any:
            self.counts[self._for[-1]] = self.counts.get(self._for[-1], 0) + launches(func)
            return operator(func, args, kwargs)

        monkeypatch.setattr(virtual_tensor.handlers, "operator", counting)

    @contextmanager
    def counted(self, name: str) -> Iterator[None]:
        self._for.append(name)
        try:
            yield
        finally:
            self._for.pop()

    def watch(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.counted(name):
                return function(*args, **kwargs)

        return run


@pytest.mark.parametrize(
    ("sampler", "own", "sampling"),
    [
        (gen.samplers.greedy(), 6, 12),
        (gen.samplers.multinomial(temperature=0.8, top_k=50, top_p=0.9), 7, 40),
        (gen.samplers.beam_search(4), 24, 20),
        (gen.samplers.beam_search(4, early_stopping=True, length_penalty=0.5), 25, 20),
        (gen.samplers.beam_search(2, early_stopping="never", length_penalty=0.5), 25, 20),
    ],
    ids=["greedy", "cuts", "beams", "beams that stop early", "beams to the limit"],
)
@pytest.mark.parametrize("layers", [1, 3])
def test_a_step_launches_little_beside_the_model(
    layers: int, sampler: Any, own: int, sampling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with virtual_gpus(1):
        counts = _counts_of_a_step(sampler, layers, monkeypatch)
    assert 0 < counts["step"] <= own
    assert 0 < counts["sampler"] <= sampling
    assert counts["send"] == 2  # to a slot on the device, and from there to the host


def _counts_of_a_step(sampler: Any, layers: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The launches of the last step of a call."""
    counter, step = Counter(monkeypatch), RowSet.step
    monkeypatch.setattr(TransformersModel, "forward", counter.watch("model", TransformersModel.forward))
    monkeypatch.setattr(Drawing, "_draw", counter.watch("sampler", Drawing._draw))
    monkeypatch.setattr(BeamSearchSampler, "candidates", counter.watch("sampler", BeamSearchSampler.candidates))
    monkeypatch.setattr(RowSet, "send", counter.watch("send", RowSet.send))

    def stepping(rows: RowSet, count: int, view: int, width: int = 1) -> Any:
        counter.counts.clear()
        return counter.watch("step", step(rows, count, view, width))

    monkeypatch.setattr(RowSet, "step", stepping)
    model = gen.from_transformers(tiny_model(num_hidden_layers=layers).to("cuda"), byte_tokenizer(), probe=False)
    gen.generate(model, ["ab", "c"], sampler=sampler, max_new_tokens=3, eos_token_id=[1, 2, 3])
    return counter.counts


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what would be launched if these tensors were on a GPU; what has no dimension there is on the CPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        self.count += launches(func) and not (given and all(one.dim() == 0 for one in given))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("settings", "most"),
    [({"temperature": 0}, 12), ({"temperature": 0.8}, 31), ({"temperature": 0.8, "top_k": 50, "top_p": 0.9}, 40)],
)
def test_the_torch_sampler_takes_few_launches(
    settings: dict[str, Any], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "_backend", lambda logits: torch_backend)
    logits, keys, parameters = torch.randn(2, 1000), torch.arange(2), Parameters(**settings)
    for _ in range(2):  # what is made once is made in the first step
        with Launches() as launched:
            choosing.draw(logits, keys, parameters)
    assert 0 < launched.count <= most
