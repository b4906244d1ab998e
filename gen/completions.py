"""What a call tells of a text: how it came about, and how likely its tokens were."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "eos", "length", "timeout", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class TopLogprobs:
    """How likely a token and its rivals are to the model itself: by the softmax of its logits over all tokens that the
    tokenizer has, before penalties, processors, temperature and cuts.

    Attributes:
        logprob: the natural log-probability of the token that was chosen; -inf where the model rules it out.
        token_ids: the likeliest tokens, best first; any of those that are equally likely.
        logprobs: their log-probabilities.
    """

    logprob: float
    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, kw_only=True)
class ToolCallDelta:
    """What is new of a call of a tool while a text grows.

    Attributes:
        number: which of the text's calls it is, from 0.
        name: the tool's, with the first of a call's deltas; None with the others.
        arguments: a piece of the text of the arguments' JSON.
    """

    number: int
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, kw_only=True)
class StreamEvent:
    """What is new of a text while it grows, since the event before. All events joined are the completion.

    Attributes:
        text: a piece of the text; of `gen.tool_calls` of what is said to the reader, without white space around it.
        reasoning: a piece of what the model thinks before it answers.
        tool_calls: what is new of the calls of tools, of `gen.tool_calls` alone.
        token_ids, logprobs, top_logprobs: see `Completion`; of the tokens that have come. Those that do not yet tell
            what the text is, such as a part of a character, come with a later event.
        prompt_logprobs: see `Completion`; with the first event alone.
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
        text: what was generated, without the eos that ended it, nor the stop unless include_stop.
        value: what the text stands for; the text itself where no output type was asked for.
        token_ids: the new tokens, without the eos that ended them; those of a stop are among them.
        logprobs: for each token its natural log-probability under the distribution that it was chosen from.
        score: the sum of logprobs; for beam search that of all tokens with the eos / length ** length_penalty.
        finish_reason: "eos" (also where a text of an output type can only end), "stop" (a stop string or a stop regex)
            or "length" (max_new_tokens, or the end of the context); "length" too where a limit has changed a text of an
            output type that ended before it: without "length", it is the text that larger limits give. "timeout" where
            max_time was over. In what a stream's `so_far()` gives: None while the text grows, and "cancelled" once it
            was cancelled.
        stop_reason: the stop string that ended the text, a stop regex's pattern, or the token of `eos_token_id` where
            the model itself does not name it; None where something else ended it.
        seed: gives this text again, alone or in any batch.
        engine: what held the text to its output type, "device" or "host"; None where there was none.
        top_logprobs: for each token how likely it and its rivals are to the model itself; None where not asked for.
        prompt_logprobs: the same for each token of the prompt after its first one; None where not asked for.
        reasoning: what the model thought before it answered, where the template of a chat marks thoughts; it is no part
            of the text. None where it did not think, for prompts that are no chat, and for output types other than
            `gen.tool_calls`, whose texts are all that was written.
        cached_tokens: how many tokens of the prompt were not read for it, since another text's prompt began alike. It
            depends on the batch, so that two completions may be equal without it.
        drafted: how many drafts were read beside the newest tokens; see `gen.Speculation`. It depends on clocks, and is
            no part of equality either.
        accepted: how many of them were right, also after the end of the text: that many steps were saved.
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
    cached_tokens: int = field(default=0, compare=False)
    drafted: int = field(default=0, compare=False)
    accepted: int = field(default=0, compare=False)
