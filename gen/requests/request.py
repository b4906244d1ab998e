"""What the user asked for, one prompt at a time, checked: all that the loop needs to know of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gen.constraints.constraint import Constraint
from gen.models.base import Inputs
from gen.requests.processors import LogitsProcessor
from gen.requests.stops import Stop
from gen.samplers.base import Sampler
from gen.thoughts import Marks


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """One prompt and how to go on from it.

    Attributes:
        prompt_ids: the prompt's tokens, at least one.
        sampler: how tokens are chosen.
        seeds: one for each text that is to be made, below 2**63.
        limit: how many new tokens at most, by max_new_tokens and by the context.
        stops: strings and regexes that end a text.
        include_stop: whether the text has what ended it.
        eos_token_ids: tokens that end a text.
        stop_token_ids: those of them that the caller named and the model does not.
        bad_words: token ids that must not come in a row.
        inputs: what the prompt's images are to the model.
        logits_processors: the user's own, run before the sampler.
        top_logprobs: how many of the model's likeliest tokens are told with each token; None: not even the token's own
            log-probability in the model's distribution.
        prompt_logprobs: how many are told with each token of the prompt; None for nothing.
        hidden: the special tokens that stops name, which decoding leaves out, and their texts.
        constraint: what the text is held to; None for nothing.
        may_be_cut: whether its prompt may be cut, see `cut_left`, to make room for a whole text of its constraint.
        shorten: whether a value that the limit has shaped is returned.
        cache_salt: nothing is shared with requests that have another one.
        deadline: when its texts end as they are, in seconds of `time.monotonic`; None for never.
        number: which of a call's prompts it is, from 0.
        sample: which of the prompt's texts the first one is, from 0.
    """

    prompt_ids: list[int]
    sampler: Sampler
    seeds: tuple[int, ...]
    limit: int
    stops: tuple[Stop, ...] = ()
    include_stop: bool = False
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    inputs: Inputs = field(default_factory=dict)
    logits_processors: tuple[LogitsProcessor, ...] = ()
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    shown: frozenset[int] = frozenset()
    hidden: Mapping[int, str] = field(default_factory=dict)
    thoughts: Marks | None = None
    constraint: Constraint | None = None
    may_be_cut: bool = False
    shorten: bool = False
    deadline: float | None = None
    cache_salt: str | None = None
    number: int = 0
    sample: int = 0

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end the text: its eos tokens; if a constraint has none, a token that spells nothing."""
        if self.eos_token_ids or self.constraint is None:
            return self.eos_token_ids
        return (self.constraint.vocabulary.end,)

    def short(self, made: int) -> bool:
        """Whether a text with this many tokens may be short of room: some token that its type allows may not fit."""
        return self.constraint is not None and self.limit - made <= self.constraint.most_tokens
