"""What a server serves: an engine's model, under its names, within the server's limits."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gen.engine import Engine
from gen.models.base import ImageReader, Model
from gen.requests.prompts import Prompt, messages_of, read_prompt
from gen.samplers import Sampler, sample_seed
from gen.samplers.backends.random import draw_seed
from gen.server.compiling import Compiling
from gen.server.conversations import with_pictures
from gen.server.errors import ApiError, refused
from gen.server.settings import Settings
from gen.server.texts import Texts
from gen.streaming import EngineStream
from gen.tools.values import ToolCallsType


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a client asks for, as `gen.generate` takes it.

    Attributes:
        n: how many texts each prompt gets.
        cap: how many tokens a text may have; None if the client does not say.
        prompt_logprobs: how many of the likeliest tokens to give with each token of the prompt; None for no
            log-probabilities.
        arguments: further arguments of `Engine.submit`.
    """

    prompts: Sequence[Prompt]
    sampler: Sampler
    output_type: Any = None
    n: int = 1
    seed: int | None = None
    cap: int | None = None
    prompt_logprobs: int | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


class Served:
    """An engine and the server's settings.

    Attributes:
        since: when the server began, in seconds since 1970.
        compiling: compiles output types.
        embedding: held while texts are embedded: two batches at once would take more memory and gain nothing.
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self.settings = engine, settings
        self.model: Model = engine.model
        self.since = int(time.time())
        self.embedding = asyncio.Semaphore(1)
        self.compiling = Compiling(engine.model)

    def name_of(self, given: str | None) -> str:
        """The name of the model that a request asks for.

        Raises:
            ApiError: there is no model of that name.
        """
        name = self.settings.names[0] if given is None else given
        if name not in self.settings.names:
            raise no_model(name, self.settings.names)
        return name

    def health(self) -> str:
        """Return "ok" while the engine takes requests and makes progress; else "failed", "closed" or "stalled"."""
        stats = self.engine.stats()
        stalled = stats.progress_age > self.settings.stall_timeout
        return "failed" if stats.failure else "closed" if stats.closed else "stalled" if stalled else "ok"

    async def begin(self, asked: Asked) -> Texts:
        """Let the texts of a request join the engine.

        Raises:
            ApiError: it asks for more texts than it may.
            GenError: as for `Engine.submit`.
        """
        count = len(asked.prompts) * asked.n
        if count > self.settings.max_prompts:
            raise refused(f"a request may ask for {self.settings.max_prompts} texts, and this one asks for {count}.")
        if isinstance(self.model, ImageReader) and any(map(messages_of, asked.prompts)):
            asked = replace(asked, prompts=await asyncio.to_thread(self._with_pictures, asked.prompts))
        seeds = [draw_seed() if asked.seed is None else asked.seed for _ in asked.prompts]
        calls = isinstance(asked.output_type, ToolCallsType)
        only_prompts = asked.cap == 0 and asked.prompt_logprobs is not None
        submit = partial(self._submit, asked, seeds)
        texts = Texts(submit, count, self.engine.rows, calls=calls, only_prompts=only_prompts)
        await self.compiling.ready(asked.output_type)
        await texts.begin()
        return texts

    def _submit(self, asked: Asked, seeds: Sequence[int], numbers: Sequence[int]) -> list[EngineStream]:
        """Let the texts of these numbers join the engine; a prompt's texts have consecutive numbers."""
        of = [divmod(number, asked.n) for number in numbers]
        return self.engine.submit_all(
            [asked.prompts[prompt] for prompt, _ in of],
            asked.output_type,
            sampler=asked.sampler,
            seed=[sample_seed(seeds[prompt], sample) for prompt, sample in of],
            max_new_tokens=[self._limit(asked, asked.prompts[prompt]) for prompt, _ in of],
            prompt_logprobs=asked.prompt_logprobs,
            shorten=True,
            local_files=False,
            **asked.arguments,
        )

    def _with_pictures(self, prompts: Sequence[Any]) -> list[Any]:
        most = int(self.settings.max_image_mpx * 1e6)
        return [with_pictures(messages_of(one), most) or one for one in prompts]

    def _limit(self, asked: Asked, prompt: Prompt) -> int:
        """How many new tokens the client, the server and the engine allow a text; the context may end it earlier."""
        limits = [self.model.context_length, self.settings.max_new_tokens, asked.cap]
        if (most := self.engine.max_batch_tokens) is not None:
            limits.append(max(1, most - len(self._prompt_ids(asked, prompt))))
        limit = min(limit for limit in limits if limit is not None)
        return limit if asked.prompt_logprobs is None else max(1, limit)  # prompt_logprobs come with the first token

    def prompt_ids(self, asked: Asked) -> list[int]:
        """The token ids of a request's only prompt."""
        [prompt] = asked.prompts
        return self._prompt_ids(asked, prompt)

    def _prompt_ids(self, asked: Asked, prompt: Prompt) -> list[int]:
        template_kwargs = asked.arguments.get("chat_template_kwargs")
        return read_prompt(self.model, prompt, chat=False, template_kwargs=template_kwargs)


def no_model(name: object, names: Sequence[str]) -> ApiError:
    """The error for a name that stands for no model."""
    return ApiError(
        404, f"the model {str(name)[:80]!r} does not exist; there is {', '.join(names)}.", "model", "model_not_found"
    )
