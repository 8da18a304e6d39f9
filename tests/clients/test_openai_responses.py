"""OpenAI's Python SDK against responses: the seven kinds that Open Responses tests, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseStreamEvent
from pydantic import BaseModel
from server import Server

pytestmark = pytest.mark.needs("POST /v1/responses")

INSTRUCTIONS = "You are Mira. You grow melons beside an old well."
HELLO = "Good evening, Mira. How are the melons this year?"
WELL = {
    "type": "function",
    "name": "look_up",
    "description": "Looks up how deep a well is.",
    "parameters": {
        "type": "object",
        "properties": {"well": {"type": "string", "enum": ["old", "new"]}},
        "required": ["well"],
        "additionalProperties": False,
    },
    "strict": True,
}
# A form that every reply ends in: free replies of the understudy may end at their limit.
FORM = {"format": {"type": "json_schema", "name": "offer", "schema": {"type": "object", "properties": {"fruit": {"enum": ["melon", "plum"]}}, "required": ["fruit"], "additionalProperties": False}, "strict": True}}

Ask = Callable[..., Response]


class Offer(BaseModel):
    fruit: Literal["melon", "plum"]


@pytest.fixture
def ask(client: OpenAI, model: str) -> Ask:
    """A response that is greedy, unless said otherwise."""
    return lambda input=HELLO, **options: client.responses.create(**({"model": model, "temperature": 0, "max_output_tokens": 24} | options), input=input)


def cached(response: Response) -> int:
    assert response.usage
    return response.usage.input_tokens_details.cached_tokens


def total(response: Response) -> int:
    assert response.usage
    return response.usage.total_tokens


def types(events: list[ResponseStreamEvent]) -> list[str]:
    """The kinds of events in order, runs of deltas as one."""
    found: list[str] = []
    for event in events:
        if not (event.type.endswith(".delta") and found and found[-1] == event.type):
            found.append(event.type)
    return found


# The seven kinds


def test_basic(ask: Ask, model: str) -> None:
    reply = ask()
    assert reply.object == "response" and reply.id.startswith("resp_") and reply.model == model and reply.created_at > 1.7e9
    (item,) = reply.output
    assert item.type == "message" and item.role == "assistant" and item.id.startswith("msg_")
    assert item.content[0].type == "output_text" and item.content[0].annotations == []
    assert reply.output_text == item.content[0].text != ""
    if reply.status == "incomplete":
        assert reply.incomplete_details and reply.incomplete_details.reason == "max_output_tokens" and item.status == "incomplete"
    else:
        assert reply.status == item.status == "completed" and reply.incomplete_details is None
    assert reply.error is None and reply.usage and reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    assert 0 < reply.usage.output_tokens <= 24 and reply.usage.output_tokens_details.reasoning_tokens == 0
    assert ask().output_text == reply.output_text


def test_streaming(client: OpenAI, model: str, ask: Ask) -> None:
    whole = ask(text=FORM, max_output_tokens=60)
    assert whole.status == "completed"
    events = list(client.responses.create(model=model, input=HELLO, temperature=0, max_output_tokens=60, text=FORM, stream=True))
    assert types(events) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    (done,) = (event.text for event in events if event.type == "response.output_text.done")
    assert said == done == whole.output_text
    first, last = events[0], events[-1]
    assert first.type == "response.created" and first.response.status == "in_progress" and first.response.output == []
    assert last.type == "response.completed" and last.response.id == first.response.id
    assert last.response.output_text == said and last.response.usage and whole.usage
    assert last.response.usage.output_tokens == whole.usage.output_tokens
    places = {(event.output_index, event.item_id) for event in events if event.type == "response.output_text.delta"}
    assert places == {(0, last.response.output[0].id)}


def test_streaming_through_the_helper(client: OpenAI, model: str, ask: Ask) -> None:
    with client.responses.stream(model=model, input=HELLO, temperature=0, max_output_tokens=60, text_format=Offer) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert final.output_text == snapshots[-1] and isinstance(final.output_parsed, Offer)
    assert client.responses.parse(model=model, input=HELLO, temperature=0, text_format=Offer).output_parsed == final.output_parsed


def test_a_stream_that_ends_at_its_limit(client: OpenAI, model: str) -> None:
    events = list(client.responses.create(model=model, input=HELLO, temperature=0, max_output_tokens=2, stream=True))
    assert types(events)[-2:] == ["response.output_item.done", "response.incomplete"]
    last = events[-1]
    assert last.type == "response.incomplete" and last.response.incomplete_details
    assert last.response.incomplete_details.reason == "max_output_tokens" and last.response.status == "incomplete"


def test_system_prompt(ask: Ask) -> None:
    as_instructions = ask(instructions=INSTRUCTIONS)
    as_item = ask([{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": HELLO}])
    as_developer = ask([{"role": "developer", "content": INSTRUCTIONS}, {"role": "user", "content": HELLO}])
    assert as_instructions.output_text == as_item.output_text == as_developer.output_text
    assert as_instructions.instructions == INSTRUCTIONS
    assert total(ask(instructions=INSTRUCTIONS * 2)) > total(as_instructions)


def called(response: Response) -> ResponseFunctionToolCall:
    (call,) = (item for item in response.output if item.type == "function_call")
    return call


def test_tool_calling(ask: Ask) -> None:
    first = ask("How deep is the old well?", tools=[WELL], tool_choice="required", max_output_tokens=80)
    call = called(first)
    assert first.status == "completed" and call.name == "look_up" and call.call_id and call.status == "completed"
    assert json.loads(call.arguments)["well"] in ("old", "new") and first.output_text == ""
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Nine feet."}
    second = ask([result], previous_response_id=first.id, tools=[WELL], tool_choice="none")
    assert second.output_text and cached(second) >= total(first) - 1
    by_items = ask([{"role": "user", "content": "How deep is the old well?"}, call.to_dict(), result], tools=[WELL], tool_choice="none")
    assert by_items.output_text == second.output_text
    named = ask("How deep?", tools=[WELL], tool_choice={"type": "function", "name": "look_up"}, max_output_tokens=80)
    assert called(named).name == "look_up"


def test_streaming_a_call(client: OpenAI, model: str, ask: Ask) -> None:
    options: dict[str, Any] = {"input": "How deep is the old well?", "tools": [WELL], "tool_choice": "required", "temperature": 0, "max_output_tokens": 80}
    whole = called(ask(**options))
    events = list(client.responses.create(model=model, stream=True, **options))
    assert types(events) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    said = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    (done,) = (event.arguments for event in events if event.type == "response.function_call_arguments.done")
    assert said == done and json.loads(done) == json.loads(whole.arguments)
    (added,) = (event.item for event in events if event.type == "response.output_item.added")
    (ended,) = (event.item for event in events if event.type == "response.output_item.done")
    assert added.type == ended.type == "function_call" and added.call_id == ended.call_id and added.arguments == "" and ended.arguments == done


def test_calls_are_made_together_where_that_is_asked_for(ask: Ask) -> None:
    options: dict[str, Any] = {"tools": [WELL], "tool_choice": "required", "parallel_tool_calls": True, "temperature": 1.5, "max_output_tokens": 400}
    question = "How deep are the old well and the new one?"
    made = (ask(question, **options, extra_body={"seed": seed}) for seed in range(12))
    # The last call of a reply that is cut off is incomplete: it can't be answered.
    several = next((reply for reply in made if len(reply.output) > 1 and reply.status == "completed"), None)
    if several is None:
        pytest.skip("this model makes one call at a time")
    assert several.parallel_tool_calls and {item.type for item in several.output} == {"function_call"}
    results = [{"type": "function_call_output", "call_id": item.call_id, "output": "Nine feet."} for item in several.output]
    assert ask(results, previous_response_id=several.id, tools=[WELL], tool_choice="none").output_text


def test_images_are_refused_by_their_place(ask: Ask) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"}
    with pytest.raises(openai.BadRequestError) as refused:
        ask([{"role": "user", "content": [{"type": "input_text", "text": "What is this?"}, picture]}])
    assert "input_image" in refused.value.message and "content[1]" in (refused.value.param or "")


def test_several_turns_by_items(ask: Ask) -> None:
    items: list[Any] = [{"role": "user", "content": HELLO + " We go on by items."}]
    reply = ask(items)
    for words in ("And the well?", "Farewell."):
        items += [item.to_dict() for item in reply.output] + [{"role": "user", "content": words}]
        earlier, reply = total(reply), ask(items)
        assert cached(reply) >= earlier - 1
    parts = [{"role": "user", "content": [{"type": "input_text", "text": HELLO + " We go on by items."}]}]
    assert ask(parts).output_text == ask(items[:1]).output_text


def test_several_turns_by_the_earlier_response(ask: Ask) -> None:
    first = ask(HELLO + " We go on by name.", instructions=INSTRUCTIONS)
    second = ask("And the well?", previous_response_id=first.id, instructions=INSTRUCTIONS)
    assert second.previous_response_id == first.id and cached(second) >= total(first) - 1
    third = ask("Farewell.", previous_response_id=second.id, instructions=INSTRUCTIONS)
    assert cached(third) >= total(second) - 1
    # From the first one, another way: a fork, which disturbs nothing.
    other = ask("And the pears?", previous_response_id=first.id, instructions=INSTRUCTIONS)
    assert cached(other) >= total(first) - 1
    again = ask("Farewell.", previous_response_id=second.id, instructions=INSTRUCTIONS)
    assert again.output_text == third.output_text
    with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as missing:
        ask("Go on.", previous_response_id="resp_unknown")
    assert "resp_unknown" in missing.value.message


# What is kept


def test_a_response_is_kept_and_deleted(client: OpenAI, ask: Ask) -> None:
    reply = ask()
    kept = client.responses.retrieve(reply.id)
    assert (kept.id, kept.output_text, kept.status) == (reply.id, reply.output_text, reply.status)
    assert kept.usage == reply.usage
    (item,) = client.responses.input_items.list(reply.id)
    assert item.type == "message" and item.role == "user" and item.content[0].type == "input_text" and item.content[0].text == HELLO
    client.responses.delete(reply.id)
    for gone in (lambda: client.responses.retrieve(reply.id), lambda: client.responses.delete(reply.id), lambda: ask("Go on.", previous_response_id=reply.id)):
        with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
            gone()
    unkept = ask(store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_a_response_outlives_the_server(start: Callable[..., Server], model: str, tmp_path: Any) -> None:
    server = start(folder=tmp_path / "lasting")
    first = server.openai().responses.create(model=model, input=HELLO, temperature=0, max_output_tokens=16)
    assert server.end() == 0
    client = start(folder=tmp_path / "lasting").openai()
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(model=model, input="And the well?", previous_response_id=first.id, temperature=0, max_output_tokens=16)
    assert cached(second) >= total(first) - 1


def test_an_earlier_response_is_compared_with(ask: Ask) -> None:
    first = ask(HELLO + " We compare.")
    compared = {"mode": "implicit", "comparison_response_id": first.id}
    hit = ask("Go on.", previous_response_id=first.id, prompt_cache_options=compared).prompt_cache_diagnostics
    assert hit and hit.type == "cache_hit"
    miss = ask(HELLO + " We compare.", instructions="You are Rolf.", prompt_cache_options=compared).prompt_cache_diagnostics
    assert miss and miss.type == "cache_miss" and miss.reason == "input_changed" and miss.cache_missed_tokens > 0
    unknown = ask(prompt_cache_options={"mode": "implicit", "comparison_response_id": "resp_unknown"}).prompt_cache_diagnostics
    assert unknown and unknown.type == "comparison_response_not_found"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"background": True}, "background"),
        ({"input": [{"role": "user", "content": "word " * 20_000}]}, "context"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "item_reference"),
        ({"temperature": -1}, "temperature"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
def test_what_is_wrong_is_named(ask: Ask, options: dict[str, Any], word: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(**options)
    assert word in f"{refused.value.message} {refused.value.param}"


def test_an_unknown_model(ask: Ask) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="gpt-4o")
    assert missing.value.code == "model_not_found"
