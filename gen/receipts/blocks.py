"""Reads recorded texts side by side, and lets the stages and the search of the loop choose at each place of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gen.devices import to_device
from gen.loop.prefixes.columns import LEAST, common
from gen.loop.searches.drawing import Drawing, DrawKeys
from gen.loop.searches.search import Given
from gen.models.base import Model
from gen.models.checks import new_rows
from gen.receipts.checks import Check, Difference
from gen.receipts.margins import margin, scale, tolerance
from gen.requests.prompts import vocabulary
from gen.stages.device_constraints import DeviceConstraints
from gen.stages.host_constraints import HostConstraints
from gen.stages.penalties import PenaltyStage
from gen.stages.stage import Places, Room, Stage

_LOGITS = 2**24  # how many numbers the logits of one reading may have
_BLOCK = 256  # places of a text that are read at once, at most
_AHEAD = 64  # tokens of each prompt that are read with the first block, at most


class Reading:
    """Texts that are read side by side, the longest first, with the stages and the search of the loop."""

    def __init__(self, model: Model, checks: Sequence[Check]) -> None:
        self._model, self._checks = model, checks
        count, length = len(checks), max(len(check.tokens) for check in checks) + 1
        requests, device = [check.request for check in checks], model.placement.logits_device
        self._most = max(1, min(_BLOCK, _LOGITS // (model.vocab_size * count), len(checks[0].wanted)))
        self.rows = new_rows(model, count, length + self._most)
        # images may put the tokens after them at other positions than columns, which steps alone know
        self._illustrated = checks[0].request.illustrated is not None
        self._wide, self._device = self.rows.reads_places and not self._illustrated, device
        self._most = self._most if self._wide else 1
        here, prompts = slice(0, count), [one.prompt_ids for one in requests]
        self._search = Drawing(count, device)
        self._search.admit(here, requests, [0.0] * count)
        self._keys = DrawKeys(count, length + self._most, device)
        self._keys.admit(here, [one.seeds[0] for one in requests])
        self._stages: list[Stage] = [make(count, device) for make in (PenaltyStage, HostConstraints, DeviceConstraints)]
        for stage in self._stages:
            stage.admit(here, requests, prompts)
        self._stages = [stage for stage in self._stages if stage.key() is not None]
        ends = [one.ends[0] if one.ends else 0 for one in requests]
        self._tokens = _padded([check.tokens for check in checks], ends, length + self._most, device)
        self._begins = to_device(torch.tensor([[len(one)] for one in prompts], device="cpu"), device)

    def run(self) -> None:
        """Read all places, but those of texts that turn out to be different."""
        self._ahead = self._read_leads() if self._wide else 0
        at = 0
        while any(len(check.wanted) > at and check.different is None for check in self._checks):
            going = sum(len(check.wanted) > at for check in self._checks)
            width = min(self._most, len(self._checks[0].wanted) - at)
            self._block(at, width, going)
            at += width

    def _read_leads(self) -> int:
        """Read the prompts but for their last tokens; what several begin with is read once.

        Returns:
            How many of the last tokens are left to the first block, if that may be: a reading costs at least a step.
        """
        leads = [tuple(check.lead) for check in self._checks]
        first, shared = leads[0], min(common(leads[0], lead) for lead in leads)
        if not first:
            return 0
        rows, sources = self.rows, {lead: row for row, lead in reversed([*enumerate(leads)])}
        if len(sources) < len(leads):
            for lead, row in sources.items():
                rows.prefill(slice(row, row + 1), [lead])
            for row, lead in enumerate(leads):
                if row != sources[lead]:
                    rows.share(sources[lead], slice(row, row + 1), len(lead))
            return 0
        shortest, longest = min(map(len, leads)), max(map(len, leads))
        start = min(shared, shortest - 1)
        if len(leads) > 1 and start >= LEAST:
            rows.prefill(slice(0, 1), [first[:start]])
            rows.share(0, slice(1, len(leads)), start)
        else:
            start = 0
        if shortest == longest <= start + _AHEAD:
            return longest - start
        rows.prefill(slice(0, len(leads)), [lead[start:] for lead in leads], [start] * len(leads))
        return 0

    def _logits(self, at: int, width: int, going: int) -> Tensor:
        """The logits (going, width, vocab) after the tokens before each of these places."""
        if self._wide:
            ahead = 0 if at else self._ahead
            begins = [len(check.lead) - ahead + at for check in self._checks[:going]]
            end = ahead + width
            pieces = [check.tokens[start : start + end] for start, check in zip(begins, self._checks, strict=False)]
            return self.rows.prefill(slice(0, going), pieces, begins, range(ahead, end))
        if at == 0:
            prompts = [check.request.prompt_ids for check in self._checks]
            inputs = [check.request.inputs for check in self._checks] if self._illustrated else []
            return self.rows.prefill(slice(0, len(prompts)), prompts, inputs=inputs)[:going].unsqueeze(1)
        last = self._tokens.shape[1] - 1  # texts that have ended go on beside others
        newest = self._tokens.gather(1, (self._begins + at - 1).clamp(max=last))
        return self.rows.step(newest, self.rows.length)[:going].unsqueeze(1)

    def _block(self, at: int, width: int, going: int) -> None:
        """Choose at places of the first texts, and compare: the only part that waits for the device."""
        here, device = slice(0, going), self._device
        of_rows = torch.arange(going, device=device).repeat_interleave(width)
        places = Places(here, width, of_rows)
        made = (at + torch.arange(width, device=device)).repeat(going, 1)  # how many tokens come before each place
        before, columns = made.view(-1, 1), self._begins[here] + made
        feed, recorded = (self._tokens[here].gather(1, columns + shift) for shift in (-1, 0))
        logits = self._logits(at, width, going).flatten(0, 1)[:, : vocabulary(self._model)]
        lengths = columns.view(-1, 1)
        known = torch.arange(self._tokens.shape[1], device=device) < lengths
        for stage in self._stages:
            if not stage.takes_places:
                logits = _place_by_place(stage, logits.view(going, width, -1), recorded)
                continue
            if stage.goes_ahead:
                self._go_ahead(stage, feed, at)
            history = torch.where(known, self._tokens[of_rows], -1) if stage.looks_back else feed
            logits = stage(logits, places, history, lengths, before)
        squeezed = torch.zeros(len(before), dtype=torch.bool, device=device)
        staged = logits
        room: Room | None = None
        limiter = self._limiter(at + width - 1)
        if limiter is not None:
            staged = logits.clone()  # narrowing one row may change the others
            room = limiter.room(logits, places, before, squeezed)
        keys = self._keys.next(places, before)
        used = keys if self._search.draws else None
        chosen, logprobs = self._search.pick(Given(logits, places, used, before, room))
        for stage in self._stages:
            if stage.goes_ahead:
                counts = torch.full_like(made[:, :1], width)
                stage.advance(here, recorded[:, -1:], counts=counts, made=made)
        results = [one.view(going, width).double() for one in (chosen, logprobs, squeezed)]
        found = torch.stack(results, 2).tolist()  # the wait of this block
        for row, check in enumerate(self._checks[:going]):
            left = len(check.wanted) - at
            for place, (token, logprob, narrowed) in enumerate(found[row][:left]):
                check.squeezed |= bool(narrowed)
                if not check.right(at + place, int(token), logprob):
                    line = row * width + place
                    values = logits[line] if narrowed else staged[line]
                    self._differ(check, at + place, int(token), values, int(keys[line]))
                if check.different is not None:
                    break

    def _limiter(self, made: int) -> DeviceConstraints | None:
        """The stage that keeps texts within their limits, if one may be short of room after so many tokens."""
        if not any(check.request.short(made) for check in self._checks):
            return None
        return next((stage for stage in self._stages if isinstance(stage, DeviceConstraints)), None)

    def _go_ahead(self, stage: Stage, feed: Tensor, at: int) -> None:
        """Let a stage follow the recorded tokens, so that it has a state before each place."""
        going, width = feed.shape
        here = slice(0, going)
        stage.prepare(here)  # on a CPU the last token of the block before is still to be followed
        real = torch.full_like(feed[:, :1], width - 1)
        padded = torch.nn.functional.pad(feed, (0, self._most - width))
        stage.draft(here, padded, real, torch.full_like(real, at), walks=True)
        stage.prepare(here, width)

    def _differ(self, check: Check, at: int, found: int, logits: Tensor, key: int) -> None:
        """Note that another token is chosen at a place than the recorded one. Host sync: some."""
        recorded, sampler = check.wanted[at], check.request.sampler
        expected = check.request.ends if recorded is None else (recorded,)
        late = margin(logits, key, sampler, expected, found)
        allowed = check.tolerance
        if allowed is None:
            allowed = tolerance(self._model, check.tokens, check.receipt.model.get("dtype")) * scale(sampler)
        own = logits.double().log_softmax(-1)
        told = None if recorded is None else float(own[recorded])
        difference = Difference(
            at=at,
            recorded=recorded,
            found=found,
            margin=late,
            logprobs=(told, float(own[found])),
        )
        check.differ(difference, allowed)


def _place_by_place(stage: Stage, logits: Tensor, recorded: Tensor) -> Tensor:
    """What a stage that knows one place at a time makes of logits (n, width, vocab): (n * width, vocab)."""
    made, here = [], slice(0, len(logits))
    for place in range(logits.shape[1]):
        stage.prepare(here)
        nothing = recorded[:, :0], recorded[:, :1], recorded[:, :1]  # it does not look back
        made.append(stage(logits[:, place], here, *nothing))
        stage.advance(here, recorded[:, place : place + 1])
    return torch.stack(made, 1).flatten(0, 1)


def _padded(tokens: Sequence[Sequence[int]], ends: Sequence[int], length: int, device: torch.device) -> Tensor:
    """(n, length), int64; behind its tokens, each row repeats its end."""
    lines = [[*row, *[end] * (length - len(row))] for row, end in zip(tokens, ends, strict=True)]
    return to_device(torch.tensor(lines, device="cpu"), device)
