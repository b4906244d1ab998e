"""Where a batch gets its rows from: the set that its model keeps idle, or new rows, as many as memory has room for.

Example: 40 prompts are to run on a CPU, and the model keeps 32 rows idle. They are too few, so 40 new rows are made; if
memory runs out, 20 are tried. At the end the model keeps the new rows, with what was recorded on them.
"""

import logging
from collections.abc import Callable, Sequence

import torch

from gen.devices import resolve_device
from gen.errors import ModelError
from gen.loop.decoder import Decoder
from gen.loop.memory import (
    TokenBytes,
    TooLong,
    TooManyRows,
    check_fits,
    is_out_of_memory,
    kept_bytes,
    token_bytes,
    tokens_that_fit,
)
from gen.loop.options import Options
from gen.loop.prefixes.tree import tree_of
from gen.loop.replay.recorded import Recorded
from gen.loop.searches.by_sampler import Kind
from gen.loop.slots import share_out
from gen.models.base import Model, NoRoom
from gen.models.idle_rows import Idle, let_go
from gen.runtime.streams import Streams
from gen.stages.device_constraints import DeviceConstraints
from gen.stages.host_constraints import HostConstraints
from gen.stages.penalties import PenaltyStage
from gen.stages.stage import Stage
from gen.stages.user_processors import UserProcessors

logger = logging.getLogger("gen")

_ROWS = {"cpu": 64, "cuda": 256}  # at most, by type of device
_USUAL = 512  # tokens that rows have room for at first if their texts are not known yet
# constraints come last, so that no stage allows again what they forbid
_STAGES: tuple[Callable[[int, torch.device], Stage], ...] = (
    PenaltyStage,
    UserProcessors,
    HostConstraints,
    DeviceConstraints,
)


def usual_rows(model: Model) -> int:
    """How many rows usually run at once on a model's device, if memory has room for them."""
    return _ROWS.get(model.placement.logits_device.type, _ROWS["cpu"])


class RowPool:
    """Gives one batch its rows, and takes them back.

    Args:
        kind: the kind of search that chooses in the rows.
        largest: how many rows the largest request has, if all of its texts are made at once.
        lengths, rows: see `begin_with`.

    Attributes:
        least: how many rows there must be, for the largest search.
        length: how many tokens each row has room for at first.
        tree: the texts that the model has kept; None if it has no place for them.
    """

    def __init__(
        self,
        model: Model,
        kind: Kind,
        options: Options,
        *,
        least: int,
        largest: int,
        lengths: Sequence[int],
        rows: int | None = None,
    ) -> None:
        self._model, self._kind, self._options = model, kind, options
        self._unit = kind.width * options.step_rows
        self.least = self.whole(least)
        self._cap = options.rows or max(largest, usual_rows(model))
        self._idle: Idle[Recorded] | None = model.idle
        self._streams: Streams | None = None
        self.tree = tree_of(model)
        self._warned = False
        self.begin_with(lengths, rows)

    def begin_with(self, lengths: Sequence[int], rows: int | None = None) -> None:
        """Set how many tokens rows have room for at first; if a few texts need far more, not all rows have as much.

        Args:
            lengths: how many tokens each text needs room for.
            rows: how many rows there will be, if it is known.
        """
        self.length, count = max(lengths), max(rows or 0, len(lengths))
        self._each: float = self.length
        if self._kind.width == 1 and self._model.parts_rows:
            least = min(*lengths, _USUAL if count > len(lengths) else self.length)
            shared, rooms = share_out(count, least, dict(enumerate(lengths)))
            self.length = max((length for length in lengths if length <= shared), default=shared)
            self._each = self.length + sum(rooms.values()) / count

    def take(self, count: int) -> Recorded:
        """The model's idle set of rows if it fits, for this batch alone; else new rows.

        Raises:
            DeviceError: a device of the model does not exist any more.
            ModelError: as `fewer`.
        """
        for device in self._model.placement.devices:
            if device.type == "cuda":
                resolve_device(device)  # a missing device raises here, and not in torch when its memory is asked for
        count = max(count, self.least)
        if (idle := self._take_idle(count)) is not None:
            return idle
        count = self.whole(count)
        while self._is_short_of(min(count, self._cap)) and self._make_way():
            pass
        return self.make(min(count, self._most_rows()))

    def make(self, count: int) -> Recorded:
        """New rows; fewer if memory does not hold as many.

        Raises:
            ModelError: as `fewer`.
        """
        count = self.whole(count)
        streams = self._streams = self._streams or Streams(self._model.placement)
        while True:
            most = self._options.max_batch_tokens
            room = self.length if most is None else most // count
            length = min(self.length, room - room % 32 or room)  # multiples of 32 columns are fast to look at
            try:
                check_fits(self._model, self._known(), count, length, self._kind.width)
                with streams.current():
                    made = Decoder(self._model, count, length, self._kind.key, self._kind.search, _STAGES, streams)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                count = self.fewer(count, error)
            else:
                return Recorded(made)

    def fewer(self, count: int, error: Exception) -> int:
        """How many rows to try after memory was out with so many: half as many, or as many again if memory that was
        kept for other calls could be freed.

        Raises:
            ModelError: there cannot be fewer rows, or their number is fixed.
        """
        rows = count if (more := self._make_way()) else count // 2
        if isinstance(error, TooLong) and (room := self.room()) is not None:
            rows = min(rows, room // error.length)
        if more and (rows == count or count <= self.least):
            return count
        if count <= self.least:
            raise ModelError(
                f"not even one prompt at a time fits into the memory of {self._model.placement.logits_device}: {error} "
                f"Give {'fewer beams or samples, ' if self.least > 1 else ''}shorter prompts, or a smaller "
                "max_new_tokens."
            ) from error
        rows = max(self.least, rows // self._unit * self._unit)
        if self._options.fixed:
            raise TooManyRows(f"memory does not hold {count} rows, {rows} may fit: {error}", rows) from error
        if not self._warned and not isinstance(error, NoRoom):
            logger.warning("out of memory with %d rows; going on with %d: %s", count, rows, str(error))
            self._warned = True
        return rows

    def _is_short_of(self, count: int) -> bool:
        """Whether free memory has no room for so many rows; False if the caller sets the limit."""
        room = self.room() if self._options.max_batch_tokens is None else None
        return room is not None and room < count * self._each

    def _make_way(self) -> bool:
        """Free memory that is kept for later calls: first this model's kept texts, then the idle rows of any model on
        these devices. Returns whether there was anything to free."""
        if self.tree is not None and self.tree.give_way():
            return True
        devices = self._model.placement.devices
        return let_go(lambda rows: isinstance(rows, Recorded) and not rows.sizes().keys().isdisjoint(devices))

    def whole(self, count: int) -> int:
        """Round a number of rows up to one that steps may have."""
        return -(-count // self._unit) * self._unit if self._options.step_rows > 1 else count

    def give_back(self, steps: Recorded, *, keep: bool) -> None:
        """Take back the rows of a batch; the model keeps them for the next one, unless they take too much memory.

        If they do, what was recorded on them, above all CUDA graphs, is dropped first.

        Args:
            keep: whether the rows are as a step leaves them; others are dropped.
        """
        rows = steps.decoder.rows
        if rows.lent:
            rows.give_back()
        elif keep and self._idle is not None:
            fits = self._may_keep(steps)
            if not fits:
                steps.forget()
            kept = fits or self._may_keep(steps)
            if kept:
                self._idle.put(steps)
            if self.tree is not None:
                self.tree.leave(sum(steps.sizes().values()) if kept else 0)

    def _may_keep(self, steps: Recorded) -> bool:
        """Whether rows take no more of a device's memory than a model may keep; kept texts make way for them."""
        return all(size <= kept_bytes(device) for device, size in steps.sizes().items())

    def room(self, rows: Decoder | None = None) -> int | None:
        """How many tokens rows, existing ones or new ones, may have room for; None if there is no bound."""
        if self._options.max_batch_tokens is not None:
            return self._options.max_batch_tokens
        held = rows.tokens if rows is not None and rows.filled else 0
        # a prompt that may not fit into memory is tried nevertheless
        alone = rows is not None and (self._options.fixed or rows.count <= self.least)
        spare = None if self.tree is None or alone else self.tree.spare
        return tokens_that_fit(self._model.placement, self._known(), held, spare, alone=alone)

    def _known(self) -> TokenBytes:
        """How much memory a token takes; measured at the model's first call. Empty if the model keeps nothing."""
        if self._idle is not None and self._idle.token_bytes is None:
            streams = self._streams = self._streams or Streams(self._model.placement)
            try:
                with streams.current():  # so that the caller's settings of torch change nothing
                    self._idle.token_bytes = token_bytes(self._model, self.length)
            except Exception as error:
                if not is_out_of_memory(error):
                    self._model.check()  # says why the model cannot be run
                    raise
        return (self._idle and self._idle.token_bytes) or {}

    def _most_rows(self, rows: Decoder | None = None) -> int:
        """The largest number of rows, of an existing set or a new one: a whole number of searches."""
        most = self._cap
        if not self._options.fixed and (room := self.room(rows)) is not None:
            most = min(most, int(room // self._each))
        return max(most, self.least) // self._unit * self._unit

    def _take_idle(self, count: int) -> Recorded | None:
        """The model's idle set, unless it is of another kind, or does not fit."""
        idle = self._idle.take() if self._idle is not None else None
        if idle is None:
            return None
        decoder = idle.decoder
        self._streams = decoder.streams
        alike = decoder.kind == self._kind.key and decoder.serves(self._model)
        return idle if alike and self._fits(decoder, count) else None

    def _fits(self, idle: Decoder, count: int) -> bool:
        """Whether a set has as many rows as are needed, and no more than are allowed."""
        options, tokens = self._options, idle.tokens
        if count > idle.count:
            count = min(count, self._most_rows(idle))
        if idle.count % self._unit and self._options.step_rows > 1:
            return False
        if options.fixed and not idle.shared == idle.length == self.length:
            return False  # rows that have grown let more steps be wide, and these look at more columns
        return count <= idle.count <= (options.rows or idle.count) and tokens <= (options.max_batch_tokens or tokens)
