"""What programs do with openai's client."""

from typing import Any

import openai
from openai import OpenAI

from benchmarks.server.clients.asked import MESSAGES, Person
from benchmarks.server.clients.running import run_all

TOOL: Any = openai.pydantic_function_tool(Person)
FUNCTION: Any = {"type": "function", "name": "Person", "parameters": Person.model_json_schema(), "strict": True}


def _client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def chat(url: str) -> Any:
    return (
        _client(url).chat.completions.create(model="demo", messages=MESSAGES, max_tokens=8, seed=1).choices[0].message
    )


def parse(url: str) -> bool:
    made = _client(url).chat.completions.parse(model="demo", messages=MESSAGES, response_format=Person, seed=1)
    return isinstance(made.choices[0].message.parsed, Person)


def stream_and_parse(url: str) -> bool:
    with _client(url).chat.completions.stream(model="demo", messages=MESSAGES, response_format=Person) as stream:
        kinds = {event.type for event in stream}
        made = stream.get_final_completion()
    return isinstance(made.choices[0].message.parsed, Person) and "content.delta" in kinds


def tools_required(url: str) -> bool:
    made = _client(url).chat.completions.parse(
        model="demo", messages=MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    [call] = made.choices[0].message.tool_calls or []
    return isinstance(call.function.parsed_arguments, Person) and made.choices[0].finish_reason == "tool_calls"


def tools_named_streamed(url: str) -> bool:
    choice: Any = {"type": "function", "function": {"name": "Person"}}
    with _client(url).chat.completions.stream(
        model="demo", messages=MESSAGES, tools=[TOOL], tool_choice=choice
    ) as stream:
        kinds = {event.type for event in stream}
        [call] = stream.get_final_completion().choices[0].message.tool_calls or []
    return isinstance(call.function.parsed_arguments, Person) and "tool_calls.function.arguments.delta" in kinds


def tools_auto(url: str) -> Any:
    made = _client(url).chat.completions.create(model="demo", messages=MESSAGES, tools=[TOOL], max_tokens=16)
    return made.choices[0].message


def samples_with_logprobs_streamed(url: str) -> bool:
    chunks = _client(url).chat.completions.create(
        model="demo", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2, stream=True, max_tokens=8, seed=1
    )
    told = [one.choices[0].logprobs for one in chunks if one.choices and one.choices[0].logprobs]
    return sum(len(one.content or []) for one in told) == 16


def usage_streamed(url: str) -> bool:
    options: Any = {"include_usage": True}
    *_, last = _client(url).chat.completions.create(
        model="demo", messages=MESSAGES, stream=True, max_tokens=8, stream_options=options
    )
    return last.usage is not None and last.usage.completion_tokens <= 8


def completions_of_token_ids(url: str) -> bool:
    made = _client(url).completions.create(model="demo", prompt=[[5, 6, 7], [8, 9]], max_tokens=4, logprobs=1)
    return [choice.index for choice in made.choices] == [0, 1]


def responses(url: str) -> Any:
    return _client(url).responses.create(model="demo", input="Hi", max_output_tokens=8).output_text


def responses_parse(url: str) -> bool:
    made = _client(url).responses.parse(model="demo", input="Describe Ada", text_format=Person)
    return isinstance(made.output_parsed, Person)


def responses_streamed(url: str) -> bool:
    with _client(url).responses.stream(model="demo", input="Describe Ada", text_format=Person) as stream:
        kinds = {event.type for event in stream}
        return isinstance(stream.get_final_response().output_parsed, Person) and "response.output_text.delta" in kinds


def responses_tools_streamed(url: str) -> bool:
    with _client(url).responses.stream(
        model="demo", input="Describe Ada", tools=[FUNCTION], tool_choice="required", parallel_tool_calls=False
    ) as stream:
        kinds = {event.type for event in stream}
        [call] = stream.get_final_response().output
    return call.type == "function_call" and "response.function_call_arguments.delta" in kinds


def embeddings(url: str) -> bool:
    made = _client(url).embeddings.create(model="text-embedding-3-small", input=["a red kite", "a kite"])
    return len(made.data[0].embedding) > 1


def errors(url: str) -> bool:
    try:
        _client(url).chat.completions.create(model="demo", messages=MESSAGES, temperature=9)
    except openai.BadRequestError as error:
        return error.param == "temperature"
    return False


if __name__ == "__main__":
    run_all("openai")
