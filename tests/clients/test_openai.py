"""OpenAI's Python SDK against models and chat completions."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field
from server import Server

SYSTEM = {"role": "system", "content": "You are Mira. You grow melons beside an old well."}
HELLO = [SYSTEM, {"role": "user", "content": "Good evening, Mira. How are the melons this year?"}]
WELL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up how deep a well is.",
        "parameters": {
            "type": "object",
            "properties": {"well": {"type": "string", "enum": ["old", "new"]}, "year": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["well", "year"],
            "additionalProperties": False,
        },
    },
}
OTHER = {"type": "function", "function": {"name": "wave", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}

Ask = Callable[..., ChatCompletion]


@pytest.fixture
def ask(client: OpenAI, model: str) -> Ask:
    """A chat completion of 24 tokens and seed 1, unless said otherwise."""

    def one(messages: list[Any] = HELLO, **options: Any) -> ChatCompletion:
        return client.chat.completions.create(**({"model": model, "seed": 1, "max_completion_tokens": 24} | options), messages=messages)

    return one


def text(completion: ChatCompletion) -> str:
    said = completion.choices[0].message.content
    assert said, completion
    return said


def cached(completion: ChatCompletion) -> int:
    assert completion.usage and completion.usage.prompt_tokens_details
    n = completion.usage.prompt_tokens_details.cached_tokens
    assert n is not None
    return n


def total(completion: ChatCompletion) -> int:
    assert completion.usage
    return completion.usage.total_tokens


def replied(messages: list[Any], completion: ChatCompletion, *more: dict[str, Any]) -> list[Any]:
    """The messages that go on with a reply."""
    return [*messages, completion.choices[0].message.model_dump(exclude_none=True), *more]


def user(words: str) -> dict[str, Any]:
    return {"role": "user", "content": words}


# Models


def test_models_are_listed_and_described(client: OpenAI, model: str) -> None:
    assert [one.id for one in client.models.list()] == [model]
    one = client.models.retrieve(model)
    assert (one.id, one.object) == (model, "model") and one.created > 1_700_000_000
    assert one.model_extra and one.model_extra["greenroom"]["context_length"] >= 2048
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-4o")
    assert missing.value.code == "model_not_found"


# Replies


def test_a_reply_is_complete(ask: Ask, model: str) -> None:
    reply = ask()
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-") and reply.model == model
    (choice,) = reply.choices
    assert (choice.index, choice.message.role, choice.message.tool_calls) == (0, "assistant", None)
    assert choice.finish_reason in ("stop", "length") and choice.message.content
    assert reply.usage and reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert 0 < reply.usage.completion_tokens <= 24 and cached(reply) <= reply.usage.prompt_tokens


def test_a_seed_decides_the_reply(ask: Ask) -> None:
    assert text(ask(seed=5)) == text(ask(seed=5))
    assert len({text(ask(seed=seed)) for seed in range(4)}) > 1
    greedy = {text(ask(seed=seed, temperature=0)) for seed in range(3)}
    assert len(greedy) == 1


def test_a_seed_is_any_integer(ask: Ask) -> None:
    assert text(ask(seed=-7)) == text(ask(seed=-7))


def test_a_seed_is_random_where_none_is_given(ask: Ask) -> None:
    assert len({text(ask(seed=None)) for _ in range(4)}) > 1


def test_a_stream_is_the_reply(client: OpenAI, model: str, ask: Ask) -> None:
    options: dict[str, Any] = {"model": model, "messages": HELLO, "seed": 3, "max_completion_tokens": 24}
    whole = ask(seed=3)
    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert {(chunk.id, chunk.object, chunk.model) for chunk in chunks} == {(chunks[0].id, "chat.completion.chunk", model)}
    *parts, last = chunks
    assert last.choices == [] and last.usage and whole.usage
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text(whole)
    assert [part.choices[0].finish_reason for part in parts if part.choices[0].finish_reason] == [whole.choices[0].finish_reason]
    assert parts[-1].choices[0].finish_reason
    without = list(client.chat.completions.create(**options, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in without)


def test_the_helper_accumulates_a_stream(client: OpenAI, model: str, ask: Ask) -> None:
    # The SDK takes a reply that is cut for an error here.
    with client.chat.completions.stream(model=model, messages=HELLO, seed=3, max_completion_tokens=400, stop=["."]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text(ask(seed=3, max_completion_tokens=400, stop=["."]))
    assert "content.delta" in kinds and "content.done" in kinds


def test_a_reply_ends_at_a_stop_string(client: OpenAI, model: str, ask: Ask) -> None:
    whole = text(ask())
    stop = whole[len(whole) // 2 :].split(" ", 1)[-1][:4] or whole[-2:]
    before = whole[: whole.index(stop)].rstrip()  # a blank may be part of the token that is cut
    for given in (stop, ["@@@@", stop]):
        reply = ask(stop=given)
        said = (reply.choices[0].message.content or "").rstrip()
        assert (said, reply.choices[0].finish_reason) == (before, "stop")
    stream = client.chat.completions.create(model=model, messages=HELLO, seed=1, max_completion_tokens=24, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream).rstrip() == before


def test_several_replies(client: OpenAI, model: str, ask: Ask) -> None:
    one, three = ask(), ask(n=3)
    said = [choice.message.content for choice in three.choices]
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert said[0] == text(one) and len(set(said)) > 1
    assert three.usage and one.usage and three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens > one.usage.completion_tokens
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(model=model, messages=HELLO, seed=1, max_completion_tokens=24, n=3, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == said


def test_log_probabilities(client: OpenAI, model: str, ask: Ask) -> None:
    reply = ask(logprobs=True, top_logprobs=3, temperature=0)
    logprobs = reply.choices[0].logprobs
    assert logprobs and logprobs.content and reply.usage
    assert b"".join(bytes(token.bytes or []) for token in logprobs.content) == text(reply).encode()
    for token in logprobs.content:
        tops = [top.logprob for top in token.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True)
        assert token.logprob == tops[0] <= 0, "greedy takes the likeliest"
    options: dict[str, Any] = {"seed": 1, "max_completion_tokens": 24, "logprobs": True, "top_logprobs": 3, "temperature": 0}
    streamed = []
    for chunk in client.chat.completions.create(model=model, messages=HELLO, stream=True, **options):
        part = chunk.choices[0].logprobs
        streamed += (part and part.content) or []
    assert streamed == logprobs.content
    bare = ask(logprobs=True).choices[0].logprobs
    assert bare and bare.content and all(token.top_logprobs == [] for token in bare.content)


class Offer(BaseModel):
    price: int = Field(ge=1, le=9)
    fruit: Literal["melon", "plum"]


def test_a_reply_is_parsed_into_a_model(client: OpenAI, model: str) -> None:
    reply = client.chat.completions.parse(model=model, messages=[*HELLO[:1], user("Name a price.")], response_format=Offer, seed=2)
    offer = reply.choices[0].message.parsed
    assert isinstance(offer, Offer) and 1 <= offer.price <= 9 and reply.choices[0].finish_reason == "stop"


def test_a_json_object(ask: Ask) -> None:
    reply = ask(response_format={"type": "json_object"}, max_completion_tokens=120)
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text(reply)), dict)
    else:
        assert text(reply).lstrip().startswith("{")


def test_content_in_parts_is_the_text(ask: Ask) -> None:
    parts = [HELLO[0], {"role": "user", "content": [{"type": "text", "text": HELLO[1]["content"]}]}]
    assert text(ask(parts)) == text(ask())


def test_the_developer_is_the_system(ask: Ask) -> None:
    assert text(ask([SYSTEM | {"role": "developer"}, HELLO[1]])) == text(ask())


# Tools


def test_a_tool_is_called_answered_and_replied_to(ask: Ask) -> None:
    question = [SYSTEM, user("How deep is the old well?")]
    called = ask(question, tools=[WELL, OTHER], tool_choice={"type": "function", "function": {"name": "look_up"}}, max_completion_tokens=80)
    (choice,) = called.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None and choice.message.tool_calls
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.id and call.function.name == "look_up"
    arguments = json.loads(call.function.arguments)
    assert arguments.keys() == {"well", "year"} and arguments["well"] in ("old", "new") and 1 <= arguments["year"] <= 9
    more = replied(question, called, {"role": "tool", "tool_call_id": call.id, "content": "Nine feet."})
    reply = ask(more, tools=[WELL, OTHER], tool_choice="none")
    assert text(reply) and reply.choices[0].message.tool_calls is None
    assert cached(reply) >= total(called) - 1, "a call is remembered as it was made"
    further = ask(replied(more, reply, user("And the new one?")), tools=[WELL, OTHER])
    assert cached(further) >= total(reply) - 1


def test_a_call_is_required_or_left_to_the_model(ask: Ask) -> None:
    question = [SYSTEM, user("How deep is the old well?")]
    required = ask(question, tools=[WELL, OTHER], tool_choice="required", max_completion_tokens=80).choices[0]
    assert required.finish_reason == "tool_calls" and required.message.tool_calls
    for choice in ("auto", "none"):
        allowed = ask(question, tools=[WELL, OTHER], tool_choice=choice).choices[0]
        assert choice == "auto" or allowed.message.tool_calls is None
        assert allowed.message.content or allowed.message.tool_calls


def test_streamed_arguments_are_the_call(client: OpenAI, model: str, ask: Ask) -> None:
    question = [SYSTEM, user("How deep is the old well?")]
    options: dict[str, Any] = {"tools": [WELL], "tool_choice": "required", "seed": 4, "max_completion_tokens": 80}
    calls = ask(question, **options).choices[0].message.tool_calls
    assert calls
    ids, name, arguments, pieces, finish = set(), "", "", 0, []
    for chunk in client.chat.completions.create(model=model, messages=question, stream=True, **options):
        delta = chunk.choices[0].delta
        assert not delta.content, "a call is no text"
        finish += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
        for call in delta.tool_calls or []:
            assert call.index == 0 and call.function
            ids |= {call.id} if call.id else set()
            name += call.function.name or ""
            arguments += call.function.arguments or ""
            pieces += 1
    assert len(ids) == 1 and name == "look_up" and finish == ["tool_calls"] and pieces > 2
    assert json.loads(arguments) == json.loads(calls[0].function.arguments)
    with client.chat.completions.stream(model=model, messages=question, **options) as stream:
        stream.until_done()
        final = stream.get_final_completion().choices[0].message.tool_calls
    assert final and json.loads(final[0].function.arguments) == json.loads(arguments)


def test_calls_are_made_together_where_that_is_asked_for(client: OpenAI, model: str, ask: Ask) -> None:
    question = [SYSTEM, user("How deep are the old well and the new one?")]
    options: dict[str, Any] = {"tools": [WELL], "tool_choice": "required", "max_completion_tokens": 400, "parallel_tool_calls": True, "temperature": 1.5}
    made = [ask(question, **options | {"seed": seed}) for seed in range(12)]
    several = next((n for n, reply in enumerate(made) if len(reply.choices[0].message.tool_calls or []) > 1), None)
    alone = ask(question, **options | {"seed": 3, "parallel_tool_calls": False}).choices[0].message.tool_calls
    assert alone and len(alone) == 1
    if several is None:
        pytest.skip("this model makes one call at a time")
    (choice,) = made[several].choices
    calls = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls" and len({call.id for call in calls}) == len(calls)
    told: dict[int, str] = {}
    for chunk in client.chat.completions.create(model=model, messages=question, stream=True, **options | {"seed": several}):
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.index in (len(told) - 1, len(told)) and call.function
            told[call.index] = told.get(call.index, "") + (call.function.arguments or "")
    assert [json.loads(told[n]) for n in sorted(told)] == [json.loads(call.function.arguments) for call in calls]
    results = [{"role": "tool", "tool_call_id": call.id, "content": "Nine feet."} for call in calls]
    assert text(ask(replied(question, made[several], *results), tools=[WELL], tool_choice="none"))


def test_several_calls_of_one_message_have_their_results(ask: Ask) -> None:
    call = lambda name, year: {"id": name, "type": "function", "function": {"name": "look_up", "arguments": json.dumps({"well": "old", "year": year})}}
    said = {"role": "assistant", "content": None, "tool_calls": [call("a", 1), call("b", 2)]}
    results = [{"role": "tool", "tool_call_id": name, "content": f"{name}: nine feet"} for name in "ab"]
    question = [SYSTEM, user("How deep was it?"), said]
    assert text(ask([*question, *results], tools=[WELL], tool_choice="none"))
    with pytest.raises(openai.BadRequestError, match="call"):
        ask([*question, *results[:1]], tools=[WELL])


# Memory


def test_the_cached_tokens_are_those_that_were_read_before(ask: Ask) -> None:
    messages = [SYSTEM, user("Good morning. This is a conversation of its own, about rain.")]
    reply = ask(messages)
    assert cached(reply) < reply.usage.prompt_tokens if reply.usage else False
    for words in ("Will it rain?", "And tomorrow?", "Farewell."):
        messages = replied(messages, reply, user(words))
        earlier, reply = total(reply), ask(messages)
        assert earlier - 1 <= cached(reply) < total(reply)


def test_the_memory_says_what_became_of_it(ask: Ask) -> None:
    messages = [SYSTEM, user("Good morning. This is another conversation, about snow.")]
    explained = lambda reply: reply.model_extra["greenroom"]
    first = ask(messages, extra_body={"greenroom": True})
    assert explained(first)["seed"] == 1 and explained(first)["digest"]
    second = ask(replied(messages, first, user("And ice?")), extra_body={"greenroom": True})
    assert explained(second)["match"] == "extend" and explained(second)["recomputed"] == 0
    assert explained(second)["reused"] == cached(second)


def test_a_memory_outlives_the_server(start: Callable[..., Server], model: str, tmp_path: Any) -> None:
    options: dict[str, Any] = {"model": model, "seed": 1, "max_completion_tokens": 16}
    server = start(folder=tmp_path / "lasting")
    first = server.openai().chat.completions.create(messages=HELLO, **options)
    assert server.end() == 0
    more = replied(HELLO, first, user("And the well?"))
    server = start(folder=tmp_path / "lasting")
    second = server.openai().chat.completions.create(messages=more, **options)
    assert cached(second) >= total(first) - 1


def test_an_earlier_answer_is_compared_with(ask: Ask) -> None:
    """The types are those that the SDK has for responses."""
    messages = [SYSTEM, user("Good morning. Let us compare, at some length, what is and what was read before.")]
    first = ask(messages)

    def found(messages: list[Any], earlier: str, **options: Any) -> dict[str, Any]:
        compared = {"prompt_cache_options": {"mode": "implicit", "comparison_response_id": earlier}}
        reply = ask(messages, extra_body=compared, **options)
        assert reply.model_extra
        return reply.model_extra["prompt_cache_diagnostics"]

    assert found(replied(messages, first, user("Go on.")), first.id) == {"type": "cache_hit"}
    changed = found([{"role": "system", "content": "You are Rolf, who grows pears."}, *messages[1:]], first.id)
    assert (changed["type"], changed["reason"]) == ("cache_miss", "input_changed")
    assert 0 < changed["cache_missed_tokens"] <= changed["comparison_reusable_tokens"] == total(first)
    assert found(messages, first.id, tools=[WELL], tool_choice="none")["reason"] == "tools_changed"
    assert found(messages, "chatcmpl-unknown") == {"type": "comparison_response_not_found"}


def test_a_key_keeps_conversations_apart(ask: Ask) -> None:
    messages = [SYSTEM, user("Good morning. What is kept apart does not meet.")]
    one = ask(messages, extra_body={"prompt_cache_key": "one"})
    more = replied(messages, one, user("Go on."))
    same = ask(more, extra_body={"prompt_cache_key": "one"})
    other = ask(more, extra_body={"prompt_cache_key": "two"})
    by_header = ask(more, extra_headers={"x-session-id": "one"})
    assert cached(same) >= total(one) - 1 and cached(by_header) >= total(one) - 1
    assert cached(other) < total(one) - 1


# Errors


@pytest.mark.parametrize(
    ("options", "param", "word"),
    [
        ({"messages": [{"role": "wizard", "content": "Hm."}]}, "messages[0].role", "wizard"),
        ({"messages": []}, "messages", "no message"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content[0]", "image_url"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "id of the call"),
        ({"n": 99}, "n", "1 to 16"),
        ({"n": 0}, "n", "1 to 16"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"temperature": -1}, None, "temperature"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [WELL], "tool_choice": {"type": "function", "function": {"name": "fly"}}}, "tool_choice", "fly"),
        ({"tools": [WELL], "tool_choice": "perhaps"}, "tool_choice", "perhaps"),
        ({"seed": "one"}, "seed", "whole number"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens", "number of tokens"),
    ],
)
def test_what_is_wrong_is_named(ask: Ask, options: dict[str, Any], param: str | None, word: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(**options)
    assert refused.value.param == param and refused.value.type == "invalid_request_error"
    assert word in refused.value.message


def test_a_prompt_beyond_the_context(ask: Ask) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask([user("word " * 20_000)])
    assert refused.value.code == "context_length_exceeded"


def test_a_model_that_is_not_there(ask: Ask) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        ask(model="gpt-4o")
    assert refused.value.code == "model_not_found" and refused.value.param == "model"


def test_streams_are_refused_like_replies(ask: Ask) -> None:
    with pytest.raises(openai.NotFoundError):
        ask(model="gpt-4o", stream=True)
    with pytest.raises(openai.BadRequestError):
        ask([user("word " * 20_000)], stream=True)
    for wrong in ({"temperature": -1}, {"logprobs": True, "top_logprobs": 99}, {"n": 99}):
        with pytest.raises(openai.BadRequestError):
            ask(**wrong, stream=True)


def test_keys_and_rates(start: Callable[..., Server], model: str, tmp_path: Any) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("keys:\n- {key: a-secret-of-alice, tenant: alice, requests_per_minute: 1}\n- {key: a-secret-of-robert, tenant: bob, token_quota: 1}\n")
    keys.chmod(0o600)
    server = start("--keys", str(keys))
    options: dict[str, Any] = {"model": model, "messages": HELLO, "max_completion_tokens": 2}
    with pytest.raises(openai.AuthenticationError) as refused:
        server.openai("a-secret-of-carol").chat.completions.create(**options)
    assert refused.value.code == "invalid_api_key"
    alice, bob = server.openai("a-secret-of-alice"), server.openai("a-secret-of-robert")
    for client, word in ((alice, "1 requests per minute"), (bob, "quota of 1 tokens")):
        client.chat.completions.create(**options)
        with pytest.raises(openai.RateLimitError, match=word) as limited:
            client.chat.completions.create(**options)
        assert int(limited.value.response.headers["retry-after"]) >= 1
