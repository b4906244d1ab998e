"""What programs do with langchain-openai and langchain-anthropic."""

from typing import Any, Literal

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr

from benchmarks.server.clients.asked import Person
from benchmarks.server.clients.running import run_all


@tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """Weather of a city."""
    return "sunny"


KEY = SecretStr("none")


def _openai_model(url: str, **more: Any) -> Any:
    return ChatOpenAI(model="demo", base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=120, **more)


def _anthropic_model(url: str) -> Any:
    return ChatAnthropic(model="demo", base_url=url, api_key=KEY, max_retries=0, timeout=120, max_tokens=100)  # type: ignore[call-arg, unused-ignore]


def text(url: str) -> Any:
    return _openai_model(url, max_tokens=8).invoke("hi").content


def stream(url: str) -> bool:
    return len(list(_openai_model(url, max_tokens=8).stream("hi"))) > 2


def structured(url: str) -> bool:
    return isinstance(_openai_model(url).with_structured_output(Person).invoke("Describe Ada."), Person)


def structured_by_tool(url: str) -> bool:
    asked = _openai_model(url).with_structured_output(Person, method="function_calling")
    return isinstance(asked.invoke("Describe Ada."), Person)


def tools_any(url: str) -> bool:
    asked = _openai_model(url).bind_tools([weather], tool_choice="any", parallel_tool_calls=False)
    return [one["name"] for one in asked.invoke("Rome?").tool_calls] == ["weather"]


def tools_auto_after_results(url: str) -> bool:
    call: Any = {"name": "weather", "args": {"city": "Rome"}, "id": "call_1"}
    messages = [HumanMessage("hi"), AIMessage("", tool_calls=[call]), ToolMessage("sunny", tool_call_id="call_1")]
    return isinstance(_openai_model(url, max_tokens=8).bind_tools([weather]).invoke(messages).content, str)


def responses(url: str) -> Any:
    return _openai_model(url, use_responses_api=True, max_tokens=16).invoke("hi").content


def responses_structured(url: str) -> bool:
    asked = _openai_model(url, use_responses_api=True).with_structured_output(Person)
    return isinstance(asked.invoke("Describe Ada."), Person)


def responses_streamed(url: str) -> bool:
    return len(list(_openai_model(url, use_responses_api=True, max_tokens=16).stream("hi"))) > 2


def embeddings(url: str) -> bool:
    """Sends texts, since the token ids that LangChain sends by default are another tokenizer's."""
    made = OpenAIEmbeddings(
        model="text-embedding-3-small", base_url=f"{url}/v1", api_key=KEY, check_embedding_ctx_length=False
    )
    return len(made.embed_query("a red kite")) > 1


def anthropic_text(url: str) -> Any:
    return _anthropic_model(url).invoke("hi").content


def anthropic_streamed(url: str) -> bool:
    return len(list(_anthropic_model(url).stream("hi"))) > 2


def anthropic_structured(url: str) -> bool:
    return isinstance(_anthropic_model(url).with_structured_output(Person).invoke("Describe Ada."), Person)


def anthropic_tools(url: str) -> bool:
    asked = _anthropic_model(url).bind_tools([weather], tool_choice={"type": "tool", "name": "weather"})
    return [one["name"] for one in asked.invoke("Rome?").tool_calls] == ["weather"]


if __name__ == "__main__":
    run_all("langchain-openai")
