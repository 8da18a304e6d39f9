"""Anthropic's Python SDK against messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from anthropic.types import Message, ToolUseBlock
from server import Server

pytestmark = pytest.mark.needs("POST /v1/messages")

SYSTEM = "You are Mira. You grow melons beside an old well."
HELLO = [{"role": "user", "content": "Good evening, Mira. How are the melons this year?"}]
WELL = {
    "name": "look_up",
    "description": "Looks up how deep a well is.",
    "input_schema": {
        "type": "object",
        "properties": {"well": {"type": "string", "enum": ["old", "new"]}},
        "required": ["well"],
        "additionalProperties": False,
    },
}
WAVE = {"name": "wave", "input_schema": {"type": "object", "properties": {}, "additionalProperties": False}}

GREEDY = {"temperature": 0}  # the SDK has no parameter for it any more

Ask = Callable[..., Message]


@pytest.fixture
def ask(claude: Anthropic, model: str) -> Ask:
    """A message of 24 tokens, greedy, unless said otherwise."""
    return lambda messages=HELLO, **options: claude.messages.create(
        **({"model": model, "max_tokens": 24, "system": SYSTEM, "extra_body": GREEDY} | options), messages=messages
    )


def text(message: Message) -> str:
    (block,) = message.content
    assert block.type == "text" and block.text, message
    return block.text


def called(message: Message) -> ToolUseBlock:
    (block,) = (block for block in message.content if block.type == "tool_use")
    return block


def read(message: Message) -> int:
    """Tokens of the prompt, wherever they came from."""
    usage = message.usage
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def cached(message: Message) -> int:
    n = message.usage.cache_read_input_tokens
    assert n is not None
    return n


def user(words: Any) -> dict[str, Any]:
    return {"role": "user", "content": words}


def said(message: Message) -> dict[str, Any]:
    return {"role": "assistant", "content": [block.to_dict() for block in message.content]}


def test_a_reply_is_complete(ask: Ask, model: str) -> None:
    reply = ask()
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", model) and reply.id.startswith("msg_")
    assert reply.stop_reason in ("end_turn", "max_tokens") and reply.stop_sequence is None
    assert text(reply) and 0 < reply.usage.output_tokens <= 24
    assert text(ask()) == text(reply), "greedy"
    assert len({text(ask(extra_body={"temperature": 1})) for _ in range(4)}) > 1
    assert ask(max_tokens=2).stop_reason == "max_tokens"


def test_a_stream_has_its_events_in_order(claude: Anthropic, model: str, ask: Ask) -> None:
    whole = ask()
    events = [event for event in claude.messages.create(model=model, max_tokens=24, extra_body=GREEDY, system=SYSTEM, messages=HELLO, stream=True)]
    kinds = [event.type for event in events if event.type != "ping"]
    n = kinds.count("content_block_delta")
    assert n > 1 and kinds == ["message_start", "content_block_start", *["content_block_delta"] * n, "content_block_stop", "message_delta", "message_stop"]
    start, end = events[0], events[-2]
    assert start.type == "message_start" and start.message.content == [] and start.message.stop_reason is None
    assert end.type == "message_delta" and end.delta.stop_reason == whole.stop_reason
    assert end.usage.output_tokens == whole.usage.output_tokens
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta" and event.delta.type == "text_delta") == text(whole)


def test_the_helper_accumulates_a_stream(claude: Anthropic, model: str, ask: Ask) -> None:
    with claude.messages.stream(model=model, max_tokens=24, extra_body=GREEDY, system=SYSTEM, messages=HELLO) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(pieces) == text(final) == text(ask()) and len(pieces) > 1
    assert read(final) == read(ask()) and final.usage.output_tokens == ask().usage.output_tokens


def test_the_system_is_a_text_or_blocks(ask: Ask) -> None:
    blocks = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    assert text(ask(system=blocks)) == text(ask())
    assert read(ask(system=SYSTEM * 2)) > read(ask())


def test_content_in_blocks_is_the_text(ask: Ask) -> None:
    assert text(ask([user([{"type": "text", "text": HELLO[0]["content"]}])])) == text(ask())


def test_a_reply_ends_at_a_stop_sequence(ask: Ask) -> None:
    whole = text(ask())
    stop = whole.split()[len(whole.split()) // 2]
    for sequences in ([stop], ["@@@@", stop]):
        reply = ask(stop_sequences=sequences)
        assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", stop)
        assert "".join(block.text for block in reply.content if block.type == "text") == whole[: whole.index(stop)]


def test_a_prompt_is_read_without_a_reply(ask: Ask) -> None:
    messages = [user("Good morning. This is read in advance, and answered later.")]
    nothing = ask(messages, max_tokens=0)
    assert (nothing.content, nothing.usage.output_tokens) == ([], 0)
    assert cached(ask(messages)) >= read(nothing) - 1


def test_a_tool_is_used_and_its_result_replied_to(ask: Ask) -> None:
    question = [user("How deep is the old well?")]
    first = ask(question, tools=[WELL, WAVE], tool_choice={"type": "tool", "name": "look_up"}, max_tokens=80)
    call = called(first)
    assert first.stop_reason == "tool_use" and call.name == "look_up" and call.id.startswith("toolu_")
    assert isinstance(call.input, dict) and call.input["well"] in ("old", "new")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Nine feet."}
    more = [*question, said(first), user([result])]
    second = ask(more, tools=[WELL, WAVE], tool_choice={"type": "none"})
    assert text(second) and cached(second) >= read(first) + first.usage.output_tokens - 1
    in_blocks = [*more[:2], user([result | {"content": [{"type": "text", "text": "Nine feet."}]}])]
    assert text(ask(in_blocks, tools=[WELL, WAVE], tool_choice={"type": "none"})) == text(second)
    further = ask([*more, said(second), user("And the new one?")], tools=[WELL, WAVE], tool_choice={"type": "none"})
    assert cached(further) >= read(second) + second.usage.output_tokens - 1


def test_a_call_is_required_or_left_to_the_model(ask: Ask) -> None:
    question = [user("How deep is the old well?")]
    assert called(ask(question, tools=[WELL, WAVE], tool_choice={"type": "any"}, max_tokens=80)).name in ("look_up", "wave")
    assert ask(question, tools=[WELL], tool_choice={"type": "auto"}).content
    assert text(ask(question, tools=[WELL], tool_choice={"type": "none"}))


def test_a_call_is_streamed(claude: Anthropic, model: str, ask: Ask) -> None:
    options: dict[str, Any] = {"tools": [WELL], "tool_choice": {"type": "any"}, "max_tokens": 80, "extra_body": GREEDY, "system": SYSTEM}
    whole = called(ask([user("How deep?")], **options))
    events = list(claude.messages.create(model=model, messages=[user("How deep?")], stream=True, **options))
    kinds = [event.type for event in events if event.type != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    (block,) = (event.content_block for event in events if event.type == "content_block_start")
    assert block.type == "tool_use" and block.name == "look_up" and block.input == {}
    pieces = [event.delta.partial_json for event in events if event.type == "content_block_delta" and event.delta.type == "input_json_delta"]
    assert json.loads("".join(pieces)) == whole.input
    with claude.messages.stream(model=model, messages=[user("How deep?")], **options) as stream:
        assert called(stream.get_final_message()).input == whole.input


def test_calls_are_made_together_where_that_is_asked_for(claude: Anthropic, model: str, ask: Ask) -> None:
    question = [user("How deep are the old well and the new one?")]
    options: dict[str, Any] = {"tools": [WELL], "tool_choice": {"type": "any", "disable_parallel_tool_use": False}, "max_tokens": 400, "system": SYSTEM}
    seeded = lambda seed: options | {"extra_body": {"seed": seed, "temperature": 1.5}}
    made = [ask(question, **seeded(seed)) for seed in range(12)]
    assert {reply.stop_reason for reply in made} <= {"tool_use", "max_tokens"}
    several = next((n for n, reply in enumerate(made) if len(reply.content) > 1 and reply.stop_reason == "tool_use"), None)
    if several is None:
        pytest.skip("this model makes one call at a time")
    reply = made[several]
    assert {block.type for block in reply.content} == {"tool_use"}
    with claude.messages.stream(model=model, messages=question, **seeded(several)) as stream:
        blocks = stream.get_final_message().content
    assert [block.input for block in blocks] == [block.input for block in reply.content]
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "Nine feet."} for block in reply.content]
    assert text(ask([*question, said(reply), user(results)], tools=[WELL], tool_choice={"type": "none"}))


@pytest.mark.needs("POST /v1/messages/count_tokens")
def test_tokens_are_counted_as_they_are_read(claude: Anthropic, model: str, ask: Ask) -> None:
    for options in ({}, {"tools": [WELL]}, {"system": "Be brief."}):
        counted = claude.messages.count_tokens(model=model, messages=HELLO, **({"system": SYSTEM} | options))
        assert counted.input_tokens == read(ask(**options))


def test_the_cached_tokens_are_those_that_were_read_before(ask: Ask) -> None:
    messages: list[Any] = [user("Good morning. This is a conversation of its own, about rain.")]
    reply = ask(messages)
    for words in ("Will it rain?", "And tomorrow?", "Farewell."):
        messages = [*messages, said(reply), user(words)]
        earlier, reply = read(reply) + reply.usage.output_tokens, ask(messages)
        assert earlier - 1 <= cached(reply) < read(reply)


def test_a_session_header_keeps_conversations_apart(ask: Ask) -> None:
    messages = [user("Good morning. What is kept apart does not meet.")]
    header = lambda name: {"x-claude-code-session-id": name}
    first = ask(messages, extra_headers=header("one"))
    more = [*messages, said(first), user("Go on.")]
    held = read(first) + first.usage.output_tokens
    assert cached(ask(more, extra_headers=header("one"))) >= held - 1
    assert cached(ask(more, extra_headers=header("two"))) < held - 1


def test_an_earlier_message_is_compared_with(ask: Ask) -> None:
    messages = [user("Good morning. Let us compare, at some length, what is and what was read before.")]
    first = ask(messages, diagnostics={"previous_message_id": None})
    assert first.diagnostics is None

    def found(messages: list[Any], earlier: str, **options: Any) -> Any:
        return ask(messages, diagnostics={"previous_message_id": earlier}, **options).diagnostics

    more = [*messages, said(first), user("Go on.")]
    assert found(more, first.id) is None, "nothing diverged"
    for options, kind in (({"system": "You are Rolf."}, "system_changed"), ({"tools": [WELL]}, "tools_changed")):
        reason = found(more, first.id, **options).cache_miss_reason
        assert reason.type == kind and reason.cache_missed_input_tokens > 0
    reason = found([user("Good morning. Let us compare something else, which was never read.")], first.id).cache_miss_reason
    assert reason.type == "messages_changed"
    assert found(messages, "msg_unknown").cache_miss_reason.type == "previous_message_not_found"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"messages": [{"role": "wizard", "content": "Hm."}]}, "wizard"),
        ({"messages": [user([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}])]}, "image"),
        ({"messages": [user("word " * 20_000)]}, "context"),
        ({"thinking": {"type": "mandatory"}}, "thinking"),
        ({"tools": [WELL], "tool_choice": {"type": "tool", "name": "fly"}}, "fly"),
        ({"extra_body": {"temperature": -1}}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"extra_body": {"mcp_servers": [{"type": "url", "url": "http://127.0.0.1:1", "name": "x"}]}}, "mcp_servers"),
    ],
)
def test_what_is_wrong_is_named(ask: Ask, options: dict[str, Any], word: str) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(**options)
    assert refused.value.body["error"]["type"] == "invalid_request_error" and word in refused.value.message  # type: ignore[index]


def test_an_unknown_model(ask: Ask) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        ask(model="claude-opus-4-1")
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


def test_keys_and_rates(start: Callable[..., Server], model: str, tmp_path: Any) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys: [{key: a-secret-of-alice, tenant: alice, requests_per_minute: 1}]\n")
    keys.chmod(0o600)
    server = start("--keys", str(keys))
    options: dict[str, Any] = {"model": model, "messages": HELLO, "max_tokens": 2}
    with pytest.raises(anthropic.AuthenticationError):
        server.anthropic("a-secret-of-carol").messages.create(**options)
    alice = server.anthropic("a-secret-of-alice")
    alice.messages.create(**options)
    with pytest.raises(anthropic.RateLimitError) as limited:
        alice.messages.create(**options)
    assert limited.value.body["error"]["type"] == "rate_limit_error"  # type: ignore[index]
