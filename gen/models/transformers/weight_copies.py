"""Copies of weights in oneDNN's own layout, in which a CPU reads them fastest.

A copy is made when the weight is first used, and never used when the weight has other numbers by then. Changes that
torch counts are seen at once, as those of an optimiser. It does not count those made through `weight.data`. So before
each call, 64 numbers of each weight are compared, too: that shows a change of a whole weight, as in merging a LoRA. A
change of single numbers through `weight.data` needs `release`, as for columns that are kept from call to call.
"""

from collections.abc import Iterable
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor

_SHARE = 0.1  # the part of the machine's memory that copies may take
_COMPARED = 64  # numbers of a weight
_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}  # so that NaN equals itself
_ROWS = 4  # that oneDNN is told of; it chooses a layout that suits more rows, too

_copies: "WeakValueDictionary[int, _Copy]" = WeakValueDictionary()  # by the id of their weight


class _Copy:
    """Of one weight, which it does not keep alive; made anew if the weight has changed."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = ref(weight)
        self._kept: tuple[tuple[int, int], Tensor] | None = (
            None  # where and how new the weight was; one for all threads
        )

    def is_of(self, weight: Tensor) -> bool:
        """Whether it is of this very weight, not of one that had its id before."""
        return self._weight() is weight

    def get(self, weight: Tensor) -> Tensor:
        """The copy, with the numbers that the weight has now."""
        state = weight.data_ptr(), 0 if weight.is_inference() else weight._version
        kept = self._kept
        if kept is None or kept[0] != state:
            kept = self._kept = state, torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)
        return kept[1]

    def drop(self) -> None:
        """Free its memory."""
        self._kept = None


class WeightCopies:
    """The copies of some weights, which may be another object's, too; they go with the last of these objects.

    Args:
        weights: (outputs, inputs), float32 or bfloat16, contiguous, on the CPU.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._copies: list[_Copy] = []
        self._samples = [torch.empty(0, device="cpu", dtype=torch.int16)]  # views of the weights
        for weight in weights:
            found = _copies.get(id(weight))
            if found is None or not found.is_of(weight):
                found = _copies[id(weight)] = _Copy(weight)
            self._copies.append(found)
            numbers = weight.detach().view(_BITS[weight.dtype]).view(-1)
            self._samples.append(numbers[:: max(1, len(numbers) // _COMPARED)])
        self._seen = self._look()

    def drop_changed(self) -> None:
        """Let all copies be made anew if a sample of the weights has changed. Host sync: none, they are on the CPU."""
        seen = self._look()
        if not torch.equal(seen, self._seen):
            self._seen = seen
            self.release()

    def release(self) -> None:
        """Free the memory of the copies; they are made anew when they are needed."""
        for copy in self._copies:
            copy.drop()

    def _look(self) -> Tensor:
        return torch.cat(self._samples)


def fits(weights: Iterable[Tensor], total: int | None) -> bool:
    """Whether copies of weights may be made in so many bytes of memory; not if nothing is known of it."""
    return total is not None and sum(weight.nbytes for weight in weights) <= _SHARE * total


def copy_of(weight: Tensor) -> Tensor | None:
    """The copy of a weight, with its numbers of now; None if it has none."""
    found = _copies.get(id(weight))
    return found.get(weight) if found is not None and found.is_of(weight) else None
