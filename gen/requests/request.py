"""A request: one checked prompt with its settings, which is all that the loop needs to know."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gen.completions import FieldScore, Receipt
from gen.constraints.composing.host_thoughts import HostThoughtWalker
from gen.constraints.composing.thoughts import ThoughtAutomaton, ThoughtWalker
from gen.constraints.constraint import Constraint, DeviceWalker
from gen.constraints.host_engine import Grammar, HostWalker
from gen.constraints.tables.token_automaton import TokenAutomaton
from gen.errors import ValueRefusedError
from gen.models.base import Inputs
from gen.requests.images import Illustrated
from gen.requests.processors import LogitsProcessor
from gen.requests.settings import Stop
from gen.samplers.base import Sampler
from gen.tokens.thoughts import Marks

Bound = Literal["max_new_tokens", "context", "max_batch_tokens"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Thinking:
    """The thought that a text may have before its answer.

    Attributes:
        automaton: follows the thought and the answer.
        most: how many tokens the thought has at most, without the mark that closes it.
        room: how many tokens the answer has at most; None if the request's limit is that of both together.
        grammar: the answer's on the host engine; None on the device engine.
    """

    automaton: ThoughtAutomaton
    most: int
    room: int | None
    grammar: Grammar | None = None

    def walker(self) -> ThoughtWalker:
        """A walker at the start of a text."""
        if self.grammar is not None:
            return HostThoughtWalker(self.automaton, self.most, self.room, self.grammar)
        return ThoughtWalker(self.automaton, self.most, self.room)


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """One prompt and how to continue it.

    Attributes:
        prompt_ids: the prompt's tokens, at least one.
        sampler: how tokens are chosen.
        seeds: one for each text to make, below 2**63.
        limit: how many new tokens a text may have, by max_new_tokens and by the context, its thought included.
        bound: what the limit is from, which has to change if a text is to have more tokens.
        stops: strings and regexes that end a text.
        include_stop: whether the text includes the stop that ended it.
        eos_token_ids: tokens that end a text.
        stop_token_ids: those of eos_token_ids that the caller gave and the model does not have.
        bad_words: sequences of token ids that a text must not contain.
        illustrated: the prompt as it came with its images; None without images.
        logits_processors: the user's own, run before the sampler.
        top_logprobs: how many of the model's likeliest tokens to give with each token; None leaves out even the token's
            own log-probability in the model's distribution.
        prompt_logprobs: how many to give with each token of the prompt; None for no log-probabilities.
        shown: the special tokens that decoding keeps in the text.
        hidden: the special tokens that stops name and decoding leaves out, with their texts.
        thoughts: how the chat marks thoughts; None if it does not, or if none can come.
        thinks: what the caller asked for: whether a thought must come, or how many tokens it may have.
        thinking: how a thought is followed; None if none can come.
        constraint: the texts that are allowed; None for all.
        limits_thoughts: whether the limit is that of a thought and its answer together.
        own_limit: whether the limit is the default of its output type, and not the caller's.
        may_be_cut: whether its prompt may be cut, see `cut_left`, to make room for a whole text of its constraint.
        draft: a text that was made before, which its texts may follow; empty if there is none.
        draft_fits: whether the draft was made for the same prompt, and no order of texts changes them.
        kept: whether to tell how likely each token was to the model at its temperature, before all else.
        shorten: whether a value that the limit has shaped is returned instead of an error.
        deadline: when its texts end, finished or not, in seconds of `time.monotonic`; None for never.
        cache_salt: its KV cache is shared only with requests that have the same salt.
        late: if its output type is still to be compiled, makes the request to run instead, in another thread.
        retry: (this request, the error) -> the request for the next turn of its chat, if its value is refused, or None
            if there is no room for it; None where there is to be none.
        attempt: how often its chat was asked, with this request.
        number: which of a call's prompts it is, from 0.
        sample: which of the prompt's texts this request's first text is, from 0.
        write_receipt: (this request, a completion, rank) -> its receipt; None if none can be asked for.
        score_fields: (this request, a completion) -> `Completion.fields`; None if they cannot be asked for.
    """

    prompt_ids: list[int]
    sampler: Sampler
    seeds: tuple[int, ...]
    limit: int
    bound: Bound = "max_new_tokens"
    stops: tuple[Stop, ...] = ()
    include_stop: bool = False
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    illustrated: Illustrated | None = None
    logits_processors: tuple[LogitsProcessor, ...] = ()
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    shown: frozenset[int] = frozenset()
    hidden: Mapping[int, str] = field(default_factory=dict)
    thoughts: Marks | None = None
    thinks: bool | int | None = None
    thinking: Thinking | None = None
    constraint: Constraint | None = None
    limits_thoughts: bool = False
    own_limit: bool = False
    may_be_cut: bool = False
    draft: Sequence[int] = ()
    draft_fits: bool = False
    kept: bool = False
    shorten: bool = False
    deadline: float | None = None
    cache_salt: str | None = None
    late: "Callable[[Request], Request] | None" = None
    retry: "Callable[[Request, ValueRefusedError], Request | None] | None" = None
    attempt: int = 1
    number: int = 0
    sample: int = 0
    write_receipt: Callable[..., Receipt] | None = None
    score_fields: Callable[..., list[FieldScore]] | None = None

    @property
    def inputs(self) -> Inputs:
        """The model's inputs for the prompt's images; empty without images."""
        return {} if self.illustrated is None else self.illustrated.inputs

    @property
    def typed(self) -> bool:
        """Whether it has an output type, which may still be compiled."""
        return self.constraint is not None or self.late is not None

    @property
    def most_tokens(self) -> int:
        """How many tokens a row may come to have."""
        return len(self.prompt_ids) + self.limit

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end the text: its eos tokens; with a constraint and no eos, a token that spells nothing."""
        if self.eos_token_ids or self.constraint is None:
            return self.eos_token_ids
        return (self.constraint.vocabulary.end,)

    @property
    def has_messages(self) -> bool:
        """Whether its type is that of whole messages in gpt-oss's form, of which the text shows a part."""
        if self.thoughts is None or self.thoughts.kind != "channels" or self.thinking is None:
            return False
        return not self.thinking.automaton.header

    def short(self, made: int) -> bool:
        """Whether the limit may rule out a token that the output type allows, after `made` tokens."""
        if self.constraint is None:
            return False
        if self.thinking is None:
            return self.limit - made <= self.constraint.most_tokens
        if self.thinking.grammar is not None:
            return True
        room = self.limit if self.thinking.room is None else self.thinking.room  # all tokens may be the answer's
        return room - made <= max(1, self.thinking.automaton.most_tokens)

    @property
    def room(self) -> int:
        """How many tokens its answer may have; where the limit is that of a thought too, how many both may have."""
        if self.thinking is None or self.thinking.room is None:
            return self.limit
        return self.thinking.room - self.thinking.automaton.header

    @property
    def automaton(self) -> TokenAutomaton | None:
        """The automaton that its texts follow on the device."""
        if self.thinking is not None:
            return None if self.thinking.grammar is not None else self.thinking.automaton
        return None if self.constraint is None else self.constraint.automaton

    def walker(self) -> DeviceWalker | HostWalker | None:
        """What follows a text on the host; None where nothing does."""
        if self.thinking is not None:
            return self.thinking.walker()
        return None if self.constraint is None else self.constraint.walker()
