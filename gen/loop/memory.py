"""How much room rows may have: as much as the caller says, or as much as fits into free memory.

Example: 8 GB are free and a token takes 0.1 MB in the cache. So all rows together may have 80,000 tokens: 64 rows of
1250, or 16 of 5000.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import torch

from gen.devices import Placement
from gen.errors import ArgumentError, ModelError, setting
from gen.models.base import Model, NoRoom
from gen.models.checks import new_rows
from gen.requests.request import Request
from gen.runtime import cpu_memory
from gen.samplers.kinds import search_width

T = TypeVar("T")
TokenBytes = Mapping[torch.device, float]  # how many bytes a token of a row takes on each device

_MARGIN = 0.1  # the part of a GPU's memory that is left for logits, for what layers compute, and for growing
_SHARE = 0.5  # the part of a CPU's available memory that many rows may take
_UTMOST = 0.9  # the part that the rows of one prompt may take; what layers compute takes some too
_KEPT = 0.1  # the part of a device's memory that each model may keep for later calls
_USUAL = 8 * 2**30  # bytes that a device is taken to have if nothing says how much it has
_LOGIT = 8  # bytes that a step takes for each logit of a row, for any dtype: itself, and as float32
_CANDIDATE = 40  # and for each continuation of a beam that may be among the best: its token, weight, parent and place
_OUT_OF_MEMORY = (  # as the CPU, CUDA, cuBLAS and cuDNN say it
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
)


class TooLong(NoRoom):
    """The rows would need room for more tokens than they may have.

    Attributes:
        length: how many tokens a row needs room for.
    """

    def __init__(self, count: int, length: int, reason: str = "are too many") -> None:
        super().__init__(f"{count} rows of {length} tokens {reason}." if count > 1 else f"{length} tokens {reason}.")
        self.length = length


class TooManyRows(ModelError):
    """Memory does not hold rows whose number is fixed.

    Attributes:
        rows: how many it may hold.
    """

    def __init__(self, message: str, rows: int) -> None:
        super().__init__(message)
        self.rows = rows


def token_bytes(model: Model, length: int) -> TokenBytes:
    """How many bytes a row takes for each token that it has room for, states of whole rows included.

    One row with room for so many tokens reads one of them to show it. Empty if the library that runs the model has made
    all room already.
    """
    sizes: dict[torch.device, float] = {}
    rows = new_rows(model, 1, length)
    if rows.lent:
        rows.give_back()
        return sizes
    rows.prefill(slice(0, 1), [[0]])
    for _, tensor, device in rows.parts():
        sizes[device] = sizes.get(device, 0.0) + tensor.nbytes / rows.length
    return sizes


def tokens_that_fit(
    placement: Placement,
    known: TokenBytes,
    held: int = 0,
    spare: Callable[[torch.device], int] | None = None,
    *,
    alone: bool = False,
) -> int | None:
    """How many tokens rows may have room for together; None if it is not known.

    Args:
        known: how many bytes a token takes.
        held: how many tokens there is room for now, in rows that will grow.
        spare: how many more bytes of a device can be freed for rows; None for none.
        alone: see `free_bytes`.
    """
    fit = []
    for device in placement.devices:
        if known.get(device) and (room := free_bytes(device, alone=alone)) is not None:
            # on a CPU `held` is not added: memory counts as available until it is written to, and would count twice
            room += 0 if spare is None else spare(device)
            fit.append(max(0, int(room / known[device])) + (0 if device.type == "cpu" else held))
    return max(held, min(fit)) if fit else None


def free_bytes(device: torch.device, *, alone: bool = False) -> int | None:
    """How many bytes of a device's memory rows may take; None if it is not known. Host sync: none.

    Args:
        alone: whether there cannot be fewer rows. Then they may take nearly all memory of a CPU, where a process that
            takes more is killed; devices that raise an error are tried, and the result is None.
    """
    if device.type == "cuda" and not alone:
        free, total = torch.cuda.mem_get_info(device)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + unused - _MARGIN * total)
    available = cpu_memory.available_bytes() if device.type == "cpu" else None
    return None if available is None else int((_UTMOST if alone else _SHARE) * available)


def kept_bytes(device: torch.device) -> int:
    """How many bytes of a device a model usually keeps for later calls: rows that no call uses, and recordings on them.
    Host sync: none.
    """
    total: int | None = None
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
    elif device.type == "cpu":
        total = cpu_memory.total_bytes()
    return int(_KEPT * (_USUAL if total is None else total))


def check_fits(model: Model, known: TokenBytes, count: int, length: int, width: int) -> None:
    """Raise a TooLong if rows and their first step would take more of a CPU's memory than there is.

    Args:
        known: how many bytes a token takes.
        count, length: how many rows there are, and how many tokens each has room for.
        width: how many rows a search has; 1 if every row is a text.
    """
    for device in model.placement.devices:
        most = free_bytes(device, alone=True)
        if most is None:
            continue
        step = 0
        if device == model.placement.logits_device:
            candidates = min(2 * width, model.vocab_size) if width > 1 else 0
            step = _LOGIT * model.vocab_size + _CANDIDATE * candidates
        needed = count * (length * known.get(device, 0.0) + step)
        if needed > most:
            raise TooLong(count, length, f"take {needed / 1e9:.1f} GB, and {most / 1e9:.1f} GB may be taken")


def check_room(requests: Iterable[Request], step_rows: int, most: int | None) -> None:
    """Raise an ArgumentError unless each prompt fits with its whole text, before anything has run.

    Args:
        step_rows: see `gen.loop.options.Options`.
        most: how many tokens rows may have room for together; None for no bound.
    """
    for request in requests:
        rows, tokens = search_width(request.sampler) * step_rows, request.most_tokens
        if most is not None and rows * tokens > most:
            needed = f"{rows * tokens} tokens" + (f", {rows} rows of {tokens}" if rows > 1 else "")
            raise ArgumentError(
                f"max_batch_tokens={most} is too little for prompt {request.number} and its text, which may come to "
                f"{needed}: give at least {rows * tokens}, a smaller {setting('max_new_tokens')} or a shorter prompt."
            )


def in_halves(run: Callable[[Sequence[T]], object], items: Sequence[T], told: Callable[[T], tuple[str, str]]) -> None:
    """Run items together; if memory runs out, in halves, one after the other.

    Args:
        told: what an item is that does not fit by itself, and what to do then.
    Raises:
        ModelError: memory has no room for one of them.
    """
    try:
        run(items)
        return
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if len(items) == 1:
            what, advice = told(items[0])
            raise ModelError(f"{what}: {error} {advice}") from error
        traceback.clear_frames(error.__traceback__)  # the frames hold tensors that must be freed
    half = len(items) // 2
    in_halves(run, items[:half], told)
    in_halves(run, items[half:], told)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is out: an error of a GPU, of the CPU, or of the loop itself."""
    if isinstance(error, torch.OutOfMemoryError | NoRoom):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
