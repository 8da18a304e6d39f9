"""A plugin for `llm` (https://llm.datasette.io): Greenroom's models, and those that other programs have downloaded.

    llm -m understudy 'Good evening.'
    llm -c 'And the well?'              # continues the memory of the conversation: only what is new is read

A model's id is `greenroom/NAME`, where `NAME` is what `greenroom run --model` takes (`greenroom models` lists them)."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llm
from llm.models import EmbeddingModel
from llm.parts import Message, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field

from greenroom.adapters._shared import opened
from greenroom.engine import Engine, Model, models

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AsyncGreenroom", "Embeddings", "Greenroom", "names", "register_embedding_models", "register_models"]

# Names a GGUF file or a model that no list has, for the id `greenroom/NAME`.
_ENVIRONMENT = "GREENROOM_MODELS"


class ReplyOptions(llm.Options):
    """Options of a reply: `-o temperature 0 -o seed 7`."""

    max_tokens: int | None = Field(description="Maximum number of tokens of the reply; by default as many as fit", default=None)
    temperature: float | None = Field(description="0 is greedy; by default what the model suggests", ge=0, default=None)
    top_p: float | None = Field(
        description="Sample from the smallest set of tokens that reaches this probability", ge=0, le=1, default=None
    )
    top_k: int | None = Field(description="Sample from this many of the likeliest tokens; 0: from all", ge=0, default=None)
    min_p: float | None = Field(
        description="Sample no tokens less likely than this share of the likeliest one", ge=0, le=1, default=None
    )
    repetition_penalty: float | None = Field(
        description="Divides the logits of tokens already used in the reply; 1 is off", gt=0, default=None
    )
    seed: int | None = Field(description="The same seed gives the same reply; by default a random one", default=None)
    stop: str | None = Field(description="A text at which the reply ends", default=None)
    reasoning_effort: str | None = Field(
        description="How much a model thinks that can: none, low, medium, high", default=None
    )
    regex: str | None = Field(description="The form of the reply, as a regular expression", default=None)
    cache_dir: str | None = Field(description="The folder of memories; by default the user's", default=None)


class _Shared:
    """What both kinds of models share."""

    can_stream = True
    supports_schema = True
    supports_tools = True

    def __init__(self, name: str) -> None:
        self.name, self.model_id = name, f"greenroom/{name}"

    def __str__(self) -> str:
        return f"Greenroom: {self.model_id}"

    def _engine(self, options: Any) -> Engine:
        return opened(_model(self.name, options.cache_dir))

    def _request(self, prompt: Any, stream: bool) -> dict[str, Any]:
        given = {name: value for name, value in prompt.options if value is not None and name not in ("cache_dir", "regex")}
        if prompt.options.regex:
            given["guided_regex"] = prompt.options.regex
        if prompt.schema:
            given["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": prompt.schema}}
        tools: list[Any] = [one for one in prompt.tools if isinstance(one, llm.Tool)]
        functions = [
            {"name": one.name, "description": one.description or "", "parameters": one.input_schema} for one in tools
        ]
        if functions:
            given["tools"] = [{"type": "function", "function": one} for one in functions]
        request = {"messages": [one for message in prompt.messages for one in messages_of(message)], **given}
        return {**request, "stream": True, "stream_options": {"include_usage": True}} if stream else request


class _Reader:
    """What a response is made of, whole or piece by piece."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._calls: dict[int, dict[str, str]] = {}

    def whole(self, answer: dict[str, Any]) -> Iterator[StreamEvent]:
        """The events of an answer."""
        message = answer["choices"][0]["message"]
        calls = [{"index": place, **one} for place, one in enumerate(message.get("tool_calls") or [])]
        yield from self.piece({**answer, "choices": [{"delta": {**message, "tool_calls": calls}}]})
        self._response.response_json = {name: value for name, value in answer.items() if name != "usage"}

    def piece(self, chunk: dict[str, Any]) -> Iterator[StreamEvent]:
        """The events of a piece of it."""
        if usage := chunk.get("usage"):
            self._used(usage)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if thought := delta.get("reasoning_content"):
                yield StreamEvent(type="reasoning", chunk=thought)
            if text := delta.get("content"):
                yield StreamEvent(type="text", chunk=text)
            calls: list[dict[str, Any]] = delta.get("tool_calls") or []
            for call in calls:
                yield from self._called(call)

    def _called(self, call: dict[str, Any]) -> Iterator[StreamEvent]:
        known = self._calls.get(call["index"])
        function = call["function"]
        if known is None:
            known = self._calls[call["index"]] = {"id": call["id"], "name": function["name"], "arguments": ""}
            yield StreamEvent(type="tool_call_name", chunk=known["name"], tool_call_id=known["id"])
        if more := function.get("arguments"):
            known["arguments"] += more
            yield StreamEvent(type="tool_call_args", chunk=more, tool_call_id=known["id"])

    def _used(self, usage: dict[str, Any]) -> None:
        details = {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]}
        if thought := usage["completion_tokens_details"]["reasoning_tokens"]:
            details["reasoning_tokens"] = thought
        self._response.set_usage(input=usage["prompt_tokens"], output=usage["completion_tokens"], details=details)

    def end(self) -> None:
        """Takes the calls, once they are whole.

        Raises:
            llm.ModelError: A call was cut.
        """
        for call in self._calls.values():
            try:
                arguments = json.loads(call["arguments"] or "{}")
            except ValueError as error:
                raise llm.ModelError(
                    f"the call of `{call['name']}` was cut: found {call['arguments']}; expected JSON. Give the reply more "
                    "room by `-o max_tokens N`"
                ) from error
            made = llm.ToolCall(name=call["name"], arguments=arguments, tool_call_id=call["id"])
            self._response.add_tool_call(made)


class Greenroom(_Shared, llm.Model):
    """A model of Greenroom's."""

    Options = ReplyOptions  # type: ignore[assignment]  # the base has a class of this name, not a type

    def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any = None
    ) -> Iterator[str | StreamEvent]:
        """The reply, piece by piece."""
        requested = self._engine(prompt.options).request("/v1/chat/completions", self._request(prompt, stream))
        reader = _Reader(response)
        if stream:
            for chunk in requested:
                yield from reader.piece(chunk)
        else:
            yield from reader.whole(requested.result())
        reader.end()


class AsyncGreenroom(_Shared, llm.AsyncModel):
    """A model of Greenroom's, awaited."""

    Options = ReplyOptions  # type: ignore[assignment]  # the base has a class of this name, not a type

    async def execute(
        self, prompt: Any, stream: bool, response: Any, conversation: Any = None
    ) -> AsyncGenerator[str | StreamEvent, None]:
        """The reply, piece by piece."""
        requested = self._engine(prompt.options).request("/v1/chat/completions", self._request(prompt, stream))
        reader = _Reader(response)
        if stream:
            async for chunk in requested:
                for event in reader.piece(chunk):
                    yield event
        else:
            for event in reader.whole(await requested):
                yield event
        reader.end()


class Embeddings(EmbeddingModel):
    """Texts as vectors: `llm embed -m greenroom/understudy -c 'the sea'`."""

    def __init__(self, name: str) -> None:
        self.name, self.model_id = name, f"greenroom/{name}"

    def embed_batch(self, items: Iterable[str | bytes], *, key: str | None = None) -> Iterator[list[float]]:
        """The vector of each text, of length 1."""
        texts = [one.decode() if isinstance(one, bytes) else one for one in items]
        yield from Engine.of(_model(self.name, None)).embed(texts)


def _model(name: str, folder: str | None) -> Model:
    return Model(name, cache_dir=folder)


def messages_of(message: Message) -> list[dict[str, Any]]:
    """A message of `llm` as the server reads it; one with the results of several calls is several."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    calls = [
        {
            "id": part.tool_call_id,
            "type": "function",
            "function": {"name": part.name, "arguments": json.dumps(part.arguments)},
        }
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    if message.role == "tool":
        return [
            {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.output}
            for part in message.parts
            if isinstance(part, ToolResultPart)
        ]
    if calls:
        return [{"role": message.role, "content": "".join(texts) or None, "tool_calls": calls}]
    return [{"role": message.role, "content": "".join(texts)}] if texts or message.role == "assistant" else []


def names() -> list[str]:
    """Models on this machine, as `greenroom models` lists them, and those that `GREENROOM_MODELS` names (separated like
    a path)."""
    named = [one for one in os.environ.get(_ENVIRONMENT, "").split(os.pathsep) if one]
    listed = [one["name"] for one in models() if one["refusal"] is None]
    return list(dict.fromkeys(["understudy", *listed, *named]))


def _aliases(name: str) -> tuple[str, ...]:
    short = Path(name).stem if name.endswith(".gguf") else name
    return (short.removesuffix(":latest"),)


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """The models of this machine."""
    for name in names():
        register(Greenroom(name), AsyncGreenroom(name), aliases=_aliases(name))


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    """The models of this machine, as makers of vectors."""
    for name in names():
        register(Embeddings(name), aliases=_aliases(name))
