"""The clients of OpenAI and Anthropic, and LangChain's of both."""

from typing import Any, Literal

from benchmarks.server.clients.asked import MESSAGES, Person, Tries, options, person, several


def openai(url: str) -> Tries:
    import openai

    client = openai.OpenAI(**options(url))
    chat, how = client.chat.completions, {"model": "demo", "messages": MESSAGES}
    tool = openai.pydantic_function_tool(Person)
    named = {"type": "function", "function": {"name": "Person"}}
    function = {"type": "function", "name": "Person", "parameters": Person.model_json_schema(), "strict": True}
    required = {"tool_choice": "required", "parallel_tool_calls": False}
    respond = {"model": "demo", "input": "Describe Ada"}

    def streamed(stream: Any, kind: str) -> Any:
        """The end of a stream, which must have an event of a kind."""
        with stream as events:
            assert kind in {event.type for event in events}
            return events.get_final_completion().choices[0].message

    def streamed_response(kind: str, **more: Any) -> Any:
        with client.responses.stream(**respond, **more) as events:
            assert kind in {event.type for event in events}
            return events.get_final_response()

    def tools_required() -> Person:
        [choice] = chat.parse(**how, tools=[tool], **required).choices
        [call] = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
        return person(call.function.parsed_arguments)

    def tools_named_streamed() -> Person:
        events = chat.stream(**how, tools=[tool], tool_choice=named)
        [call] = streamed(events, "tool_calls.function.arguments.delta").tool_calls
        return person(call.function.parsed_arguments)

    def samples_with_logprobs_streamed() -> bool:
        chunks = chat.create(**how, n=2, logprobs=True, top_logprobs=2, stream=True, max_tokens=8, seed=1)
        told = [one.choices[0].logprobs for one in chunks if one.choices and one.choices[0].logprobs]
        return sum(len(one.content or []) for one in told) == 16

    def usage_streamed() -> bool:
        *_, last = chat.create(**how, stream=True, max_tokens=8, stream_options={"include_usage": True})
        return bool(last.usage.completion_tokens <= 8)

    def completions_of_token_ids() -> bool:
        made = client.completions.create(model="demo", prompt=[[5, 6, 7], [8, 9]], max_tokens=4, logprobs=1)
        return [choice.index for choice in made.choices] == [0, 1]

    def responses_tools_streamed() -> bool:
        made = streamed_response("response.function_call_arguments.delta", tools=[function], **required)
        [call] = made.output
        return bool(call.type == "function_call")

    def embeddings() -> bool:
        made = client.embeddings.create(model="text-embedding-3-small", input=["a red kite", "a kite"])
        return len(made.data[0].embedding) > 1

    def errors() -> bool:
        try:
            chat.create(**how, temperature=9)
        except openai.BadRequestError as error:
            return bool(error.param == "temperature")
        return False

    return {
        "chat": lambda: chat.create(**how, max_tokens=8, seed=1).choices[0].message,
        "parse": lambda: person(chat.parse(**how, response_format=Person, seed=1).choices[0].message.parsed),
        "stream and parse": lambda: person(
            streamed(chat.stream(**how, response_format=Person), "content.delta").parsed
        ),
        "tools required": tools_required,
        "tools named streamed": tools_named_streamed,
        "tools auto": lambda: chat.create(**how, tools=[tool], max_tokens=16).choices[0].message,
        "samples with logprobs streamed": samples_with_logprobs_streamed,
        "usage streamed": usage_streamed,
        "completions of token ids": completions_of_token_ids,
        "responses": lambda: client.responses.create(model="demo", input="Hi", max_output_tokens=8).output_text,
        "responses parse": lambda: person(client.responses.parse(**respond, text_format=Person).output_parsed),
        "responses streamed": lambda: person(
            streamed_response("response.output_text.delta", text_format=Person).output_parsed
        ),
        "responses tools streamed": responses_tools_streamed,
        "embeddings": embeddings,
        "errors": errors,
    }


def anthropic(url: str) -> Tries:
    import anthropic

    messages = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120).messages
    how: Any = {"model": "demo", "messages": MESSAGES, "max_tokens": 80}
    weather = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    tools = [{"name": "weather", "input_schema": weather}]
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
    used = [*MESSAGES, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]

    def stream() -> bool:
        with messages.stream(**(how | {"max_tokens": 8}), system="Be kind.") as events:
            text = "".join(events.text_stream)
            made = events.get_final_message()
        return bool(made.content[0].text == text and made.usage.output_tokens <= 8)

    def tools_any() -> bool:
        choice = {"type": "any", "disable_parallel_tool_use": True}
        made = messages.create(**how, tools=tools, tool_choice=choice)
        return bool(made.content[0].input == {"city": "Rome"} and made.stop_reason == "tool_use")

    def tool_streamed_after_results() -> bool:
        choice = {"type": "tool", "name": "weather"}
        with messages.stream(**(how | {"messages": used}), tools=tools, tool_choice=choice) as events:
            made = events.get_final_message()
        return bool(made.content[0].input == {"city": "Rome"})

    def errors() -> bool:
        try:
            messages.create(**(how | {"messages": []}))
        except anthropic.BadRequestError as error:
            return "messages" in str(error)
        return False

    return {
        "create": lambda: messages.create(**(how | {"max_tokens": 8})).content[0],
        "stream": stream,
        "tools any": tools_any,
        "tool streamed after results": tool_streamed_after_results,
        "count tokens": lambda: messages.count_tokens(model="demo", messages=MESSAGES).input_tokens > 2,
        "parse": lambda: person(messages.parse(**how, output_format=Person).parsed_output),
        "errors": errors,
    }


def langchain(url: str) -> Tries:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    @tool
    def weather(city: Literal["Rome", "Oslo"]) -> str:
        """Weather of a city."""
        return "sunny"

    def model(**more: Any) -> Any:
        return ChatOpenAI(model="demo", **options(url), **more)

    def describes(model: Any, **more: Any) -> Person:
        return person(model.with_structured_output(Person, **more).invoke("Describe Ada."))

    def calls(model: Any, choice: Any, **more: Any) -> bool:
        made = model.bind_tools([weather], tool_choice=choice, **more).invoke("Rome?")
        return [one["name"] for one in made.tool_calls] == ["weather"]

    claude = ChatAnthropic(model="demo", **(options(url) | {"base_url": url}), max_tokens=100)
    short = {"max_tokens": 16, "use_responses_api": True}
    call = {"name": "weather", "args": {"city": "Rome"}, "id": "call_1"}
    used = [HumanMessage("hi"), AIMessage("", tool_calls=[call]), ToolMessage("sunny", tool_call_id="call_1")]
    key = {name: value for name, value in options(url).items() if name in ("base_url", "api_key")}
    # LangChain sends token ids by default, which are another tokenizer's
    vectors = OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False, **key)
    return {
        "text": lambda: model(max_tokens=8).invoke("hi").content,
        "stream": lambda: several(model(max_tokens=8).stream("hi")),
        "structured": lambda: describes(model()),
        "structured by tool": lambda: describes(model(), method="function_calling"),
        "tools any": lambda: calls(model(), "any", parallel_tool_calls=False),
        "tools auto after results": lambda: isinstance(
            model(max_tokens=8).bind_tools([weather]).invoke(used).content, str
        ),
        "responses": lambda: model(**short).invoke("hi").content,
        "responses structured": lambda: describes(model(use_responses_api=True)),
        "responses streamed": lambda: several(model(**short).stream("hi")),
        "embeddings": lambda: len(vectors.embed_query("a red kite")) > 1,
        "anthropic text": lambda: claude.invoke("hi").content,
        "anthropic streamed": lambda: several(claude.stream("hi")),
        "anthropic structured": lambda: describes(claude),
        "anthropic tools": lambda: calls(claude, {"type": "tool", "name": "weather"}),
    }
