"""Each protocol's own forms: calls of tools, thoughts, values, errors; streams say the same as whole answers."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import gen
from gen.server.output_types import read_tools
from tests.helpers import ScriptedModel
from tests.server.client import Client, Reply

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "Is it wet?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Tells the weather.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": WEATHER}
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
TIME = {"type": "function", "function": {"name": "time", "parameters": NO_PARAMETERS}}
BOOL = {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}

Said = dict[str, Any]  # an answer's text, thoughts, calls (name and arguments) and finish reason


def chat_says(reply: Reply) -> Said:
    if "event-stream" not in reply.headers["content-type"]:
        [choice] = reply.json["choices"]
        message, reason = choice["message"], choice["finish_reason"]
    else:
        assert reply.events[-1] == "[DONE]"
        message, reason = {"content": "", "reasoning": "", "tool_calls": []}, None
        for choice in (event["choices"][0] for event in reply.events[:-1]):
            delta, reason = choice["delta"], choice["finish_reason"]
            message["content"] += delta.get("content", "")
            message["reasoning"] += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    message["tool_calls"].append(call)
                else:
                    function = message["tool_calls"][call["index"]]["function"]
                    function["arguments"] += call["function"]["arguments"]
    calls = [one["function"] for one in message.get("tool_calls", [])]
    return {
        "text": message["content"] or "",
        "thought": message.get("reasoning", ""),
        "calls": [(one["name"], json.loads(one["arguments"])) for one in calls],
        "end": reason,
    }


def response_says(reply: Reply) -> Said:
    if "event-stream" not in reply.headers["content-type"]:
        response = reply.json
    else:
        events = reply.events
        assert [event["sequence_number"] for event in events] == [*range(len(events))]
        assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
        response = events[-1]["response"]
        assert events[-1]["type"] == f"response.{response['status']}"
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == response["output"]
        for item in done:
            pieces = [event["delta"] for event in events if "delta" in event and event["item_id"] == item["id"]]
            content = item.get("content")
            assert "".join(pieces) == (content[0]["text"] if content else item["arguments"])
    assert response["store"] is False
    texts = {"message": "", "reasoning": ""}
    for item in response["output"]:
        if item["type"] in texts:
            texts[item["type"]] += item["content"][0]["text"]
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    return {
        "text": texts["message"],
        "thought": texts["reasoning"],
        "calls": [(one["name"], json.loads(one["arguments"])) for one in calls],
        "end": response["status"],
    }


def message_says(reply: Reply) -> Said:
    if "event-stream" not in reply.headers["content-type"]:
        message = reply.json
    else:
        events = reply.events
        message = events[0]["message"]
        for event in events[1:]:
            if event["type"] == "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                kind, block = event["delta"].pop("type"), message["content"][event["index"]]
                [(name, piece)] = event["delta"].items()
                name = "json" if kind == "input_json_delta" else name
                block[name] += piece
            elif event["type"] == "message_delta":
                message |= event["delta"]
        assert events[-1]["type"] == "message_stop"
        for block in message["content"]:
            if block["json"]:
                block["input"] = json.loads(block["json"])
    blocks = message["content"]
    return {
        "text": "".join(block["text"] for block in blocks if block["type"] == "text"),
        "thought": "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        "calls": [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        "end": message["stop_reason"],
    }


PROTOCOLS: list[tuple[str, Any, dict[str, Any]]] = [
    (CHAT, chat_says, {"messages": HELLO, "tools": [TOOL, TIME]}),
    (RESPONSES, response_says, {"input": HELLO, "store": True, "tools": [{"type": "function", **WEATHER}, TIME]}),
    (
        MESSAGES,
        message_says,
        {
            "messages": HELLO,
            "tools": [
                {"name": "weather", "description": "Tells the weather.", "input_schema": PARAMETERS},
                {"name": "time", "input_schema": NO_PARAMETERS},
            ],
        },
    ),
]
NAMES = ["chat", "responses", "messages"]
CHOICES: list[tuple[list[Any], str]] = [  # in each protocol's form, and in gen's
    (["auto", "auto", {"type": "auto"}], "auto"),
    (["required", "required", {"type": "any"}], "required"),
    (
        [
            {"type": "function", "function": {"name": "weather"}},
            {"type": "function", "name": "weather"},
            {"type": "tool", "name": "weather"},
        ],
        "weather",
    ),
    (["none", "none", {"type": "none"}], "none"),
]
LIMITS = ["max_tokens", "max_output_tokens", "max_tokens"]
ENDS = {
    "text": ("stop", "completed", "end_turn"),
    "calls": ("tool_calls", "completed", "tool_use"),
    "length": ("length", "incomplete", "max_tokens"),
}


@pytest.mark.parametrize("number", [0, 1, 2], ids=NAMES)
def test_calls_of_tools_are_those_of_gen(number: int, demo: Any, client: Client) -> None:
    path, says, fields = PROTOCOLS[number]
    template: dict[str, Any] = {"tools": [TOOL, TIME]}
    for choices, choice in CHOICES:
        made: Any = gen.generate(
            demo,
            HELLO,
            gen.tool_calls([TOOL, TIME], choice=choice),
            chat_template_kwargs=template,
            seed=5,
            details=True,
            max_new_tokens=60,
            shorten=True,
        )
        asked: dict[str, Any] = {**fields, "tool_choice": choices[number], "seed": 5, LIMITS[number]: 60}
        whole, streamed = client.posts([(path, asked), (path, {**asked, "stream": True})])
        assert whole.status == 200, whole.body
        wanted = {
            "text": made.value.text,
            "thought": "",
            "calls": [(call.name, call.arguments) for call in made.value.calls],
            "end": ENDS["length" if made.finish_reason == "length" else "calls" if made.value.calls else "text"][
                number
            ],
        }
        if choice == "weather" and path == CHAT:  # OpenAI's finish_reason for a call that was asked for by name
            wanted["end"] = "stop"
        assert says(whole) == says(streamed) == wanted


@pytest.mark.parametrize("number", [0, 1, 2], ids=NAMES)
def test_a_stop_within_a_call_is_no_end_of_the_call(number: int, client: Client) -> None:
    path, _, fields = PROTOCOLS[number]
    required, _ = CHOICES[1]
    asked = {**fields, "tools": fields["tools"][:1], "tool_choice": required[number], LIMITS[number]: 60}
    asked["stop_sequences" if path == MESSAGES else "stop"] = ["city"]
    whole, streamed = client.posts([(path, asked), (path, {**asked, "stream": True})])
    if path == CHAT:
        [choice] = whole.json["choices"]
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"'
        assert choice["finish_reason"] == streamed.events[-2]["choices"][0]["finish_reason"] == "stop"
    elif path == RESPONSES:
        for response in (whole.json, streamed.events[-1]["response"]):
            assert [item["status"] for item in response["output"]] == ["incomplete"]
    else:
        assert whole.json["stop_reason"] == streamed.events[-2]["delta"]["stop_reason"] == "stop_sequence"


THINKER = (
    "{# <think> </think> #}{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"
    "{% if enable_thinking %}<think>{% endif %}"
)


@pytest.fixture(scope="module")
def thinker() -> Iterator[Client]:
    model = ScriptedModel("hm, wet?</think>\n\nYes.")
    model.tokenizer.use_chat_template(THINKER)
    with gen.Engine(model) as engine:
        yield Client(gen.server.app(engine))


@pytest.mark.parametrize(("number", "more"), [(0, {"reasoning_effort": "odd"}), (1, {"reasoning": {"effort": "odd"}})])
def test_an_effort_that_nobody_knows_is_refused(number: int, more: Any, thinker: Client) -> None:
    path, _, fields = PROTOCOLS[number]
    reply = thinker.post(path, {name: value for name, value in fields.items() if name != "tools"} | more)
    assert reply.status == 400
    assert "the efforts are none, minimal, low, medium, high, xhigh, max, got 'odd'" in str(reply.json)


def test_two_limits_of_a_thought_are_refused(thinker: Client) -> None:
    asked = {"messages": HELLO, "reasoning_effort": "low", "thinking_token_budget": 60}
    reply = thinker.post(CHAT, asked)
    assert (reply.status, reply.json["error"]["param"]) == (400, "thinking_token_budget")
    assert thinker.post(CHAT, asked | {"reasoning_effort": "high"}).status == 200


@pytest.mark.parametrize(
    ("number", "more"),
    [
        (0, {"reasoning_effort": "low"}),
        (1, {"reasoning": {"effort": "low"}}),
        (2, {"thinking": {"type": "enabled"}}),
        (0, {"thinking_token_budget": 60, "structured_outputs": {"choice": ["Yes.", "No."]}}),
        (0, {"chat_template_kwargs": {"enable_thinking": True}, "structured_outputs": {"regex": "[a-zA-Z.]+"}}),
        (1, {"reasoning": {"effort": "high"}, "text": {"format": {"type": "text"}}}),
        (2, {"thinking": {"type": "enabled", "budget_tokens": 70}}),
    ],
)
def test_a_thought_comes_before_answers_of_types_and_is_counted(number: int, more: Any, thinker: Client) -> None:
    path, says, fields = PROTOCOLS[number]
    asked = {name: value for name, value in fields.items() if name != "tools"} | more
    whole, streamed = thinker.posts([(path, asked), (path, {**asked, "stream": True})])
    wanted = {"text": "Yes.", "thought": "hm, wet?", "calls": [], "end": ENDS["text"][number]}
    assert says(whole) == says(streamed) == wanted
    used = whole.json["usage"]
    if path == MESSAGES:
        assert thinker.post(f"{path}/count_tokens", asked).json == {"input_tokens": used["input_tokens"]}
    details = used.get("completion_tokens_details") or used.get("output_tokens_details")
    if details:
        assert details["reasoning_tokens"] == len("hm, wet?</think>\n\n")


@pytest.mark.parametrize(
    ("number", "more"),
    [
        (0, {"reasoning_effort": "none"}),
        (0, {"thinking_token_budget": 0}),
        (0, {"chat_template_kwargs": {"enable_thinking": False}}),
        (1, {"reasoning": {"effort": "none"}}),
        (2, {"thinking": {"type": "disabled"}}),
    ],
)
def test_clients_may_want_no_thought(number: int, more: Any, thinker: Client) -> None:
    path, says, fields = PROTOCOLS[number]
    asked = {name: value for name, value in fields.items() if name != "tools"} | more
    told = says(thinker.post(path, asked))
    assert (told["text"], told["thought"]) == ("hm, wet?</think>\n\nYes.", "")  # all that it writes is its answer


def test_a_template_that_marks_no_thought_is_told_whether_to_think() -> None:
    model, asked = ScriptedModel("x"), {"messages": HELLO, "max_tokens": 1}
    model.tokenizer.use_chat_template("{{ messages[0].content }}{{ enable_thinking }}")
    with gen.Engine(model) as engine:
        client = Client(gen.server.app(engine))
        for options, told in (({}, ""), ({"type": "enabled"}, "True"), ({"type": "disabled"}, "False")):
            counted = client.post(f"{MESSAGES}/count_tokens", {**asked, "thinking": options}).json
            used = client.post(MESSAGES, {**asked, "thinking": options}).json["usage"]
            assert counted["input_tokens"] == len(f"Is it wet?{told}")
            assert used["input_tokens"] + used["cache_read_input_tokens"] == counted["input_tokens"]


def test_a_thought_without_an_answer_is_all_that_there_is_whole_or_streamed() -> None:
    model = ScriptedModel("<think>hm, wet?")
    model.tokenizer.use_chat_template(THINKER)
    with gen.Engine(model) as engine:
        asked = {"messages": HELLO, "max_tokens": 40}
        client = Client(gen.server.app(engine))
        whole, streamed = client.posts([(MESSAGES, asked), (MESSAGES, {**asked, "stream": True})])
    begun = [event["content_block"]["type"] for event in streamed.events if event["type"] == "content_block_start"]
    assert [block["type"] for block in whole.json["content"]] == begun == ["thinking"]
    assert message_says(whole) == message_says(streamed)


def test_a_streamed_message_has_the_log_probabilities_of_all_tokens() -> None:
    model = ScriptedModel("hm</think>\n\nYes. No.")
    model.tokenizer.use_chat_template(THINKER)
    asked = {"input": HELLO, "top_logprobs": 0, "stop": ["No"], "reasoning": {"effort": "high"}}
    with gen.Engine(model) as engine:
        client = Client(gen.server.app(engine))
        whole, streamed = client.posts([(RESPONSES, asked), (RESPONSES, {**asked, "stream": True})])
    [part] = whole.json["output"][-1]["content"]
    assert part["text"] == "Yes. "
    assert bytes(one for token in part["logprobs"] for one in token["bytes"]) == b"hm</think>\n\nYes. No"
    added = [one for event in streamed.events if "delta" in event for one in event.get("logprobs", [])]
    assert added == part["logprobs"] == streamed.events[-1]["response"]["output"][-1]["content"][0]["logprobs"]


def test_a_thought_that_is_sent_back_is_read_under_either_name() -> None:
    model = ScriptedModel("x")
    model.tokenizer.use_chat_template("{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}{% endfor %}")

    def tokens(**thought: Any) -> Any:
        messages = [{"role": "assistant", "content": "b", **thought}, {"role": "user", "content": "c"}]
        return client.post("/tokenize", {"messages": messages}).json["tokens"]

    with gen.Engine(model) as engine:
        client = Client(gen.server.app(engine))
        assert tokens(reasoning="a") == tokens(reasoning_content="a") == [*b"abc"] != tokens()
        blocks = [{"type": "thinking", "thinking": "a"}, {"type": "text", "text": "b"}]
        asked = {"messages": [{"role": "assistant", "content": blocks}, {"role": "user", "content": "c"}]}
        assert client.post(f"{MESSAGES}/count_tokens", asked).json == {"input_tokens": 3}
        thought, other = ({"type": "reasoning", "content": [{"text": text}]} for text in "ad")
        said, goes_on = {"role": "assistant", "content": "b"}, {"type": None, "role": "user", "content": "c"}
        for items, text in (([thought, other, said, goes_on], "adbc"), ([thought, goes_on], "ac"), ([thought], "a")):
            used = client.post(RESPONSES, {"input": items, "max_output_tokens": 1}).json["usage"]
            assert used["input_tokens"] == len(text)


@pytest.mark.parametrize("number", [0, 1, 2], ids=NAMES)
def test_values_have_the_form_that_is_asked_for(number: int, demo: Any, client: Client) -> None:
    path, says, fields = PROTOCOLS[number]
    form = {"type": "json_schema", "name": "wet", "schema": BOOL}
    more: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": form}},
        {"text": {"format": form}},
    ]
    more.append({"output_config": {"format": {"type": "json_schema", "schema": BOOL}}})
    wanted = gen.generate(demo, HELLO, gen.json_schema(BOOL), seed=3)
    asked = {name: value for name, value in fields.items() if name != "tools"} | {"seed": 3, **more[number]}
    for reply in client.posts([(path, asked), (path, {**asked, "stream": True})]):
        assert json.loads(says(reply)["text"]) == wanted
    as_llama = {"response_format": {"type": "json_object", "schema": BOOL}}
    assert path != CHAT or json.loads(says(client.post(path, asked | as_llama))["text"]) == wanted
    kind = gen.tool_calls([TOOL, TIME], answer=gen.json_schema(BOOL))
    for seed in range(3):
        limits: dict[str, Any] = {"seed": seed, "max_new_tokens": 60, "shorten": True}
        made: Any = gen.generate(demo, HELLO, kind, chat_template_kwargs={"tools": [TOOL, TIME]}, **limits)
        both = says(client.post(path, {**asked, "tools": fields["tools"], "seed": seed, LIMITS[number]: 60}))
        assert both["calls"] == [(call.name, call.arguments) for call in made.calls]
        assert made.calls or json.loads(both["text"]) == made.answer


@pytest.mark.parametrize("said", ["", "I look."])
def test_a_conversation_with_tools_is_the_same_in_each_protocol(said: str, demo: Any, client: Client) -> None:
    function = {"name": "weather", "arguments": '{"city": "Rome"}'}
    call = {"id": "c1", "type": "function", "function": function}
    messages: Any = [
        {"role": "system", "content": "Be short."},
        *HELLO,
        {"role": "assistant", "content": said, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "user", "content": "And now?"},
    ]
    wanted = gen.generate(demo, messages, seed=1, max_new_tokens=2)
    items: Any = [
        *HELLO,
        *([{"role": "assistant", "content": said}] if said else []),
        {"type": "function_call", "call_id": "c1", **function},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
    ]
    blocks: Any = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                *([{"type": "text", "text": said}] if said else []),
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    replies = client.posts(
        [
            (CHAT, {"messages": messages, "seed": 1, "max_tokens": 2}),
            (RESPONSES, {"instructions": "Be short.", "input": items, "seed": 1, "max_output_tokens": 2}),
            (MESSAGES, {"system": "Be short.", "messages": blocks, "seed": 1, "max_tokens": 2}),
            (f"{MESSAGES}/count_tokens", {"system": "Be short.", "messages": blocks}),
        ]
    )
    *made, counted = replies
    assert [says(reply)["text"] for (_, says, _), reply in zip(PROTOCOLS, made, strict=True)] == [wanted] * 3
    ends = [says(reply)["end"] for (_, says, _), reply in zip(PROTOCOLS, made, strict=True)]
    assert ends == ["length", "incomplete", "max_tokens"]
    read = {reply.json["usage"].get("prompt_tokens", reply.json["usage"].get("input_tokens")) for reply in made[:2]}
    assert counted.json == {"input_tokens": read.pop()} and not read


def test_messages_go_on_with_the_assistants_last_one_and_stop_at_sequences(demo: Any, client: Client) -> None:
    messages: Any = [*HELLO, {"role": "assistant", "content": "There was a"}]
    asked = {"messages": messages, "seed": 1, "max_tokens": 30, "stop_sequences": ["."]}
    reply = client.post(MESSAGES, asked)
    assert message_says(reply)["text"] == gen.generate(demo, messages, seed=1, max_new_tokens=30, stop=".")
    assert (reply.json["stop_reason"], reply.json["stop_sequence"]) == ("stop_sequence", ".")


def allowed(tools: list[Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}


NONE = {"type": "function", "function": {"name": "none"}}
TEXT = {"type": "text"}


@pytest.mark.parametrize(
    ("path", "fields", "word"),
    [
        (RESPONSES, {"previous_response_id": "r1"}, "stores nothing"),
        (RESPONSES, {"conversation": "c1"}, "stores nothing"),
        (RESPONSES, {"prompt": {"id": "p"}}, "stores no prompts"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        (RESPONSES, {"input": []}, "at least one"),
        (RESPONSES, {"input": "Hi", "text": {"verbosity": "low"}}, "text"),
        (RESPONSES, {"input": "Hi", "tools": [{"type": "web_search"}]}, "web_search"),
        (RESPONSES, {"input": "Hi", "reasoning": {"effort": "high"}}, "marks no thoughts"),
        (RESPONSES, {"input": "Hi", "chat_template_kwargs": {"tools": [TOOL]}}, "cannot have tools"),
        (CHAT, {"messages": HELLO, "tools": [{"type": "custom", "custom": {}}]}, "custom"),
        (CHAT, {"messages": HELLO, "tool_choice": "required"}, "no tools"),
        (CHAT, {"messages": HELLO, "tools": [TOOL], "tool_choice": "wizard"}, "wizard"),
        (CHAT, {"messages": HELLO, "tools": [TOOL, TOOL]}, "two tools"),
        (CHAT, {"messages": HELLO, "tools": [TOOL], "tool_choice": allowed([TOOL, TIME])}, "allows 'time'"),
        (
            CHAT,
            {"messages": HELLO, "tools": [{"type": "function", "function": {}}], "tool_choice": allowed([])},
            "list",
        ),
        (CHAT, {"messages": HELLO, "tools": [NONE], "tool_choice": NONE}, "the function 'none'"),
        (
            MESSAGES,
            {"messages": HELLO, "tools": [{"name": "auto"}], "tool_choice": {"type": "tool", "name": "auto"}},
            "'auto'",
        ),
        (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "role user or assistant"),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
        (MESSAGES, {"messages": HELLO, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "input_schema"),
        (MESSAGES, {"messages": HELLO, "tool_choice": {"type": "wizard"}}, "wizard"),
        (MESSAGES, {"messages": HELLO, "mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        (MESSAGES, {"messages": HELLO, "output_config": {"wizard": "low"}}, "wizard"),
        (MESSAGES, {"messages": HELLO, "output_format": TEXT, "output_config": {"wizard": "low"}}, "wizard"),
        (MESSAGES, {"messages": HELLO, "output_format": TEXT, "output_config": {"format": TEXT}}, "one output type"),
    ],
)
def test_what_a_protocol_cannot_do_is_said_in_its_form(path: str, fields: Any, word: str, client: Client) -> None:
    reply = client.post(path, fields)
    assert reply.status == 400 and word in reply.json["error"]["message"]
    assert (reply.json.get("type") == "error") == (path == MESSAGES)


def test_tools_that_may_be_called_can_be_fewer_than_those_told() -> None:
    tools = read_tools([TOOL, TIME], allowed([TIME]), parallel=True, most_kb=10)
    assert tools is not None and len(tools.told) == 2
    assert ([tool.name for tool in tools.type.tools], tools.type.choice) == (["time"], "required")
