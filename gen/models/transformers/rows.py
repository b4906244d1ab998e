"""The sequences of a batch in a transformers model: prompts are read into rows, and steps go on from them."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from gen.attention.plan import Plan, whole
from gen.attention.prompts import whole_blocks
from gen.devices import to_device
from gen.models.base import Inputs, Rows
from gen.models.transformers.attention import Marks, PromptAttention, StepAttention
from gen.models.transformers.cache import check_layers, pieces_cache, prompt_cache, step_cache
from gen.models.transformers.layer_state import LayerState, Pieces, Place, Side, side_by_side
from gen.models.transformers.masks import Masks
from gen.models.transformers.wrappers import innermost

if TYPE_CHECKING:
    from transformers import Cache

    from gen.models.transformers.model import Mask, TransformersModel

# linear layers give a token the same bits in any batch whose number of rows is a multiple of these
_WIDTH, _PLACES = 16, 4  # tokens of prompts with padding; places after which logits are made
_STEP_COSTS = 16  # about as many tokens are read in the time of a step
WIDEST = 8  # tokens of a row in a step
_LOGITS = 2**25  # the most numbers in the logits of prompts that are read together


class TransformersRows(Rows):
    """Rows of a static cache, each at its own column; see `gen.models.base.Rows`.

    State, changed in place: each layer's keys and values, where the layer is; `columns`, (count,) int64 on every device
    that has a layer: where each row's next token is written; `positions`, (count, 1) int64 on the embedding's device:
    the next token's position, which images can make different from its column. A row may have memory of its own, so
    that the others need not have room for as many tokens.
    """

    refillable = saves = True
    counter: Tensor

    def __init__(self, model: "TransformersModel", count: int, length: int) -> None:
        from transformers.cache_utils import LinearAttentionCacheLayerMixin, StaticCache

        self._model = model
        self.count, self.length = count, length
        self._layers = StaticCache(config=model.decoder_config, max_cache_len=1).layers
        check_layers(self._layers, type(model.hf_model).__name__)
        self._states = [LayerState(count, length) for _ in self._layers]
        self.whole_prompts = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in self._layers)
        device = model.placement.input_device
        placed = model.placement.layer_devices
        self._devices = placed if len(placed) == len(self._layers) else (device,) * len(self._layers)
        own, *others = dict.fromkeys((device, *self._devices))
        self._counts = torch.zeros((3, count), dtype=torch.int64, device=own)  # one launch counts them all
        column, position, counter = self._counts
        self._position, self.counter = position.unsqueeze(1), counter.unsqueeze(1)
        self._column = {own: column} | {on: torch.zeros(count, dtype=torch.int64, device=on) for on in others}
        self._row, self._shared_column = (
            {on: make(count, dtype=torch.int64, device=on) for on in self._column}
            for make in (torch.arange, torch.zeros)
        )
        self._rooms: Mapping[int, int] = {}  # of rows that have memory of their own: how many tokens
        self._shared = length
        self._bound()
        self._all_columns = torch.arange(whole(length), device=device)
        self._masks = Masks(model.decoder_config, flat=model.takes_flat_masks, dtype=model.placement.dtype)
        self._read_to: dict[int, tuple[int, int]] = {}  # of rows: their prompts' ends, without and with padding
        self._caches: dict[tuple[int, int], Cache] = {}
        self._sides: list[Side] = []  # all that layers keep; filled when rows first go on from others
        self._wide: dict[tuple[int, int, int], tuple[Place, Cache]] = {}
        device_map = getattr(innermost(model.hf_model), "hf_device_map", {})
        self._spread = len(model.placement.devices) > 1 or len({*device_map.values()}) > 1
        self.replayable = not self._spread  # a graph is for one device
        self._use, self._plan = model.attention, Plan()
        self._attention = None if self._use is None else StepAttention(self._plan, Marks(self._use))
        self._pads = self._use is not None and not self.whole_prompts
        self._in_blocks = self._pads and not self._spread and not self._masks.flat and device.type == "cpu"

    def fill(
        self, rows: slice, prompts: Sequence[Sequence[int]], start: int = 0, inputs: Sequence[Inputs] = ()
    ) -> Tensor:
        """See `gen.models.base.Rows.fill`."""
        targets = range(self.count)[rows]
        inputs = inputs or [{}] * len(prompts)
        one_by_one = bool(start) and self.whole_prompts and not self._model.reads_on
        logits = []
        for run in self._runs(prompts, inputs, targets):
            here, those = _slice(targets[run]), prompts[run]
            if one_by_one:  # all are of one length, as in any such run
                for at, token_ids in enumerate(zip(*those, strict=True)):
                    made = self._read(here, [*zip(token_ids)], start + at, {})
            else:
                made = self._read(here, those, start, inputs[run.start])
            logits.append(made)
        return torch.cat(logits) if len(logits) > 1 else logits[0]

    @property
    def reads_places(self) -> bool:
        """See `gen.models.base.Rows.reads_places`."""
        return not self.whole_prompts

    def read(
        self, rows: slice, pieces: Sequence[Sequence[int]], starts: Sequence[int], places: Sequence[int]
    ) -> Tensor:
        """See `gen.models.base.Rows.read`."""
        one_line = self._model.takes_flat_masks and len(set(starts)) > 1  # one mask for all tokens of a row
        apart = len(pieces) > 1 and not self._rooms.keys().isdisjoint(range(self.count)[rows])
        if one_line or apart:
            each = zip(range(self.count)[rows], pieces, starts, strict=True)
            return torch.cat([self.read(slice(row, row + 1), [piece], [at], places) for row, piece, at in each])
        model, device, width = self._model, self._position.device, max(map(len, pieces))
        token_ids = _side_by_side(pieces, width)
        begin, end = torch.tensor(starts, device="cpu").unsqueeze(1), max(starts) + width
        columns = to_device(begin + torch.arange(width, device="cpu"), device)
        attention = PromptAttention(None, self._use) if self._use is not None and any(starts) else None
        if len(set(starts)) == 1:
            cache = prompt_cache(self._layers, self._states, rows, starts[0], attention=attention)
        else:
            placed = {on: Pieces(rows, columns.to(on, non_blocking=True), end) for on in self._column}
            cache = pieces_cache(self._layers, self._states, [placed[on] for on in self._devices], attention)
        mask = self._masks.of(columns, self._all_columns[:end]) if any(starts) else None
        positions = (model.prompt_inputs(token_ids, 0, {})[0] + begin).clamp(max=model.context_length - 1)
        within = torch.tensor(places, device="cpu").clamp(max=width - 1)
        keep: int | Tensor = to_device(within, device)
        if self._spread:
            keep, within = width - min(places[0], width - 1), within - min(places[0], width - 1)
        logits = model.forward_all(
            to_device(token_ids, device), to_device(positions, device), mask, cache, {}, logits_to_keep=keep
        )
        if attention is not None:
            attention.marks.end()
        if self._spread or not model.takes("logits_to_keep"):
            logits = logits.index_select(1, to_device(within, logits.device))
        self._set_next(rows, torch.tensor([*map(len, pieces)], device="cpu") + begin.squeeze(1))
        return logits

    def look_at(self, lengths: Sequence[int]) -> None:
        """See `gen.models.base.Rows.look_at`; on CUDA all rows attend to all columns of a step."""
        if not lengths or self._position.device.type != "cpu":
            self._plan.look_at_all()
        elif self._attention is not None and (keys := self._some_keys()) is not None:
            there = [row for row in self._rooms if row < len(lengths) and lengths[row]]  # else free, or being read
            self._plan.look(lengths, prod(keys.shape[1:]) // keys.shape[-2], there)

    def _some_keys(self) -> Tensor | None:
        """The keys of the first layer that has any; the layers before it may be recurrent."""
        return next((state.columns["keys"] for state in self._states if "keys" in state.columns), None)

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """See `gen.models.base.Rows.step`."""
        count, view = len(token_ids), min(whole(view), len(self._all_columns))
        device = self._position.device
        column, position = self._column[device][:count], self._position[:count]
        mask = self._masks.of(column.unsqueeze(1), self._all_columns[:view])
        token_ids = token_ids.to(device, non_blocking=True)
        if self._rooms:
            for on, own in self._column.items():
                self._shared_column[on][:count].copy_(own[:count]).clamp_(max=self._shared - 1)
        logits = self._forward(token_ids, position, mask, self._cache(count, view), 1)[:, -1]
        self._counts[:, :count].add_(1).clamp_(max=self._most[:, :count])
        for own, last in self._columns_elsewhere():
            own[:count].add_(1).clamp_(max=last[:count])
        return logits

    @property
    def widest(self) -> int:
        """See `gen.models.base.Rows.widest`: 1 unless all layers are attention, on one device, and were probed."""
        wide = self._model.goes_wide and not (self.whole_prompts or self._masks.flat or self._spread)
        return WIDEST if wide else 1

    def step_wide(self, token_ids: Tensor, view: int) -> Tensor:
        """See `gen.models.base.Rows.step_wide`."""
        (count, width), view = token_ids.shape, min(whole(view), len(self._all_columns))
        place, cache = self._wide_cache(count, view, width)
        place.column, place.own_column = self._next_columns(count, width)
        mask = self._masks.of(place.own_column, self._all_columns[:view])
        positions = (self._position[:count] + self._all_columns[:width]).clamp_(max=self._model.context_length - 1)
        self._place = place
        token_ids = token_ids.to(self._position.device, non_blocking=True)
        return self._forward(token_ids, positions, mask, cache, width)

    def _forward(self, token_ids: Tensor, positions: Tensor, mask: "Mask", cache: "Cache", keep: int) -> Tensor:
        """The logits (n, keep, vocab_size) of a step. If it shows that rows cannot have memory of their own, since the
        model's attention is not gen's, the model parts its rows no more."""
        try:
            logits = self._model.forward_all(token_ids, positions, mask, cache, {}, logits_to_keep=keep)
        except Exception as error:
            if self._rooms and self._use is not None and not isinstance(error, torch.OutOfMemoryError | MemoryError):
                self._use.reasons.add("a step failed where rows had memory of their own")
            raise
        if self._attention is not None:
            self._attention.marks.end()
        return logits

    def advance(self, counts: Tensor) -> None:
        """See `gen.models.base.Rows.advance`."""
        count = len(counts)
        self._counts[:, :count].add_(counts).clamp_(max=self._most[:, :count])
        behind = self._next_columns(count, self._place.width)  # with all columns of tokens that do not count
        for state in self._states:
            state.forget(self._place, *behind)

    def _next_columns(self, count: int, width: int) -> tuple[Tensor, Tensor]:
        """The next columns (n, width) of rows without memory of their own, and of all rows; the last column again if a
        row has no more room, as in free rows."""
        columns = self._counts[0, :count].unsqueeze(1) + self._all_columns[:width]
        columns.clamp_(max=self._most[0, :count].unsqueeze(1))
        return columns.clamp(max=self._shared - 1) if self._rooms else columns, columns

    def _wide_cache(self, count: int, view: int, width: int) -> "tuple[Place, Cache]":
        """Where a wide step writes, and its cache; made once for each shape."""
        if (count, view, width) not in self._wide:
            row = self._row[self._position.device][:count]
            place = Place(row, row, row, min(view, whole(self._shared)), width)
            cache = step_cache(self._layers, self._states, [place] * len(self._layers), count, self._attention)
            self._wide[count, view, width] = place, cache
        return self._wide[count, view, width]

    def _columns_elsewhere(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The columns on devices other than the embedding's, each with the last columns of the rows."""
        return ((own, self._last[on]) for on, own in self._column.items() if on != self._counts.device)

    def reorder(self, ancestors: Tensor, view: int) -> None:
        """See `gen.models.base.Rows.reorder`."""
        if not self._sides:
            self._lay_side_by_side()
        count = len(ancestors)
        on = {ancestors.device: ancestors}  # one copy per device
        for tensor, axis in self._tensors(view):
            if tensor.device not in on:
                on[tensor.device] = ancestors.to(tensor.device, non_blocking=True)
            tensor.narrow(axis, 0, count).copy_(tensor.index_select(axis, on[tensor.device]))

    def copy(self, source: int, targets: slice, view: int) -> None:
        """See `gen.models.base.Rows.copy`."""
        for row in range(self.count)[targets]:
            self._read_to.pop(row, None)
        for state in self._states:
            state.copy(source, targets, view)
        for tensor in (*self._column.values(), self._position):
            tensor[targets] = tensor[source]

    def save(self, row: int, start: int, end: int) -> dict[Hashable, Tensor]:
        """See `gen.models.base.Rows.save`."""
        return {
            (number, name): state.row(name, row)[..., start:end, :].clone()
            for number, state in enumerate(self._states)
            for name in state.columns
        }

    def load(self, row: int, start: int, columns: Mapping[Hashable, Tensor]) -> None:
        """See `gen.models.base.Rows.load`."""
        self._read_to.pop(row, None)
        for key, tensor in columns.items():
            number, name = cast(tuple[int, str], key)
            self._states[number].load(name, row, start, tensor)

    @property
    def recurrent(self) -> bool:
        """See `gen.models.base.Rows.recurrent`."""
        return self.whole_prompts

    def going_on_costs(self) -> int:
        """See `gen.models.base.Rows.going_on_costs`."""
        return 1 if self._model.reads_on else _STEP_COSTS

    def save_states(self, row: int) -> dict[Hashable, Tensor]:
        """See `gen.models.base.Rows.save_states`."""
        return {
            (number, key): states[row].clone()
            for number, state in enumerate(self._states)
            for key, states in state.summaries.items()
        }

    def load_states(self, row: int, states: Mapping[Hashable, Tensor]) -> None:
        """See `gen.models.base.Rows.load_states`."""
        for key, tensor in states.items():
            number, (kind, of) = cast(tuple[int, tuple[str, int]], key)
            self._states[number].write_summary(slice(row, row + 1), kind, of, tensor.unsqueeze(0))

    def grow(self, length: int) -> None:
        """See `gen.models.base.Rows.grow`."""
        self.lay_out(length, {})

    @property
    def parts_rows(self) -> bool:
        """See `gen.models.base.Rows.parts_rows`."""
        return self._model.parts_rows and not self.whole_prompts and not self._masks.flat

    def lay_out(self, length: int, rooms: Mapping[int, int]) -> None:
        """See `gen.models.base.Rows.lay_out`."""
        self._shared, self._rooms = length, dict(sorted(rooms.items()))
        self._read_to.clear()
        for state in self._states:
            state.grow(length, self._rooms)
        if self._sides:
            self._lay_side_by_side()
        self.length = max(length, *rooms.values()) if rooms else length
        self._bound()
        for on, own in self._column.items():
            own.clamp_(max=self._last[on])
        self._all_columns = torch.arange(whole(self.length), device=self._position.device)
        self._caches.clear()
        self._wide.clear()

    def parts(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """See `gen.models.base.Rows.parts`."""
        for number, (state, device) in enumerate(zip(self._states, self._devices, strict=True)):
            for name, columns in state.columns.items():
                yield f"the cache's {name} of layer {number}", columns, device
                for row, own in state.apart.get(name, {}).items():
                    yield f"the cache's {name} of layer {number} and row {row}", own, device
            for (kind, _), summary in state.summaries.items():
                yield f"the {kind} state of layer {number}", summary, device
        for device, columns in self._column.items():
            yield "the columns", columns, device
        yield "the positions", self._position, self._model.placement.input_device

    def moving(self) -> Iterator[Tensor]:
        """See `gen.models.base.Rows.moving`."""
        for state in self._states:
            yield from state.summaries.values()
        yield self._counts
        yield from (own for own, _ in self._columns_elsewhere())

    def _tensors(self, view: int) -> Iterator[tuple[Tensor, int]]:
        """All tensors of rows except the loop's counter, each with the dimension of its rows."""
        for tensor, axis, columns in self._sides:
            yield tensor[..., :view, :] if columns else tensor, axis
        yield self._counts[:2], 1
        yield from ((own, 0) for own, _ in self._columns_elsewhere())

    def _lay_side_by_side(self) -> None:
        """Put the layers' tensors side by side, so that few launches serve all layers."""
        self._sides = side_by_side(self._states)
        self._caches.clear()  # they hold views of tensors that were moved
        self._wide.clear()

    def _bound(self) -> None:
        """Set how far each row counts: its last column, the last position, and as many tokens as there is room for."""
        rooms, device = [self._rooms.get(row, self._shared) for row in range(self.count)], self._counts.device
        most = torch.tensor(
            [rooms, [self._model.context_length] * self.count, [self.length] * self.count], device="cpu"
        )
        self._most = to_device(most - 1, device)
        self._last = {on: self._most[0] if on == device else to_device(most[0] - 1, on) for on in self._column}

    def _runs(
        self, prompts: Sequence[Sequence[int]], inputs: Sequence[Inputs], targets: Sequence[int]
    ) -> Iterator[slice]:
        """Which neighbours are read together: none with images, and only those of one length with recurrent layers.

        Args:
            targets: the row of each prompt; a row with memory of its own is read alone.
        """
        first = 0
        while first < len(prompts):
            last = first + 1
            lengths = {len(prompts[first])}
            while last < len(prompts) and not inputs[first] and not inputs[last]:
                lengths.add(len(prompts[last]))
                places = (
                    len(self._kept(lengths, last + 1 - first)) if self._model.takes("logits_to_keep") else max(lengths)
                )
                too_many = (last + 1 - first) * places * self._model.vocab_size > _LOGITS
                apart = targets[first] in self._rooms or targets[last] in self._rooms
                if too_many or apart or (self.whole_prompts and len(lengths) > 1):
                    break
                last += 1
            yield slice(first, last)
            first = last

    def _read(self, rows: slice, prompts: Sequence[Sequence[int]], start: int, inputs: Inputs) -> Tensor:
        """Read prompts, padded on the right, into rows; the logits (n, vocab_size) after each.

        Causal attention does not see the padding, which comes later, and a row's own tokens overwrite it before the
        mask shows its columns.
        """
        model, device = self._model, self._position.device
        lengths = [len(prompt) for prompt in prompts]
        pads = self._pads and not inputs
        width = -(-max(lengths) // _WIDTH) * _WIDTH if pads else max(lengths)
        token_ids = _side_by_side(prompts, width)
        positions, placed = model.prompt_inputs(token_ids, start, inputs)
        if pads:
            positions = positions.clamp(max=model.context_length - 1)
        there = whole(self._rooms.get(rows.start, self._shared))
        mask: Mask = None
        view = attention = None
        if pads and self._in_blocks:
            view = min(whole_blocks(start + width), there)
        if view is not None or start:
            queries = torch.arange(start, start + width, device=device).unsqueeze(0)
            seen = self._all_columns[: min(start + width, there) if view is None else view]
            mask = _for_each(len(prompts), self._masks.of(queries, seen))
            attention = None if self._use is None else PromptAttention(start, self._use)
        kept = self._kept(lengths, len(prompts), width)
        keep: int | Tensor = len(kept)
        if not self._spread and (len(kept) > 1 or width > kept[-1]):
            keep = to_device(torch.tensor(kept, device="cpu") - 1, device)
        used = self._used(rows, start)
        cache = prompt_cache(self._layers, self._states, rows, start, view, used, attention)
        every = model.forward_all(
            to_device(token_ids, device), to_device(positions, device), mask, cache, placed, logits_to_keep=keep
        )
        if attention is not None:
            attention.marks.end()
        cut = model.takes("logits_to_keep") and every.shape[1] == len(kept)
        places = torch.tensor([kept.index(n) if cut else n - 1 for n in lengths], device="cpu")
        logits = every.gather(1, to_device(places, every.device).view(-1, 1, 1).expand(-1, 1, every.shape[2])).squeeze(
            1
        )
        for layer, state in zip(cache.layers, self._states, strict=True):
            if getattr(layer, "conv_states", None) is not None:
                state.write_summaries(rows, layer)
        highest = positions.amax(-1, keepdim=True).view(-1, len(prompts), 1).amax(0) + 1 if inputs else None
        self._set_next(rows, torch.tensor(lengths, device="cpu") + start, highest)
        self._read_to.update(zip(range(self.count)[rows], ((start + n, start + width) for n in lengths), strict=True))
        return logits

    def _used(self, rows: slice, start: int) -> int | None:
        """On a CPU, how many columns of a row may have been written, if only steps have written to it since its
        prompt was read up to `start`; None if this is not known."""
        read, padded = self._read_to.get(rows.start, (0, 0))
        known = start > 0 and read == start and rows.stop == rows.start + 1 and not self._sides  # else they were mixed
        if not known or self._position.device.type != "cpu":
            return None
        column = int(self._column[self._position.device][rows.start])  # of the next step; never past the last one
        return max(padded, column + 1)

    def _set_next(self, rows: slice, columns: Tensor, positions: Tensor | None = None) -> None:
        """Set where the rows' next tokens go: columns (n,), and positions (n, 1) if these differ; on the CPU."""
        for row in range(self.count)[rows]:
            self._read_to.pop(row, None)
        for own in self._column.values():
            own[rows] = to_device(columns, own.device)
        positions = columns.unsqueeze(1) if positions is None else positions
        highest = positions.clamp(max=self._model.context_length - 1)
        self._position[rows] = to_device(highest, self._position.device)

    def _kept(self, lengths: Collection[int], count: int, width: int = 0) -> Sequence[int]:
        """The tokens, counted from 1, after which logits are made for `count` prompts of these lengths.

        A model on several devices gets the number of last tokens, not a tensor of places, which it may need anywhere.
        """
        if self._spread:
            return range(min(lengths), max(*lengths, width) + 1)
        kept = sorted(set(lengths))
        while self._pads and count * len(kept) % _PLACES:
            kept.append(kept[-1])
        return kept

    def _cache(self, count: int, view: int) -> "Cache":
        """The cache of a step; made once for each shape."""
        cache = self._caches.get((count, view))
        if cache is None:
            columns = self._shared_column if self._rooms else self._column
            places = {
                on: Place(self._row[on][:count], columns[on][:count], own[:count], min(view, whole(self._shared)))
                for on, own in self._column.items()
            }
            cache = step_cache(self._layers, self._states, [places[on] for on in self._devices], count, self._attention)
            self._caches[count, view] = cache
        return cache


def _for_each(count: int, mask: "Mask") -> "Mask":
    """The mask of one row, or such masks by kind of layer, expanded to `count` rows; nothing is copied."""
    if isinstance(mask, dict):
        return {kind: None if one is None else one.expand(count, -1, -1, -1) for kind, one in mask.items()}
    return mask if mask is None else mask.expand(count, *[-1] * (mask.dim() - 1))


def _slice(rows: range) -> slice:
    return slice(rows.start, rows.stop, rows.step)


def _side_by_side(prompts: Sequence[Sequence[int]], width: int) -> Tensor:
    """(n, width), int64, on the CPU; padded with the prompt's own token: no other token's NaN gets into its row."""
    padded = [[*prompt, *[prompt[-1]] * (width - len(prompt))] for prompt in prompts]
    return torch.tensor(padded, dtype=torch.int64, device="cpu")
