"""The state of a batch's rows on the device, and the step that changes it: logits, then stages, then the search."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor

from gen.devices import to_device
from gen.loop.history import History
from gen.loop.replay.host_calls import host_call
from gen.loop.results.ring import Ring, Sent, packed
from gen.loop.results.top_tokens import PromptTokens, TopTokens
from gen.loop.searches.drawing import DrawKeys
from gen.loop.searches.search import Given, Search
from gen.loop.speculation.drafts import FORCED, LONGEST, Drafts
from gen.loop.speculation.host_drafts import SoFar, drafts_of
from gen.loop.speculation.settings import MOST, MOST_RECORDED, Speculation
from gen.models.base import Model
from gen.models.checks import new_rows
from gen.requests.processors import LogitsProcessor
from gen.requests.request import Request
from gen.runtime.streams import Streams
from gen.samplers.logits import log_probabilities
from gen.stages.stage import Here, Places, Room, Stage

_LOGITS = 2**23  # how many numbers the logits of a prompt's tokens may have at a time

Reorder = Callable[[Tensor, int], None]  # see `gen.models.base.Rows.reorder`


class Decoder:
    """A set of rows, which serves one call at a time.

    Attributes:
        rows: the model's rows.
        search: chooses tokens.
        stages: change logits before the search.
        kind: the kind of search; equal for equal ones.
        count, length: how many rows there are, and how many tokens the largest row has had room for.
        shared, rooms: how many tokens each row has room for; and, by row, the room of those that have more.
        device: the device of the logits and of all state.
        dtype: of the model when the rows were made: that of their keys and values.
        streams: the only streams on which the rows are used on CUDA.
        filled: whether a prompt has been read into the rows, so that they have their memory.
        short: whether a text may be short of room in the next step, which then reports what its limit has changed.
        drafts: the drafts of its texts; None if nothing is drafted.
        speculation: where drafts come from; None if nothing is drafted.
        drafts_in_steps: whether drafting is a part of each step; otherwise the host makes drafts between steps.
    """

    def __init__(
        self,
        model: Model,
        count: int,
        length: int,
        kind: Hashable,
        search: Callable[[int, torch.device], Search],
        stages: Sequence[Callable[[int, torch.device], Stage]],
        streams: Streams,
    ) -> None:
        device = self.device = model.placement.logits_device
        self.drafts_in_steps = device.type != "cpu"
        self.rows = new_rows(model, count, length)
        self.search = search(count, device)
        self.stages = [stage(count, device) for stage in stages]
        self.kind, self.count, self.length, self.shared = kind, count, length, length
        self.rooms: Mapping[int, int] = {}
        self.streams = streams
        self.dtype, self._width = model.placement.dtype, model.vocab_size
        self.filled = self.short = False
        self._vocabulary = min(model.vocab_size, model.tokenizer.vocab_size)
        self._keys = DrawKeys(count, length, device)
        counter = self.rows.counter
        self._counts = counter is None or counter.device != device
        self._generated = (
            torch.zeros((count, 1), dtype=torch.int64, device=device) if counter is None or self._counts else counter
        )
        self._history = History(count, length, device)
        self._places = torch.arange(count, device=device)
        self.ring = Ring(streams.copies, self.search.results)
        self._squeezed = packed((torch.zeros(count, dtype=torch.bool, device=device),))
        self._tops = TopTokens(count, self._vocabulary, device)
        self.drafts: Drafts | None = None
        self.speculation: Speculation | None = None
        self._active: list[Stage] = []  # the stages that do something; found anew when requests join or leave

    def speculate(self, speculation: Speculation | None) -> None:
        """Draft from now on, or with None do not; call it before rows are filled."""
        self.speculation = speculation
        if speculation is not None and self.drafts is None:
            self.drafts = Drafts(self.count, self.device)
        for stage in self.stages:
            stage.forces = speculation is not None and speculation.output_type

    def hindrance(self) -> str:
        """What rows ask for now that does not work with drafts; empty if there is nothing."""
        if all(stage.takes_places for stage in self._active):
            return ""
        return "a logits processor, or an output type on the host engine"

    def begin(self) -> None:
        """All rows are free."""
        self.search.begin()
        for stage in self.stages:
            stage.begin()
        self._active = []
        self._tops.begin()
        self._history.begin()
        if self.drafts is not None:
            self.drafts.begin()

    def serves(self, model: Model) -> bool:
        """Whether texts can go on in these rows: not if the model has another dtype since they were made, or if rows
        have memory of their own, and its attention turns out to read no such rows."""
        return self.dtype == model.placement.dtype and (not self.rooms or self.parts)

    @property
    def replayable(self) -> bool:
        """Whether a step may be repeated without its Python code now."""
        return self.rows.replayable and all(stage.replayable for stage in self._active)

    def prepare(self, here: slice, width: int = 1) -> None:
        """Let the host do its part between two steps of these rows. Host sync: none on CUDA."""
        for stage in self._active:
            stage.prepare(here, width)

    def _find_active(self) -> None:
        self._active = [stage for stage in self.stages if stage.key() is not None]

    def step_kind(self, width: int = 1) -> tuple[Hashable, ...]:
        """What a step does, beside its shape: equal for steps that make the same calls on the same tensors."""
        stages = tuple(stage.key() for stage in self.stages)
        drafts = self.speculation if self.drafts_in_steps else None  # on a CPU the host makes drafts
        return (
            width,
            drafts,
            0 if self.drafts is None else self.drafts.earlier,
            self._history.wanted,
            self.search.key(),
            stages,
            self.short,
            self._tops.tempers,
            self._tops.width,
        )

    def fill(
        self,
        rows: slice,
        requests: Sequence[Request],
        tokens: Sequence[Sequence[int]],
        *,
        weights: Sequence[float] | None = None,
        starts: Sequence[int] | None = None,
    ) -> None:
        """Read prompts into rows side by side and choose each row's next token.

        Args:
            rows: all rows of all requests, those of a request side by side.
            tokens: the tokens to read for each request: its prompt, and tokens of its text that were made before, which
                count as generated.
            weights: for each text, the log-probability of the tokens that were made before; None for 0.
            starts: how many of each request's tokens are in its first row already; None for 0.
        """
        each = (rows.stop - rows.start) // len(requests)
        firsts = slice(rows.start, rows.stop, each)
        inputs = [request.inputs for request in requests] if any(request.inputs for request in requests) else []
        starts = starts or [0] * len(tokens)
        parts = [read[start:] for read, start in zip(tokens, starts, strict=True)]
        logits = self.rows.prefill(firsts, parts, starts, inputs=inputs)
        self.filled = True
        self._begin_rows(rows, requests, tokens, weights or [0.0] * len(requests))
        if each > 1:
            for place, read in zip(range(self.count)[firsts], tokens, strict=True):
                self.rows.share(place, slice(place + 1, place + each), len(read))
            logits = logits.repeat_interleave(each, 0)
        made = [len(read) - len(request.prompt_ids) for request, read in zip(requests, tokens, strict=True)]
        self.short = any(request.short(count) for request, count in zip(requests, made, strict=True))
        self.prepare(rows)
        self._choose(logits, rows, self.length)

    def retain_only(self, rows: Collection[int], requests: Collection[Request]) -> None:
        """Only these rows, of these requests, go on: functions that other requests asked for are no longer run."""
        self._tops.retain_only(requests)
        for stage in self.stages:
            stage.retain_only(rows, requests)
        self._find_active()
        self._history.wanted = self._history.wanted and self._wants_history

    @property
    def _wants_history(self) -> bool:
        """Whether something looks at the tokens so far."""
        return self._looks_up or any(stage.looks_back for stage in self._active)

    @property
    def _looks_up(self) -> bool:
        """Whether each step looks for its last tokens in those before, or in texts that were made before."""
        speculation, drafts = self.speculation, self.drafts
        if speculation is None or drafts is None or not self.drafts_in_steps:
            return False
        return speculation.prompt or drafts.earlier > 0

    def read_told(
        self, row: int, part: Sequence[int], start: int, following: Sequence[int], told: PromptTokens
    ) -> None:
        """Read a part of a prompt that is not its last one, in pieces with few enough logits; `told` gets the logits of
        each token that follows. `start` tokens have been read before."""
        most = max(1, _LOGITS // self._width)
        for at in range(0, len(part), most):
            piece = part[at : at + most]
            logits = self.rows.prefill(slice(row, row + 1), [piece], [start + at], range(len(piece)))
            told.score(logits[0, :, : self._vocabulary], following[at : at + most])

    def step(self, count: int, view: int, width: int = 1, *, stays: bool = False) -> None:
        """A step of the first rows: takes tensors that stay where they are, and changes them in place.

        Args:
            view: how many columns it looks at.
            width: how many tokens of each row it reads: the newest one and drafts.
            stays: whether each row's cache goes on from itself, whatever is chosen: then the step only changes the
                tensors of `moving`, which are small.
        """
        here, drafts = slice(0, count), self.drafts
        drafting = self.speculation is not None and self.drafts_in_steps
        if drafting:
            self._draft(here, view)
        if drafts is not None and width > 1:
            feed = drafts.feed[here, :width]
            self._choose(self.rows.verify(feed, view).flatten(0, 1), here, view, feed=feed)
            return
        newest = self.search.results[0][here]
        logits = self.rows.step(newest, view)
        if self._counts:
            self._generated[here].add_(1).clamp_(max=self.length - 1)
        self._choose(logits, here, view, reorder=self._stay if stays else self.rows.reorder)
        if drafting and drafts is not None:
            drafts.compare(here, newest)

    def draft(self, rows: Iterable[tuple[int, SoFar]], *, least: int) -> list[tuple[list[int], list[int]]] | None:
        """On a CPU: make drafts for the next step of some rows, before its width is chosen.

        Args:
            rows: each with its text; only looked at on a CPU.
            least: how many of the last tokens of a text without a type must stand before what is drafted.
        Returns:
            The drafts of each row, and the kind of each draft. None on other devices: there drafting is a part of each
            step, and the host gets the number of drafts with the results of the step.
        """
        speculation = self.speculation
        if speculation is None or self.drafts_in_steps:
            return None
        drafter = self._drafter
        made = []
        for row, text in rows:
            ahead = None if drafter is None else drafter.ahead(row, MOST_RECORDED)
            made.append(drafts_of(text, speculation, ahead, least if ahead is None else 1))
        return made

    def set_drafts(self, row: int, newest: int, drafts: Sequence[int]) -> None:
        """On a CPU: let the next step, which is wide, read these drafts of a row."""
        assert self.drafts is not None  # there are drafts only where texts speculate; tells mypy
        self.drafts.write(row, newest, drafts)

    @property
    def typed(self) -> bool:
        """Whether a text has an output type that may force drafts."""
        return self._drafter is not None

    @property
    def _drafter(self) -> Stage | None:
        """The stage that goes ahead of texts; None if no text has a constraint."""
        return next((stage for stage in self._active if stage.goes_ahead), None)

    def _draft(self, here: slice, view: int) -> None:
        """Write drafts of what may follow the newest token of each row, for a wide step. Host sync: none on CUDA."""
        drafts, speculation, drafter = self.drafts, self.speculation, self._drafter
        assert drafts is not None and speculation is not None  # tells mypy
        feed, newest = drafts.feed[here], self.search.results[0][here]
        feed[:, :1] = newest
        kinds, real = drafts.kinds[here], drafts.real[here].unsqueeze(1)
        if self._looks_up:
            so_far = self._history.before(here, view)
            feed[:, 1:], found = drafts.find(here, *so_far, prompt=speculation.prompt)
            torch.clamp(found + drafts.numbers[:MOST], max=LONGEST, out=kinds)
            torch.mul(found > 0, speculation.most, out=real)
        else:
            real.zero_()
        if drafter is not None:
            coming, forced = drafter.draft(here, feed, real, self._generated[here] + 1, walks=self._looks_up)
            torch.clamp(coming, max=speculation.most, out=real)
            kinds.masked_fill_(forced, FORCED)

    def send(self, width: int = 1, *, drafted: bool = False) -> Sent:
        """Send the newest results to the host.

        Args:
            width: the step's width.
            drafted: whether drafts were looked for.
        """
        drafts = self.drafts
        return self.ring.send(
            width,
            drafted=drafted,
            search=self.search.results if drafts is None or width == 1 else drafts.places,
            squeezed=self._squeezed if self.short and width == 1 else None,
            top=self._tops.results(width),
            # on a CPU the host has made the drafts
            drafts=drafts.notes if drafts is not None and drafted and self.drafts_in_steps else None,
        )

    @property
    def failing(self) -> Sequence[LogitsProcessor]:
        """The user's functions that were running when a step failed; empty if none was."""
        return next((stage.failing for stage in self.stages if stage.failing), ())

    def forget_failure(self) -> None:
        """Go on after a step that failed."""
        for stage in self.stages:
            stage.failing = ()

    def move(self, source: int, target: int, view: int) -> None:
        """Make one row a copy of another one."""
        self.rows.copy(source, slice(target, target + 1), view)
        for tensor in self._tensors():
            tensor[target].copy_(tensor[source])
        for stage in self.stages:
            stage.move(source, target)

    @property
    def parts(self) -> bool:
        """Whether some rows may have room for more tokens than others: not if rows go on from one another."""
        return self.rows.parts_rows and not self.search.reorders

    @property
    def tokens(self) -> int:
        """How many tokens all rows have room for together."""
        return self.count * self.shared + sum(self.rooms.values())

    def lay_out(self, shared: int, rooms: Mapping[int, int]) -> None:
        """Make room for so many tokens in each row, and for more in some rows. Memory moves."""
        if rooms or self.rooms:
            self.rows.lay_out(shared, rooms)
        else:
            self.rows.grow(shared)
        if (length := max(shared, *rooms.values(), self.length)) > self.length:
            self._keys.grow(length)
            self._history.grow(length)
        self.length, self.shared, self.rooms = length, shared, dict(rooms)

    def sizes(self) -> dict[torch.device, int]:
        """How many bytes all its rows take on each device."""
        sizes: dict[torch.device, int] = {}
        for _, tensor, device in self.rows.parts():
            sizes[device] = sizes.get(device, 0) + tensor.nbytes
        own = sum(tensor.nbytes for tensor in self._tensors())
        own += sum(stage.memory() for stage in self.stages)
        sizes[self.device] = sizes.get(self.device, 0) + own
        return sizes

    def moving(self) -> Iterable[Tensor]:
        """The tensors that a step which `stays` changes; with these restored, it can be repeated."""
        return chain(self._tensors(), self.rows.moving())

    def _begin_rows(
        self, rows: slice, requests: Sequence[Request], tokens: Sequence[Sequence[int]], weights: Sequence[float]
    ) -> None:
        """Set everything that the loop keeps of rows."""
        each = (rows.stop - rows.start) // len(requests)
        # a search has one seed for all of its rows
        self._keys.admit(rows, [seed for one in requests for seed in one.seeds * (each // len(one.seeds))])
        made = [[len(read) - len(request.prompt_ids)] for request, read in zip(requests, tokens, strict=True)]
        self._generated[rows] = to_device(torch.tensor(made, device="cpu"), self.device).repeat_interleave(each, 0)
        self.search.admit(rows, requests, weights)
        self._tops.admit(requests)
        for stage in self.stages:
            stage.admit(rows, requests, tokens)
        self._find_active()
        if self.drafts is not None and self.speculation is not None and self.drafts_in_steps:
            self.drafts.admit(rows, [one.prompt_ids for one in requests], [one.draft for one in requests])
        self._history.admit(rows, tokens, wanted=self._wants_history)

    def _choose(
        self, logits: Tensor, here: slice, view: int, *, feed: Tensor | None = None, reorder: Reorder | None = None
    ) -> None:
        """Choose the next tokens of rows from logits, and go on with them: what every step does.

        A step that reads drafts chooses at each place what a plain step would choose there, with its key.

        Args:
            logits: (n, vocab); with drafts (n * width, vocab).
            feed: (n, width): the tokens that the step has read, the newest and drafts; None without drafts.
            reorder: lets the model's rows go on from others; None if all rows of a request are equal.
        """
        active, history, places = self._active, self._history, self._places_of(here, feed)
        logits, made = logits[:, : self._vocabulary], self._generated[here]
        before = made  # how many tokens there are before each place
        if feed is not None and self.drafts is not None:
            made = (made + 1 + self.drafts.numbers[: feed.shape[1]]).clamp_(max=self.length - 1)
            before = made.view(-1, 1)
        # stages may change the logits in place, and so may a user's own sampler, which has no key
        changed = bool(active) or self.search.key() is None
        temperatures = self._temperatures(places)
        seen = self._tops.find(logits, temperatures, changed=changed) if self._tops.width else None
        if active:
            looks_back = any(stage.looks_back for stage in active)
            so_far = history.before(here, view, feed) if looks_back else (before, before)
            logits = log_probabilities(logits) if self.search.scores else logits
            for stage in active:
                logits = _changed(stage, logits, places, *so_far, before)
        squeezed = self._squeezed[0] if feed is None else torch.zeros_like(before[:, 0], dtype=torch.bool)
        room = None
        if self.short:
            room = self._room(logits, places, before, squeezed[here] if feed is None else squeezed)
        keys = self._keys.next(places, before) if self.search.draws else None
        given = Given(logits, places, keys, before, room, bool(active))
        counts = ancestors = None
        if feed is None:
            ancestors = self.search.choose(given)
            chosen = newest = self.search.results[0][here]
        else:
            token_ids, logprobs = self.search.pick(given)
            chosen = token_ids.view(feed.shape)
            counts, newest = self._accept(here, feed, chosen, logprobs.view(feed.shape), squeezed.view(feed.shape))
        if seen is not None:
            self._tops.write(seen, here, chosen, ancestors, temperatures)
        if ancestors is not None and reorder is not None:
            reorder(ancestors, view)
        for stage in active:
            stage.advance(here, newest, ancestors, counts, made)
        if history.wanted:
            history.advance(here, chosen, ancestors, counts)

    def _places_of(self, here: slice, feed: Tensor | None) -> Here:
        """The lines that a step computes of some rows."""
        if feed is None or self.drafts is None:
            return here
        count, width = feed.shape
        return Places(here, width, self.drafts.numbers[:count, None].expand(-1, width).flatten())

    def _accept(
        self, here: slice, feed: Tensor, chosen: Tensor, logprobs: Tensor, squeezed: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Let rows keep the chosen tokens up to the first one that was not its draft; that token is right, too.

        Args: (n, width) each.
        Returns:
            (n, 1) each, int64: how many tokens each row goes on with, and the last of these.
        """
        drafts, width = self.drafts, feed.shape[1]
        assert drafts is not None  # tells mypy
        # filling after the drafts may equal what is chosen by chance, but it is no draft, and does not count
        real = drafts.numbers[: width - 1] < drafts.real[here].unsqueeze(1)
        right = (chosen[:, :-1] == feed[:, 1:]) & real
        counts = right.to(torch.int64).cumprod(1).sum(1, keepdim=True) + 1
        newest = self.search.results[0][here].copy_(chosen.gather(1, counts - 1))
        drafts.tokens[here, :width], drafts.logprobs[here, :width] = chosen, logprobs
        drafts.squeezed[here, :width] = squeezed
        drafts.made[here], drafts.agreed[here] = counts.squeeze(1), counts.squeeze(1) - 1
        self.rows.commit(counts.squeeze(1))
        if self._counts:
            self._generated[here].add_(counts).clamp_(max=self.length - 1)
        return counts, newest

    def _temperatures(self, here: Here) -> Tensor | float:
        """What divides the logits of rows or places before a token is drawn, if a request asks for it."""
        return self.search.temperatures(here) if self._tops.tempers else 1.0

    def _room(self, logits: Tensor, here: Here, generated: Tensor, squeezed: Tensor) -> Room:
        """What the limits leave room for; everything where no stage has limits."""
        rooms = (stage.room(logits, here, generated, squeezed) for stage in self._active)
        return next((room for room in rooms if room is not None), Room(lambda wanted: logits, squeezed))

    def _stay(self, ancestors: Tensor, view: int) -> None:
        self.rows.reorder(self._places[: len(ancestors)], view)

    def _tensors(self) -> Iterable[Tensor]:
        """All tensors that the loop keeps of rows."""
        own = chain(self._keys.tensors(), (self._generated,), self._history.tensors())
        drafts = () if self.drafts is None else self.drafts.tensors()
        return chain(own, self.search.tensors(), drafts, *(stage.tensors() for stage in self.stages))


def _changed(stage: Stage, logits: Tensor, here: Here, *so_far: Tensor) -> Tensor:
    """What a stage makes of logits; functions of users write it between the recorded parts of a step."""
    if not stage.anew:
        return stage(logits, here, *so_far)
    changed = torch.empty_like(logits, dtype=torch.float32)
    host_call(stage.write, changed, logits, here, *so_far, results=(changed,))
    return changed
