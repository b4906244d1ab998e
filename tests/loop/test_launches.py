"""How many kernels and copies a step, or a sampler alone, launches beside the model's own, counted on virtual GPUs.

On a GPU each takes the host some microseconds: without CUDA graphs that is most of a small model's step.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import gen
from gen.loop.decoder import Decoder
from gen.loop.searches.drawing import Drawing
from gen.loop.speculation.widths import Widths
from gen.models.transformers.model import TransformersModel
from gen.samplers import BeamSearchSampler
from gen.stages.device_constraints import DeviceConstraints
from tests.helpers import byte_tokenizer, tiny_model
from tests.launches import launches
from virtual_gpus import virtual_gpus, virtual_tensor


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
        (gen.samplers.multinomial(temperature=0.8), 7, 31),
        (gen.samplers.multinomial(temperature=0.8, top_k=50, top_p=0.9), 7, 40),
        (gen.samplers.beam_search(4), 24, 21),
        (gen.samplers.beam_search(4, early_stopping=True, length_penalty=0.5), 25, 21),
        (gen.samplers.beam_search(2, early_stopping="never", length_penalty=0.5), 25, 21),
        (gen.samplers.beam_search(4, repetition_penalty=1.2), 42, 10),
    ],
    ids=[
        "greedy",
        "temperature",
        "cuts",
        "beams",
        "beams that stop early",
        "beams to the limit",
        "beams with a penalty",
    ],
)
@pytest.mark.parametrize("layers", [1, 3])
def test_a_step_launches_little_beside_the_model(
    layers: int, sampler: Any, own: int, sampling: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with virtual_gpus(1):
        counts = _counts_of_a_step(sampler, layers, monkeypatch)
    assert 0 < counts["step"] <= own
    assert 0 < counts["sampler"] <= sampling
    assert counts["send"] == 2  # one to a slot on the device, one from there to the host


@pytest.mark.parametrize(
    ("typed", "prompt", "walks"),
    [(False, True, 0), (True, True, 8), (True, False, 1)],  # one for each place whose token may not be forced
    ids=["text", "typed", "forced alone"],
)
def test_a_wide_step_launches_little_more_than_a_plain_one_that_looks_for_drafts_too(
    typed: bool, prompt: bool, walks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {}
    for width in (1, 8):
        with monkeypatch.context() as patch, virtual_gpus(1):
            patch.setattr(Widths, "choose", lambda self, count, texts, width=width: width)
            counts[width] = _counts_of_a_step(
                gen.samplers.greedy(), 2, patch, width, typed=typed, speculate=gen.Speculation(prompt=prompt)
            )
        del counts[width]["model"]
    assert counts[8].pop("walks", 0) == walks
    counts[1].pop("walks", 0)
    assert 0 < sum(counts[8].values()) <= 2 * sum(counts[1].values())


def _counts_of_a_step(
    sampler: Any, layers: int, monkeypatch: pytest.MonkeyPatch, width: int = 1, *, typed: bool = False, **settings: Any
) -> dict[str, int]:
    """The launches of a call's last step that reads `width` tokens, and how often a type's automaton is walked."""
    counter, step, found = Counter(monkeypatch), Decoder.step, dict[str, int]()
    for name in ("forward", "forward_all"):
        monkeypatch.setattr(TransformersModel, name, counter.watch("model", getattr(TransformersModel, name)))
    monkeypatch.setattr(Drawing, "_draw", counter.watch("sampler", Drawing._draw))
    monkeypatch.setattr(BeamSearchSampler, "candidates", counter.watch("sampler", BeamSearchSampler.candidates))
    monkeypatch.setattr(Decoder, "send", counter.watch("send", Decoder.send))
    walk = DeviceConstraints._walk

    def walking(self: DeviceConstraints, *args: Any) -> Any:
        counter.counts["walks"] = counter.counts.get("walks", 0) + 1
        return walk(self, *args)

    def stepping(rows: Decoder, count: int, view: int, own_width: int = 1) -> None:
        counter.counts = found if own_width == width else {}
        counter.counts.clear()
        counter.watch("step", step)(rows, count, view, own_width)

    monkeypatch.setattr(DeviceConstraints, "_walk", walking)
    monkeypatch.setattr(Decoder, "step", stepping)
    model = gen.from_transformers(
        tiny_model(num_hidden_layers=layers).to("cuda"), byte_tokenizer(), probe="speculate" in settings
    )
    output_type = gen.regex("(ab|cd){9,12}, [0-9]{3}") if typed else None
    settings |= {"cuda_graph": False} | ({} if typed else {"eos_token_id": [1, 2, 3]})
    limit = 3 if width == 1 and not settings.get("speculate") else 60
    gen.generate(model, ["ab", "c"], output_type, sampler=sampler, max_new_tokens=limit, **settings)
    return found
