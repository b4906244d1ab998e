"""What programs do with anthropic's client."""

from typing import Any

import anthropic

from benchmarks.server.clients.asked import MESSAGES, Person
from benchmarks.server.clients.running import run_all

TOOLS: Any = [
    {
        "name": "weather",
        "input_schema": {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]},
    }
]


def _client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120)


def create(url: str) -> Any:
    return _client(url).messages.create(model="demo", max_tokens=8, messages=MESSAGES).content[0]


def stream(url: str) -> bool:
    with _client(url).messages.stream(model="demo", max_tokens=8, messages=MESSAGES, system="Be kind.") as events:
        text = "".join(events.text_stream)
        made: Any = events.get_final_message()
    return bool(made.content[0].text == text and made.usage.output_tokens <= 8)


def tools_any(url: str) -> bool:
    made: Any = _client(url).messages.create(
        model="demo",
        max_tokens=80,
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    return bool(made.content[0].input == {"city": "Rome"} and made.stop_reason == "tool_use")


def tool_streamed_after_results(url: str) -> bool:
    messages: Any = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
    ]
    with _client(url).messages.stream(
        model="demo", max_tokens=80, messages=messages, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"}
    ) as events:
        made: Any = events.get_final_message()
    return bool(made.content[0].input == {"city": "Rome"})


def count_tokens(url: str) -> bool:
    return _client(url).messages.count_tokens(model="demo", messages=MESSAGES).input_tokens > 2


def parse(url: str) -> bool:
    made: Any = _client(url).messages.parse(model="demo", max_tokens=80, messages=MESSAGES, output_format=Person)
    return isinstance(made.parsed_output, Person)


def errors(url: str) -> bool:
    try:
        _client(url).messages.create(model="demo", max_tokens=8, messages=[])
    except anthropic.BadRequestError as error:
        return "messages" in str(error)
    return False


if __name__ == "__main__":
    run_all("anthropic")
