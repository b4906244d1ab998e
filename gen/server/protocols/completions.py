"""`/v1/completions`, OpenAI's: texts and token ids, without a chat template."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar

from pydantic import Field

from gen.completions import Completion, StreamEvent
from gen.errors import show
from gen.server.errors import refused
from gen.server.likelihoods import Likely, Places, in_prompt_form, in_text_form, likely_prompt, likely_tokens
from gen.server.protocols.chunks import ChunkedBody, ChunkWriter, Likeliest
from gen.server.sampling import NOT_SUPPORTED
from gen.server.served import Asked, Served
from gen.server.texts import Ended
from gen.tokens.tokenizers import Tokenizer


class CompletionBody(ChunkedBody):
    """The fields of a request."""

    refused: ClassVar[Mapping[str, object]] = {
        name: value for name, value in NOT_SUPPORTED.items() if name not in ("best_of", "prompt_logprobs")
    } | {"add_special_tokens": True}
    renamed: ClassVar[dict[str, tuple[str, ...]]] = ChunkedBody.renamed | {
        "top_logprobs": ("logprobs",),
        "prompt_logprobs": ("prompt_logprobs", "logprobs"),
    }

    prompt: str | list[Any] = ""
    best_of: Annotated[int, Field(ge=0)] | None = None
    echo: bool = False
    suffix: str | None = None
    logprobs: Likeliest | None = None


def read_prompts(given: str | list[Any], field: str = "prompt") -> list[Any]:
    """One prompt or several, each a text or token ids."""
    one = isinstance(given, str) or (bool(given) and all(type(token_id) is int for token_id in given))
    prompts = [given] if one else given
    if not prompts or not all(
        isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(type(one) is int for one in prompt))
        for prompt in prompts
    ):
        raise refused(f"{field} must be a text, a list of token ids, or a list of those, got {show(given)}", field)
    return list(prompts)


class CompletionWriter(ChunkWriter):
    """Writes completions, and chunks of them, of one prompt or several."""

    def __init__(self, served: Served, body: CompletionBody) -> None:
        name, sent = served.name_of(body.model), read_prompts(body.prompt)
        prompts = [fill_in(served.model.tokenizer, one, body.suffix) for one in sent] if body.suffix else sent
        if body.best_of not in (None, 0, body.n):
            raise refused(
                "best_of must equal n, or be left out: this server returns every text that it makes.", "best_of"
            )
        of_prompt = (body.prompt_logprobs, body.logprobs if body.echo else None)
        asked = Asked(
            prompts=prompts,
            sampler=body.sampler(served.model),
            output_type=body.output_type(served.settings.max_schema_kb),
            n=body.n,
            seed=body.seed_of_gen,
            cap=body.cap,
            prompt_logprobs=max((one for one in of_prompt if one is not None), default=None),
            receipts=body.return_receipt,
            arguments={**body.arguments(served.model), "top_logprobs": body.logprobs},
        )
        super().__init__(served.model.tokenizer, body, asked, "cmpl-", object="text_completion", model=name)
        self._body, self._sent, self._prompts = body, sent, prompts
        late = body.echo and body.logprobs is not None  # then a prompt is echoed once its log-probabilities are known
        self._late = set(range(len(prompts) * body.n)) if late else set[int]()

    def _each(self, prompts: Sequence[Any]) -> list[str]:
        """A prompt for each text; token ids can be decoded once the engine has checked them."""
        of = [prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt) for prompt in prompts]
        return [text for text in of for _ in range(self._n)]

    @cached_property
    def _echoed(self) -> list[str]:
        """What each text begins with: the prompt as it was sent."""
        return self._each(self._sent) if self._body.echo else [""] * (len(self._sent) * self._n)

    @cached_property
    def _places(self) -> list[Places]:
        shown = not self._body.skip_special_tokens
        plain = self.asked.output_type is None and not shown
        both = zip(self._echoed, self._each(self._prompts), strict=True)
        return [Places(self._tokenizer, len(text), shown=shown, first=plain and not before) for text, before in both]

    def whole(self, ended: Sequence[Ended], prompt_tokens: int) -> dict[str, Any]:
        choices = [
            self._choice(number, self._echoed[number] + one.said.text, self._logprobs(number, one.said))
            | self._body.finished(one.completion)
            | self._of_prompt(number, one.said)
            for number, one in enumerate(ended)
        ]
        usage = self._usage([one.completion for one in ended], prompt_tokens)
        return {**self._head, "choices": choices, "usage": usage}

    def begin(self, prompt_tokens: int) -> Iterable[str]:
        for number, text in enumerate(self._echoed):
            if text and number not in self._late:
                yield self._event([self._choice(number, text)])

    def grow(self, number: int, new: StreamEvent) -> Iterable[str]:
        echoed = self._echoed[number] if number in self._late else ""
        yield self._event([self._choice(number, echoed + new.text, self._logprobs(number, new))])

    def end(self, number: int, completion: Completion) -> Iterable[str]:
        if number in self._late:  # the text has no tokens
            told = completion.prompt_logprobs
            yield from self.grow(number, StreamEvent(token_ids=[], logprobs=[], prompt_logprobs=told))
        yield self._event([self._choice(number, "") | self._body.finished(completion)])

    def _choice(self, number: int, text: str, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
        return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, number: int, new: StreamEvent) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        tokens = likely_tokens(new)
        places = self._places[number].take(tokens)
        if number in self._late:
            self._late.remove(number)
            before = self._before(number, new)
            # a text is echoed as it was sent; of token ids, special tokens are not
            ahead = Places(self._tokenizer, 0, shown=isinstance(self._sent[number // self._body.n], str))
            begun = ahead.take(before)
            added = ahead.end - len(self._echoed[number])  # such as a space, which decoders leave out
            tokens, places = before + tokens, [max(0, place - added) for place in begun] + places
        return in_text_form(self._tokenizer, tokens, places)

    def _before(self, number: int, new: StreamEvent) -> list[Likely]:
        """The tokens of the echoed prompt; if it is a text, those that spell it, without bos, marks and suffix."""
        prompt_ids, place = self.texts.prompt_ids(number), number // self._body.n
        tokens = likely_prompt(prompt_ids, new.prompt_logprobs or [], self._body.logprobs or 0)
        if isinstance(self._sent[place], str):
            spelling, read = (self._tokenizer.encode_plain(one[place]) for one in (self._sent, self._prompts))
            begin = len(prompt_ids) - len(read) + bool(self._body.suffix)  # behind a bos token, and the first mark
            own = slice(begin, begin + len(spelling))
            return tokens[own] if list(prompt_ids[own]) == spelling else tokens
        return tokens

    def _of_prompt(self, number: int, new: StreamEvent) -> dict[str, Any]:
        """vLLM's prompt_logprobs, if they were asked for."""
        top = self._body.prompt_logprobs
        if top is None or new.prompt_logprobs is None:
            return {}
        before = likely_prompt(self.texts.prompt_ids(number), new.prompt_logprobs, top)
        return {"prompt_logprobs": in_prompt_form(self._tokenizer, before)}


_MARKS = (  # special tokens: before the first text, before the last one, and before the text between them
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001  # DeepSeek
)


def fill_in(tokenizer: Tokenizer, prompt: Any, suffix: str) -> str:
    """The prompt that asks for the text between `prompt` and `suffix`.

    Source: Bavarian et al. 2022, arXiv:2207.14255, with the suffix before the middle.
    """
    known = {*tokenizer.special_tokens.values()}
    marks = next((marks for marks in _MARKS if known.issuperset(marks)), None)
    if marks is None or not isinstance(prompt, str):
        why = "this model has no special tokens for filling in" if marks is None else "the prompt must be a text"
        raise refused(f"suffix: {why}; leave it out.", "suffix")
    return f"{marks[0]}{prompt}{marks[1]}{suffix}{marks[2]}"
