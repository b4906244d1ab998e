"""What a server serves: an engine's model, under its names, within the server's limits."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch

from gen.calls.streams import EngineStream
from gen.engine import Engine
from gen.loop.memory import token_bytes, tokens_that_fit
from gen.models.base import Model
from gen.receipts.digests import named_tensors, weights_digest
from gen.requests.images import read_image
from gen.requests.prompts import Prompt, begun_message, messages_of, read_one_prompt
from gen.samplers import Sampler, sample_seed
from gen.samplers.backends.random import draw_seed
from gen.server.compiling import Compiling
from gen.server.errors import ApiError, refused
from gen.server.settings import Settings
from gen.server.texts import Texts
from gen.server.waiting import UnderWay
from gen.tokens.thoughts import marks_of_chat, switched

T = TypeVar("T")
_SAMPLE = 256  # tokens of a row whose size is looked at
LARGE = 2**18  # bytes of a request's body; its prompts take 0.1 s to encode


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a client asks for, as `gen.generate` takes it.

    Attributes:
        n: how many texts each prompt gets.
        cap: how many tokens a text may have; None if the client does not say.
        prompt_logprobs: how many of the likeliest tokens to give with each token of the prompt; None for no
            log-probabilities.
        receipts: whether answers have receipts.
        arguments: further arguments of `Engine.submit`.
    """

    prompts: Sequence[Prompt]
    sampler: Sampler
    output_type: Any = None
    n: int = 1
    seed: int | None = None
    cap: int | None = None
    prompt_logprobs: int | None = None
    receipts: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


class Served:
    """An engine and the server's settings.

    Attributes:
        since: when the server began, in seconds since 1970.
        compiling: compiles output types.
        under_way: the work of all requests.
        draining: whether the server ends once the requests under way are answered.
    """

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self.settings = engine, settings
        self.model: Model = engine.model
        self.since = int(time.time())
        self.compiling = Compiling(engine.model)
        self.under_way = UnderWay()
        self.draining = False
        self._apart = ThreadPoolExecutor(1, "gen large requests")
        self._embedding = ThreadPoolExecutor(1, "gen embeds")

    async def in_thread(self, work: Callable[[], T], *, size: int = 0, embeds: bool = False) -> T:
        """What a function returns, called in a thread.

        Large requests share one thread, since they may take seconds: the other threads are for other requests. Texts
        are embedded in one thread, too: two batches at once would take more memory and gain nothing.

        Args:
            size: of the request's body, in bytes.
            embeds: whether the function embeds texts.
        """
        pool = self._embedding if embeds else self._apart if size > LARGE else None
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def memory(self) -> dict[str, int]:
        """How many bytes the weights take, and the KV cache of all rows and what is kept of prompts at most."""
        model, limit = self.model, self.engine.max_batch_tokens
        weights = (tensor for _, tensor in named_tensors(model))
        beside = (tensor for _, tensor, _ in model.working_memory())
        with torch.no_grad():
            known = token_bytes(model, min(model.context_length, _SAMPLE))
        most = [self.engine.rows * model.context_length, limit, tokens_that_fit(model.placement, known)]
        tokens = min(one for one in most if one is not None)
        return {
            "weights": sum(one.nbytes for one in chain(weights, beside)),
            "rows": int(tokens * sum(known.values())),
            "prefixes": self.engine.prefix_bytes,
        }

    def end(self) -> int:
        """End all requests under way, which get 503 or an event, and compile no more; returns how many these are."""
        self.compiling.close()
        return self.under_way.end()

    def name_of(self, given: str | None) -> str:
        """The name of the model that a request asks for."""
        return name_in(self.settings.names, given)

    def health(self) -> str:
        """Return "ok" while the engine takes requests and makes progress; else "failed", "closed" or "stalled"."""
        stats = self.engine.stats()
        stalled = stats.progress_age > self.settings.stall_timeout
        return "failed" if stats.failure else "closed" if stats.closed else "stalled" if stalled else "ok"

    async def begin(self, asked: Asked, size: int = 0) -> Texts:
        """Let the texts of a request join the engine.

        Args:
            size: of the request's body, in bytes.
        """
        count = len(asked.prompts) * asked.n
        if count > self.settings.max_prompts:
            raise refused(f"a request may ask for {self.settings.max_prompts} texts, and this one asks for {count}.")
        if any(map(messages_of, asked.prompts)) and self.model.reads_images:
            prompts = await self.in_thread(partial(self._with_pictures, asked.prompts), size=size)
            asked = replace(asked, prompts=prompts)
        seeds = [draw_seed() if asked.seed is None else asked.seed for _ in asked.prompts]
        only_prompts = asked.cap == 0 and asked.prompt_logprobs is not None
        submit = partial(self._submit, asked, seeds)
        texts = Texts(submit, count, asked.n, self.engine.rows, only_prompts=only_prompts)
        await self.compiling.ready(asked.output_type)
        if asked.receipts:  # the first one reads all weights
            await self.in_thread(partial(weights_digest, self.model))
        try:
            await self.in_thread(texts.begin, size=size)
        except BaseException:
            texts.cancel()  # a thread may let them join nevertheless
            raise
        return texts

    def _submit(self, asked: Asked, seeds: Sequence[int], numbers: Sequence[int]) -> list[EngineStream]:
        """Let the texts of these numbers join the engine; a prompt's texts have consecutive numbers."""
        of = [divmod(number, asked.n) for number in numbers]
        limits = [self.model.context_length, self.settings.max_new_tokens, asked.cap]
        limit = min(limit for limit in limits if limit is not None)
        if asked.prompt_logprobs is not None:  # they come with the first token
            limit = max(1, limit)
        return self.engine.submit_all(
            [asked.prompts[prompt] for prompt, _ in of],
            asked.output_type,
            sampler=asked.sampler,
            seed=[sample_seed(seeds[prompt], sample) for prompt, sample in of],
            max_new_tokens=limit,
            prompt_logprobs=asked.prompt_logprobs,
            shorten=True,
            local_files=False,
            receipts=asked.receipts,
            **{**asked.arguments, "limits_thoughts": True},
        )

    def _with_pictures(self, prompts: Sequence[Any]) -> list[Any]:
        """The prompts, with the images in their messages read."""
        most = int(self.settings.max_image_mpx * 1e6)

        def read(part: Any) -> Any:
            if part["type"] != "image_url":
                return part
            image = read_image(part["image_url"]["url"], "the image", local_files=False, most_pixels=most)
            return {"type": "image", "image": image}

        def message(one: Mapping[str, Any]) -> dict[str, Any]:
            content = one["content"]
            return {**one, "content": [*map(read, content)] if isinstance(content, list) else content}

        return [[*map(message, messages_of(one))] or one for one in prompts]

    def prompt_ids(self, asked: Asked) -> list[int]:
        """The token ids of the conversation that a request has, its images' included, and a thought that the prompt
        begins, or closes."""
        tokenizer, thinks = self.model.tokenizer, asked.arguments["thinking"]
        template_kwargs = switched(tokenizer, asked.arguments["chat_template_kwargs"], thinks)
        [prompt] = self._with_pictures(asked.prompts) if self.model.reads_images else asked.prompts
        token_ids, _ = read_one_prompt(self.model, 0, prompt, [], template_kwargs=template_kwargs, local_files=False)
        begun = begun_message(prompt, template_kwargs)
        return marks_of_chat(tokenizer, template_kwargs, token_ids, begun, thinks)[1]


def name_in(names: Sequence[str], given: str | None) -> str:
    """The name that a request gives, or the first one. Raises an ApiError if it stands for no model."""
    if given is None:
        return names[0]
    if given in names:
        return given
    message = f"the model {given[:80]!r} does not exist; there is {', '.join(names)}."
    raise ApiError(404, message, "model", "model_not_found")
