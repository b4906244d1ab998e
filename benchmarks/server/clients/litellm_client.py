"""What programs do with litellm."""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it uses the network at import

import litellm

from benchmarks.server.clients.asked import MESSAGES, Person
from benchmarks.server.clients.running import run_all


def ask(url: str, model: str, **more: Any) -> Any:
    return litellm.completion(model, MESSAGES, api_base=url, api_key="none", num_retries=0, timeout=120, **more)


def text(url: str) -> Any:
    return ask(f"{url}/v1", "openai/demo", max_tokens=8).choices[0].message.content


def stream(url: str) -> bool:
    return len(list(ask(f"{url}/v1", "openai/demo", max_tokens=8, stream=True))) > 2


def typed(url: str) -> Any:
    made = ask(f"{url}/v1", "openai/demo", response_format=Person).choices[0].message.content
    return Person.model_validate_json(made)


def tools(url: str) -> Any:
    function = {"name": "f", "parameters": Person.model_json_schema()}
    more: Any = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    return ask(f"{url}/v1", "openai/demo", **more).choices[0].message.tool_calls[0].function.arguments


def as_anthropics(url: str) -> Any:
    return ask(url, "anthropic/demo", max_tokens=8).choices[0].message.content


if __name__ == "__main__":
    run_all("litellm")
