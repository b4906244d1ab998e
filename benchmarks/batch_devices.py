"""`throughput --job`: a job on each device alone and on all of them, tokens a second, and rows that differ."""

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import gen
from virtual_gpus.children import with_virtual_gpus

_MEMORY = 8 * 2**30  # bytes of a virtual GPU


def measure_job(model: str, devices: Sequence[str], prompts: int, new_tokens: int) -> list[dict[str, object]]:
    """A row for each device, and one for all of them; CUDA devices that are not there are virtual ones.

    Tokens a second count the time from the first part's beginning to the last one's end, without loading.
    """
    missing = len([name for name in devices if name.startswith("cuda")]) > torch.cuda.device_count()
    rows = [{"id": str(number), "prompt": f"Once upon a time {number}"} for number in range(prompts)]
    with (
        tempfile.TemporaryDirectory() as name,
        with_virtual_gpus(len(devices), _MEMORY) if missing else nullcontext(),
    ):
        folder = Path(name)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        measured: list[dict[str, object]] = []
        first: list[Any] = []
        for number, used in enumerate([*([device] for device in devices), *([[*devices]] if len(devices) > 1 else [])]):
            report = gen.run_batch(
                folder / "rows.jsonl",
                folder / f"out{number}",
                model=model,
                devices=used,
                batch_size=16,
                part_rows=32,
                seed=1,
                max_new_tokens=new_tokens,
                progress=False,
            )
            results = [json.loads(line) for part in report.parts for line in part.read_text().splitlines()]
            first = first or results
            metas = [json.loads(part.with_suffix(".meta.json").read_text()) for part in report.parts]
            seconds = max(meta["begun"] + meta["seconds"] for meta in metas) - min(meta["begun"] for meta in metas)
            measured.append(
                {
                    "devices": ", ".join(used) + (" (virtual)" if missing else ""),
                    "processes": len(used),
                    "cores": len(os.sched_getaffinity(0)),
                    "prompts": prompts,
                    "tokens": report.tokens,
                    "tokens/s": round(report.tokens / seconds),
                    "wall with start, s": round(report.seconds, 1),
                    "rows that differ": sum(one != other for one, other in zip(results, first, strict=True)),
                }
            )
    return measured
