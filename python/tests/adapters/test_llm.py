"""`llm`: models of this machine, conversations that continue their memories, schemas, tools and vectors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from .programs import PYTHON, Ran

import greenroom as gr

llm: Any = pytest.importorskip("llm", reason="llm is not installed")

from greenroom.adapters.llm import AsyncGreenroom, Greenroom, messages_of, names

GGUF = PYTHON.parent / "models" / "understudy.gguf"


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """Options of short replies, with memories of the test's own."""
    return {"max_tokens": 12, "temperature": 0, "cache_dir": str(tmp_path / "memories")}


def details(response: Any) -> dict[str, int]:
    """The details of a response's usage."""
    found: dict[str, int] = response.usage().details
    return found


def test_a_conversation_continues_its_memory(settings: dict[str, Any]) -> None:
    conversation = llm.Conversation(model=Greenroom("understudy"))
    first = conversation.prompt("Who are you?", system="You are Ada.", **settings)
    pieces = list(first)
    assert len(pieces) > 1 and "".join(pieces) == first.text()
    assert first.usage().output and details(first) == {"cached_tokens": 0}
    second = conversation.prompt("And who am I?", stream=False, **settings)
    assert second.text() and second.json()["object"] == "chat.completion"
    assert details(second)["cached_tokens"] >= first.usage().input + first.usage().output - 1
    assert second.usage().input > details(second)["cached_tokens"]


def test_awaited_and_whole_replies_are_the_streamed_ones(settings: dict[str, Any]) -> None:
    streamed = Greenroom("understudy").prompt("Who are you?", **settings).text()
    assert Greenroom("understudy").prompt("Who are you?", stream=False, **settings).text() == streamed

    async def awaited(stream: bool) -> str:
        response = AsyncGreenroom("understudy").prompt("Who are you?", stream=stream, **settings)
        text = "".join([piece async for piece in response])
        assert (await response.usage()).output
        return text

    assert asyncio.run(awaited(True)) == asyncio.run(awaited(False)) == streamed


def test_schemas_options_and_what_is_wrong(settings: dict[str, Any]) -> None:
    model = Greenroom("understudy")
    schema = {"type": "object", "properties": {"mood": {"enum": ["glad", "sad"]}}, "required": ["mood"], "additionalProperties": False}
    assert json.loads(model.prompt("How are you?", schema=schema, **{**settings, "max_tokens": 60}).text())["mood"] in ("glad", "sad")
    assert len(model.prompt("A number?", regex="[0-9]{3}", **settings).text()) == 3
    warm = {**settings, "temperature": 1, "seed": 5}
    assert model.prompt("Hello.", **warm).text() == model.prompt("Hello.", **warm).text()
    with pytest.raises(ValueError, match="temperature"):
        model.prompt("Hello.", temperature=-1)
    with pytest.raises(gr.EngineError, match="context is 8192"):
        model.prompt("the sea " * 9000, **settings).text()
    with pytest.raises(ValueError, match="attachments"):
        model.prompt("Hello.", attachments=[llm.Attachment(content=b"x", type="image/png")], **settings).text()


def weather(town: str) -> str:
    """The weather of a town."""
    return f"Rain in {town}."


def test_calls_and_their_results(settings: dict[str, Any]) -> None:
    from llm.parts import Message, TextPart, ToolCallPart, ToolResultPart

    assert messages_of(Message("tool", [ToolResultPart(name="weather", output="Rain.", tool_call_id="c1")])) == [
        {"role": "tool", "tool_call_id": "c1", "content": "Rain."}
    ]
    said = messages_of(Message("assistant", [TextPart("Well."), ToolCallPart("weather", {"town": "Oslo"}, "c1")]))
    assert said[0]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"town": "Oslo"}'}
    # The understudy calls no tools by itself, so the conversation has the call.
    response = Greenroom("understudy").prompt(
        messages=[
            Message("user", [TextPart("The weather in Oslo?")]),
            Message("assistant", [ToolCallPart("weather", {"town": "Oslo"}, "c1")]),
            Message("tool", [ToolResultPart(name="weather", output="Rain.", tool_call_id="c1")]),
        ],
        tools=[weather],
        **settings,
    )
    assert response.text() or response.tool_calls()


def test_a_call_is_made(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    request = Greenroom._request

    def forced(self: Any, prompt: Any, stream: bool) -> dict[str, Any]:
        given = request(self, prompt, stream)
        return {**given, "tool_choice": "none" if prompt.tool_results else "required"}

    monkeypatch.setattr(Greenroom, "_request", forced)
    room = {**settings, "max_tokens": 60}
    tool = llm.Tool(
        name="weather",
        description="The weather of a town.",
        input_schema={"type": "object", "properties": {"town": {"enum": ["Oslo"]}}, "required": ["town"]},
        implementation=weather,
    )
    for stream in (True, False):
        chain = Greenroom("understudy").chain("The weather?", tools=[tool], stream=stream, options=room)
        assert chain.text()
        first, second = chain._responses
        (call,) = first.tool_calls()
        assert (call.name, call.arguments) == ("weather", {"town": "Oslo"})
        assert second.prompt.tool_results[0].output == "Rain in Oslo."
        assert details(second)["cached_tokens"] >= (first.usage().input or 0)
    with pytest.raises(llm.ModelError, match="was cut: found .*max_tokens N"):
        Greenroom("understudy").prompt("The weather?", tools=[tool], **{**settings, "max_tokens": 25}).text()


def test_the_program(ran: Ran, tmp_path: Path) -> None:
    home = {"LLM_USER_PATH": str(tmp_path / "llm")}
    (tmp_path / "llm").mkdir()
    assert "Greenroom: greenroom/understudy (aliases: understudy)" in ran("llm", "models", "list", **home)
    short = ("-o", "max_tokens", "12", "-o", "seed", "7")
    assert ran("llm", "-m", "understudy", "Who are you?", *short, **home).strip()
    # Another process continues the memory.
    assert ran("llm", "-c", "And who am I?", *short, **home).strip()
    first, second = json.loads(ran("llm", "logs", "--json", "-n", "2", **home))
    cached = json.loads(second["token_details"])["cached_tokens"]
    assert cached >= first["input_tokens"] + first["output_tokens"] - 1 > 0
    vector = json.loads(ran("llm", "embed", "-m", "understudy", "-c", "the sea", **home))
    assert math.isclose(sum(one * one for one in vector), 1, rel_tol=1e-3)


def test_models_of_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "ollama"
    blob = f"sha256-{hashlib.sha256(GGUF.read_bytes()).hexdigest()}"
    (store / "blobs").mkdir(parents=True)
    shutil.copyfile(GGUF, store / "blobs" / blob)
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": blob.replace("-", ":"), "size": GGUF.stat().st_size}
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    for name in ("HF_HUB_CACHE", "LLAMA_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    monkeypatch.setenv("GREENROOM_MODELS", str(GGUF))
    assert names() == ["understudy", "ollama:tiny:latest", str(GGUF)]
    found = llm.get_model("ollama:tiny")
    assert found.model_id == "greenroom/ollama:tiny:latest"
    assert found.prompt("Hello.", max_tokens=4, cache_dir=str(tmp_path / "memories")).text()
