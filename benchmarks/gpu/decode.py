"""Decode steps of random Llamas over caches of prompts that were not read, and samplers by themselves.

A step is the loop's own, greedy, with its ring: as a CUDA graph, and without. transformers' is a forward over its
dynamic cache and an argmax. Each is compared with the time that it takes to read weights and caches once, at the speed
at which this device copies memory.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

import gen
from benchmarks.gpu.reporting import Given, has_room, read
from benchmarks.gpu.running import environment
from benchmarks.measuring import for_cache
from benchmarks.random_model import Shape, random_model
from benchmarks.sampler_cases import SETTINGS, backend_cases, make_logits
from gen.devices import native_cuda
from gen.loop.decoder import Decoder
from gen.loop.replay.recorded import Recorded
from gen.loop.searches.by_sampler import kind_of_search
from gen.models.transformers.model import TransformersModel
from gen.requests.request import Request
from gen.runtime.streams import Streams
from gen.samplers.backends import torch_backend
from gen.samplers.parameters import Parameters

CASES = ((1, 100), (8, 100), (32, 100), (256, 100), (1, 4096), (32, 4096), (1, 32_768), (8, 32_768))
WITHOUT_CUDNN = (32, 4096)  # is measured again with cuDNN's attention as the last choice
LOGITS = ((1, 131_072, "float32"), (8, 131_072, "float32"), (64, 131_072, "float32"), (256, 151_936, "bfloat16"))
VOCABULARY, CONTEXT, COPIED = 49_152, 65_536, 2**30  # COPIED: bytes that are copied to measure the memory's speed
CUDNN_LAST = "TORCH_CUDNN_SDPA_DEPRIORITIZED"  # set, it makes cuDNN's attention the last choice
_NEW = 64  # how many columns are free beside the full ones


def main() -> int:
    given = read(__doc__)
    report, small = given.report, given.small
    report.add("bytes copied a second", lambda: bandwidth(given.device, 2**16 if small else COPIED))
    speed = report.found["bytes copied a second"]
    if CUDNN_LAST in os.environ:
        measure(given, "tiny" if small else "135m", [WITHOUT_CUDNN], speed)
        return report.failed
    shapes: tuple[Shape, ...] = ("tiny",) if small else ("135m", "1b")
    for shape in shapes:
        measure(given, shape, CASES, speed)
    report.add("135m: 32 x 4096, cuDNN last", lambda: without_cudnn(given))
    for sizes in ((2, 300, "float32"),) if small else LOGITS:
        label = "{} x {} {}".format(*sizes)
        report.add(f"samplers: {label}", lambda: samplers(given, *sizes))  # noqa: B023
    return report.failed


def measure(given: Given, shape: Shape, cases: Sequence[tuple[int, int]], speed: float) -> None:
    """Measure all cases of one model, which is freed afterwards."""
    vocabulary = 300 if given.small else VOCABULARY
    model = random_model(vocabulary, shape, device=given.device, dtype=torch.bfloat16, context=CONTEXT)
    for rows, columns in ((1, 40),) if given.small else cases:
        name = f"{shape}: {rows} x {columns}"
        given.report.add(name, lambda rows=rows, columns=columns: case(given, model, rows, columns, speed))  # type: ignore[misc]


def case(given: Given, model: TransformersModel, rows: int, columns: int, speed: float) -> dict[str, Any]:
    """Milliseconds a step."""
    config = model.hf_model.config
    token = 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    if not has_room(token * rows * (columns + _NEW), given.device):
        return {"left out": f"a cache of {token * rows * (columns + _NEW) / 1e9:.1f} GB is over half of what is free"}
    weights = sum(parameter.nbytes for parameter in model.hf_model.parameters())
    made: dict[str, Any] = {"ms to read": round(1000 * (weights + token * rows * columns) / speed, 4)}
    repeats = 2 if given.small else 16
    for name, program in (
        ("gen", lambda: own_steps(model, rows, columns, repeats, cuda_graph=True)),
        ("gen without graphs", lambda: own_steps(model, rows, columns, repeats, cuda_graph=False)),
        ("transformers", lambda: their_steps(model, rows, columns, repeats)),
    ):
        made[name] = given.report.tried(lambda program=program: round(1000 * program(), 4))  # type: ignore[misc]
        torch.cuda.empty_cache()
    return made


def own_steps(model: TransformersModel, rows: int, columns: int, repeats: int, *, cuda_graph: bool) -> float:
    """Seconds of a step of the loop."""
    kind, sampler = kind_of_search(gen.samplers.greedy()), gen.samplers.greedy()
    streams = Streams(model.placement)
    with streams.current():
        made = Decoder(model, rows, columns + _NEW, kind.key, kind.search, [], streams)
        made.begin()
        requests = [Request(prompt_ids=[3], sampler=sampler, seeds=(row,), limit=_NEW) for row in range(rows)]
        made.fill(slice(0, rows), requests, [[3]] * rows)
        for _, tensor, _ in made.rows.parts():
            if tensor.is_floating_point():
                tensor.normal_()
            else:
                tensor.fill_(columns)  # the columns, and the positions
        steps = Recorded(made)
        steps.begin(model, replay=False, cuda_graph=cuda_graph)
        steps.check_model(model)

        def step() -> None:
            steps.run(rows, columns + _NEW)
            made.send()

        for _ in range(10):  # these capture it
            step()
        if cuda_graph and not steps.recordings:
            raise RuntimeError(f"the step was not captured: {[*steps.refused.values()]}")
        return seconds_of(step, model.placement.logits_device, repeats, rounds=3)


def their_steps(model: TransformersModel, rows: int, columns: int, repeats: int) -> float:
    """Seconds of a forward of transformers' and an argmax."""
    from transformers import DynamicCache

    config, device = model.hf_model.config, model.placement.input_device
    cache = DynamicCache(config=config)
    sizes = (rows, config.num_key_value_heads, columns, config.head_dim)
    for layer in range(config.num_hidden_layers):
        cache.update(*(torch.randn(sizes, dtype=torch.bfloat16, device=device) for _ in range(2)), layer)
    token_ids = torch.full((rows, 1), 3, device=device)
    mask = torch.ones((rows, columns), dtype=torch.int64, device=device)
    mask[1:, 0] = 0  # as for prompts of different lengths
    state = {"mask": mask, "token_ids": token_ids}

    def step() -> None:
        state["mask"] = torch.nn.functional.pad(state["mask"], (0, 1), value=1)
        made = model.hf_model(state["token_ids"], attention_mask=state["mask"], **for_cache(cache), use_cache=True)
        state["token_ids"] = made.logits[:, -1].argmax(-1, keepdim=True)

    with torch.inference_mode():
        return seconds_of(step, device, repeats, rounds=3)


def without_cudnn(given: Given) -> dict[str, Any]:
    """One case in a process whose environment makes cuDNN's attention the last choice."""
    made = given.out / "without-cudnn.json"
    command = [sys.executable, "-m", "benchmarks.gpu.decode", "--out", str(given.out), "--json", str(made)]
    small = ["--small"] if given.small else []
    subprocess.run([*command, *small], env=environment(**{CUDNN_LAST: "1"}), check=True, timeout=90)
    *_, found = json.loads(made.read_text()).values()
    made.unlink()
    return dict(found)


def samplers(given: Given, batch: int, vocabulary: int, dtype: str) -> dict[str, Any]:
    """Microseconds of each sampler on each backend, and the share of rows in which Triton has the torch backend's
    tokens."""
    device = given.device
    logits = make_logits("zipf", batch, vocabulary, getattr(torch, dtype)).to(device)
    cases: dict[str, Callable[[], object]] = {"torch.argmax": lambda: torch.argmax(logits, -1)}
    cases |= backend_cases("torch", torch_backend, logits)
    made: dict[str, Any] = {}
    if native_cuda(logits):
        try:
            from gen.samplers.backends import triton_backend
        except ImportError as error:
            made["Triton"] = {"error": str(error)}
        else:
            cases |= backend_cases("Triton", triton_backend, logits)
            made["equal tokens"] = dict(agreement(triton_backend, logits))
    for name, run in cases.items():
        try:
            with torch.inference_mode():
                made[name] = round(1e6 * seconds_of(run, device, 1 if given.small else 20), 2)
        except Exception as error:  # if a kernel does not compile or run, the report says so
            made[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    return made


def agreement(backend: Any, logits: Tensor) -> Iterator[tuple[str, Any]]:
    """The share of rows in which a backend has the torch backend's tokens."""
    keys = torch.arange(len(logits), device=logits.device)
    for name, settings in SETTINGS.items():
        parameters = Parameters(**settings).for_rows(logits)
        try:
            found, expected = (one.draw(logits, keys, *parameters)[0] for one in (backend, torch_backend))
            yield name, float((found == expected).double().mean())
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"[:300]


def seconds_of(case: Callable[[], object], device: torch.device, repeats: int, rounds: int = 6) -> float:
    """The median time of a case; a round is the mean of some calls in a row. With several rounds the first warms up."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for _ in range(repeats):
            case()
        torch.cuda.synchronize(device)
        times.append((time.perf_counter() - begin) / repeats)
    return median(times[1:] or times)


def bandwidth(device: torch.device, size: int) -> float:
    """Bytes a second that are read and written when memory is copied."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device, repeats=5)


if __name__ == "__main__":
    sys.exit(main())
