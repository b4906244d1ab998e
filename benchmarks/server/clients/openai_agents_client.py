"""What programs do with openai-agents, which uses Responses by default."""

from typing import Any, Literal

from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI

from benchmarks.server.clients.asked import Person
from benchmarks.server.clients.running import run_all


@function_tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Weather."""
    return "sunny"


def _use(url: str) -> None:
    set_tracing_disabled(True)
    set_default_openai_client(AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120))


def text(url: str) -> Any:
    _use(url)
    return Runner.run_sync(Agent(name="a", model="demo"), "hi").final_output


def typed(url: str) -> bool:
    _use(url)
    made = Runner.run_sync(Agent(name="a", model="demo", output_type=Person), "Describe Ada").final_output
    return isinstance(made, Person)


def tool_then_answer(url: str) -> Any:
    _use(url)
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    agent = Agent(name="a", model="demo", tools=[weather], model_settings=settings)
    return Runner.run_sync(agent, "Rome?", max_turns=3).final_output


async def streamed(url: str) -> bool:
    _use(url)
    made = Runner.run_streamed(Agent(name="a", model="demo"), "hi")
    return len([event async for event in made.stream_events()]) > 2 and bool(made.final_output)


if __name__ == "__main__":
    run_all("openai-agents")
