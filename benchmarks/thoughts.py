"""Whether a model thinks before an answer of a type what it thinks without one, and whether the answer is its type's.

    python -m benchmarks.thoughts --calls 500 --model models/SmolLM2-135M-Instruct

Each call is drawn at random: how the template marks thoughts, the type, the limit, `thinking`, the sampler, the prompt.
Every second one has the checkpoint's weights, the others random ones. A processor lets both models write the marks of
thoughts, which neither was trained to do. What is checked:

- the answer meets its type, and has at most as many tokens as the limit, which may be the least that the type needs;
- the thought has at most as many tokens as its bound, beside its marks;
- the text is the same in a batch of three;
- the thought's tokens are those that come without a type, up to the end of the shorter one.

    python -m benchmarks.thoughts --steps 9 --model demo

What a step within a thought takes, over one of plain text, and a step of an answer of a type after a thought, over one
without: in CPU seconds, in turns.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import gen
from benchmarks.measuring import interleave, machine, ratio, spread, write_json
from gen.samplers import greedy, multinomial
from tests.helpers import EOS, byte_tokenizer, tiny_model

_TURNS = "{% for m in messages %}{% set c = m.content %}[{{ m.role }}]"
_TAGGED = _TURNS + "{{ c.split('</think>')[-1] }}{% endfor %}[assistant]{# '<think>\\n' + '\\n</think>\\n\\n' #}"
_SWITCH = "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
FORMS = {
    "Qwen3": _TAGGED + _SWITCH,
    "DeepSeek-R1": _TAGGED + "{{ '<think>\\n' }}",
    "Mistral": _TURNS + "{{ c }}{% endfor %}[assistant]{# [THINK] [/THINK] #}",
    "gpt-oss": _TURNS + "<|message|>{{ c }}{% endfor %}<|start|>assistant{# <|channel|> #}",
    "SmolLM3": _TAGGED.replace("'\\n</think>\\n\\n'", "'<think>\\n\\n</think>\\n'") + _SWITCH,
}
"""Chat templates that mark thoughts as those of these families do."""

HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"]
SPECIALS = {"Mistral": ["[THINK]", "[/THINK]"], "gpt-oss": HARMONY}
_CONTEXT = 192  # so that a thought without a bound ends
_UNUSED = ["<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>"]  # special tokens of SmolLM2


class City(BaseModel):
    name: str = Field(max_length=8)
    large: bool


TYPES: list[tuple[Any, str]] = [
    (City, '{"name": "Rome", "large": true}'),
    (Literal["Rome", "Oslo"], "Oslo"),
    (gen.choice(["yes", "no"]), "no"),
    (int, "7"),
    (gen.sequence("<b>", gen.regex("[a-z]+"), "</b>"), "<b>hm</b>"),
    (gen.regex("[<a-z>]{2,9}"), "<thin"),
]
"""Output types, each with one of its texts."""


def tiny(form: str, *, device: str = "cpu", context: int = 1024) -> Any:
    """A model with random weights and a token for each byte."""
    tokenizer = byte_tokenizer(specials=SPECIALS.get(form, []))
    tokenizer.chat_template = FORMS[form]
    own = tiny_model(vocab_size=270, max_position_embeddings=context)
    own.generation_config.eos_token_id = EOS
    return gen.from_transformers(own.to(device), tokenizer)


def in_form(own: Any, folder: Path, form: str) -> Any:
    """SmolLM2 with a template of a form; the form's special tokens replace some that it never writes."""
    given = AutoTokenizer.from_pretrained(folder)
    written = given.backend_tokenizer.to_str()
    for old, new in zip(_UNUSED, SPECIALS.get(form, []), strict=False):
        written = written.replace(json.dumps(old), json.dumps(new))
    backend = type(given.backend_tokenizer).from_str(written)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=FORMS[form])
    return gen.from_transformers(own, tokenizer, pack=False)


def nudge(form: str, model: Any, *, ends: bool, opens: bool = False) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A processor that lets a model write the marks of thoughts, at places that depend on its tokens alone.

    It bans the tokens that end a text unless the text `ends`, as a type does within a thought, and the bytes of a
    `tiny` model that no UTF-8 has. If it `opens`, half of all prompts begin a thought.
    """
    marks = ["<think>", "</think>"] if form not in SPECIALS else []
    if form == "Mistral":
        marks = ["[THINK]", "[/THINK]"]
    if form == "gpt-oss":
        marks = ["<|channel|>analysis<|message|>", "<|end|><|start|>assistant", "<|channel|>final<|message|>"]
    spelled = [model.tokenizer.encode_plain(mark) for mark in marks]
    banned = [] if ends else [*model.eos_token_ids]
    banned += [*range(0xF5, 0x100)] if model.vocab_size == 270 else []

    def processor(token_ids: Tensor, lengths: Tensor, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[:, banned] = -torch.inf
        for row, (line, length) in enumerate(zip(token_ids.tolist(), lengths.tolist(), strict=True)):
            tail = line[:length]
            begun = [
                mark[n] for mark in spelled for n in range(1, len(mark)) if tail[-n:] == mark[:n] and len(mark) > n
            ]
            for token in begun:
                logits[row, token] += 40
            if opens and sum(tail) % 2 and model.tokenizer.decode(tail[-12:]).endswith(("assistant", "assistant]")):
                logits[row, spelled[0][0]] += 40
            if sum(tail[-3:]) % 13 == 0:
                logits[row, spelled[sum(tail[-5:]) % len(spelled)][0]] += 40
        return logits

    return processor


def check(form: str, number: int, model: Any, *, opens: bool = False) -> dict[str, Any]:
    """One random call: alone, in a batch and without a type.

    Args:
        opens: as for `nudge`.
    Returns:
        The form, the tokens of the thought, how many of them were compared, and whether the bound has cut it.
    Raises:
        AssertionError: a thought or an answer is not what it should be.
    """
    draws = random.Random(number)
    kind, _ = draws.choice(TYPES)
    constraint = gen.compile(model, kind)
    thinking = draws.choice([None, True, 1, 5, 16, 33, 80])
    limit = draws.choice([None, constraint.least_tokens or 9, 40])
    given: dict[str, Any] = {
        "thinking": thinking,
        "sampler": draws.choice([greedy(), multinomial(), multinomial(temperature=0.7)]),
        "seed": draws.randrange(1000),
        "details": True,
        "chat": True,
    }
    typed = given | {
        "max_new_tokens": limit,
        "shorten": True,
        "logits_processors": [nudge(form, model, ends=True, opens=opens)],
    }
    prompt = draws.choice(["x", "What is it?", "\u00e9t\u00e9 " * 9])
    prompt += "!" * draws.randrange(9) if opens else ""
    made = gen.generate(model, prompt, kind, **typed)
    assert constraint.accepts(made.text)
    assert made.engine == "device"
    header = 7 if form == "gpt-oss" else 0
    assert len(made.token_ids) - made.reasoning_tokens <= (limit or 2048) + header
    if type(thinking) is int:
        assert made.reasoning_tokens <= thinking + 40
        assert made.reasoning_cut or made.reasoning_tokens <= thinking + 12
    both = gen.generate(model, ["y", prompt, "z" * 30], kind, **typed)
    assert (both[1].token_ids, both[1].text, both[1].reasoning) == (made.token_ids, made.text, made.reasoning)
    free = gen.generate(
        model, prompt, **given, max_new_tokens=1, logits_processors=[nudge(form, model, ends=False, opens=opens)]
    )
    count = min(made.reasoning_tokens, free.reasoning_tokens)
    if form == "gpt-oss":  # whose thoughts have no special token in them, and end before any other channel
        begin = len(model.tokenizer.encode_plain("<|channel|>analysis<|message|>"))
        specials = model.tokenizer.special_tokens
        own = [token_id in specials or given["sampler"] != greedy() for token_id in free.token_ids]
        count = next((at for at in range(begin, count) if own[at]), count)
    assert free.token_ids[:count] == made.token_ids[:count]
    return {"form": form, "tokens": made.reasoning_tokens, "compared": count, "cut": made.reasoning_cut}


_STEPS = 96


def steps(model: Any, rounds: int) -> dict[str, Any]:
    """The CPU time of a step, with a thought and without: of plain text, and of an answer."""
    template = model.tokenizer.chat_template()
    model.tokenizer.use_chat_template(template + "{{ '<think>\\n' }}{# '</think>' #}")
    letters = gen.regex(f"[a-z ]{{{_STEPS}}}")
    answer: dict[str, Any] = {"chat": True, "details": True, "sampler": greedy(), "speculate": False}
    made: dict[str, list[int]] = {}

    def case(name: str, kind: Any, **given: Any) -> Callable[[], object]:
        def run() -> None:
            one: Any = gen.generate(model, "What is the weather like?", kind, **answer, **given)
            made[name] = one.token_ids

        return run

    cases = {
        "plain": case("plain", None, thinking=False, max_new_tokens=_STEPS, eos_token_id=[]),
        "thought": case("thought", None, thinking=_STEPS, max_new_tokens=1, eos_token_id=[]),
        "answer": case("answer", letters, thinking=False),
        "answer after a thought": case("answer after a thought", letters, thinking=1),
    }
    seconds = interleave(cases, rounds, clock=time.process_time)
    each = {name: [one / len(made[name]) for one in seconds[name]] for name in cases}
    return {
        "tokens": {name: len(made[name]) for name in cases},
        "milliseconds of a step": {name: round(1000 * spread(each[name]).median, 3) for name in cases},
        "a thought's step over a plain one": round(ratio(each["thought"], each["plain"]), 3),
        "an answer's step after a thought over one without": round(
            ratio(each["answer after a thought"], each["answer"]), 3
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder of SmolLM2; for --steps demo, too")
    parser.add_argument("--steps", type=int, metavar="ROUNDS", help="measure steps, so often")
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument(
        "--work", type=Path, help="a file of what was done; a run goes on after it, and repeats what failed"
    )
    parser.add_argument("--json", type=Path, help="write the report there")
    arguments = parser.parse_args()
    if arguments.steps:
        taken = {"rounds": arguments.steps, **steps(gen.load(str(arguments.model)), arguments.steps)}
        print(json.dumps(taken, indent=1))
        if arguments.json:
            write_json(arguments.json, {"machine": machine(), **taken})
        return
    if arguments.work is None:
        parser.error("--work is missing")
    lines = arguments.work.read_text().splitlines() if arguments.work.exists() else []
    known = {one["number"]: one for one in map(json.loads, lines) if "failed" not in one}
    own = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    own.config.max_position_embeddings = _CONTEXT
    loaded = {form: in_form(own, arguments.model, form) for form in FORMS}
    for number in range(arguments.calls):
        if number in known:
            continue
        form = [*FORMS][number // 2 % len(FORMS)]
        model = tiny(form, context=2 * _CONTEXT) if number % 2 else loaded[form]
        try:
            record = check(form, number, model, opens=True)
        except (AssertionError, gen.GenError) as error:
            record = {"form": form, "failed": f"{type(error).__name__}: {error}"[:300]}
        record = {"number": number, "weights": "random" if number % 2 else "SmolLM2", **record}
        known[number] = record
        with arguments.work.open("a") as file:
            file.write(f"{json.dumps(record)}\n")
    records = [*known.values()]
    counts = Counter(f"{one['weights']}, {one['form']}" for one in records)
    report = {
        "calls": len(records),
        "of each kind": counts,
        "failed": [one for one in records if "failed" in one],
        "with a thought": sum(one.get("tokens", 0) > 0 for one in records),
        "cut at the bound": sum(one.get("cut", False) for one in records),
        "tokens of thoughts": sum(one.get("tokens", 0) for one in records),
        "compared with those without a type": sum(one.get("compared", 0) for one in records),
    }
    print(json.dumps(report, indent=1))
    if arguments.json:
        write_json(arguments.json, {"machine": machine(), **report})


if __name__ == "__main__":
    main()
