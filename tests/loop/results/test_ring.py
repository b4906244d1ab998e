"""How a step's results reach the host: on virtual GPUs one step late, in slots that are not overwritten too early."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

import gen
from gen.loop.results.ring import SLOTS, Packed, Ring, Sent, packed
from gen.loop.speculation.widths import Widths
from tests.helpers import byte_tokenizer, tiny_model
from virtual_gpus import no_host_sync, virtual_gpus


def results(device: str) -> Packed:
    flags = torch.zeros(3, dtype=torch.bool, device=device)  # its length is no whole number of words
    return packed((torch.zeros(3, 1, dtype=torch.int64, device=device), flags, torch.zeros(3, device=device)))


def write(tensors: Sequence[Tensor], step: int) -> None:
    tensors[0].copy_(torch.arange(3, device=tensors[0].device).unsqueeze(1) + 10 * step)
    tensors[1].fill_(step % 2 == 0)
    tensors[2].fill_(step / 2)


def wanted(step: int, rows: int = 3) -> list[Any]:
    return [[[10 * step + row] for row in range(rows)], [step % 2 == 0] * rows, [step / 2] * rows]


def test_on_a_cpu_results_are_read_at_once() -> None:
    tensors = results("cpu")
    ring = Ring(None, tensors)
    assert ring.lag == 0
    for step in range(20):
        write(tensors, step)
        assert ring.read(ring.send(search=tensors), 2) == {"search": wanted(step, 2)}


def test_on_a_gpu_results_are_read_one_step_late_without_a_wait() -> None:
    with virtual_gpus(2):
        tensors = results("cuda:1")
        ring = Ring(torch.cuda.Stream(tensors[0].device), tensors)  # type: ignore[no-untyped-call]
        assert ring.lag == 1
        sent: list[Sent] = []
        with no_host_sync():
            for step in range(3 * SLOTS):
                write(tensors, step)
                sent.append(ring.send(search=tensors))
                if step >= ring.lag:
                    assert ring.read(sent[step - 1], 2) == {"search": wanted(step - 1, 2)}


def test_reading_the_step_just_launched_would_wait() -> None:
    with virtual_gpus(1):
        tensors = results("cuda")
        ring = Ring(torch.cuda.Stream(tensors[0].device), tensors)  # type: ignore[no-untyped-call]
        write(tensors, 1)
        sent = ring.send(search=tensors)
        with no_host_sync(count=True) as report:
            assert ring.read(sent, 3) == {"search": wanted(1)}
    assert report.count == 1


def test_a_slot_is_not_written_again_while_less_than_all_are_unread() -> None:
    with virtual_gpus(1):
        tensors = results("cuda")
        ring = Ring(torch.cuda.Stream(tensors[0].device), tensors)  # type: ignore[no-untyped-call]
        sent = []
        for step in range(5 * SLOTS):
            write(tensors, step)
            sent.append(ring.send(search=tensors))
            if step >= SLOTS - 1:
                oldest = step - SLOTS + 1
                assert ring.read(sent[oldest], 3) == {"search": wanted(oldest)}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_may_send_more_than_others(device: str) -> None:
    """Only some steps send the likeliest tokens, or what a limit has changed: they come side by side."""
    with virtual_gpus(1):
        tensors, others = results(device), results(device)
        ring = Ring(None if device == "cpu" else torch.cuda.Stream(tensors[0].device), tensors)  # type: ignore[no-untyped-call]
        for step in range(2 * SLOTS):
            write(tensors, step)
            write(others, step + 100)
            more: Any = dict.fromkeys(("top", "drafts")[: step % 3], others)
            sent = ring.send(search=tensors, squeezed=None, **more)
            assert ring.read(sent, 3) == {"search": wanted(step)} | dict.fromkeys(more, wanted(step + 100))


@pytest.mark.parametrize("sampler", [gen.samplers.greedy(), gen.samplers.multinomial(2), gen.samplers.beam_search(2)])
def test_the_loop_has_two_results_under_way_at_most(sampler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain and wide steps come in turns; both bring the agreement of drafts too."""
    widths = cycle((1, 8))
    monkeypatch.setattr(Widths, "choose", lambda self, count, texts: next(widths))
    sent: list[Sent] = []
    under_way: dict[Ring, list[int]] = defaultdict(lambda: [0])
    send, read = Ring.send, Ring.read

    def sending(ring: Ring, width: int = 1, **results: Any) -> Sent:
        sent.append(send(ring, width, **results))
        under_way[ring].append(under_way[ring][-1] + 1)
        return sent[-1]

    def reading(ring: Ring, one: Sent, rows: int) -> dict[str, list[list[Any]]]:
        assert one in sent
        under_way[ring].append(under_way[ring][-1] - 1)
        return read(ring, one, rows)

    monkeypatch.setattr(Ring, "send", sending)
    monkeypatch.setattr(Ring, "read", reading)
    with virtual_gpus(1):
        model = gen.from_transformers(tiny_model(vocab_size=259).to("cuda"), byte_tokenizer())
        limits = [1, 9, 4, 14, 2]
        gen.generate(
            model, ["ab", "c", "defg", "h", "ij"], sampler=sampler, max_new_tokens=limits, max_batch_tokens=200
        )
    assert max(map(max, under_way.values())) == 2 <= SLOTS
    assert all(counts[-1] == 0 for counts in under_way.values())
