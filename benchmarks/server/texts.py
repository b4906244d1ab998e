"""Are the server's texts those of `gen.generate`? Mixed requests, many at once, streamed and whole.

    python -m benchmarks.server.texts --requests 48 --at-once 16

The requests differ in prompt, sampler, penalties, stops, output type, tools, protocol, limit and seed. Prints how many
differ; exits with 1 if one does.
"""

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gen
from benchmarks.measuring import publish, read_arguments
from benchmarks.server.asking import CHAT, COMPLETIONS, ask
from benchmarks.server.serving import serving
from gen.samplers import multinomial

PROMPTS = ["Once upon a time", "One morning", "Describe Ada as JSON.\n", "There was a fox who liked the sea. " * 6]
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
Case = tuple[str, dict[str, Any], Any, dict[str, Any]]  # path, fields, prompt and arguments of gen.generate


def make(draw: random.Random, number: int) -> Case:
    """A random request, and the call of `gen.generate` that must give the same."""
    limit, text = draw.randint(1, 60), draw.choice(PROMPTS)
    fields: dict[str, Any] = {"seed": number, "stream": draw.random() < 0.5}
    arguments: dict[str, Any] = {"seed": number, "max_new_tokens": limit, "shorten": True}
    settings: dict[str, Any] = draw.choice(
        [
            {},
            {"temperature": 0.7, "top_k": 40},
            {"temperature": 0},
            {"top_p": 0.9, "repetition_penalty": 1.2},
            {"presence_penalty": 1.0, "logit_bias": {50: 2.0}},
        ]
    )
    fields |= {
        name: ({str(k): v for k, v in value.items()} if isinstance(value, dict) else value)
        for name, value in settings.items()
    }
    arguments["sampler"] = multinomial(**settings)
    if draw.random() < 0.3:
        arguments["stop"] = [" the", "."]
    kind = draw.choice(["chat", "chat", "text", "responses", "messages"])
    path = {"chat": CHAT, "text": COMPLETIONS}.get(kind, f"/v1/{kind}")
    prompt: Any = text if kind == "text" else [{"role": "user", "content": text}]
    fields |= {"text": {"prompt": prompt}, "responses": {"input": text}}.get(kind, {"messages": prompt})
    fields["max_output_tokens" if kind == "responses" else "max_tokens"] = limit
    if "stop" in arguments:
        fields["stop_sequences" if kind == "messages" else "stop"] = arguments["stop"]
    if kind == "chat" and draw.random() < 0.5:
        fields["max_tokens"] = arguments["max_new_tokens"] = limit + 30  # room for the shortest value
        if draw.random() < 0.5:
            fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
            arguments["output_type"] = gen.json_schema(PERSON)
        else:
            fields |= {"tools": [TOOL], "tool_choice": "auto"}
            arguments["output_type"] = gen.tool_calls([TOOL])
            arguments["chat_template_kwargs"] = {"tools": [TOOL]}
    return path, fields, prompt, arguments


def wanted(model: Any, case: Case) -> Any:
    """The text and the tool calls that gen.generate gives."""
    _, fields, prompt, arguments = case
    try:
        made: Any = gen.generate(model, prompt, details=True, **arguments)
    except gen.IncompleteError as error:
        made = error.completion
    if "tools" not in fields:
        return made.text, []
    if made.value is None:
        return None  # it was cut, and is no whole value
    return made.value.text, [json.dumps(call.arguments) for call in made.value.calls]


def said(url: str, case: Case) -> Any:
    """The text and the tool calls that the server gives."""
    path, fields, _, _ = case
    answer = ask(url, path, fields)
    if answer.status != 200:
        return f"{answer.status}: {answer.events}"
    return _read(path, fields["stream"], answer.events)


def _read(path: str, stream: bool, events: list[Any]) -> tuple[str, list[str]]:
    if path == "/v1/responses":
        response = events[-1]["response"] if stream else events[0]
        return "".join(item["content"][0]["text"] for item in response["output"]), []
    if path == "/v1/messages":
        if not stream:
            return "".join(block["text"] for block in events[0]["content"]), []
        return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"), []
    text, calls = "", list[str]()
    for choice in (event["choices"][0] for event in events):
        new = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        text += new.get("content") or ""
        for call in new.get("tool_calls") or ():
            if "id" in call:
                calls.append("")
            calls[-1] += call["function"]["arguments"]
    return text, calls


def main() -> int:
    given = read_arguments(__doc__, requests=48, at_once=16, model="demo", seed=1)
    draw = random.Random(given.seed)
    cases = [make(draw, number) for number in range(given.requests)]
    model = gen.load(given.model, device="cpu")
    with serving(given.model) as (url, _), ThreadPoolExecutor(given.at_once) as pool:
        found = list(pool.map(lambda case: said(url, case), cases))
    compared = different = 0
    for case, one in zip(cases, found, strict=True):
        right = wanted(model, case)
        compared += right is not None
        if right is not None and one != right:
            different += 1
            print(f"{case[0]} {json.dumps(case[1])}\n  gen.generate: {right!r}\n  the server:   {one!r}")
    publish(given, requests=len(cases), at_once=given.at_once, compared=compared, different=different)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
