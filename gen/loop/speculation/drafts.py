"""Drafts of the next tokens, on the device: the tokens that followed where the last tokens stood before.

Example: the prompt says "Helen Whitcombe said", and the text so far ends in "Helen Whit". In the prompt the last two
tokens, "Helen" and " Whit", were followed by "combe" and " said", so these are the drafts. A text that was made before
is looked through, too, as if it had followed the new one's prompt.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gen.devices import to_device
from gen.loop.results.ring import packed
from gen.loop.speculation.settings import MOST, MOST_RECORDED

NGRAM = 8  # how many last tokens are looked for; fewer if they are not found
LONGEST = 5
"""Kinds of drafts up to this one: how many tokens before the draft were found, earlier drafts of the step included."""
FORCED, ENDING, WORD, LIKELY, RECORDED = range(LONGEST + 1, LONGEST + 6)
"""The other kinds: the type forces the draft, or would force it if a part of the text ended here; the draft continues a
word of the prompt; it is from one of few words of the prompt that the type allows; or it is from a text that was made
before, which has been right so far."""


class Drafts:
    """The drafts of each row, and what a step has made of them.

    Attributes:
        feed: (count, 1 + MOST), int64: the tokens that a wide step reads: the newest token, and drafts. On a CPU
            there is room for `MOST_RECORDED` drafts, and for what is chosen at their places.
        real: (count,), int64: how many of the drafts count; the others only fill the tensor.
        kinds: (count, MOST), int64: the kind of each draft; see `LONGEST` and `FORCED`.
        agreed: (count,), int64: how many drafts the last step has confirmed; a plain step confirms at most the first.
        tokens, logprobs, squeezed: (count, 1 + MOST): what was chosen at each place of a wide step.
        made: (count,), int64: how many of these places count.
        earlier: how many columns texts that were made before take; 0 if no row has one, and on a CPU.
        notes, places: what the host gets: notes on the drafts of every step, except on a CPU, and the results of wide
            steps.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        def table(dtype: torch.dtype, *width: int) -> Tensor:
            return torch.zeros((count, *width), dtype=dtype, device=device)

        wide = 1 + (MOST_RECORDED if device.type == "cpu" else MOST)
        self.feed = table(torch.int64, wide)
        self.notes = packed((table(torch.int64), table(torch.int64, MOST), table(torch.int64)))
        self.real, self.kinds, self.agreed = self.notes
        self.places = packed(
            (table(torch.int64, wide), table(torch.float32, wide), table(torch.bool, wide), table(torch.int64))
        )
        self.tokens, self.logprobs, self.squeezed, self.made = self.places
        self.numbers = torch.arange(max(wide, count), device=device)
        self.earlier = 0
        self._earlier = table(torch.int64, 0)  # (count, columns), -1 where there is none; it grows, and never shrinks

    def begin(self) -> None:
        """All rows are free."""
        self.earlier = 0

    def admit(self, rows: slice, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> None:
        """Rows begin whose texts may follow others that were made before, empty for none; each is for as many rows,
        side by side. Host sync: none."""
        if not (self.earlier or any(texts)):
            return
        most = max(map(len, texts)) + NGRAM
        if (columns := self._earlier.shape[1]) < most:
            columns = 1 << (most - 1).bit_length()  # so that it grows seldom: steps are captured anew
            self._earlier = torch.nn.functional.pad(self._earlier, (0, columns - self._earlier.shape[1]), value=-1)
        if not self.earlier:
            self._earlier.fill_(-1)
        self.earlier = columns
        told = torch.full((len(texts), columns), -1, dtype=torch.int64, device="cpu")
        for number, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            known = [*prompt[-NGRAM:], *text] if text else []
            told[number, : len(known)] = torch.tensor(known, dtype=torch.int64, device="cpu")
        each = (rows.stop - rows.start) // len(texts)
        self._earlier[rows] = to_device(told, self._earlier.device).repeat_interleave(each, 0)

    def find(self, here: slice, history: Tensor, lengths: Tensor, *, prompt: bool) -> tuple[Tensor, Tensor]:
        """`look_up` for some rows, in the texts that were made before and, with `prompt`, in the tokens so far."""
        return look_up(history, lengths, self.numbers, self._earlier[here, : self.earlier], own=prompt)

    def compare(self, here: slice, chosen: Tensor) -> None:
        """Note whether the first draft of each row was what a plain step has chosen, (n, 1). Host sync: none."""
        same = (chosen == self.feed[here, 1:2]).squeeze(1)
        self.agreed[here] = same * self.real[here].clamp(max=1)

    def tensors(self) -> Iterable[Tensor]:
        """All tensors of the rows that last from step to step."""
        return (self.feed, self.real, self.kinds, *([self._earlier] if self.earlier else []))

    def write(self, row: int, newest: int, drafts: Sequence[int]) -> None:
        """On a CPU: let a wide step read these drafts of a row."""
        feed = self.feed.numpy()[row]
        feed[:] = newest  # instead of earlier drafts, which layers that round by all that is read would see
        feed[1 : 1 + len(drafts)] = drafts
        self.real.numpy()[row] = len(drafts)


def look_up(
    history: Tensor, lengths: Tensor, numbers: Tensor, earlier: Tensor | None = None, *, own: bool = True
) -> tuple[Tensor, Tensor]:
    """The tokens that followed where the last tokens of a row stood before: at the longest match, and of equal ones at
    the last one in an earlier text, or else at the newest one.

    If too few tokens follow the match, they are repeated, as in a text that repeats itself.

    Args:
        history: (n, columns), int64: the tokens so far, -1 where there is none.
        lengths: (n, 1), int64: how many tokens each row has.
        numbers: (at least NGRAM,), int64: 0, 1, 2, ...
        earlier: (n, more), int64: texts that were made before, -1 behind them.
        own: whether to look through the tokens so far.
    Returns:
        (n, MOST) tokens; (n, 1) how many of the last tokens were found, 0 to `NGRAM`. Host sync: none.
    """
    split = history.shape[1]
    if not split:
        return history.new_zeros((len(history), MOST)), torch.zeros_like(lengths)
    has_earlier = earlier is not None and earlier.shape[1] > 0
    tokens = torch.cat((history, earlier), 1) if earlier is not None and has_earlier else history
    columns, before = tokens.shape[1], numbers[:NGRAM]
    padded = torch.nn.functional.pad(tokens, (NGRAM, 0), value=-2)
    last = padded.gather(1, lengths + before)
    windows = padded[:, 1:].unfold(1, NGRAM, 1)  # the windows that end in each column
    found = NGRAM - 1 - torch.where(windows == last.unsqueeze(1), -1, before).amax(-1)  # how many last tokens match
    ends = torch.arange(columns, device=history.device)
    followed = ends < lengths - 1 if own else torch.zeros_like(found, dtype=torch.bool)
    if has_earlier:
        followed = followed | ((ends >= split) & (ends < columns - 1))
    best, at = torch.where(followed, found * columns + ends, 0).max(1, keepdim=True)
    kind = best // columns
    at = at + 1
    end = torch.where(at > split, columns, lengths) if has_earlier else lengths
    return tokens.gather(1, at + numbers[:MOST] % (end - at).clamp_(min=1)).clamp_(min=0), kind
