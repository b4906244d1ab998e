"""Libraries and programs that ask servers of OpenAI's protocol."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from benchmarks.server.clients.asked import MESSAGES, Person, Tries, options, person, several


def openai_agents(url: str) -> Tries:
    """It uses Responses by default."""
    from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client, set_tracing_disabled
    from openai import AsyncOpenAI

    @function_tool
    def weather(city: Literal["Rome", "Oslo"]) -> str:
        """Weather."""
        return "sunny"

    def ran(prompt: str, turns: int = 10, **more: Any) -> Any:
        set_default_openai_client(AsyncOpenAI(**options(url)))  # a new one, since each run has an event loop of its own
        return Runner.run_sync(Agent(name="a", model="demo", **more), prompt, max_turns=turns).final_output

    async def streamed() -> bool:
        set_default_openai_client(AsyncOpenAI(**options(url)))
        made = Runner.run_streamed(Agent(name="a", model="demo"), "hi")
        return several([event async for event in made.stream_events()]) and bool(made.final_output)

    set_tracing_disabled(True)
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    return {
        "text": lambda: ran("hi"),
        "typed": lambda: person(ran("Describe Ada", output_type=Person)),
        "tool then answer": lambda: ran("Rome?", 3, tools=[weather], model_settings=settings),
        "streamed": streamed,
    }


def pydantic_ai(url: str) -> Tries:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def agent(kind: Any = OpenAIChatModel, **more: Any) -> Any:
        provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
        return Agent(kind("demo", provider=provider), **more)

    async def streamed() -> bool:
        async with agent().run_stream("hi") as made:
            return several([piece async for piece in made.stream_text(delta=True, debounce_by=None)])

    def described(*kind: Any, **more: Any) -> Person:
        return person(agent(*kind, **more).run_sync("Describe Ada").output)

    return {
        "text": lambda: agent().run_sync("hi").output,
        "typed": lambda: described(output_type=Person, model_settings={"parallel_tool_calls": False}),
        "native": lambda: described(output_type=NativeOutput(Person)),
        "streamed": streamed,
        "responses": lambda: agent(OpenAIResponsesModel).run_sync("hi").output,
        "responses typed": lambda: described(OpenAIResponsesModel, output_type=NativeOutput(Person)),
    }


def instructor(url: str) -> Tries:
    import instructor
    from openai import OpenAI

    def made_with(mode: str) -> Person:
        patched = instructor.from_openai(OpenAI(**options(url)), mode=getattr(instructor.Mode, mode))
        chat = patched.chat.completions
        return person(chat.create(model="demo", response_model=Person, messages=MESSAGES, max_retries=1))

    return {"tools": lambda: made_with("TOOLS"), "json": lambda: made_with("JSON_SCHEMA")}


def litellm(url: str) -> Tries:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it uses the network at import
    import litellm

    def ask(model: str = "openai/demo", base: str = f"{url}/v1", **more: Any) -> Any:
        return litellm.completion(model, MESSAGES, api_base=base, api_key="none", num_retries=0, timeout=120, **more)

    def message(*model: str, **more: Any) -> Any:
        return ask(*model, **more).choices[0].message

    function = {"type": "function", "function": {"name": "f", "parameters": Person.model_json_schema()}}
    return {
        "text": lambda: message(max_tokens=8).content,
        "stream": lambda: several(ask(max_tokens=8, stream=True)),
        "typed": lambda: Person.model_validate_json(message(response_format=Person).content),
        "tools": lambda: message(tools=[function], tool_choice="required").tool_calls[0].function.arguments,
        "as anthropics": lambda: message("anthropic/demo", url, max_tokens=8).content,
    }


def llm(url: str) -> Tries:
    """The command `llm`."""
    model = f"- model_id: gen\n  model_name: demo\n  api_base: {url}/v1\n"

    def ask(*more: str) -> str:
        with TemporaryDirectory() as folder:
            Path(folder, "extra-openai-models.yaml").write_text(model, encoding="utf-8")
            known = os.environ | {"LLM_USER_PATH": folder, "OPENAI_API_KEY": "none"}
            command = [sys.executable, "-m", "llm", "-m", "gen", "-o", "max_tokens", "8", *more, "hi"]
            return subprocess.run(command, env=known, check=True, capture_output=True, text=True).stdout.strip()

    return {"stream": ask, "whole": lambda: ask("--no-stream")}


def outlines(url: str) -> Tries:
    import outlines
    from openai import OpenAI

    model: Any = outlines.from_openai(OpenAI(**options(url)), "demo")
    return {
        "text": lambda: model("hi", max_tokens=8),
        "stream": lambda: several(model.stream("hi", max_tokens=8)),
        "typed": lambda: Person.model_validate_json(model("Describe Ada", Person)),
    }


def guidance(url: str) -> Tries:
    from guidance import assistant, gen, json, models, user

    def made(what: Any) -> Any:
        model = models.OpenAI("demo", base_url=f"{url}/v1", api_key="none", echo=False)
        with user():
            model += "Describe Ada"
        with assistant():
            model += what
        return model["x"]

    return {
        "text": lambda: made(gen("x", max_tokens=8)),
        "typed": lambda: Person.model_validate_json(made(json("x", schema=Person))),
    }


def schemathesis(url: str) -> Tries:
    """Requests that it draws from the server's own description: none may be an error of the server."""

    def draw(seed: int) -> bool:
        how = ["--max-examples", "25", "--checks", "not_a_server_error", "--seed", str(seed), "--no-color"]
        command = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json", *how]
        with TemporaryDirectory() as folder:  # where it keeps what it has found
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        assert not done.returncode, done.stdout[-300:] + done.stderr[-300:]
        return True

    return {"one seed": lambda: draw(1), "another seed": lambda: draw(2)}
