"""What is said of a receipt that is checked, and what is known of it meanwhile."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from gen.completions import Completion, Receipt
from gen.errors import show
from gen.loop.results.texts import Text
from gen.requests.request import Request

Kind = Literal["equal", "near tie", "different"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A place where the model chooses another token than the recorded one.

    Attributes:
        at: the number of the token, from 0.
        recorded: the token of the receipt; None for the end of its text.
        found: the token that is chosen now; None if the text has ended before.
        margin: how far the recorded token was from being chosen; inf if it is ruled out. See `gen.verify`.
        logprobs: of both under the model's distribution, after penalties and the output type; None for an end.
        reason: what differs, in words, where it is no token; else "".
    """

    at: int
    recorded: int | None
    found: int | None
    margin: float
    logprobs: tuple[float | None, float | None] = (None, None)
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What `gen.verify` says of a receipt.

    Attributes:
        kind: "equal": the model makes exactly this text; "near tie": it may, since it only differs where dtype and
            batch can decide; "different": it does not.
        difference: the first difference that is no near tie; else the first near tie; None for an equal text.
        ties: how many near ties there are before.
        tokens: how many tokens have been checked.
        logprob_difference: the largest difference of a checked token's log-probability from the recorded one.
        tolerance: below which margin a difference is a near tie; None if nothing differed.
        changed: what has changed since the receipt was made, by name, such as "weights", "torch" or "dtype": what it
            was, and what it is.
    """

    kind: Kind
    difference: Difference | None
    ties: int
    tokens: int
    logprob_difference: float
    tolerance: float | None
    changed: Mapping[str, tuple[Any, Any]]

    @property
    def at(self) -> int | None:
        """The number of the first token that differs; None if none does."""
        return None if self.difference is None else self.difference.at

    @property
    def margin(self) -> float | None:
        """See `Difference.margin`; None if nothing differs."""
        return None if self.difference is None else self.difference.margin


@dataclass(eq=False)
class Check:
    """A receipt that is being checked.

    Attributes:
        wanted: the token that must be chosen at each place; None where one must be that ends the text.
        ended: the difference in how the text ends, as the host sees it from the tokens alone.
        ties, different: near ties, and the first other difference.
        checked, moved, tolerance: see `Verification`.
        squeezed: whether its limit has changed one of its tokens.
        searched: what the search has found now, if it is one's.
    """

    receipt: Receipt
    request: Request
    text: Text
    wanted: list[int | None]
    ended: Difference | None = None
    ties: list[Difference] = field(default_factory=list)
    different: Difference | None = None
    checked: int = 0
    moved: float = 0.0
    tolerance: float | None = None
    squeezed: bool = False
    searched: Completion | None = None

    @property
    def tokens(self) -> list[int]:
        """What is read: the prompt, and the text."""
        return [*self.request.prompt_ids, *self.receipt.token_ids]

    @property
    def lead(self) -> list[int]:
        """What is read before the first place."""
        return self.request.prompt_ids[:-1]

    def begin(self) -> None:
        """Forget what was found in a reading that broke off."""
        self.ties, self.different, self.tolerance = [], None, None
        self.checked, self.moved, self.squeezed = 0, 0.0, False

    def right(self, at: int, token_id: int, logprob: float) -> bool:
        """Whether the token that is chosen at a place is the recorded one, or ends the text where that has ended."""
        self.checked += 1
        wanted = self.wanted[at]
        if logprob == -inf or token_id not in (self.request.ends if wanted is None else (wanted,)):
            return False
        if wanted is None:
            self.text.push(token_id, logprob)
        else:
            self.moved = max(self.moved, abs(logprob - self.receipt.logprobs[at]))
        return True

    def differ(self, difference: Difference, tolerance: float) -> None:
        """Note a difference: a near tie, or one that ends the check."""
        self.tolerance = tolerance
        if difference.margin <= tolerance:
            self.ties.append(difference)
        else:
            self.different = difference

    def how_it_ends(self) -> Difference | None:
        """The difference in how the text ends, or in what it says, if all tokens are right."""
        receipt, at = self.receipt, len(self.receipt.token_ids)
        if receipt.finish_reason in ("timeout", "cancelled") or any(tie.at == at for tie in self.ties):
            return None
        if self.squeezed:
            self.text.finish_reason = "length"
        now = self.searched or self.text.completion()
        pairs = {
            "finish_reason": (receipt.finish_reason, now.finish_reason),
            "stop_reason": (receipt.stop_reason, now.stop_reason),
            "text": (receipt.text, now.text),
        }
        told = [f"{name} was {show(old)}, is {show(new)}" for name, (old, new) in pairs.items() if old != new]
        if not told:
            return None
        return Difference(at=at, recorded=None, found=None, margin=inf, reason="; ".join(told))
