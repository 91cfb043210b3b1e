"""Requests with tools are rendered by the model's template, with the chat settings that the model carries."""

import json

import pytest

from flows.serving.refusals import Refused
from flows.serving.requests import read_chat
from learning.data.chat_settings import PINNED_DATE, apply_chat
from schemas.chat import Chat
from tests.learning.data.template_families import make_tokenizer

TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
ARGUMENTS = {"a": 2, "b": 2}
CALL = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": json.dumps(ARGUMENTS)}}
MESSAGES = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "4", "tool_call_id": "call00001"},
]


def read(tokenizer, **body):
    (asked,) = read_chat({"model": "m", "messages": MESSAGES, **body}, tokenizer, 4096).prompts
    return list(asked.prompt_ids)


def render(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, strftime_now=PINNED_DATE.strftime, **options
    )


@pytest.mark.parametrize("name", ["qwen 3", "llama 3", "mistral", "harmony", "deepseek r1"])
def test_tools_and_their_calls_reach_the_template(name):
    tokenizer = make_tokenizer(name)
    called = MESSAGES[1] | {"content": "", "tool_calls": [CALL | {"function": {"name": "add", "arguments": ARGUMENTS}}]}
    whole = [MESSAGES[0], called, MESSAGES[2]]
    assert read(tokenizer, tools=[TOOL]) == render(tokenizer, whole, tools=[TOOL])
    assert read(tokenizer, tools=[TOOL], tool_choice="none") == render(tokenizer, whole)


def test_what_the_model_carries_holds_unless_the_request_says_otherwise():
    tokenizer = make_tokenizer("qwen 3")
    chat = Chat(chat_template_kwargs={"enable_thinking": False}, system_prompt="Be brief.", tools=[TOOL])
    apply_chat(tokenizer, chat)
    asked = [{"role": "user", "content": "2+2?"}]
    system = [{"role": "system", "content": "Be brief."}]
    want = render(tokenizer, [*system, *asked], tools=[TOOL], enable_thinking=False)
    assert read(tokenizer, messages=asked) == want
    other = [{"role": "system", "content": "Be long."}, *asked]
    tool = {"type": "function", "function": {"name": "say"}}
    got = read(tokenizer, messages=other, tools=[tool], chat_template_kwargs={"enable_thinking": True})
    assert got == render(tokenizer, other, tools=[tool], enable_thinking=True)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"tools": [{"name": "add"}]}, "tools", "a tool is a map"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "is set by posttrain"),
        ({"tool_choice": "required", "tools": [TOOL]}, "tool_choice", "not supported"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": ["x"]}]}, "messages", "list of calls"),
        ({"messages": [{"role": "user", "content": None}]}, "messages", "a role and a text content"),
    ],
)
def test_requests_that_no_template_can_take_are_refused_by_name(body, param, message):
    with pytest.raises(Refused, match=message) as refused:
        read(make_tokenizer("qwen 3"), **body)
    assert refused.value.param == param
