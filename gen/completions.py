"""What a call reports about a text: how it came about, and how likely its tokens were; and receipts of texts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

from gen.errors import ArgumentError, show

_FORMAT = 1  # of receipts
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
        id: the call's id, in the first delta, if the form is Kimi's.
    """

    number: int
    name: str | None = None
    arguments: str = ""
    id: str | None = None


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
class Receipt:
    """A text and all that made it, as `Completion.receipt` gives it: with the model, it is enough to check each token.

    `str` of it is a line of JSON.

    Attributes:
        prompt_ids: the tokens of the prompt.
        token_ids: the new tokens, without the one that ended them.
        logprobs: for each token its natural log-probability under the distribution that it was chosen from.
        text: what the tokens say, as `Completion.text`.
        finish_reason: how the text ended. One that ended by "timeout" or "cancelled" is the beginning of a text.
        stop_reason: see `Completion`.
        seed: the seed that gives this text alone.
        sample: which of the prompt's samples it was; for a beam search, which of its texts, best first.
        sampler: how tokens were chosen: the `name` of a function of `gen.samplers`, and its arguments that are not the
            default.
        settings: what else has shaped the text, with what defaults came to; token ids in the place of texts.
        output_type: the form of the output type; None without one. Types with equal texts have equal forms.
        engine: the engine that held the text to its output type; None without one.
        images: of the prompt: its `text`, with a place for each image, the `images` as data: URLs in PNG, and
            `add_special_tokens`; None without images.
        model: what ran: `weights`, a digest of all parameters and buffers, None where they cannot be read; `tokenizer`
            and `template`, digests; `kind`, `dtype` and `device`; `adapters`, where some of PEFT are active: their
            names, and a digest of the layers in which they act and of their scales.
        versions: of gen, and of the packages that affect texts.
        format: of this receipt.
    """

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    text: str
    finish_reason: str
    stop_reason: str | int | None = None
    seed: int
    sample: int = 0
    sampler: Mapping[str, Any]
    settings: Mapping[str, Any]
    output_type: Sequence[Any] | None = None
    engine: str | None = None
    images: Mapping[str, Any] | None = None
    model: Mapping[str, str | None] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    format: int = 1

    def __str__(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @staticmethod
    def read(given: "str | Mapping[str, Any]") -> "Receipt":
        """The receipt of a line of JSON, or of the object that it stands for, as a server gives it.

        Raises:
            ArgumentError: it is no receipt, or one that a later version of gen has written.
        """
        try:
            found = json.loads(given) if isinstance(given, str) else dict(given)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"{show(given)} is no receipt: {error}") from error
        written = found.get("format") if isinstance(found, dict) else None
        if type(written) is not int:
            raise ArgumentError(f'{show(given)} is no receipt; a receipt has a "format".')
        if written > _FORMAT:
            raise ArgumentError(f"the receipt has the format {written}, this version of gen reads up to {_FORMAT}.")
        known = {one.name for one in fields(Receipt)}
        try:
            made = Receipt(**{name: value for name, value in found.items() if name in known})
        except TypeError as error:
            raise ArgumentError(f"{show(given)} is no whole receipt: {error}") from error
        for name in ("prompt_ids", "token_ids"):
            if not isinstance(found[name], list) or not all(type(one) is int and one >= 0 for one in found[name]):
                raise ArgumentError(f"the receipt's {name} must be a list of token ids, got {show(found[name])}")
        if len(made.logprobs) != len(made.token_ids):
            raise ArgumentError(
                f"the receipt has {len(made.token_ids)} tokens and {len(made.logprobs)} log-probabilities."
            )
        return made

    @staticmethod
    def load(path: str | PathLike[str]) -> "list[Receipt]":
        """The receipts of a file, one a line, or those in a job's results; empty lines and failed rows are left out.

        Args:
            path: a file, or the folder of a job, whose parts are read in their order.
        Raises:
            ArgumentError: a line is no receipt; the message has its number. Or the folder is not that of a job.
            OSError: the file cannot be read.
        """
        files, found = [Path(path)], list[Receipt]()
        if files[0].is_dir() and not (files := sorted(files[0].glob("part-*.jsonl"))):
            raise ArgumentError(f"{path} is a folder without parts of a job; give one that has some, or a file.")
        for file in files:
            for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
                try:
                    found += _in_line(line.decode()) if line.strip() else []
                except ValueError as error:  # ArgumentErrors, and those of the line itself
                    raise ArgumentError(f"{file}, line {number}: {error}") from error
        return found

    @staticmethod
    def dump(receipts: "Iterable[Receipt]", path: str | PathLike[str]) -> None:
        """Write receipts to a file, one a line, in place of what it had.

        Raises:
            OSError: the file cannot be written.
        """
        lines = "".join(f"{one}\n" for one in receipts)
        Path(path).write_bytes(lines.encode(errors="backslashreplace"))  # a lone surrogate becomes its escape


def _in_line(line: str) -> list[Receipt]:
    """The receipt of a line, or those of a job's result; none of a row that has failed."""
    found = json.loads(line)
    result = isinstance(found, dict) and "format" not in found and "id" in found
    if not result:
        return [Receipt.read(line)]
    given = found.get("receipts") or [found["receipt"]] if found.keys() & {"receipt", "receipts"} else []
    if not given and "error" not in found:
        raise ArgumentError("the result has no receipt; the job was run without receipts.")
    return [Receipt.read(one) for one in given]


@dataclass(frozen=True, kw_only=True)
class FieldScore:
    """How sure the model was of one leaf of a value: a string, a number, true, false or null.

    Attributes:
        path: the names and places that lead to it; () if it is the whole value.
        text: as it is written, which is `Completion.text` from `start` to `end`.
        start: its first character.
        end: the character after it.
        token_ids: the tokens that have some of its text; of a number also the one that ends it.
        logprob: their natural log-probability under the model's own distribution, as `gen.score` gives it.
        other: the text of the likeliest other value that the type allows there, behind the text before it, if these
            are at most 100, as with options, true and false, or whole numbers with bounds. None if there is none, or
            too many.
        other_logprob: the log-probability of `other` in the same place, to be compared with `logprob`; or None. No end
            is counted behind a whole text: there 1 is at least as likely as 12.
    """

    path: tuple[str | int, ...]
    text: str
    start: int
    end: int
    token_ids: list[int]
    logprob: float
    other: str | None = None
    other_logprob: float | None = None


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
        attempts: how many turns of the assistant the value took; more than 1 only with `retries`.
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
    attempts: int = 1
    cached_tokens: int = field(default=0, compare=False)
    drafted: int = field(default=0, compare=False)
    accepted: int = field(default=0, compare=False)
    _made: ClassVar[Any] = (None, 0)  # the request, and which of its texts this is, from the call that has made it

    @property
    def receipt(self) -> Receipt:
        """The text with all that made it: enough to check it later. Ask while the model is there.

        The first receipt of a model reads all of its weights, for their digest. Host sync: then only.

        Raises:
            ArgumentError: a part of it cannot be written, which the message names; the weights or the active adapters
                have been changed since the call; or this is a copy of the completion that the call has returned.
        """
        request, rank = self._made
        if request is None or request.write_receipt is None:
            raise ArgumentError("no receipt: only the completion itself has one, with details=True and receipts=True.")
        receipt: Receipt = request.write_receipt(request, self, rank=rank)
        return receipt

    @property
    def fields(self) -> list[FieldScore]:
        """How sure the model was of each leaf of the value, in the order of the text. Ask while the model is there.

        It reads the text, and the other values that a leaf may have, with `gen.score`'s numbers: nobody asks the model
        how sure it is. Host sync: one each time.

        Raises:
            ArgumentError: the text is neither JSON of a type nor one of some options, or no whole value; the prompt has
                images; the weights or the active adapters have been changed since the call; or this is a copy of the
                completion that the call has returned.
        """
        request, _ = self._made
        if request is None or request.score_fields is None:
            raise ArgumentError("no fields: only the completion itself that a call returns with details=True has them.")
        scores: list[FieldScore] = request.score_fields(request, self)
        return scores

    def made_by(self, request: Any, rank: int = 0) -> "Completion":
        """This completion, with its request, which writes its receipt and scores its fields.

        Args:
            rank: of a beam search, which of its texts it is.
        """
        object.__setattr__(self, "_made", (request, rank))
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Without the request, which knows the model."""
        return {name: value for name, value in vars(self).items() if name != "_made"}
