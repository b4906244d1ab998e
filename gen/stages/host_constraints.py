"""Holds texts to output types with llguidance: for each token, the device and the host exchange data once.

On CUDA the tokens are sent to the host right after they are chosen, and the host only waits for them when the next
forward has been launched: it computes the masks while the device computes the logits. On a CPU all of this happens
between two steps, so that the step itself can be recorded.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gen.constraints.composing.host_thoughts import HostThoughtWalker
from gen.constraints.tables.masks import allow, bias_table
from gen.requests.request import Request
from gen.stages.stage import Here, Stage

if TYPE_CHECKING:
    from llguidance import LLMatcher


@dataclass(eq=False)
class _Row:
    """A text that llguidance follows. Without a matcher everything is allowed; there is none once the text has ended.

    Attributes:
        ends: tokens that end the text.
        may_end: whether these may come where other tokens may come too; otherwise they only come where nothing else
            can.
        thought: the thought that the text has not ended yet, or may begin; then it follows the matcher too.
    """

    matcher: "LLMatcher | None" = None
    ends: tuple[int, ...] = ()
    may_end: bool = True
    thought: HostThoughtWalker | None = None

    def take(self, token_id: int) -> None:
        """Go on with a token; a matcher that fails allows nothing from then on."""
        if token_id in self.ends:
            self.matcher = self.thought = None
        elif self.thought is not None:
            self.thought.push(token_id)
            if not self.thought.state:
                self.matcher, self.thought = self.thought.matcher, None
        elif self.matcher is not None:
            self.matcher.consume_token(token_id)

    def copy(self) -> "_Row":
        """A copy, which goes on by itself from here."""
        matcher, thought = self.matcher, self.thought
        return replace(
            self, matcher=matcher and matcher.deep_copy(), thought=None if thought is None else thought.copy()
        )


@dataclass(frozen=True)
class _Chosen:
    """The rows of a step whose tokens are still to be read, and the texts in them, which may have moved since."""

    here: slice
    rows: Sequence[_Row]


class HostConstraints(Stage):
    """See `gen.stages.stage.Stage`; the masks are llguidance's, with each row's own tokens that end a text."""

    def __init__(self, count: int, device: torch.device) -> None:
        self._count, self._device = count, device
        self._on_cuda = device.type == "cuda"
        self._rows = [_Row() for _ in range(count)]
        self._bias: Tensor | None = None  # made, like the other tensors, when a row first needs it
        self.begin()

    def begin(self) -> None:
        self._used = False
        self._reorders = False
        self._chosen: _Chosen | None = None

    def key(self) -> Hashable:
        return "host constraints" if self._used else None

    @property
    def replayable(self) -> bool:
        """See `gen.stages.stage.Stage`: on CUDA the host takes part in the step."""
        return not self._on_cuda

    def admit(self, rows: slice, requests: Sequence[Request], tokens: Sequence[Sequence[int]]) -> None:
        each = (rows.stop - rows.start) // len(requests)
        grammars = [None if one.constraint is None else one.constraint.grammar for one in requests]
        if not self._used:
            if not any(grammars):
                return
            self._begin_use(requests)
        starts = range(rows.start, rows.stop, each)
        for start, request, grammar, read in zip(starts, requests, grammars, tokens, strict=True):
            row = _Row()
            if grammar is not None:
                walker = request.walker()
                thought = walker if isinstance(walker, HostThoughtWalker) else None
                matcher = grammar.matcher() if thought is None else None
                row = _Row(matcher, request.ends, bool(request.eos_token_ids), thought)
            for token_id in read[len(request.prompt_ids) :]:
                row.take(token_id)
            self._rows[start : start + each] = [row.copy() for _ in range(each)]

    def prepare(self, here: slice, width: int = 1) -> None:
        if not self._on_cuda:
            self._follow()
            self._fill(here)
            self._chosen = _Chosen(here, self._rows[here])

    def __call__(self, logits: Tensor, here: Here, history: Tensor, lengths: Tensor, generated: Tensor) -> Tensor:
        """See `gen.stages.stage.Stage`; float32. Host sync: on CUDA a wait for the tokens of the step before."""
        assert isinstance(here, slice)  # it takes no places; tells mypy
        if self._on_cuda:
            self._follow()
            self._fill(here)
            self._masks[here].copy_(self._written[here], non_blocking=True)
            self._certain[here].copy_(self._written_certain[here], non_blocking=True)
        assert self._bias is not None  # tells mypy
        allowed, certain = allow(logits, self._masks[here], self._bias), self._certain[here]
        at = certain.clamp(max=logits.shape[1] - 1)
        own = torch.where(certain < logits.shape[1], 0.0, allowed.gather(1, at))
        return allowed.scatter_(1, at, own)

    def advance(
        self,
        here: slice,
        newest: Tensor,
        ancestors: Tensor | None = None,
        counts: Tensor | None = None,
        made: Tensor | None = None,
    ) -> None:
        self._reorders = ancestors is not None
        self._taken[here].copy_(newest.squeeze(1), non_blocking=True)
        if ancestors is not None:
            self._ancestors[here].copy_(ancestors, non_blocking=True)
        if self._on_cuda:
            self._event.record(torch.cuda.current_stream(self._device))
            self._chosen = _Chosen(here, self._rows[here])

    def move(self, source: int, target: int) -> None:
        self._rows[target], self._rows[source] = self._rows[source], _Row()

    def tensors(self) -> Iterable[Tensor]:
        on_host = [] if self._bias is None or self._on_cuda else [self._taken, self._ancestors]
        return on_host if self._bias is None else [*on_host, self._masks, self._certain]

    def _begin_use(self, requests: Sequence[Request]) -> None:
        """Make room for masks, and forget earlier texts of the rows."""
        self._used = True
        self._rows = [_Row() for _ in range(self._count)]
        if self._bias is None:
            [size, *_] = [one.constraint.vocabulary.size for one in requests if one.constraint is not None]
            self._size = size
            shape = self._count, size // 32 + 1  # one bit more than tokens, for llguidance's own end of a text

            def on_host(value: int, *shape: int, dtype: torch.dtype) -> Tensor:
                made = torch.full(shape, value, dtype=dtype, device="cpu")
                return made.pin_memory() if self._on_cuda else made

            self._written = on_host(-1, *shape, dtype=torch.int32)
            self._taken, self._ancestors = (on_host(0, self._count, dtype=torch.int64) for _ in range(2))
            self._written_certain = on_host(size, self._count, 1, dtype=torch.int64)
            self._masks, self._certain = (
                torch.empty_like(one, device=self._device) if self._on_cuda else one
                for one in (self._written, self._written_certain)
            )
            self._bits, self._ends = self._written.numpy().view(np.uint8), self._written_certain.numpy()
            if self._on_cuda:
                self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._bias = bias_table(self._device)

    def _follow(self) -> None:
        """Take the tokens of the last step."""
        chosen, self._chosen = self._chosen, None
        if chosen is None:
            return
        if self._on_cuda:
            self._event.synchronize()
        if self._reorders:
            sources = [chosen.rows[place] for place in self._ancestors[chosen.here].tolist()]
            for row, source in zip(chosen.rows, [source.copy() for source in sources], strict=True):
                row.matcher, row.thought = source.matcher, source.thought  # beams have the same ends
        for row, token_id in zip(chosen.rows, self._taken[chosen.here].tolist(), strict=True):
            row.take(token_id)

    def _fill(self, here: slice) -> None:
        """Write the masks of rows that are about to choose."""
        for place, row in zip(range(self._count)[here], self._rows[here], strict=True):
            self._ends[place] = self._size  # the id of no token
            if row.thought is not None:
                self._fill_thought(place, row, row.thought)
            elif row.matcher is None:
                self._bits[place].fill(255)
            else:
                self._fill_row(place, row, row.matcher)

    def _fill_thought(self, place: int, row: _Row, thought: HostThoughtWalker) -> None:
        """Write the mask of a text that may go on with a thought."""
        line, only, allowed = self._bits[place], thought.only, thought.allowed()
        if only is None and thought.matcher is not None:
            self._fill_row(place, row, thought.matcher)
        else:
            line.fill(0)
        if only is not None:
            self._ends[place] = only
            line[only >> 3] |= 1 << (only & 7)
        elif allowed is not None:
            line[: len(allowed)] |= allowed

    def _fill_row(self, place: int, row: _Row, matcher: "LLMatcher") -> None:
        """Write the mask of a text that goes on."""
        line = self._bits[place]
        matcher.unsafe_compute_mask_ptr(self._written[place].data_ptr(), self._written.shape[1] * 4)
        if matcher.is_error():  # then no token is left to choose, and the text's error says why
            line.fill(0)
        end = int(line[self._size >> 3]) & (1 << (self._size & 7))
        line[self._size >> 3] -= end  # llguidance's own end of a text is no token
        over = end > 0 and not line.any()
        for token_id in row.ends[: 1 if over else None]:
            if over:  # then only the first of its ends comes, with probability 1, even if it is banned
                self._ends[place] = token_id
            bit, byte = 1 << (token_id & 7), int(line[token_id >> 3])
            line[token_id >> 3] = byte | bit if over or (end and row.may_end) else byte & (255 - bit)
