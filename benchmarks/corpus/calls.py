"""Calls that make or score texts: samplers, search, limits, stops, streams, engines, chats, prefixes, scores."""

import asyncio
import random
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import NoRepeatNGramLogitsProcessor

import gen
from benchmarks.cases.engines import by_length, fails, no_even
from benchmarks.corpus.later import Cases, G, S, every, later
from benchmarks.corpus.models import DATA, TINY, model, new_model
from benchmarks.corpus.types import Person, Pet, weather

TEXTS = ["Once upon a time", "One morning", "Describe Ada as JSON.\n"]
CUTS, PENALTIES, CHATS = DATA["cuts"], DATA["penalties"], DATA["chats"]
STOPS = DATA["stops"] + [re.compile(one) for one in DATA["stop regexes"]] + [[re.compile("l+"), "k"]]
HOST = G.grammar('start: "(" start ")" | /[a-c]+/')


def of_transformers(input_ids: Tensor, scores: Tensor) -> Tensor:
    return scores.roll(input_ids.shape[1] % 2, -1)


def settings(given: dict[str, Any], **usual: Any) -> dict[str, Any]:
    return {"speculate": False, "seed": 7, "max_new_tokens": 20} | usual | given


@later
def call(prompt: Any, output_type: Any = None, *, on: str = "demo", **given: Any) -> Any:
    return gen.generate(model(on), prompt, output_type, **settings(given, details=True))


@later
def stream(prompt: Any, output_type: Any = None, *, on: str = "demo", take: int = 999, **given: Any) -> Any:
    """Pieces, what there is after them, and the completion or why there is none."""
    with gen.stream(model(on), prompt, output_type, **settings(given)) as pieces:
        begun = [piece for _, piece in zip(range(take), pieces, strict=False)]
        return [begun, outcome(pieces.so_far), pieces.prompt_token_ids, outcome(pieces.completion)]


@later
def events(prompt: Any, output_type: Any = None, *, on: str = "demo", first: int = 0, **given: Any) -> Any:
    """The same text as events, where it may have been read as pieces first."""
    with gen.stream(model(on), prompt, output_type, **settings(given)) as grows:
        return [[next(grows) for _ in range(first)], outcome(lambda: list(grows.events())), outcome(grows.completion)]


@later
def asynchronous(prompt: Any, output_type: Any = None, **given: Any) -> Any:
    async def both() -> Any:
        text = [piece async for piece in gen.astream(model("demo"), prompt, output_type, **settings(given))]
        return ["".join(text), await gen.agenerate(model("demo"), prompt, output_type, **settings(given, details=True))]

    return asyncio.run(both())


@later
def iterated(prompts: list[Any], output_type: Any = None, **given: Any) -> Any:
    return list(gen.generate_iter(model("demo"), iter(prompts), output_type, **settings(given, details=True)))


@later
def engine(seed: int, on: str = "demo", **given: Any) -> Any:
    """Random requests that join while others run, read piece by piece; some leave."""
    rng, found, streams = random.Random(seed), dict[int, Any](), dict[int, Any]()
    with gen.Engine(model(on), **({"speculate": False} | given)) as running:
        for number in range(12):
            cuts, penalties = rng.choice(CUTS), rng.choice([{}, *PENALTIES[:12]])
            more = rng.choice(
                [{}, {"stop": rng.choice(STOPS[:10])}, {"top_logprobs": 2}, {"logits_processors": [no_even]}]
            )
            kind = rng.choice([None, None, int, gen.regex("[a-z]{2,9}[.]"), HOST.find_()])
            request: dict[str, Any] = {
                "max_new_tokens": 33 if kind else rng.choice([0, 1, 5, 17, 33]),
                "seed": number,
                "priority": rng.randrange(3),
            }
            prompt = rng.choice(TEXTS) * rng.choice([1, 1, 4])
            try:
                sampler = gen.samplers.multinomial(**cuts, **penalties)
                streams[number] = running.submit(prompt, kind, sampler=sampler, **request, **more)
                for _ in range(rng.choice([0, 0, 3])):
                    next(rng.choice([*streams.values()]), None)
                if rng.random() < 0.1:
                    streams.pop(number).cancel()
            except gen.GenError as error:
                found[number] = error
        return found | {number: outcome(one.completion) for number, one in streams.items()}


def outcome(function: Any) -> Any:
    try:
        return function()
    except Exception as error:
        return error


@later
def submitted(prompts: Any, output_type: Any = None, **given: Any) -> Any:
    with gen.Engine(model("demo"), rows=2, speculate=False) as running:
        streams = running.submit_all(prompts, output_type, **({"max_new_tokens": 12, "seed": 3} | given))
        return [outcome(one.completion) for one in streams]


@later
def prefixed(prompt: Any, then: Any, *, on: str = "demo", **given: Any) -> Any:
    """What a prefix keeps, and a text that begins with it."""
    loaded = new_model(on)
    with gen.prefix(loaded, prompt, **given) as kept:
        made = gen.generate(loaded, then, **settings({}, details=True))
        return [kept.token_ids, kept.bytes, made.cached_tokens, made]


@later
def step(sampler: Any, vocab: int, dtype: str = "float32") -> Any:
    """A sampler's own step for four rows: with ties, with masked tokens, and with one token."""
    logits = 3 * torch.randn((4, vocab), generator=torch.Generator().manual_seed(vocab))
    logits[1, ::3], logits[2, 1::2], logits[3, 1:] = logits[1, 0].item(), -torch.inf, -torch.inf
    out = sampler.step(logits.to(getattr(torch, dtype)), torch.zeros(4), torch.arange(1, 5) * 0x1E3779B97F4A7C15)
    return [*out, *([sampler.warp(logits)[:2, :9]] if hasattr(sampler, "warp") else [])]


@later
def on_model(function: str, *args: Any, on: str = "demo", **given: Any) -> Any:
    return getattr(gen, function)(model(on), *args, **given)


@later
def inside_transformers(processor: str, *args: Any, **given: Any) -> Any:
    from gen.integrations import transformers

    loaded, ids = model("llama"), torch.tensor([[72, 105], [33, 34]])
    args = args if processor == "SamplerProcessor" else (gen.compile(loaded, *args),)
    held = [getattr(transformers, processor)(*args, **given)]
    how: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": 5}
    return loaded.hf_model.generate(ids, attention_mask=torch.ones_like(ids), logits_processor=held, **how)


@later
def command(line: str) -> Any:
    """What the command line prints, and its exit code."""
    from gen import cli

    out, err, code = StringIO(), StringIO(), None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            cli.main(shlex.split(line))
        except SystemExit as end:
            code = end.code
    return [code, out.getvalue(), [said for said in err.getvalue().splitlines() if "%|" not in said]]


def samplers() -> Cases:
    for cuts in CUTS:
        yield call(TEXTS, sampler=S.multinomial(**cuts))
        yield call(TEXTS[0], sampler=S.multinomial(**cuts, samples=2), top_logprobs=2, max_new_tokens=8)
    for more in (
        *PENALTIES,
        {"logit_bias": {40: 5.0, 41: -2.5}},
        {"logit_bias": dict.fromkeys(range(99, 1900), -np.inf)},
    ):
        yield call(TEXTS[:2], sampler=S.greedy(**more))
        yield call(TEXTS[:2], sampler=S.multinomial(temperature=0.8, **more))
        yield call(TEXTS[:2], sampler=S.beam_search(3, **more), num_return_sequences=3, max_new_tokens=12)
    for vocab, dtype, cuts in every((5, 257, 4099), ("float32", "bfloat16"), CUTS[::2]):
        yield step(S.multinomial(**cuts), vocab, dtype)
    for vocab, sampler in every((4, 129, 50257), (S.greedy(), S.beam_search(2), S.multinomial(top_k=40, top_p=0.9))):
        yield step(sampler, vocab, "float16")
    rows: dict[str, Any] = {"temperature": torch.tensor([0.5, 1.0, 2.0, 0.0]), "top_k": torch.tensor([1, 2, 30, 4])}
    yield step(S.multinomial(**rows, top_p=torch.tensor([0.2, 0.9, 1.0, 0.5])), 257)
    for several in (
        [S.greedy(), S.multinomial(samples=3), S.multinomial(top_k=5)],
        [S.greedy(), S.beam_search(2)],
        None,
    ):
        yield call(TEXTS, sampler=several)


def search() -> Cases:
    for beams, penalty, stopping in every((1, 2, 5), (-1.0, 0.0, 1.0, 2.5), (False, True, "never")):
        how = S.beam_search(beams, length_penalty=penalty, early_stopping=stopping)
        more: dict[str, Any] = {"eos_token_id": [*range(20, 60)], "max_new_tokens": 14, "num_return_sequences": beams}
        yield call(TEXTS[:2], sampler=how, **more)
    more = {"sampler": S.beam_search(3), "num_return_sequences": 2}
    for kind in (int, Person, G.regex("[a-z]{3,9}"), HOST):
        yield call(TEXTS[:2], kind, max_new_tokens=60, shorten=True, **more)
    for processors in ([no_even], [by_length, no_even], [of_transformers]):
        yield call(TEXTS, logits_processors=processors, **more)
    for stop in STOPS[::2]:
        yield call(TEXTS[0], stop=stop, **more)


def limits() -> Cases:
    for most in (0, 1, 2, 5, 64, [3, 0, 9], [1, 2], -1):
        yield call(TEXTS, max_new_tokens=most)
    for most in (1, 2, 40, 400):
        yield call(TEXTS, max_batch_tokens=most)
    for prompt, most in every(("ab" * 200, "ab" * 255 + "a", "ab" * 300), (None, 8, 200)):
        yield call(prompt, on="llama", max_new_tokens=most, truncate="left")
        yield call(["x", prompt], on="llama", max_new_tokens=most, errors="return")
        yield call(prompt, int, on="llama", max_new_tokens=most, shorten=True)
    for kind, most in every((Person, list[Pet], G.regex("[a-z]{4,30}")), (3, 12, 30, 80)):
        yield call(TEXTS[2], kind, max_new_tokens=most)
        yield call(TEXTS, kind, max_new_tokens=most, shorten=True, errors="return")


def stops() -> Cases:
    for stop, included in every([*STOPS, [".", None, ["a", re.compile("b")]]], (False, True)):
        yield call(TEXTS, stop=stop, include_stop=included, max_new_tokens=40)
    for ends, skipped in every(([], [30], [*range(300)], 5, [1]), (True, False, ["<|user|>"], ["nothing"])):
        yield call(TEXTS, eos_token_id=ends, stop="<|user|>", include_stop=True, skip_special_tokens=skipped)


def prompts() -> Cases:
    ids = [40, 41, 42, 300]
    some: list[Any] = ["", " ", "é日本😀", "\n\n", [], [[]], ids, [ids, "a", CHATS[0]]]
    for prompt in (*some, torch.tensor(ids), np.array([ids, ids])):
        yield call(prompt)
    yield call(["a", "a", "b"], seed=[1, 1, 2])
    for top, ahead in every((None, 0, 1, 5), (None, 0, 3)):
        yield call(TEXTS, top_logprobs=top, prompt_logprobs=ahead, max_new_tokens=6)
    for processors in (
        [no_even],
        [by_length],
        [of_transformers, no_even],
        [fails],
        [NoRepeatNGramLogitsProcessor(2)],
    ):
        for kind in (None, int, HOST):
            yield call(TEXTS, kind, logits_processors=processors, errors="return")
    for how in ("auto", G.Speculation(), G.Speculation(most=2, prompt=False), True):
        yield call(["a b c a b c a b", TEXTS[2]], [None, Person], speculate=how, max_new_tokens=90, shorten=True)
    for more in ({"replay": False}, {"exact": True}, {"details": False}, {"cuda_graph": False}):
        yield call(TEXTS, max_new_tokens=40, **more)
    for messages, template in every(CHATS, (None, {"think": True}, {"tools": [weather]})):
        yield call(messages, on="llama", chat_template_kwargs=template)
        yield call([messages, "x"], chat_template_kwargs=template, errors="return")
    yield call("Hello", chat=True)
    yield call(["Hello", "you"], chat=True, on="llama")


def typed() -> Cases:
    kinds = [int, bool, Person, list[Pet], dict[str, int], float, HOST, G.regex("[0-9]{2}-[a-f]+"), str]
    more: dict[str, Any] = {"max_new_tokens": 70, "shorten": True}
    for kind, sampler in every(kinds, (S.greedy(), S.multinomial(top_k=30), S.multinomial(samples=2, min_p=0.1))):
        yield call(TEXTS[1:], kind, sampler=sampler, errors="return", **more)
    yield call(TEXTS, [int, None, Person], errors="return", **more)
    for choice, form in every(("auto", "required", "none", "weather"), ("hermes", "llama3", "mistral")):
        yield events("Tell the weather.", G.tool_calls([weather], choice=choice, format=form), **more)
    for answer in (int, Person, G.choice(["yes", "no"])):
        yield call("Answer.", G.tool_calls([weather], answer=answer), **more)


def streams() -> Cases:
    ways: tuple[Any, ...] = ({}, {"stop": "."}, {"top_logprobs": 2}, {"sampler": S.beam_search(2)})
    for reads, more, kind in every((stream, events), ways, (None, Person, G.regex("[a-zé]{3,20}"))):
        yield reads(TEXTS[1], kind, max_new_tokens=60, shorten=True, **more)
    for some in (0, 1, 4):
        yield stream(TEXTS[0], take=some)
        yield events(TEXTS[0], first=some)
    yield stream("é", on="llama", max_new_tokens=60)
    yield events("é", on="gpt2", prompt_logprobs=1, top_logprobs=1)
    yield stream(CHATS[0], on="llama", chat_template_kwargs={"think": True})
    for kind in (None, int):
        yield asynchronous(TEXTS[0], kind)
        yield iterated(TEXTS, kind)
    yield iterated(["a", 5, "b"], errors="return")


def engines() -> Cases:
    for seed in range(16):
        on, admit = ["demo", "demo", "llama", "qwen3_next"][seed // 4], [None, 3, 64][seed % 3]
        yield engine(seed, on, rows=[1, 2, 4, 16][seed % 4], replay=bool(seed % 3), admit_tokens=admit)
    for given in (
        {},
        {"sampler": S.multinomial(samples=3)},
        {"output_type": [int, None, Person], "max_new_tokens": 60},
    ):
        yield submitted(TEXTS, **given)
    yield submitted(TEXTS * 200)


def architectures() -> Cases:
    ways = (S.greedy(), S.multinomial(temperature=0.7), S.beam_search(3), S.greedy(repetition_penalty=1.3))
    for on in TINY:
        for sampler in ways:
            yield call(["a", "The quick brown fox jumps", "x y"], sampler=sampler, on=on)
        yield call(["a", "bc"], G.regex("[a-z ]{2,12}[.]"), on=on, max_new_tokens=30)
        yield call(["ab" * 30, "b"], on=on, prompt_logprobs=1, max_new_tokens=4)
        yield prefixed("The quick brown fox", "The quick brown fox jumps", on=on)
        yield on_model("score", ["The quick", "brown"], ["fox", "s"], on=on, top_logprobs=2)


def scores() -> Cases:
    several = (["Once", " upon a time"], [TEXTS], [TEXTS, [" a", " b", " c"]], ["a", ["b", "cd", " e"]])
    for given, more in every(several, ({}, {"top_logprobs": 3}, {"max_batch_tokens": 60}, {"chat": True})):
        yield on_model("score", *given, on="llama" if "chat" in more else "demo", **more)
    for prompt, options, how in every((TEXTS[0], TEXTS), ([" there", " a", " in the"], ["."]), ("none", "tokens")):
        yield on_model("classify", prompt, options, normalise=how)
    for given in (["a", ""], ["a", ["b", "b"]], ["", "a"], [TEXTS, ["a"]], ["a", [5, 6]], ["a", [10**9]], [[], []]):
        yield on_model("score", *given)
        yield on_model("classify", *given)
    for [prompt] in every((TEXTS[0], "a", [40, 41, 42], "")):
        yield prefixed(prompt, "Once upon a time there")
    yield prefixed(TEXTS[0], "Once upon a time there", cache_salt="x")
    yield prefixed(CHATS[0], [*CHATS[0], *CHATS[2][-1:]], on="llama")


def programs() -> Cases:
    for sampler in (S.greedy(), S.multinomial(top_k=3), S.beam_search(2), S.greedy(repetition_penalty=2.0)):
        yield inside_transformers("SamplerProcessor", sampler, seed=3)
    for kind, most in every((G.regex("[a-z]{2,5}"), int, HOST), (12, 3)):
        yield inside_transformers("ConstraintProcessor", kind, max_new_tokens=most, eos_token_id=5)
    for line in DATA["commands"]:
        yield command(f"{line} --seed 3 --max-new-tokens 12")


GROUPS = [samplers, search, limits, stops, prompts, typed, streams, engines, architectures, scores, programs]
