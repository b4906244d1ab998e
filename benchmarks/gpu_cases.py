"""What `benchmarks.gpu` measures in processes of its own: decode steps, and samplers by themselves.

    python -m benchmarks.gpu_cases decode --device cuda:0 --json decode.json
    python -m benchmarks.gpu_cases samplers --device cuda:0 --json samplers.json

A decode step is compared with the time that it takes to read the model's weights once, at the speed at which this
device copies memory; nothing decodes faster with one prompt. Samplers are compared with torch.argmax, and the tokens of
both backends with each other.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import gen
from benchmarks.measuring import interleave, markdown_table, ratio, spread, write_json
from benchmarks.programs import some_prompts, theirs
from benchmarks.random_model import Shape, random_model
from benchmarks.sampler_cases import SETTINGS, backend_cases, make_logits
from gen.models.transformers.model import TransformersModel
from gen.samplers.backends import torch_backend
from gen.samplers.parameters import Parameters

Row = dict[str, Any]
RANDOM: dict[str, Shape] = {"135m": "135m", "1b": "1b"}  # in bfloat16
MODELS = ("demo", *RANDOM)
SHAPES = ((1, 131_072, "float32"), (8, 131_072, "float32"), (64, 131_072, "float32"), (256, 151_936, "bfloat16"))
VOCABULARY = 49_152  # of the random models
COPIED = 2**30  # bytes that are copied to see how fast memory is


def decode(
    device: torch.device, models: Sequence[str], sizes: Sequence[int], new_tokens: int, rounds: int
) -> Iterator[Row]:
    """A row for each model, batch size and program: gen with graphs, gen without, and transformers."""
    speed = bandwidth(device, COPIED)
    for name in models:
        model = _load(name, device)
        weights = sum(parameter.nbytes for parameter in model.hf_model.parameters())
        for batch in sizes:
            prompts = some_prompts(batch)
            cases = {
                "gen": _ours(model, prompts, new_tokens, cuda_graph=True),
                "gen without graphs": _ours(model, prompts, new_tokens, cuda_graph=False),
                "transformers": theirs(model, prompts, new_tokens, do_sample=True, top_k=0),
            }
            seconds = interleave(cases, rounds)
            for program, times in seconds.items():
                measured = spread([1000 * one / new_tokens for one in times])
                read = 1000 * weights / speed
                yield {
                    "model": name,
                    "dtype": str(model.placement.dtype).removeprefix("torch."),
                    "batch": batch,
                    "program": program,
                    "ms/step": round(measured.median, 4),
                    "from": round(measured.fastest, 4),
                    "to": round(measured.slowest, 4),
                    "tokens/s": round(1000 * batch / measured.median),
                    "time / transformers": round(ratio(times, seconds["transformers"]), 3),
                    "weights in MB": round(weights / 1e6, 1),
                    "copied in GB/s": round(speed / 1e9, 1),
                    "ms to read": round(read, 4),
                    "time / read": round(measured.median / read, 2),
                }
        model.release()


def samplers(device: torch.device, shapes: Sequence[tuple[int, int, str]], repeats: int) -> Iterator[Row]:
    """A row for each shape and case; a case that fails has its error instead of a time."""
    for batch, vocabulary, dtype in shapes:
        logits = make_logits("zipf", batch, vocabulary, getattr(torch, dtype)).to(device)
        cases: dict[str, Callable[[], object]] = {"torch.argmax": lambda logits=logits: torch.argmax(logits, -1)}  # type: ignore[misc]
        cases |= backend_cases("torch backend", torch_backend, logits)
        if device.type == "cuda":
            try:
                from gen.samplers.backends import triton_backend
            except ImportError as error:
                yield {"logits": _shape(batch, vocabulary, dtype), "case": "Triton", "error": str(error)}
            else:
                cases |= backend_cases("Triton", triton_backend, logits)
                yield from _agreement(triton_backend, logits, _shape(batch, vocabulary, dtype))
        for name, case in cases.items():
            row: Row = {"logits": _shape(batch, vocabulary, dtype), "case": name}
            try:
                with torch.inference_mode():
                    yield row | {"us": round(1e6 * seconds_of(case, device, repeats), 2)}
            except Exception as error:  # a kernel that does not compile or run says so in the report
                yield row | {"error": f"{type(error).__name__}: {error}"[:300]}


def _agreement(backend: Any, logits: Tensor, shape: str) -> Iterator[Row]:
    """The share of rows in which a backend's tokens are the torch backend's."""
    keys = torch.arange(len(logits), device=logits.device)
    for name, settings in SETTINGS.items():
        row: Row = {"logits": shape, "case": f"Triton as torch: {name}"}
        parameters = Parameters(**settings).for_rows(logits)
        try:
            found, expected = (one.draw(logits, keys, *parameters)[0] for one in (backend, torch_backend))
            yield row | {"equal": float((found == expected).double().mean())}
        except Exception as error:
            yield row | {"error": f"{type(error).__name__}: {error}"[:300]}


def seconds_of(case: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median time of a case, each of 5 times the mean of some calls in a row, after as many to warm up."""
    times = []
    for _ in range(6):
        _wait(device)
        begin = time.perf_counter()
        for _ in range(repeats):
            case()
        _wait(device)
        times.append((time.perf_counter() - begin) / repeats)
    return median(times[1:])


def bandwidth(device: torch.device, size: int) -> float:
    """Bytes a second that are read and written when memory is copied."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device, repeats=5)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _load(name: str, device: torch.device) -> TransformersModel:
    if name in RANDOM:
        return random_model(VOCABULARY, RANDOM[name], device=device, dtype=torch.bfloat16)
    model = gen.load(name, device=device)
    assert isinstance(model, TransformersModel)  # tells mypy
    return model


def _ours(model: TransformersModel, prompts: list[str], new_tokens: int, *, cuda_graph: bool) -> Callable[[], object]:
    seeds = list(range(len(prompts)))
    return lambda: gen.generate(
        model,
        prompts,
        sampler=gen.samplers.multinomial(),
        max_new_tokens=new_tokens,
        seed=seeds,
        eos_token_id=[],
        cuda_graph=cuda_graph,
    )


def _shape(batch: int, vocabulary: int, dtype: str) -> str:
    return f"{batch} x {vocabulary} {dtype}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decode", "samplers"])
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda:0"))
    parser.add_argument("--models", nargs="+", default=list(MODELS), help=f"of {', '.join(MODELS)}, or a path")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab", type=int, help="instead of the usual shapes: 8 rows of so many float32 logits")
    parser.add_argument("--json", type=Path, help="write the rows there")
    given = parser.parse_args()
    shapes = SHAPES if given.vocab is None else ((8, given.vocab, "float32"),)
    if given.what == "decode":
        made = decode(given.device, given.models, given.batch, given.new_tokens, given.rounds)
    else:
        made = samplers(given.device, shapes, repeats=20)
    rows: list[Row] = []
    for row in made:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if given.json:
            write_json(given.json, rows)  # whatever comes
    if given.what == "decode":
        print(markdown_table(rows))


if __name__ == "__main__":
    main()
