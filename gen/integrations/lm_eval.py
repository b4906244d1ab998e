"""gen as a model of lm-evaluation-harness: for every kind of request; tokens that contexts share are read once.

    python -m gen.integrations.lm_eval --model gen --model_args pretrained=demo --tasks lambada_openai

This command registers the model and runs the harness's own command line. Later versions of the harness find the model
by the package's entry point `lm_eval.models`. Source of the protocol: lm-evaluation-harness 0.4 (EleutherAI).
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

import gen
import gen.samplers
from gen.arguments import read_whole
from gen.errors import ArgumentError, show
from gen.models.base import Model
from gen.models.checks import check_model
from gen.requests.chats import chat_text
from gen.requests.prompts import ends_of
from gen.scoring.pairs import Pair
from gen.scoring.scorer import Scorer

_UNBOUNDED = 2048  # the context length for a model without a limit, as in the harness's own model
_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p")


@register_model("gen")
class GenLM(TemplateLM):  # type: ignore[misc]
    """A model for `lm_eval.simple_evaluate(model=...)`, or `--model gen` on the command line.

    Args:
        pretrained: a model of gen's, or what `gen.load` takes: a folder, a name on the Hub, a GGUF file, or "demo".
        device: see `gen.load`; not for a model that is loaded.
        dtype: likewise.
        device_map: likewise.
        max_length: how many tokens a text may have; None for the model's context.
        max_gen_toks: how many tokens are generated at most if a task gives no number.
        max_batch_tokens: see `gen.generate`.
        batch_size: not used: the harness gives it to every model, but gen decides by the memory.
        max_batch_size: not used, for the same reason.
    Raises:
        ArgumentError: a number cannot be used, or max_length is more than the model's context; or as for `gen.load`.
        ModelError: as for `gen.load`.
    """

    def __init__(
        self,
        pretrained: str | Model = "demo",
        *,
        device: str | None = None,
        dtype: str | None = None,
        device_map: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        max_batch_tokens: int | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.max_gen_toks = read_whole("max_gen_toks", max_gen_toks)
        self._max_batch_tokens = None
        if max_batch_tokens is not None:
            self._max_batch_tokens = read_whole("max_batch_tokens", max_batch_tokens, minimum=1)
        own: dict[str, Any] = {"device": device, "dtype": dtype, "device_map": device_map}
        if isinstance(pretrained, str):
            pretrained = gen.load(pretrained, **own, context_length=max_length)
        elif given := [name for name, value in own.items() if value is not None]:
            raise ArgumentError(f"{', '.join(given)}: pretrained is a model that is loaded already; leave this out.")
        check_model(pretrained)
        self.model = pretrained
        known = self.model.context_length
        self.max_length = known if known < sys.maxsize else _UNBOUNDED
        if max_length is not None:
            self.max_length = read_whole("max_length", max_length, minimum=2, maximum=known)

    @property
    def eot_token_id(self) -> int:
        """The token that is put before a text without a context if there is no bos token."""
        if not (ends := ends_of(self.model)):
            raise ArgumentError("the model has no eos token to put before a text without a context.")
        return ends[0]

    @property
    def prefix_token_id(self) -> int:
        """The token that is put before a text without a context."""
        bos = self.model.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness caches requests."""
        return self.model.tokenizer.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the template in use; None if none is asked for."""
        if not chat_template:
            return None
        return self.model.tokenizer.chat_template({"chat_template": chat_template} if chat_template is not True else {})

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation as text."""
        options = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        return chat_text(self.model.tokenizer, chat_history, options)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        """The token ids of a text; with None, special tokens are added unless the text begins with the bos token."""
        tokenizer = self.model.tokenizer
        if add_special_tokens is None:
            bos = tokenizer.bos_token_id
            add_special_tokens = bos is None or tokenizer.encode_plain(string)[:1] != [bos]
        return tokenizer.encode(string) if string and add_special_tokens else tokenizer.encode_plain(string)

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of whole texts, in windows of the context's length."""
        windows: list[tuple[int, tuple[list[int], list[int]]]] = []
        for number, (text,) in enumerate(request.args for request in requests):
            rolling = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            windows += [(number, utils.make_disjoint_window(window)) for window in rolling]
        scores = self._score([window for _, window in windows])
        sums = [0.0] * len(requests)
        for (number, _), score in zip(windows, scores, strict=True):
            sums[number] += score.sum
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts up to the strings that a task names; contexts that are too long lose their first tokens."""
        texts = [""] * len(requests)
        groups: dict[tuple[str, ...], list[int]] = {}
        asked = [_Asked.of(request.args[1], self.max_gen_toks) for request in requests]
        for number, one in enumerate(asked):
            groups.setdefault(one.until, []).append(number)
        for until, numbers in groups.items():
            made = gen.generate(
                self.model,
                [self._context(requests[number].args[0], asked[number].limit) for number in numbers],
                sampler=[asked[number].sampler for number in numbers],
                max_new_tokens=[asked[number].limit for number in numbers],
                seed=numbers,
                stop=list(until) or None,
                max_batch_tokens=self._max_batch_tokens,
                progress=not disable_tqdm,
            )
            for number, text in zip(numbers, made, strict=True):
                assert isinstance(text, str)  # one text for each prompt; tells mypy
                texts[number] = text
                self.cache_hook.add_partial("generate_until", requests[number].args, text)
        return texts

    def _context(self, text: str, limit: int) -> list[int]:
        """A prompt, cut if necessary so that `limit` new tokens fit."""
        if limit >= self.max_length:
            raise ArgumentError(
                f"a task asks for {limit} new tokens, and the model's texts have {self.max_length} at most; give a "
                "smaller max_gen_toks."
            )
        return self.tok_encode(text)[limit - self.max_length :] or [self.prefix_token_id]

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        scores = self._score([(context, continuation) for _, context, continuation in requests])
        found = [(score.sum, all(score.is_argmax)) for score in scores]
        for (texts, _, _), answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return found

    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[gen.Score]:
        """Scores of (context, continuation); contexts that are too long lose their first tokens."""
        made = []
        for number, (context, continuation) in enumerate(pairs):
            if not continuation:
                raise ArgumentError(
                    f"request {number} has no tokens of its own where the harness cuts it: they are one with the "
                    "context's last ones. End the context with a whole word."
                )
            if len(continuation) > self.max_length:
                raise ArgumentError(
                    f"request {number} has {len(continuation)} tokens to score, and the model reads at most "
                    f"{self.max_length}."
                )
            kept = context[-(self.max_length + 1 - len(continuation)) :] or [self.prefix_token_id]
            made.append(Pair(f"request {number}", tuple(kept), tuple(continuation)))
        return Scorer(self.model, max_batch_tokens=self._max_batch_tokens).run(made)


@dataclass(frozen=True)
class _Asked:
    """How a task wants a text to be generated."""

    until: tuple[str, ...]
    limit: int
    sampler: gen.samplers.Sampler

    @classmethod
    def of(cls, arguments: Mapping[str, Any], most: int) -> Self:
        """Read the arguments that a task gives.

        Raises:
            ArgumentError: gen does not know one of them.
        """
        given = dict(arguments)
        until = given.pop("until", None) or ()
        names = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
        limits = [given.pop(name, None) for name in names]
        limit = int(next((limit for limit in limits if limit is not None), most))
        draws = bool(given.pop("do_sample", given.get("temperature", 0) > 0))
        settings = {name: given.pop(name) for name in _OF_SAMPLING if name in given}
        penalties = {"repetition_penalty": given.pop("repetition_penalty", 1.0)}
        if given:
            raise ArgumentError(
                f"a task sets {', '.join(given)}, which gen does not know for generating, got {show(arguments)}"
            )
        draw = gen.samplers.multinomial(**settings, **penalties) if draws else gen.samplers.greedy(**penalties)
        return cls((until,) if isinstance(until, str) else tuple(until), limit, draw)


def main() -> None:
    """The harness's command line, which knows the model "gen"."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
