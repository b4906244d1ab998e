"""Where the time of a call goes: the kernels, their busy time, the gaps between them, and the slowest kernels."""

import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import gen
from benchmarks.gpu.reporting import read
from benchmarks.programs import ours, some_prompts, theirs
from benchmarks.random_model import random_model
from gen.devices import native_cuda

VOCABULARY, BATCH, DEAREST = 49_152, 8, 15


def main() -> int:
    given = read(__doc__)
    if given.small:
        model: Any = gen.load("demo", device=given.device)
    else:
        model = random_model(VOCABULARY, "135m", device=given.device, dtype=torch.bfloat16)
    prompts, new_tokens = some_prompts(2 if given.small else BATCH), 3 if given.small else 32
    drawn = gen.samplers.multinomial()
    programs: dict[str, Callable[[], object]] = {
        "gen": ours(model, prompts, drawn, new_tokens, cuda_graph=True),
        "gen without graphs": ours(model, prompts, drawn, new_tokens, cuda_graph=False),
        "transformers": theirs(model, prompts, new_tokens, do_sample=True, top_k=0),
    }
    for name, program in programs.items():
        given.report.add(name, lambda program=program: profiled(program, next(model.hf_model.parameters()), new_tokens))  # type: ignore[misc]
    return given.report.failed


def profiled(program: Callable[[], object], weight: torch.Tensor, new_tokens: int) -> dict[str, Any]:
    """Profile one call, after another that warms up; times are in microseconds a token."""
    program()
    real = native_cuda(weight)
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if real else [])]) as seen:
        program()
        if real:
            torch.cuda.synchronize()
    device = DeviceType.CUDA if real else DeviceType.CPU
    spans = sorted(
        (one.time_range.start, one.time_range.end, one.name) for one in seen.events() if one.device_type == device
    )
    busy, gaps, end = 0.0, 0.0, spans[0][0] if spans else 0.0
    totals: dict[str, list[float]] = defaultdict(list)
    for start, stop, name in spans:
        totals[name].append(stop - start)
        gaps += max(0.0, start - end)
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    dearest = sorted(totals.items(), key=lambda item: -sum(item[1]))[:DEAREST]
    return {
        "kernels": len(spans) / new_tokens,
        "busy": round(busy / new_tokens, 2),
        "gaps": round(gaps / new_tokens, 2),
        "dearest": {name[:120]: [len(times), round(sum(times), 1)] for name, times in dearest},
    }


if __name__ == "__main__":
    sys.exit(main())
