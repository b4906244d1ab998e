"""What a call reports about a text: how it came about, and how likely its tokens were."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "eos", "length", "timeout", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class TopLogprobs:
    """How likely a token, and the likeliest tokens in its place, are to the model itself.

    The probabilities are the softmax of the logits over all tokens that the tokenizer has, before penalties,
    processors, temperature and cuts.

    Attributes:
        logprob: the natural log-probability of the token that was chosen; -inf if the model rules it out.
        token_ids: the likeliest tokens, best first. Tokens that are equally likely come in any order, and any of them
            may be left out.
        logprobs: the log-probabilities of `token_ids`.
    """

    logprob: float
    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, kw_only=True)
class ToolCallDelta:
    """The new part of a tool call while a text grows.

    Attributes:
        number: which of the text's calls it is, from 0.
        name: the tool's name, in the first delta of a call; None in the others.
        arguments: a piece of the text of the arguments' JSON.
    """

    number: int
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """What a text has gained since the event before, while it grows. All events joined are the completion.

    Attributes:
        text: a piece of the text; with `gen.tool_calls`, a piece of what the model says to the reader, without white
            space around it.
        reasoning: a piece of what the model thinks before it answers.
        tool_calls: the new parts of tool calls; only with `gen.tool_calls`.
        token_ids, logprobs, top_logprobs: see `Completion`; for the tokens that are new. Tokens whose text is not yet
            certain, such as a part of a character, come with a later event.
        prompt_logprobs: see `Completion`; only in the first event.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: Sequence[ToolCallDelta] = ()
    token_ids: list[int]
    logprobs: list[float]
    top_logprobs: list[TopLogprobs] | None = None
    prompt_logprobs: list[TopLogprobs] | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A text and how it came about.

    Attributes:
        text: what was generated, without the eos token that ended it, and without the stop unless include_stop.
        value: the value of the output type that the text stands for; the text itself without an output type.
        token_ids: the new tokens, without the eos token that ended them; the tokens of a stop are included.
        logprobs: for each token its natural log-probability under the distribution that it was chosen from; for beam
            search what penalties, bans and the like have made of the model's own.
        score: the sum of logprobs; for beam search the sum over all tokens, the eos token included, divided by
            length ** length_penalty.
        finish_reason: "eos" (also if the output type allows no further token), "stop" (a stop string or a stop regex)
            or "length" (max_new_tokens, or the end of the context). It is also "length" if a text of an output type
            ended before its limit, but the limit has shaped it; any other reason means that larger limits give the same
            text. It is "timeout" if max_time was over. In what `so_far()` of a stream returns, it is None while the
            text grows, and "cancelled" once the stream was cancelled.
        stop_reason: the stop string, or the pattern of the stop regex, that ended the text; or the token id that did,
            if it is from `eos_token_id` and not one of the model's own. With the finish_reason "length" it is "context"
            if the limit was the end of the context. None if something else ended the text.
        seed: the seed that gives this text again, alone or in any batch.
        engine: the engine that held the text to its output type, "device" or "host"; None without an output type.
        top_logprobs: for each token, how likely it and the likeliest tokens are to the model itself; None unless asked
            for.
        prompt_logprobs: the same for each token of the prompt after its first one; None unless asked for.
        reasoning: what the model thought before it answered, if the chat template marks thoughts; it is no part of the
            text. None if the model did not think, and for prompts that are no chat.
        reasoning_tokens: how many of the tokens are those of the thought, with the marks around it.
        reasoning_cut: whether the thought had as many tokens as it may have, and was ended by its closing mark.
        cached_tokens: how many tokens of the prompt were not read again, because the prompt of another text began with
            them too. This depends on the batch, so it does not count when two completions are compared.
        drafted: how many drafts were read beside the newest tokens; see `gen.Speculation`. This depends on measured
            times, so it does not count either when two completions are compared.
        accepted: how many of these drafts were right, including those after the end of the text; each saved a step.
    """

    text: str
    value: Any
    token_ids: list[int]
    logprobs: list[float]
    score: float
    finish_reason: FinishReason | None
    seed: int
    engine: Literal["device", "host"] | None = None
    top_logprobs: list[TopLogprobs] | None = None
    prompt_logprobs: list[TopLogprobs] | None = None
    reasoning: str | None = None
    stop_reason: str | int | None = None
    reasoning_tokens: int = 0
    reasoning_cut: bool = False
    cached_tokens: int = field(default=0, compare=False)
    drafted: int = field(default=0, compare=False)
    accepted: int = field(default=0, compare=False)
