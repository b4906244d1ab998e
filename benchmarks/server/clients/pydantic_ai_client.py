"""What programs do with pydantic-ai."""

from typing import Any

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.server.clients.asked import Person
from benchmarks.server.clients.running import run_all


def _chat_model(url: str) -> Any:
    return OpenAIChatModel("demo", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def _responses_model(url: str) -> Any:
    return OpenAIResponsesModel("demo", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def text(url: str) -> Any:
    return Agent(_chat_model(url)).run_sync("hi").output


def typed(url: str) -> bool:
    settings: Any = {"parallel_tool_calls": False}
    made = Agent(_chat_model(url), output_type=Person, model_settings=settings).run_sync("Describe Ada").output
    return isinstance(made, Person)


def native(url: str) -> bool:
    made = Agent(_chat_model(url), output_type=NativeOutput(Person)).run_sync("Describe Ada").output
    return isinstance(made, Person)


async def streamed(url: str) -> bool:
    async with Agent(_chat_model(url)).run_stream("hi") as made:
        return len([piece async for piece in made.stream_text(delta=True, debounce_by=None)]) > 2


def responses(url: str) -> Any:
    return Agent(_responses_model(url)).run_sync("hi").output


def responses_typed(url: str) -> bool:
    made = Agent(_responses_model(url), output_type=NativeOutput(Person)).run_sync("Describe Ada").output
    return isinstance(made, Person)


if __name__ == "__main__":
    run_all("pydantic-ai-slim")
