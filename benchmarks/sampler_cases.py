"""What `benchmarks.samplers` compares: gen's samplers, the peers that do the same, and the logits that they get."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gen.samplers import BeamSearchSampler, GreedySampler, MultinomialSampler
from gen.samplers.parameters import Parameters

Cases = dict[str, Callable[[], object]]

TEMPERATURE, TOP_K, TOP_P, MIN_P, BEAMS = 0.8, 50, 0.9, 0.05, 4
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": TEMPERATURE},
    "top-k": {"top_k": TOP_K},
    "top-p": {"top_p": TOP_P},
    "min-p": {"min_p": MIN_P},
    "temperature, top-k, top-p": {"temperature": TEMPERATURE, "top_k": TOP_K, "top_p": TOP_P},
}
OUTLINES = Path(__file__).parents[1] / "build" / "outlines-0.0.46" / "outlines-0.0.46" / "outlines" / "samplers.py"


def make_logits(kind: str, batch: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """Logits (batch, vocab) on the CPU.

    Args:
        kind: "zipf" (as language has them: likelihoods fall with the rank to the power of 1.5), "flat" (standard
            normal, so that tens of thousands of tokens share the mass) or "demo" (the demo model's, after a prompt;
            the vocabulary is its own).
    """
    generator = torch.Generator().manual_seed(0)
    if kind == "demo":
        return _recorded(batch).to(dtype)
    normal = torch.randn(batch, vocab, generator=generator)
    if kind == "flat":
        return normal.to(dtype)
    ranks = torch.rand(batch, vocab, generator=generator).argsort(-1) + 1
    return (12 - 1.5 * ranks.float().log() + 0.1 * normal).to(dtype)


def _recorded(batch: int) -> Tensor:
    import gen

    model = gen.load("demo", device="cpu")
    text = "Once upon a time there was a small house by the river, and in it lived an old woman and her cat. " * 4
    token_ids = torch.tensor(model.tokenizer.encode(text))
    rows = []
    for row in range(batch):
        prompt = token_ids[: 2 + row % (len(token_ids) - 2)].tolist()
        rows.append(model.new_rows(1, len(prompt)).prefill(slice(0, 1), [prompt]))
    return torch.cat(rows)[:, : model.tokenizer.vocab_size].float()


def our_cases(logits: Tensor) -> Cases:
    """gen's samplers."""
    rows = len(logits)
    weights, keys = torch.zeros(rows), torch.arange(rows)
    cases: Cases = {
        "gen: greedy": _step(GreedySampler(), logits, weights, keys),
    }
    for name, settings in SETTINGS.items():
        cases[f"gen: {name}"] = _step(MultinomialSampler(**settings), logits, weights, keys)
        per_row: dict[str, Any] = {key: torch.full((rows,), value) for key, value in settings.items()}
        cases[f"gen, a value each row: {name}"] = _step(MultinomialSampler(**per_row), logits, weights, keys)
    if rows % BEAMS == 0:
        cases[f"gen: beam search, {BEAMS} beams"] = _step(BeamSearchSampler(BEAMS), logits, weights - 1, keys)
    return cases


def backend_cases(title: str, backend: Any, logits: Tensor) -> Cases:
    """One backend of the samplers, on the logits' device."""
    keys = torch.arange(len(logits), device=logits.device)
    cases: Cases = {f"{title}: greedy": lambda: backend.most_likely(logits)}
    for name, settings in SETTINGS.items():
        parameters = Parameters(**settings).for_rows(logits)
        cases[f"{title}: {name}"] = lambda parameters=parameters: backend.draw(logits, keys, *parameters)  # type: ignore[misc]
    return cases


def _step(sampler: Any, logits: Tensor, weights: Tensor, keys: Tensor) -> Callable[[], object]:
    return lambda: sampler.step(logits, weights, keys)


def transformers_cases(logits: Tensor) -> Cases:
    """transformers' processors and draw, as its `generate` runs them; without log-probabilities."""
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers: dict[str, Callable[[Any], Any]] = {
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
        "min_p": MinPLogitsWarper,
    }
    token_ids = torch.zeros((len(logits), 1), dtype=torch.int64)

    def case(settings: Mapping[str, Any]) -> Callable[[], object]:
        chain = [warpers[name](value) for name, value in settings.items()]

        def run() -> Tensor:
            scores = logits.to(copy=True, dtype=torch.float32)
            for warper in chain:
                scores = warper(token_ids, scores)
            return torch.multinomial(scores.softmax(-1), 1)

        return run

    return {f"transformers: {name}": case(settings) for name, settings in SETTINGS.items()}


def outlines_cases(logits: Tensor, file: Path = OUTLINES) -> Cases:
    """Outlines 0.0.46's samplers, if it is installed or `benchmarks.outlines.suite` has unpacked it; otherwise none."""
    outlines = _outlines(file)
    if outlines is None:
        return {}
    rows = len(logits)
    weights, rng = torch.zeros(rows), torch.Generator().manual_seed(0)

    def case(sampler: Any) -> Callable[[], object]:
        return lambda: sampler(logits, weights - 1, rng)

    cases = {"Outlines: greedy": case(outlines.GreedySampler())}
    for name in ("temperature", "top-k", "top-p"):
        cases[f"Outlines: {name}"] = case(outlines.MultinomialSampler(**SETTINGS[name]))
    if rows % BEAMS == 0:
        cases[f"Outlines: beam search, {BEAMS} beams"] = case(outlines.BeamSearchSampler(BEAMS))
    return cases


def _outlines(file: Path) -> ModuleType | None:
    try:
        return importlib.import_module("outlines.samplers")
    except ImportError:
        pass
    if not file.exists():
        return None
    spec = importlib.util.spec_from_file_location("outlines_samplers", file)  # it needs nothing but torch
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
