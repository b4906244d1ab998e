"""How a step's results reach the host: all that it sends, and of two steps at a time at most."""

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
from virtual_gpus import virtual_gpus


def results(device: str) -> Packed:
    flags = torch.zeros(3, dtype=torch.bool, device=device)  # its length is no whole number of words
    return packed((torch.zeros(3, 1, dtype=torch.int64, device=device), flags, torch.zeros(3, device=device)))


def write(tensors: Sequence[Tensor], step: int) -> None:
    tensors[0].copy_(torch.arange(3, device=tensors[0].device).unsqueeze(1) + 10 * step)
    tensors[1].fill_(step % 2 == 0)
    tensors[2].fill_(step / 2)


def wanted(step: int) -> list[Any]:
    """Of the first two rows."""
    return [[[10 * step + row] for row in range(2)], [step % 2 == 0] * 2, [step / 2] * 2]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_step_may_send_more_than_others(device: str) -> None:
    """Only some steps send the likeliest tokens, or what a limit has changed: they come side by side."""
    with virtual_gpus(1):
        tensors, others = results(device), results(device)
        ring = Ring(None if device == "cpu" else torch.cuda.Stream(tensors[0].device), tensors)  # type: ignore[no-untyped-call]
        assert ring.lag == (device != "cpu")
        for step in range(2 * SLOTS):
            write(tensors, step)
            write(others, step + 100)
            more: Any = dict.fromkeys(("top", "drafts")[: step % 3], others)
            sent = ring.send(search=tensors, squeezed=None, **more)
            assert ring.read(sent, 2) == {"search": wanted(step)} | dict.fromkeys(more, wanted(step + 100))


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
