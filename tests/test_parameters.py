"""No parameter is ignored in silence: a call with it gives something else, runs in another way, or is refused.

The oracle is the call without it. A new parameter without a case fails.
"""

import asyncio
import inspect
import re
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from torch import Tensor

import gen
from benchmarks.cases.thoughts import tiny
from gen.embedding.encoder import Encoder
from gen.loop.engine_thread import EngineThread
from gen.loop.jobs import Job
from gen.loop.options import Options
from gen.offline.reading import Reader
from gen.offline.rows import Row
from gen.offline.worker import Worker
from gen.samplers import beam_search, greedy, multinomial
from tests.helpers import encoder_tokenizer, tiny_encoder
from tests.helpers.noting import noted

SEEN: list[str] = []
"""What has run, and how."""


class Answer(BaseModel):
    large: bool

    @field_validator("large")
    @classmethod
    def refuse(cls, value: bool) -> bool:
        SEEN.append("an answer")
        raise ValueError("it is refused")


def louder(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
    return logits * 3


Cases = dict[str, Any]
"""For each parameter a value; or a call that returns it, with other arguments that both calls then have."""


def beside(value: Any, **others: Any) -> Any:
    return lambda: (value, others)


WORD, E = gen.regex("[a-z]{3,40}"), greedy(logit_bias={101: 50.0})  # which writes "eee"
CHAT: Cases = {"chat": True, "chat_template_kwargs": beside({"enable_thinking": False}, chat=True)}
ASKED: Cases = {"chat": True, "thinking": False, "max_new_tokens": 40, "output_type": Answer}
SETTINGS: Cases = CHAT | {
    "output_type": WORD,
    "images": ["no.png"],
    "sampler": greedy(),
    "max_new_tokens": 3,
    "stop": beside("e", sampler=E),
    "include_stop": beside(True, stop="e", sampler=E),
    "seed": 2,
    "eos_token_id": beside([101], sampler=E),
    "thinking": beside(True, chat=True),
    "describe": beside(True, chat=True, thinking=False, max_new_tokens=40, output_type=WORD),
    "skip_special_tokens": beside(False, sampler=greedy(logit_bias={258: 50.0}), eos_token_id=[]),
    "logits_processors": [louder],
    "top_logprobs": 1,
    "prompt_logprobs": 1,
    "shorten": beside(True, output_type=WORD, max_new_tokens=3),
    "truncate": beside("left", prompt="x" * 250, max_new_tokens=20),
    "max_time": 1e-9,
    "local_files": beside(False, images=["no.png"]),
    "draft": [255],
}
ENGINES: Cases = {"cache_salt": "a", "priority": 3, "receipts": False}
RUNS: Cases = {"replay": False, "cuda_graph": False, "exact": True, "speculate": False}
CALLS: Cases = SETTINGS | {
    "details": False,
    "errors": beside("return", prompt=["a", [300]]),
    "retries": beside(2, **ASKED),
    "num_return_sequences": beside(2, sampler=beam_search(2)),
}
JOBS: Cases = CALLS | {"devices": "cpu,cpu", "dtype": "bfloat16", "executor": "ray", "ray_address": "there"}
JOBS |= {"prompt_template": "{a}", "retry_failed": True, "dry_run": True, "progress": False, "receipts": True}
JOBS |= dict.fromkeys(["context_length", "batch_size", "part_rows"], 9) | {"drafts": "nowhere", "logits_processors": []}
TEXTS: dict[Any, Cases] = {
    gen.generate: CALLS | RUNS | {"max_batch_tokens": 99, "progress": True},
    gen.stream: SETTINGS | RUNS,
    gen.agenerate: CALLS | RUNS,
    gen.astream: SETTINGS,
    gen.generate_iter: CALLS | RUNS | {"max_batch_tokens": 99, "rows": 3, "draft": [[255]]},
    gen.run_batch: JOBS | RUNS,
    gen.Engine.submit: SETTINGS | ENGINES,
    gen.Engine.submit_all: SETTINGS | ENGINES,
    gen.Engine.generate: CALLS | ENGINES,
    gen.Engine.agenerate: CALLS | ENGINES,
}
DREW: Cases = {"chat": True, "thinking": True, "sampler": multinomial(temperature=9.0), "seed": 1}
FOX: Cases = {"prompt": "There was a fox, and it was so red that all said: this is a fox that is red."}
OTHERS: dict[Any, tuple[Cases, Cases]] = {  # with the arguments of all calls
    gen.Engine: (
        {},
        RUNS | dict.fromkeys(["rows", "max_waiting", "max_batch_tokens", "admit_tokens", "prefix_bytes"], 99),
    ),
    gen.classify: (
        {"prompt": "Hello", "options": ["a", "bcd"]},
        {"chat": True, "chat_template_kwargs": beside({"odd": 1}, chat=True), "thinking": beside(True, chat=True)}
        | {"sampler": beside(greedy(), **DREW), "seed": beside(2, **DREW), "normalise": "tokens"}
        | {"errors": beside("return", prompt=["a", [300]]), "max_batch_tokens": 1},
    ),
    gen.score: (
        {"prompts": "Hello"},
        CHAT | {"continuations": "a", "top_logprobs": 1, "max_batch_tokens": 1},
    ),
    gen.prefix: (FOX, {"chat": True, "chat_template_kwargs": beside({"odd": 1}, chat=True), "cache_salt": "a"}),
    gen.verify: ({}, {"max_batch_tokens": 1}),
    gen.embed: (
        {"texts": ["a cat", "two dogs"]},
        {"pooling": "max", "normalize": False, "prompt_name": "query", "batch_size": 1, "progress": True}
        | {"truncate": beside(True, texts=["a cat " * 99])},
    ),
}
ELSEWHERE = {  # loaders and types: what they return has tests of its own
    *("load", "load_encoder", "from_transformers", "from_transformers_encoder", "from_exported"),
    *("from_exllamav2", "from_exllamav3", "describe", "json_schema", "repeat", "text", "tool_calls"),
}


@pytest.fixture(autouse=True)
def listening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell in `SEEN` what runs, and how."""

    def listen(owner: Any, name: str, tell: Any) -> None:
        noted(monkeypatch, owner, name, lambda *given, **more: SEEN.append(tell(*given, **more)))

    listen(Options, "__post_init__", repr)
    listen(EngineThread, "__init__", lambda *_, max_waiting, **__: f"{max_waiting} may wait")
    listen(EngineThread, "add", lambda _, model, jobs, priority=0: f"{jobs[0].request.cache_salt} {priority}")
    listen(Job, "__init__", lambda _, request, *__, **___: f"{request.draft} {request.write_receipt is None}")
    listen(Encoder, "encode", lambda *_: "a batch")


@pytest.fixture(scope="module")
def model() -> Any:
    made = tiny("Qwen3")
    asyncio.run(gen.agenerate(made, "Hello"))  # makes its engine
    return made


def ended(found: Any) -> Any:
    """Results, once their texts have ended."""
    if asyncio.iscoroutine(found):
        return asyncio.run(found)
    if isinstance(found, list):
        return [ended(one) for one in found]
    if not isinstance(found, gen.Stream):
        return found
    assert "".join(found) == found.completion().text
    return found.completion()


def run_job(model: Any, prompt: Any, given: Cases) -> Any:
    """What a job asks for, and what its worker gives for a row."""
    asked: Cases = {}
    with pytest.MonkeyPatch.context() as patch:
        driver = SimpleNamespace(rehearse=lambda: {**asked}, run=lambda **more: asked | more)
        patch.setattr("gen.offline.job.Driver", lambda **more: asked.update(more) or driver)
        patch.setattr("gen.offline.job.BatchReport", dict)
        made: Any = gen.run_batch("in.jsonl", "out", model="demo", **given)
    settings, worker = made.pop("settings"), Worker.__new__(Worker)
    vars(worker).update(_settings=settings, _model=model, _reader=Reader(model, settings))
    read = worker._reader.read(Row(id="a", prompt=prompt))
    [job] = worker._run([read.call], None)
    told: Any = SimpleNamespace(settings=settings)
    of_the_model = [settings[name] for name in ("dtype", "context_length", "prompt_template")]
    return made, vars(asked["executor"]), of_the_model, read.result(told, job)


def run(function: Any, model: Any, given: Cases) -> Any:
    """What a function gives."""
    if function is gen.Engine:
        with function(model, **given) as engine:
            return engine.prefix_bytes
    if function is gen.embed:
        return function(gen.from_transformers_encoder(tiny_encoder(), encoder_tokenizer()), **given)
    if function is gen.verify:
        return function(model, gen.generate(model, "Hello", max_new_tokens=2, details=True).receipt, **given).kind
    if function is gen.prefix:
        with function(model, **given) as kept:
            return kept.token_ids, gen.generate(model, **FOX, max_new_tokens=1, details=True).cached_tokens
    if function not in TEXTS:
        return function(model, **given)
    asked: Cases = {"prompt": "Hello", "max_new_tokens": 8, "seed": 1} | given
    if "details" in inspect.signature(function).parameters:
        asked = {"details": True} | asked
    prompt = asked.pop("prompt")
    if function is gen.run_batch:
        return run_job(model, prompt, asked)
    if function is gen.generate_iter:
        asked.setdefault("rows", 1)
        return [*function(model, [prompt], **asked)]
    if function in (gen.generate, gen.stream, gen.agenerate, gen.astream):
        return ended(function(model, prompt, **asked))
    with gen.Engine(model, prefix_bytes=0) as engine:
        return ended(getattr(engine, function.__name__)(prompt, **asked))


def told(found: Any) -> Any:
    """What can be seen of results."""
    if isinstance(found, gen.Completion):
        asked = found.top_logprobs is None, found.prompt_logprobs is None
        return found.text, [round(one, 3) for one in found.logprobs], found.finish_reason, found.reasoning, asked
    if isinstance(found, list | tuple):
        return [*map(told, found)]
    return re.sub(r" at 0x\w+", "", repr(found))


@pytest.mark.parametrize("function", [*TEXTS, *OTHERS], ids=lambda one: one.__qualname__)
def test_each_parameter_acts_or_is_refused(function: Any, model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def effects(given: Cases) -> Any:
        SEEN.clear()
        try:
            found = told(run(function, model, given))
        except gen.GenError as error:
            found = str(error)
        return found, [*SEEN], bool(capsys.readouterr().err)

    base, cases = OTHERS.get(function, ({}, TEXTS.get(function, {})))
    known: Cases = {}
    ignored = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is parameter.empty:
            continue
        value, others = cases[name]() if inspect.isfunction(cases[name]) else (cases[name], {})
        if (key := repr(others)) not in known:
            known[key] = effects(base | others)
            assert effects(base | others) == known[key]  # else a difference would show nothing
        if effects(base | others | {name: value}) == known[key]:
            ignored.append(name)
    assert not ignored


def test_each_function_has_its_cases() -> None:
    functions = {name: getattr(gen, name) for name in gen.__all__ if inspect.isfunction(getattr(gen, name))}
    some = {
        name
        for name, function in functions.items()
        if any(one.default is not one.empty for one in inspect.signature(function).parameters.values())
    }
    assert some == {function.__name__ for function in {*TEXTS, *OTHERS} & {*functions.values()}} | ELSEWHERE
