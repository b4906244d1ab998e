"""A text that grows token by token on the host, and the completion that it ends as.

Only this file decides whether a text has ended.
"""

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Protocol

from gen.completions import Completion, FinishReason, TopLogprobs
from gen.constraints.composing.thoughts import ThoughtWalker
from gen.errors import ConstraintError, GenError, NoTokenError, SamplingError, own, setting
from gen.loop.results.ring import StepResults
from gen.loop.results.stop_strings import StopStrings
from gen.loop.results.thoughts import thoughts_of
from gen.requests.request import Request
from gen.tokens.tokenizers import ByteDetokenizer, Detokenizer, Tokenizer


class Taker(Protocol):
    """Takes the results of the rows of one text, or of one search, step by step."""

    @property
    def ended(self) -> bool:
        """Whether it needs nothing more."""

    @property
    def texts(self) -> "Sequence[Text]":
        """Its texts that grow token by token, in the order of their rows; of a search the best one, once it is done."""

    def take(self, results: StepResults, row: int) -> None:
        """Take a step's results; its rows begin at `row`. Results that come after its end are ignored."""

    def completions(self) -> list[Completion]:
        """Its completions, once it has ended.

        Raises:
            GenError: the error of one of its texts.
        """


def nothing_left(request: Request, name: str, new_tokens: int) -> SamplingError:
    """The error for a text, or all beams of a prompt, without a token to choose after so many new ones."""
    message = f"{name}: no token was left to choose after {new_tokens} new ones"
    if bans := _bans(request):
        return NoTokenError(f"{message}: {' and '.join(bans)} left none, unless every logit is NaN. Ban fewer tokens.")
    if request.constraint is not None:
        return SamplingError(
            f"{message}, since every logit of those that its output type allows is -inf or NaN. See whether a logits "
            "processor of yours bans them all, and whether the model gives numbers without the output type."
        )
    return SamplingError(
        f"{message}, since every logit is -inf or NaN, or a parameter of its row is NaN. See whether the model "
        "overflows in this dtype, and whether a logits processor of yours bans every token."
    )


def _bans(request: Request) -> list[str]:
    """The settings of a request that ban tokens."""
    penalties = request.sampler.penalties
    if penalties is None:
        return []
    bans = {
        "bad_words": request.bad_words,
        "no_repeat_ngram_size": penalties.no_repeat_ngram_size,
        "min_new_tokens": penalties.min_new_tokens,
        "logit_bias": -math.inf in (penalties.logit_bias or {}).values(),
    }
    return [setting(name) for name, set_ in bans.items() if set_]


class Text:
    """One text as it grows on the host.

    It is decoded once, when it has ended, unless it has stop strings, or a reader wants it earlier. Under a constraint,
    it also ends when no further token is allowed, and it is decoded from the bytes that its tokens spell.

    One thread lets it grow; another one may read it meanwhile.

    Args:
        sample: which of the request's texts it is.

    Attributes:
        finish_reason: None while it goes on.
        stop_reason: see `Completion`.
        error: why the text has failed; then there is no completion.
        squeezed: whether its limit has changed one of its tokens; only under a constraint.
        token_ids, logprobs, top_logprobs, drafted, accepted: see `Completion`.
        tempered: if the request asks for it, how likely each token was to the model at its temperature, before all
            else, as a log-probability; that of the token which ended the text comes last.
        end: the token that ended the text and is no part of it, and its log-probability; None if there is none.
    """

    def __init__(self, request: Request, sample: int, tokenizer: Tokenizer) -> None:
        self.request, self.seed = request, request.seeds[sample]
        sample += request.sample
        self._name = f"prompt {request.number}" + (f", sample {sample}" if sample else "")
        self._vocab_size = tokenizer.vocab_size
        self.finish_reason: FinishReason | None = None if request.limit or request.late else "length"
        self.stop_reason: str | int | None = None
        self.error: GenError | None = None
        self.squeezed = False
        self.drafted = self.accepted = 0
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[TopLogprobs] | None = None if request.top_logprobs is None else []
        self.tempered: list[float] = []
        self.end: tuple[int, float] | None = None
        self._text = ""  # decoded from so many tokens:
        self._decoded = 0
        self._read = self._read_thought = 0  # how many characters of the text and of the thought have been read
        self._eos = frozenset(request.ends)
        self._walker = request.walker()
        self._detokenizer: Detokenizer | ByteDetokenizer
        if request.constraint is None:
            self._detokenizer = Detokenizer(tokenizer, request.prompt_ids, request.shown)
        else:
            self._detokenizer = ByteDetokenizer(request.constraint.vocabulary.texts)
        if self._walker is not None and self._walker.complete:
            self.finish_reason = "eos"
        self._thoughts = None if request.thoughts is None else thoughts_of(request.thoughts)
        self._stops = StopStrings(request.stops, include=request.include_stop)

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return self.finish_reason is not None or self.error is not None

    @property
    def texts(self) -> "Sequence[Text]":
        return (self,)

    def short(self, left: int) -> bool:
        """Whether it may be short of room for its next token, with `left` tokens left; the device may be some ahead."""
        if self._walker is None or self.ended:
            return False
        return self._walker.short(left, self.request.limit - left - len(self.token_ids))

    def take(self, results: StepResults, row: int) -> None:
        top, most = None, self.request.top_logprobs
        if most is not None and results.top is not None:
            own, token_ids, logprobs, _ = (result[row] for result in results.top)
            top = TopLogprobs(logprob=own, token_ids=token_ids[:most], logprobs=logprobs[:most])
        if results.squeezed is not None and results.squeezed[row] and not self.ended:
            self.squeezed = True
        if self.request.kept and results.top is not None and not self.ended:
            self.tempered.append(results.top[3][row])
        token_ids, logprobs = results.search[:2]
        self.push(token_ids[row][0], logprobs[row], top)

    def _failure(self) -> ConstraintError | None:
        """The error for an output type whose engine has failed on this text; None if it has not."""
        if self._walker is None or not (problem := self._walker.problem()):
            return None
        return ConstraintError(
            f"{self._name}: after {len(self.token_ids)} new tokens the host engine failed: {problem}. Take a simpler "
            "output type."
        )

    def push(self, token_id: int, logprob: float, top: TopLogprobs | None = None) -> None:
        """Take a token; it is ignored if the text has ended."""
        if self.ended:
            return
        if not logprob > -math.inf:  # a sampler of the user may also give NaN
            self.error = self._failure() or nothing_left(self.request, self._name, len(self.token_ids))
            return
        if not 0 <= token_id < self._vocab_size:
            self.error = SamplingError(
                f"{self._name}: the sampler chose the token {token_id}; the vocabulary is 0 to {self._vocab_size - 1}."
            )
            return
        if token_id in self._eos:
            self.finish_reason = "eos"
            self.end = token_id, logprob
            self.stop_reason = token_id if token_id in self.request.stop_token_ids else None
        elif self._walker is not None and not self._walker.push(token_id):
            self.error = self._failure() or SamplingError(
                f"{self._name}: after {len(self.token_ids)} new tokens the sampler chose the token {token_id}, which "
                "the output type does not allow there. A sampler must not choose a token whose logit is -inf."
            )
            return
        else:
            self.token_ids.append(token_id)
            self.logprobs.append(logprob)
            if self.top_logprobs is not None and top is not None:
                self.top_logprobs.append(top)
            if self._walker is not None and self._walker.complete:
                self.finish_reason = "eos"
            elif len(self.token_ids) >= self.request.limit or (
                isinstance(self._walker, ThoughtWalker) and self._walker.full  # its answer, after a thought
            ):
                self.finish_reason = "length"
        if self.request.stops:
            self._decode()
        if self.squeezed and self.finish_reason is not None:
            self.finish_reason = "length"

    @property
    def grown(self) -> bool:
        """Whether there may be more to read."""
        if not self.request.stops:
            return self._read < len(self._text) or self._decoded < len(self.token_ids)
        return self._read < len(self._text) or self._read_thought < len(self._thought(last=False))

    def read(self) -> str:
        """The text that has become certain since the last call."""
        return self.read_both()[0]

    def read_both(self, *, last: bool = False) -> tuple[str, str]:
        """The text, and the thought before it, that have become certain since the last call.

        Args:
            last: whether nothing more will come.
        """
        if not self.request.stops:  # else it is decoded while it grows
            self._decode()
        text, thought = self._text, self._thought(last=last)
        pieces = text[self._read :], thought[self._read_thought :]
        self._read, self._read_thought = len(text), len(thought)
        return pieces

    def _thought(self, *, last: bool) -> str:
        """The thought so far; line breaks at its end are left out, because they may be dropped."""
        if self._thoughts is None:
            return ""
        thought = self._thoughts.reasoning or ""
        return thought if last else thought.rstrip("\n")

    def _decode(self) -> None:
        """Decode the tokens that are not decoded yet, and look for stops in what is no thought."""
        ended = self.ended  # read before the tokens: if the text has ended, these are all of them
        new = self.token_ids[self._decoded :]
        self._decoded += len(new)
        piece = self._detokenizer.push(*new, last=ended) if new or ended else ""
        hidden = self.request.hidden.get(new[-1], "") if new else ""
        unfinished = copy(self._detokenizer).push(last=True) if hidden else ""
        if self._thoughts is not None:
            piece = self._thoughts.push(piece) + (self._thoughts.flush() if ended else "")
            hidden = "" if self._thoughts.thinks else hidden
        piece = self._stops.push(piece) + self._stops.push(hidden, hidden=True, unfinished=unfinished)
        if self._stops.found:
            self.finish_reason, self.stop_reason = "stop", self._stops.stop
        elif ended:
            piece += self._stops.flush()
        self._text += piece

    def tokens_from(self, first: int) -> tuple[list[int], list[float], list[TopLogprobs] | None]:
        """Its tokens from a place on, with their logprobs and top_logprobs, as far as all of these are written."""
        top_logprobs = None if self.top_logprobs is None else self.top_logprobs[first:]
        logprobs = self.logprobs[first:] if top_logprobs is None else self.logprobs[first : first + len(top_logprobs)]
        return self.token_ids[first : first + len(logprobs)], logprobs, top_logprobs

    def expire(self) -> None:
        """End the text here, because its time is over."""
        if self.ended:
            return
        self.finish_reason = "timeout"
        if self.request.stops:
            self._decode()

    def fork(self, seed: int) -> "Text":
        """A copy of this text, which goes on by itself."""
        other = copy(self)
        other.seed = seed
        other.token_ids, other.logprobs = list(self.token_ids), list(self.logprobs)
        other.tempered = list(self.tempered)
        other.top_logprobs = None if self.top_logprobs is None else list(self.top_logprobs)
        other._detokenizer, other._stops = copy(self._detokenizer), copy(self._stops)
        other._thoughts = copy(self._thoughts)
        other._walker = None if self._walker is None else self._walker.copy()
        return other

    def completions(self) -> list[Completion]:
        return [self.completion()]

    def completion(self, score: float | None = None) -> Completion:
        """The text as a completion; its score is the sum of logprobs unless a search has given it one.

        Raises:
            GenError: the error of this text.
        """
        if self.error is not None:
            raise own(self.error)
        assert self.finish_reason is not None  # the loop ends when every text has; tells mypy
        made = self.so_far()
        at_context = self.finish_reason == "length" and self.request.bound == "context"
        return replace(
            made,
            score=made.score if score is None else score,
            finish_reason=self.finish_reason,
            stop_reason="context" if at_context else self.stop_reason,
        )

    def so_far(self) -> Completion:
        """The part of the text that is certain by now, while it grows, perhaps in another thread; with an output type
        its value is None."""
        if not self.request.stops:
            self._decode()
        token_ids, logprobs, top_logprobs = self.tokens_from(0)
        walker = self._walker if isinstance(self._walker, ThoughtWalker) else None
        return Completion(
            text=self._text,
            value=None if self.request.typed else self._text,
            token_ids=token_ids,
            logprobs=logprobs,
            score=sum(logprobs, 0.0),
            finish_reason=None,
            seed=self.seed,
            engine=None if self.request.constraint is None else self.request.constraint.engine,
            top_logprobs=top_logprobs,
            reasoning=None if self._thoughts is None else self._thoughts.reasoning,
            reasoning_tokens=0 if walker is None else min(walker.begins, len(token_ids)),
            reasoning_cut=walker is not None and walker.cut,
            drafted=self.drafted,
            accepted=self.accepted,
        )
