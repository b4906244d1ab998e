"""What comes out: a text that grows token by token, and the completion it ends as."""

from dataclasses import dataclass
from typing import Any, Literal

from gen.errors import SamplingError
from gen.prompts import Request, Row
from gen.stopping import StopStrings
from gen.tokenizers import Detokenizer, Tokenizer

FinishReason = Literal["stop", "eos", "length"]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A text and how it came about.

    Attributes:
        text: what was generated, without the stop string or eos that ended it.
        value: what the text stands for; the text itself where no output type was asked for.
        token_ids: the new tokens, without the eos that ended them; those of a stop string are among them.
        logprobs: for each token its natural log-probability under the distribution that it was chosen from.
        score: the sum of logprobs; for beam search that of all tokens with the eos / length ** length_penalty.
        finish_reason: "eos", "stop" (a stop string) or "length" (max_new_tokens, or the end of the context).
        seed: gives this text again, alone or in any batch.
    """

    text: str
    value: Any
    token_ids: list[int]
    logprobs: list[float]
    score: float
    finish_reason: FinishReason
    seed: int


def name_of(row: Row) -> str:
    """Which text this is, for an error."""
    return f"prompt {row.number}" + (f", sample {row.sample}" if row.sample else "")


def nothing_left(row: Row, new_tokens: int) -> SamplingError:
    """The error for a row, or all beams of a prompt, without a token to choose after so many new ones."""
    return SamplingError(
        f"{name_of(row)}: no token was left to choose after {new_tokens} new ones, since every logit is -inf or NaN, "
        "or a parameter of its row is NaN. Ban fewer tokens, or see whether the model overflows in this dtype."
    )


class GrowingText:
    """One row's text as it grows on the host."""

    def __init__(self, row: Row, request: Request, tokenizer: Tokenizer) -> None:
        self.text = ""
        self.finish_reason: FinishReason | None = None if row.limit else "length"
        self._row = row
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._vocab_size = tokenizer.vocab_size
        self._detokenizer = Detokenizer(tokenizer, row.prompt_ids)
        self._stops = StopStrings(request.stops)
        self._hidden = request.hidden
        self._eos_token_ids = request.eos_token_ids

    def push(self, token_id: int, logprob: float) -> str:
        """Take a token; return the text that is now certain, which is none once the text has ended."""
        if self.finish_reason:
            return ""
        if not logprob > -float("inf"):  # NaN, from a sampler of the caller's, is no likelihood either
            raise nothing_left(self._row, len(self._token_ids))
        if not 0 <= token_id < self._vocab_size:
            raise SamplingError(
                f"{name_of(self._row)}: the sampler chose the token {token_id}; the vocabulary is 0 to "
                f"{self._vocab_size - 1}."
            )
        piece = hidden = ""
        if token_id in self._eos_token_ids:
            self.finish_reason = "eos"
        else:
            self._token_ids.append(token_id)
            self._logprobs.append(logprob)
            if len(self._token_ids) == self._row.limit:
                self.finish_reason = "length"
            piece = self._detokenizer.push(token_id)
            hidden = self._hidden.get(token_id, "")
        if self.finish_reason or hidden:
            piece += self._detokenizer.flush()
        piece = self._stops.push(piece) + self._stops.push(hidden, hidden=True)
        if self._stops.found:
            self.finish_reason = "stop"
        elif self.finish_reason:
            piece += self._stops.flush()
        self.text += piece
        return piece

    def completion(self, score: float | None = None) -> Completion:
        """What has become of it; the score is the sum of logprobs unless a search has given it one."""
        assert self.finish_reason is not None  # the loop ends when every text has; tells mypy
        return Completion(
            text=self.text,
            value=self.text,
            token_ids=self._token_ids,
            logprobs=self._logprobs,
            score=sum(self._logprobs) if score is None else score,
            finish_reason=self.finish_reason,
            seed=self._row.seed,
        )
