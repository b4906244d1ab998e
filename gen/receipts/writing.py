"""Writes receipts: what a completion and its request say, as plain values."""

from dataclasses import asdict, fields
from typing import Any
from weakref import ref

from gen.completions import Completion, Receipt
from gen.errors import ArgumentError
from gen.models.base import Model
from gen.receipts import versions
from gen.receipts.digests import active_adapters, module_of, weights_digest, weights_version
from gen.requests.images import MOST_PIXELS, Illustrated, data_url
from gen.requests.request import Request
from gen.samplers import BeamSearchSampler, MultinomialSampler
from gen.samplers.base import Sampler
from gen.samplers.kinds import NAMES, draws


class ReceiptWriter:
    """Writes the receipts of a call, when they are asked for. It does not keep the model.

    Args:
        version: of the model's weights, from `weights_version`.
    """

    def __init__(self, model: Model, version: object) -> None:
        self._model, self._version = ref(model), version

    def receipt(self, request: Request, completion: Completion, rank: int) -> Receipt:
        """The receipt of a request's completion.

        Args:
            rank: of a beam search, which of its texts it is.
        Raises:
            ArgumentError: a part of it cannot be written, the model is gone, or its weights or active adapters have
                been changed since.
        """
        model = self._model()
        if model is None:
            raise ArgumentError("no receipt: the model is gone, and its weights are a part of it; ask before.")
        if weights_version(model) != self._version:
            raise ArgumentError(
                "no receipt: the model's weights have been changed since the call, or other adapters are active; ask "
                "before."
            )
        if completion.finish_reason is None:
            raise ArgumentError("no receipt: the text has not ended.")
        if reasons := unwritable(request):
            raise ArgumentError(f"no receipt: {' and '.join(reasons)} cannot be written as plain values.")
        beams = isinstance(request.sampler, BeamSearchSampler)
        return Receipt(
            **asked(request),
            token_ids=list(completion.token_ids),
            logprobs=list(completion.logprobs),
            text=completion.text,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            seed=completion.seed,
            sample=rank if beams else request.sample + request.seeds.index(completion.seed),
            model=model_facts(model),
            versions=versions(),
        )


def asked(request: Request) -> dict[str, Any]:
    """What a request asks for, as the fields of its receipt."""
    constraint = request.constraint
    return {
        "prompt_ids": list(request.prompt_ids),
        "sampler": _sampler(request),
        "settings": _settings(request),
        "output_type": None if constraint is None else plain(constraint.key),
        "engine": None if constraint is None else constraint.engine,
        "images": None if request.illustrated is None else _images(request.illustrated),
    }


def unwritable(request: Request) -> list[str]:
    """What a receipt cannot say of a request, in words."""
    found = []
    if request.logits_processors:
        found.append("logits processors, which are functions,")
    if request.illustrated is not None:
        most = max(one.width * one.height for one in request.illustrated.images)
        if most > MOST_PIXELS:
            found.append(f"an image of {most} pixels, more than {MOST_PIXELS},")
    kind = type(request.sampler)
    if kind not in NAMES:
        found.append(f"the sampler {kind.__name__}, which is no sampler of gen's,")
    elif kind is MultinomialSampler and not draws(request.sampler):
        found.append("parameters of the sampler that are tensors")
    return found


def model_facts(model: Model) -> dict[str, str | None]:
    """See `Receipt.model`."""
    adapters = active_adapters(model)
    return {
        "kind": type(module_of(model) or model).__name__,
        "weights": weights_digest(model),
        "tokenizer": model.tokenizer.digest,
        "template": model.tokenizer.template_digest,
        "dtype": str(model.placement.dtype).removeprefix("torch."),
        "device": str(model.placement.logits_device),
        **({} if adapters is None else {"adapters": adapters}),
    }


def plain(value: Any) -> Any:
    """A key of an output type, as JSON has it: with lists in the place of tuples."""
    return [plain(one) for one in value] if isinstance(value, tuple | list) else value


def changed(sampler: Sampler) -> dict[str, Any]:
    """The arguments of a sampler of gen's that are not the default."""
    given: Any = {one.name: getattr(sampler, one.name) for one in fields(sampler) if one.init}  # type: ignore[arg-type]
    default = type(sampler)()
    return {name: value for name, value in given.items() if value != getattr(default, name)}


def _sampler(request: Request) -> dict[str, Any]:
    sampler: Sampler = request.sampler
    told = changed(sampler)
    if type(sampler) is MultinomialSampler:
        told.pop("samples", None)  # a receipt is of one
    if "bad_words" in told:
        told["bad_words"] = plain(request.bad_words)
    if "logit_bias" in told:  # a ban is null, since JSON has no infinity
        told["logit_bias"] = [[key, bias if bias > -1e38 else None] for key, bias in told["logit_bias"].items()]
    return {"name": NAMES[type(sampler)], **told}


def _images(illustrated: Illustrated) -> dict[str, Any]:
    return {
        "text": illustrated.text,
        "images": [data_url(one) for one in illustrated.images],
        "add_special_tokens": illustrated.add_special_tokens,
    }


def _settings(request: Request) -> dict[str, Any]:
    thinking, marks = request.thinking, request.thoughts
    return {
        "limit": request.limit,
        "bound": request.bound,
        "eos_token_ids": list(request.eos_token_ids),
        "stop_token_ids": sorted(request.stop_token_ids),
        "stops": [one if isinstance(one, str) else {"regex": one.pattern, "flags": one.flags} for one in request.stops],
        "include_stop": request.include_stop,
        "shown": sorted(request.shown),
        "hidden": sorted(request.hidden),
        "shorten": request.shorten,
        "thinks": request.thinks,
        "thoughts": None if marks is None else asdict(marks),
        "thinking": None if thinking is None else {"most": thinking.most, "room": thinking.room},
    }
