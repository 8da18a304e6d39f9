"""What clients send that is not as the APIs describe it: accepted, read in the nearest way, and said in `greenroom.warnings`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from server import MODEL, Server

USER = {"role": "user", "content": "Good evening, Mira."}
TOOL = {"name": "look", "description": "Look around.", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
LIMIT = {"max_tokens": 12, "temperature": 0, "seed": 1}


@pytest.fixture
def chat(http: httpx.Client, model: str) -> Callable[..., dict[str, Any]]:
    def one(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        answer = http.post("/v1/chat/completions", json={"model": model, "messages": messages} | LIMIT | fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return one


def called(arguments: str | None, result: str | None = "dark") -> list[dict[str, Any]]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    said = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return [*said, *([{"role": "tool", "tool_call_id": "c1", "content": result}] if result else []), {"role": "user", "content": "And?"}]


def test_null_is_nothing(chat: Callable[..., dict[str, Any]]) -> None:
    said = {"role": "assistant", "content": "Good evening.", "tool_calls": None, "function_call": None, "refusal": None, "audio": None}
    nothing = {"tools": None, "tool_choice": None, "response_format": None, "stop": None, "n": None, "stream_options": None}
    chat([USER, said, {"role": "user", "content": "And?"}], **nothing)


@pytest.mark.parametrize("arguments", ['{"at": "the we', "", None, "[1]", "the well"])
def test_past_arguments_may_be_broken(chat: Callable[..., dict[str, Any]], arguments: str | None) -> None:
    chat(called(arguments))


def test_a_call_without_a_result_and_a_result_without_a_call(chat: Callable[..., dict[str, Any]]) -> None:
    assert "no result" in chat(called("{}", None))["greenroom"]["warnings"][0]
    alone = [USER, {"role": "tool", "tool_call_id": "c9", "content": "dark"}]
    assert "`c9`" in chat(alone)["greenroom"]["warnings"][0]


def test_a_system_message_may_be_alone(chat: Callable[..., dict[str, Any]]) -> None:
    answer = chat([{"role": "system", "content": "Say hello."}])
    assert "system" in answer["greenroom"]["warnings"][0] and answer["choices"][0]["message"]["content"]


def test_tools_that_the_provider_would_run_are_left_out(chat: Callable[..., dict[str, Any]], http: httpx.Client, model: str) -> None:
    tools = [{"type": "function", "function": TOOL}, {"type": "web_search"}]
    assert "web_search" in chat([USER], tools=tools)["greenroom"]["warnings"][0]
    hosted = [{"type": "function", **TOOL}, {"type": "web_search"}, {"type": "namespace", "name": "x", "tools": []}, {"type": "custom", "name": "patch"}]
    answer = http.post("/v1/responses", json={"model": model, "input": "Hello.", "tools": hosted, "max_output_tokens": 8}).json()
    assert len(answer["greenroom"]["warnings"]) == 3
    searched = {"type": "web_search_20250305", "name": "web_search"}
    answer = http.post("/v1/messages", json={"model": model, "messages": [USER], "tools": [searched], "max_tokens": 8}).json()
    assert "web_search" in answer["greenroom"]["warnings"][0]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_reply_that_has_begun_goes_on(http: httpx.Client, model: str, path: str) -> None:
    def ask(*messages: dict[str, str], **fields: Any) -> tuple[str, dict[str, Any]]:
        body = {"model": model, "messages": list(messages), "greenroom": True} | LIMIT | fields
        answer = http.post(path, json=body).json()
        text = answer["choices"][0]["message"]["content"] if "chat" in path else "".join(p["text"] for p in answer["content"])
        return text, answer

    whole, _ = ask(USER)
    begun = whole[: len(whole) // 2].rstrip()
    rest, answer = ask(USER, {"role": "assistant", "content": begun})
    assert rest and not rest.startswith(begun)
    # What was said goes on from there: nothing of it is read again.
    _, later = ask(USER, {"role": "assistant", "content": begun + rest}, {"role": "user", "content": "And?"})
    assert later["greenroom"]["match"] == "extend", later["greenroom"]
    refused = http.post(path, json={"model": model, "messages": [USER, {"role": "assistant", "content": "x"}], "guided_regex": "a"} | LIMIT)
    assert refused.status_code == 400


def test_a_stream_of_a_reply_that_has_begun_has_only_what_is_new(client: Any, model: str) -> None:
    messages = [USER, {"role": "assistant", "content": "Good evening, I have"}]
    whole = client.chat.completions.create(model=model, messages=messages, **LIMIT)
    stream = client.chat.completions.create(model=model, messages=messages, stream=True, **LIMIT)
    assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == whole.choices[0].message.content


def test_a_call_that_is_cut_looks_the_same_streamed_and_whole(client: Any, model: str) -> None:
    text = {"type": "string", "minLength": 400, "maxLength": 600}
    long = {"name": "write", "description": "Write.", "parameters": {"type": "object", "properties": {"text": text}, "required": ["text"]}}
    asked = {"model": model, "messages": [USER], "tools": [{"type": "function", "function": long}], "tool_choice": "required"} | LIMIT
    asked["max_tokens"] = 40
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "length" and whole.message.tool_calls
    calls: dict[int, list[str]] = {}
    for chunk in client.chat.completions.create(**asked, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            calls.setdefault(call.index, [call.function.name or ""]).append(call.function.arguments or "")
    cut = whole.message.tool_calls[0].function
    assert (calls[0][0], "".join(calls[0][1:])) == (cut.name, cut.arguments)
    # It is accepted in what follows.
    answered = {"role": "tool", "tool_call_id": whole.message.tool_calls[0].id, "content": "too long"}
    client.chat.completions.create(model=model, messages=[USER, whole.message, answered], **LIMIT)


def test_a_tool_without_parameters_gets_an_object(client: Any, model: str) -> None:
    tool = {"type": "function", "function": {"name": "ring"}}
    answer = client.chat.completions.create(model=model, messages=[USER], tools=[tool], tool_choice="required", max_tokens=60)
    assert answer.choices[0].message.tool_calls[0].function.arguments == "{}"


def test_paths_that_clients_know(http: httpx.Client, model: str) -> None:
    asked = {"model": model, "messages": [USER]} | LIMIT
    for path in ("/chat/completions", "/v1/chat/completions/", "/chat/completions/"):
        assert http.post(path, json=asked).status_code == 200, path
    assert http.get("/models").json() == http.get("/v1/models/").json()
    assert http.post("/v1/rerank", json={}).status_code == 501
    native = http.post("/completion", json={"prompt": "Good evening", "n_predict": 6, "return_tokens": True, "n_probs": 2}).json()
    assert native["stop"] and native["stop_type"] == "limit" and len(native["tokens"]) == 6
    assert len(native["completion_probabilities"]) == 6 and len(native["completion_probabilities"][0]["top_logprobs"]) == 2
    assert http.post("/completion", json={"prompt": ["Good", 5, " evening"], "n_predict": 2}).status_code == 200
    refused = http.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert refused.status_code == 400 and "gap" in refused.text


def test_ollama(http: httpx.Client, model: str) -> None:
    options = {"options": {"num_predict": 12, "temperature": 0, "num_ctx": 512}}
    whole = http.post("/api/chat", json={"model": f"{model}:latest", "messages": [USER], "stream": False} | options).json()
    assert whole["done"] and whole["done_reason"] in ("stop", "length") and whole["eval_count"] <= 12
    lines = http.post("/api/chat", json={"model": model, "messages": [USER]} | options).text.splitlines()
    parts = [httpx.Response(200, text=line).json() for line in lines]
    assert "".join(part["message"]["content"] for part in parts) == whole["message"]["content"]
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    said = http.post("/api/generate", json={"model": model, "prompt": USER["content"], "stream": False} | options).json()
    assert said["response"] == whole["message"]["content"]
    assert http.post("/api/generate", json={"model": model}).json()["done_reason"] == "load"
    assert [known["name"] for known in http.get("/api/tags").json()["models"]] == [model]
    shown = http.post("/api/show", json={"name": model}).json()
    assert "completion" in shown["capabilities"] and shown["details"]["family"]
    assert http.get("/api/version").json()["version"]
    wrong = http.post("/api/chat", json={"model": "none", "messages": [USER]})
    assert wrong.status_code == 404 and "none" in wrong.json()["error"]
    calls = {"tools": [{"type": "function", "function": TOOL}], "format": None}
    http.post("/api/chat", json={"model": model, "messages": [USER], "stream": False} | calls | options).raise_for_status()


def test_a_model_has_other_names(start: Callable[..., Server]) -> None:
    named = start("--alias", "gpt-3.5-turbo", "--alias", "meta/llama:8b")
    for name in (MODEL, "gpt-3.5-turbo", "meta/llama:8b", None):
        body = {"messages": [USER], "max_tokens": 4} | ({"model": name} if name else {})
        answer = httpx.post(f"{named.origin}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 200 and answer.json()["model"] == MODEL, answer.text
    body = {"messages": [USER], "max_tokens": 4, "model": "another"}
    assert httpx.post(f"{named.origin}/v1/chat/completions", json=body).status_code == 404
    any_name = start("--any-model")
    assert httpx.post(f"{any_name.origin}/v1/chat/completions", json=body, timeout=60).json()["model"] == MODEL


def test_pages_of_allowed_origins(start: Callable[..., Server], server: Server) -> None:
    page = {"origin": "https://app.example"}
    asks = page | {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    assert httpx.options(f"{server.origin}/v1/chat/completions", headers=asks).status_code == 403
    allowed = start("--allow-origin", "https://app.example", "--allow-host", "box.lan")
    url = f"{allowed.origin}/v1/chat/completions"
    answer = httpx.options(url, headers=asks)
    assert answer.status_code == 204 and answer.headers["access-control-allow-origin"] == page["origin"]
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "access-control-allow-credentials" not in answer.headers
    body = {"messages": [USER], "max_tokens": 4}
    answer = httpx.post(url, json=body, headers=page | {"host": "Box.lan:8080"}, timeout=60)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == page["origin"]
    assert httpx.post(url, json=body, headers={"origin": "https://other.example"}).status_code == 403
    assert httpx.post(url, json=body, headers={"host": "other.lan"}).status_code == 403


def test_equal_text_equal_reply(start: Callable[..., Server], server: Server) -> None:
    """The same messages have one digest: by a key, without one, by another server that remembers nothing."""

    def ask(origin: str, turn: int, messages: list[dict[str, str]], **fields: str) -> tuple[str, str]:
        body = {"messages": messages, "seed": 7 + turn, "temperature": 1.5, "max_tokens": 40, "greenroom": True} | fields
        answer = httpx.post(f"{origin}/v1/chat/completions", json=body, timeout=60).json()
        return answer["greenroom"]["digest"], answer["choices"][0]["message"]["content"]

    def talk(origin: str, **fields: str) -> tuple[list[str], list[dict[str, str]]]:
        messages, digests = [USER], []
        for turn in range(4):
            digest, said = ask(origin, turn, messages, **fields)
            digests.append(digest)
            messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": f"And {turn}?"}]
        return digests, messages

    digests, messages = talk(server.origin)
    assert talk(server.origin, prompt_cache_key="a key") == (digests, messages)
    # One that has never heard of the conversation, at its last turn.
    assert ask(start().origin, 3, messages[:-2])[0] == digests[-1]
