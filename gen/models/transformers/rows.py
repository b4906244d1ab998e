"""The sequences of a batch in a transformers model: prompts are read into rows, and steps go on from them."""

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from gen.attention.plan import Plan, whole
from gen.attention.prompts import whole_blocks
from gen.devices import to_device
from gen.models.base import Inputs, Rows
from gen.models.transformers.attention import Marks, PromptAttention, StepAttention
from gen.models.transformers.cache import cache_of, check_layers
from gen.models.transformers.layer_state import Columns, LayerState, Place, Side, side_by_side
from gen.models.transformers.masks import Masks
from gen.models.transformers.wrappers import innermost

if TYPE_CHECKING:
    from transformers import Cache

    from gen.models.transformers.model import Mask, TransformersModel

# linear layers give a token the same bits in any batch whose number of rows is a multiple of these
_WIDTH, _PLACES = 16, 4  # tokens of all prompts with padding; places after which logits are made
_STEP_COSTS = 16  # about as many tokens are read in the time of a step
WIDEST = 64  # tokens of a row in a step
_LOGITS = 2**25  # the most numbers in the logits of prompts that are read together


class TransformersRows(Rows):
    """Rows of a static cache, each at its own column; see `gen.models.base.Rows`.

    State, changed in place: each layer's keys and values, where the layer is; and on the embedding's device `columns`,
    (count,) int64: where each row's next token is written; `positions`, (count, 1) int64: the next token's position,
    which images can make different from its column. A row may have memory of its own, so that the others need not have
    room for as many tokens.
    """

    refillable = saves = True
    counter: Tensor
    _column: Tensor

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
        self._counts = torch.zeros((3, count), dtype=torch.int64, device=device)  # one launch counts them all
        self._column, position, counter = self._counts
        self._position, self.counter = position.unsqueeze(1), counter.unsqueeze(1)
        self._row = torch.arange(count, device=device).unsqueeze(1)
        self._rooms: Mapping[int, int] = {}  # of rows that have memory of their own: how many tokens
        self._shared = length
        self._bound()
        self._all_columns = torch.arange(whole(length), device=device)
        self._masks = Masks(model.decoder_config, flat=model.takes_flat_masks, dtype=model.placement.dtype)
        self._sides: list[Side] = []  # all that layers keep; filled when rows first go on from others
        device_map = getattr(innermost(model.hf_model), "hf_device_map", {})
        self._spread = len(model.placement.devices) > 1 or len({*device_map.values()}) > 1
        self.replayable = not self._spread  # a graph is for one device
        self._use, self._plan = model.attention, Plan()
        self._attention = None if self._use is None else StepAttention(self._plan, Marks(self._use))
        self._pads = self._use is not None and not self.whole_prompts
        self._in_blocks = self._pads and not self._spread and not self._masks.flat and device.type == "cpu"

    def prefill(
        self,
        rows: slice,
        prompts: Sequence[Sequence[int]],
        starts: Sequence[int] = (),
        places: Sequence[int] = (),
        inputs: Sequence[Inputs] = (),
    ) -> Tensor:
        """See `gen.models.base.Rows.prefill`."""
        targets, starts = range(self.count)[rows], starts or [0] * len(prompts)
        inputs = inputs or [{}] * len(prompts)
        logits = []
        for run in self._runs(prompts, starts, inputs, targets):
            read = targets[run]
            here, those = slice(read.start, read.stop, read.step), prompts[run]
            if starts[run.start] and self.whole_prompts and not self._model.reads_on:
                # token by token; all are of one length, as in any such run
                for at, token_ids in enumerate(zip(*those, strict=True), starts[run.start]):
                    made = self._read(here, [*zip(token_ids)], [at] * len(those), (), {})
            else:
                made = self._read(here, those, starts[run], places, inputs[run.start])
            logits.append(made)
        return torch.cat(logits) if len(logits) > 1 else logits[0]

    @property
    def reads_places(self) -> bool:
        """See `gen.models.base.Rows.reads_places`."""
        return not self.whole_prompts

    def look_at(self, lengths: Sequence[int]) -> None:
        """See `gen.models.base.Rows.look_at`; on CUDA all rows attend to all columns of a step."""
        # of the first layer that has any; those before it may be recurrent
        keys = next((state.columns["keys"] for state in self._states if "keys" in state.columns), None)
        if not lengths or not self._position.is_cpu:
            self._plan.look_at_all()
        elif self._attention is not None and keys is not None:
            there = [row for row in self._rooms if row < len(lengths) and lengths[row]]  # else free, or being read
            self._plan.look(lengths, keys, there)

    def step(self, token_ids: Tensor, view: int) -> Tensor:
        """See `gen.models.base.Rows.step`."""
        count = len(token_ids)
        columns, position = self._column[:count].unsqueeze(1), self._position[:count]
        logits = self._forward(token_ids, columns, position, view)[:, -1]
        self._counts[:, :count].add_(1).clamp_(max=self._most[:, :count])
        return logits

    @property
    def widest(self) -> int:
        """See `gen.models.base.Rows.widest`: 1 unless all layers are attention, on one device, and were probed."""
        wide = self._model.goes_wide and not (self.whole_prompts or self._masks.flat or self._spread)
        return WIDEST if wide else 1

    def verify(self, token_ids: Tensor, view: int) -> Tensor:
        """See `gen.models.base.Rows.verify`."""
        count, width = token_ids.shape
        positions = (self._position[:count] + self._all_columns[:width]).clamp_(max=self._model.context_length - 1)
        return self._forward(token_ids, self._next_columns(count, width), positions, view)

    def _forward(self, token_ids: Tensor, columns: Tensor, positions: Tensor, view: int) -> Tensor:
        """The logits (n, width, vocab_size) after each token of a step. If it shows that rows cannot have memory of
        their own, since the model's attention is not gen's, the model parts its rows no more.

        Args:
            columns: (n, width), int64: where the tokens go.
            positions: (n, width), int64.
        """
        (count, width), view = token_ids.shape, min(whole(view), len(self._all_columns))
        mask = self._masks.of(columns, self._all_columns[:view])
        token_ids = token_ids.to(self._position.device, non_blocking=True)
        at = self._columns_of(columns)
        self._place = Place(rows=slice(count), width=width, view=min(view, whole(self._shared)), columns=at)
        cache = self._cache(self._place, self._attention)
        try:
            logits: Tensor = self._model.forward_all(token_ids, positions, mask, cache, {}, logits_to_keep=width)
        except Exception as error:
            if self._rooms and self._use is not None and not isinstance(error, torch.OutOfMemoryError | MemoryError):
                self._use.reasons.add("a step failed where rows had memory of their own")
            raise
        if self._attention is not None:
            self._attention.marks.end()
        return logits

    def commit(self, counts: Tensor) -> None:
        """See `gen.models.base.Rows.commit`."""
        count = len(counts)
        self._counts[:, :count].add_(counts).clamp_(max=self._most[:, :count])
        behind = self._columns_of(self._next_columns(count, self._place.width))  # with all that do not count
        for state in self._states:
            state.roll_back(self._place, behind)

    def _next_columns(self, count: int, width: int) -> Tensor:
        """The next columns (n, width) of rows; the last column again if a row has no more room, as in free rows."""
        columns = self._column[:count].unsqueeze(1) + self._all_columns[:width]
        return columns.clamp_(max=self._most[0, :count].unsqueeze(1))

    def _columns_of(self, columns: Tensor) -> Columns:
        """Where a step's tokens go, (n, width): rows with memory of their own write to a column of the others', too."""
        shared = columns.clamp(max=self._shared - 1) if self._rooms else columns
        return Columns(self._row[: len(columns)], shared, columns)

    def _cache(self, place: Place, attention: StepAttention | PromptAttention | None) -> "Cache":
        places = {device: place.on(device) for device in dict.fromkeys(self._devices)}
        return cache_of(self._layers, self._states, [places[on] for on in self._devices], attention)

    def reorder(self, ancestors: Tensor, view: int) -> None:
        """See `gen.models.base.Rows.reorder`."""
        self._sides = self._sides or side_by_side(self._states)
        count = len(ancestors)
        on = {ancestors.device: ancestors}  # one copy per device
        for tensor, axis in self._tensors(view):
            if tensor.device not in on:
                on[tensor.device] = ancestors.to(tensor.device, non_blocking=True)
            tensor.narrow(axis, 0, count).copy_(tensor.index_select(axis, on[tensor.device]))

    def copy(self, source: int, targets: slice, view: int) -> None:
        """See `gen.models.base.Rows.copy`."""
        for state in self._states:
            state.copy(source, targets, view)
        self._counts[:2, targets] = self._counts[:2, source : source + 1]

    def save(self, row: int, start: int, end: int) -> dict[Hashable, Tensor]:
        """See `gen.models.base.Rows.save`."""
        return {
            (number, name): state.row(name, row)[..., start:end, :].clone()
            for number, state in enumerate(self._states)
            for name in state.columns
        }

    def load(self, row: int, start: int, columns: Mapping[Hashable, Tensor]) -> None:
        """See `gen.models.base.Rows.load`."""
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
        for state in self._states:
            state.grow(length, self._rooms)
        if self._sides:
            self._sides = side_by_side(self._states)
        self.length = max(length, *rooms.values()) if rooms else length
        self._bound()
        self._column.clamp_(max=self._most[0])
        self._all_columns = torch.arange(whole(self.length), device=self._position.device)

    def parts(self) -> Iterator[tuple[str, Tensor, torch.device]]:
        """See `gen.models.base.Rows.parts`."""
        for number, (state, device) in enumerate(zip(self._states, self._devices, strict=True)):
            for name, columns in state.columns.items():
                yield f"the cache's {name} of layer {number}", columns, device
                for row, own in state.apart.get(name, {}).items():
                    yield f"the cache's {name} of layer {number} and row {row}", own, device
            for (kind, _), summary in state.summaries.items():
                yield f"the {kind} state of layer {number}", summary, device
        yield "the columns", self._column, self._model.placement.input_device
        yield "the positions", self._position, self._model.placement.input_device

    def moving(self) -> Iterator[Tensor]:
        """See `gen.models.base.Rows.moving`."""
        for state in self._states:
            yield from state.summaries.values()
        yield self._counts

    def _tensors(self, view: int) -> Iterator[tuple[Tensor, int]]:
        """All tensors of rows except the loop's counter, each with the dimension of its rows."""
        for tensor, axis, columns in self._sides:
            yield tensor[..., :view, :] if columns else tensor, axis
        yield self._counts[:2], 1

    def _bound(self) -> None:
        """Set how far each row counts: its last column, the last position, and as many tokens as there is room for."""
        rooms = [self._rooms.get(row, self._shared) for row in range(self.count)]
        most = torch.tensor(
            [rooms, [self._model.context_length] * self.count, [self.length] * self.count], device="cpu"
        )
        self._most = to_device(most - 1, self._counts.device)

    def _runs(
        self,
        prompts: Sequence[Sequence[int]],
        starts: Sequence[int],
        inputs: Sequence[Inputs],
        targets: Sequence[int],
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
                kept = (
                    len(self._kept(lengths, last + 1 - first)) if self._model.takes("logits_to_keep") else max(lengths)
                )
                too_many = (last + 1 - first) * kept * self._model.vocab_size > _LOGITS
                apart = targets[first] in self._rooms or targets[last] in self._rooms
                one_line = starts[first] != starts[last] and (self._masks.flat or self.whole_prompts)  # of the mask
                if too_many or apart or one_line or (self.whole_prompts and len(lengths) > 1):
                    break
                last += 1
            yield slice(first, last)
            first = last

    def _read(
        self,
        rows: slice,
        prompts: Sequence[Sequence[int]],
        starts: Sequence[int],
        places: Sequence[int],
        inputs: Inputs,
    ) -> Tensor:
        """Read prompts, padded on the right, into rows; the logits as `prefill` gives them.

        Causal attention does not see the padding, which comes later, and a row's own tokens overwrite it before the
        mask shows its columns.
        """
        model, device, lengths = self._model, self._position.device, [*map(len, prompts)]
        alike = len(set(starts)) == 1  # else each row has columns of its own
        pads = self._pads and alike and not inputs and not places
        step = _WIDTH // gcd(len(prompts), _WIDTH) if pads else 1
        width = -(-max(lengths) // step) * step
        token_ids = _pad_right(prompts, width)
        begins = torch.tensor(starts, device="cpu").unsqueeze(1)
        positions, placed = model.prompt_inputs(token_ids, inputs)
        positions = (positions + begins).clamp(max=model.context_length - 1)
        place = self._prompt_place(rows, starts, width, in_blocks=pads and self._in_blocks)
        mask: Mask = None
        attention = None
        if place.view is not None:
            queries = torch.arange(width, device=device) + to_device(begins[:1] if alike else begins, device)
            mask = _for_each(len(prompts), self._masks.of(queries, self._all_columns[: place.view]))
            if not alike:
                lost = self._all_columns[: place.view] >= queries[:, :1]
                columns = Columns(self._row[: len(prompts)], queries, queries, lost.unsqueeze(2))
                place = replace(place, columns=columns)
            if self._use is not None:
                attention = PromptAttention(starts[0] if alike and not places else None, self._use)
        wanted = [[min(one + 1, width) for one in places]] * len(prompts) if places else [[n] for n in lengths]
        kept = self._kept(wanted[0] if places else lengths, len(prompts), width, pads=not places)
        keep: int | Tensor = len(kept)
        if not self._spread and (len(kept) > 1 or width > kept[-1]):
            keep = to_device(torch.tensor(kept, device="cpu") - 1, device)
        cache = self._cache(place, attention)
        logits = model.forward_all(
            to_device(token_ids, device), to_device(positions, device), mask, cache, placed, logits_to_keep=keep
        )
        if attention is not None:
            attention.marks.end()
        cut = model.takes("logits_to_keep") and logits.shape[1] == len(kept)
        if not (cut and places and [*kept] == wanted[0]):
            at = torch.tensor([[kept.index(n) if cut else n - 1 for n in each] for each in wanted], device="cpu")
            logits = logits.gather(1, to_device(at, logits.device).unsqueeze(2).expand(-1, -1, logits.shape[2]))
        for layer, state in zip(cache.layers, self._states, strict=True):
            if getattr(layer, "conv_states", None) is not None:
                state.write_summaries(rows, layer)
        ends = torch.tensor(lengths, device="cpu").unsqueeze(1) + begins
        highest = positions.amax(-1, keepdim=True).view(-1, len(prompts), 1).amax(0) + 1 if inputs else ends
        self._column[rows] = to_device(ends.squeeze(1), device)
        self._position[rows] = to_device(highest.clamp(max=model.context_length - 1), device)
        return logits if places else logits.squeeze(1)

    def _prompt_place(self, rows: slice, starts: Sequence[int], width: int, *, in_blocks: bool) -> Place:
        """Where prompts go that are read side by side; those that come after unlike columns get theirs later."""
        start, there = starts[0], whole(self._rooms.get(rows.start, self._shared))
        end = max(starts) + width
        view = min(whole_blocks(end) if in_blocks else end, there) if in_blocks or end > width else None
        used = None
        if start and self._counts.device.type == "cpu":  # steps have written no more since the row was cleared
            used = int(self._column[rows].max()) + 1
        return Place(rows=rows, width=width, view=view, start=start, used=used)

    def _kept(self, lengths: Collection[int], count: int, width: int = 0, *, pads: bool = True) -> Sequence[int]:
        """The tokens, counted from 1, after which logits are made for `count` prompts, of these at least.

        A model on several devices gets the number of last tokens, not a tensor of places, which it may need anywhere.
        """
        if self._spread:
            return range(min(lengths), max(*lengths, width) + 1)
        kept = sorted(set(lengths))
        while pads and self._pads and count * len(kept) % _PLACES:
            kept.append(kept[-1])
        return kept


def _for_each(count: int, mask: "Mask") -> "Mask":
    """The mask of one row, or such masks by kind of layer, expanded to `count` rows; nothing is copied."""
    if isinstance(mask, dict):
        return {kind: None if one is None else one.expand(count, -1, -1, -1) for kind, one in mask.items()}
    return mask if mask is None else mask.expand(count, *[-1] * (mask.dim() - 1))


def _pad_right(prompts: Sequence[Sequence[int]], width: int) -> Tensor:
    """(n, width), int64, on the CPU; padded with the prompt's own token: no other token's NaN gets into its row."""
    padded = [[*prompt, *[prompt[-1]] * (width - len(prompt))] for prompt in prompts]
    return torch.tensor(padded, dtype=torch.int64, device="cpu")
