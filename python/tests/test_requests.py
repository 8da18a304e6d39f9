"""Requests of the server's APIs, answered in this process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import greenroom as gr

HELLO: dict[str, Any] = {
    "messages": [{"role": "system", "content": "You are Ada."}, {"role": "user", "content": "Hello, Ädä. ✿"}],
    "max_tokens": 12,
    "temperature": 0,
}


def test_a_conversation_continues_its_memory(engine: gr.Engine) -> None:
    first = engine.request("/v1/chat/completions", HELLO).result()
    message = first["choices"][0]["message"]
    more = [*HELLO["messages"], message, {"role": "user", "content": "And now?"}]
    second = engine.request("/v1/chat/completions", {**HELLO, "messages": more}).result()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]

    async def awaited() -> Any:
        return await engine.request("/v1/chat/completions", HELLO)

    assert asyncio.run(awaited())["choices"][0]["message"] == message


def test_an_answer_is_streamed(engine: gr.Engine) -> None:
    whole = engine.request("/v1/chat/completions", HELLO).result()["choices"][0]["message"]["content"]
    events = list(engine.request("/v1/chat/completions", {**HELLO, "stream": True}))
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]) == whole

    async def streamed() -> str:
        requested = engine.request("/v1/messages", {**HELLO, "messages": HELLO["messages"][1:], "stream": True})
        events = [event async for event in requested]
        return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")

    assert asyncio.run(streamed())


def test_refusals_are_errors(engine: gr.Engine) -> None:
    with pytest.raises(gr.EngineError, match="messages") as found:
        engine.request("/v1/chat/completions", {}).result()
    assert found.value.kind == "400"
    with pytest.raises(gr.EngineError) as found:
        engine.request("/v1/nothing", {}).result()
    assert found.value.kind == "404"
    assert engine.request("/v1/models", method="GET").result()["data"][0]["id"] == "understudy"
    requested = engine.request("/v1/chat/completions", {**HELLO, "max_tokens": 4000})
    requested.cancel()
    with pytest.raises(gr.EngineError, match="taken back"):
        requested.result()


def test_a_prompt_continues_the_memory_that_gives_most(engine: gr.Engine) -> None:
    def cached(prompt: list[int]) -> int:
        request = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
        usage = engine.request("/v1/completions", request).result()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    base = [300 + at * 7 % 1000 for at in range(700)]
    assert cached(base) == 0
    # 256 tokens of its sealed blocks can be taken over from a memory of 700, and 330 from one that is still open.
    assert cached(base[:330] + [90] * 30) == 256
    assert cached(base[:330] + [91] * 60) == 330
    assert cached(base[:500] + [92] * 9) == 330
