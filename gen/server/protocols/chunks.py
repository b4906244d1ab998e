"""What chat completions and completions have in common: fields, how texts end, and streams of chunks."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gen.completions import Completion
from gen.errors import GenError
from gen.server.bodies import Body, Known
from gen.server.errors import ApiError, in_openai_form, refused
from gen.server.output_types import FORMAT, new_id, type_of_format, type_of_structure
from gen.server.sampling import SamplingFields
from gen.server.served import Asked
from gen.server.texts import Texts
from gen.server.writing import event, reasoning_tokens
from gen.tokens.tokenizers import Tokenizer

_FINISHED = {"eos": "stop", "stop": "stop", "length": "length"}
Likeliest = Annotated[int, Field(ge=0, le=20)]


class StreamOptions(Body):
    """What a stream has besides the texts."""

    include_usage: bool = False


class ChunkedBody(SamplingFields):
    """The fields that both have."""

    harmless: ClassVar[Mapping[str, object]] = {"user": None}
    inner: ClassVar[Mapping[str, Known]] = {"response_format": FORMAT}

    n: Annotated[int, Field(ge=1)] = 1
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    prompt_logprobs: Likeliest | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    stream_options: StreamOptions = StreamOptions()
    return_receipt: bool = False

    def output_type(self, most_kb: float) -> Any:
        """The output type of the texts; None if they have none.

        Args:
            most_kb: how large schemas may be, in KiB.
        """
        if self.response_format is not None and self.structured_outputs is not None:
            raise refused(
                "a text has one output type; give response_format or structured_outputs.", "structured_outputs"
            )
        if self.prompt_logprobs is not None and self.stream:
            raise refused("prompt_logprobs come with whole answers only; leave stream out.", "prompt_logprobs")
        if self.structured_outputs is not None:
            return type_of_structure(self.structured_outputs, most_kb)
        return type_of_format(self.response_format, "response_format", most_kb)

    def finished(self, completion: Completion, itself: str = "stop") -> dict[str, Any]:
        """The fields that say how a text has ended.

        Args:
            itself: the finish_reason if it has ended by itself, and no stop has cut its calls of tools.
        """
        reason = _FINISHED[completion.finish_reason or "length"]
        told: dict[str, Any] = {
            "finish_reason": itself if reason == "stop" and completion.value is not None else reason,
            "stop_reason": completion.stop_reason,
        }
        if self.return_receipt:
            try:
                told["receipt"] = asdict(completion.receipt)
            except GenError as error:
                told |= {"receipt": None, "receipt_error": str(error)}
        return told


class ChunkWriter:
    """What the writers of both have, see `Writer`.

    Args:
        kind: begins the answer's id.
        head: fields of each chunk, besides its id and its time.
    """

    texts: Texts

    def __init__(self, tokenizer: Tokenizer, body: ChunkedBody, asked: Asked, kind: str, **head: Any) -> None:
        self.asked, self.stream = asked, body.stream
        self._tokenizer, self._n = tokenizer, body.n
        self._with_usage = body.stream_options.include_usage
        self._head: dict[str, Any] = {"id": new_id(kind), "created": int(time.time()), **head}

    def close(self, made: Sequence[Completion], prompt_tokens: int) -> Iterable[str]:
        if self._with_usage:
            yield self._event([], self._usage(made, prompt_tokens))
        yield "data: [DONE]\n\n"

    def fail(self, error: ApiError) -> Iterable[str]:
        yield event(in_openai_form(error))

    def _usage(self, made: Sequence[Completion], prompt_tokens: int) -> dict[str, Any]:
        new = sum(len(one.token_ids) for one in made)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": new,
            "total_tokens": prompt_tokens + new,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in made[:: self._n])},
            "completion_tokens_details": {"reasoning_tokens": reasoning_tokens(made, self._tokenizer)},
        }

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> str:
        """A chunk."""
        chunk = {**self._head, "choices": choices}
        return event({**chunk, "usage": usage} if self._with_usage else chunk)
