"""Inspect (https://inspect.aisi.org.uk): its evals on Greenroom's models, and Greenroom's runs as its logs.

    inspect eval task.py --model greenroom/understudy          # or greenroom/ollama:llama3.2, a GGUF's path, …

    from greenroom.adapters.inspect import write_log
    write_log(greenroom.run("prisoners-dilemma.yaml"), "logs/dilemma.eval")

A conversation that continues an earlier one continues its memory: what it has in common with it is not read again
(`input_tokens_cache_read`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import anyio
import anyio.to_thread
import sniffio
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    Content,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Logprob,
    Logprobs,
    ModelAPI,
    ModelCall,
    ModelOutput,
    ModelUsage,
    StopReason,
    TopLogprob,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolFunction, ToolInfo

from greenroom.adapters._inspect_log import eval_log, write_log
from greenroom.adapters._shared import model_of, opened
from greenroom.errors import EngineError

__all__ = ["GreenroomAPI", "eval_log", "write_log"]

# Fields of `GenerateConfig` that the server knows by the same name.
_SAME = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "best_of",
    "prompt_logprobs",
    "logprobs",
    "top_logprobs",
    "parallel_tool_calls",
)
_STOPS: dict[str, StopReason] = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls"}
# Levels of effort that are others here.
_EFFORTS = {"max": "xhigh"}


class GreenroomAPI(ModelAPI):
    """Greenroom's models in Inspect: `greenroom/NAME`, where `NAME` is what `greenroom run --model` takes.

    Model arguments (`-M device=gpu`) are the settings of `greenroom.Model`: `device`, `kv`, `threads`, `cache_dir`,
    `cache_memory`, `cache_disk`, `draft`, `adopt`.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        if base_url is not None:
            raise ValueError(
                f"found base_url {base_url}, but this model runs on this machine; for a server that runs already, use "
                "Inspect's provider openai-api"
            )
        self.engine = opened(model_of(model_name, **model_args))

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput | tuple[ModelOutput | Exception, ModelCall]:
        """The reply to a conversation."""
        request = {
            "messages": [message_of(one) for one in input],
            **settings_of(config),
            **_tools_of(tools, tool_choice),
            "greenroom": True,
        }
        try:
            answer = await self._asked("/v1/chat/completions", request)
        except EngineError as error:
            call = ModelCall.create(request, {"error": str(error), "code": error.code})
            if error.code == "context_length_exceeded":
                return ModelOutput.from_content(self.model_name, str(error), "model_length", str(error)), call
            return error, call
        return _output(self.model_name, answer), ModelCall.create(request, answer)

    async def _asked(self, path: str, body: dict[str, Any]) -> Any:
        """An answer, waited for; if this is cancelled, so is the request."""
        requested = self.engine.request(path, body)
        try:
            if sniffio.current_async_library() == "asyncio":
                return await requested
            return await anyio.to_thread.run_sync(requested.result, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            requested.cancel()
            raise

    async def tokenize(self, text: str) -> list[int]:
        """The ids of a text's tokens."""
        ids: list[int] = (await self._asked("/tokenize", {"content": text}))["tokens"]
        return ids

    async def count_text_tokens(self, text: str) -> int:
        """Number of tokens of a text."""
        return len(await self.tokenize(text))

    def max_connections(self) -> int:
        """Requests at once: they are computed together."""
        return 8

    def connection_key(self) -> str:
        """All requests to one model share these places."""
        return repr(self.engine)

    def should_retry(self, ex: Exception) -> bool:
        """True if the queue was full."""
        return isinstance(ex, EngineError) and ex.kind == "429"

    def close(self) -> None:
        """Nothing is closed: other conversations may use the model, which ends with this process."""


@modelapi(name="greenroom")
def greenroom() -> type[ModelAPI]:
    """What Inspect finds by the name `greenroom`."""
    return GreenroomAPI


def message_of(message: ChatMessage) -> dict[str, Any]:
    """A message as the server reads it.

    Raises:
        ValueError: It has a part that is not text.
    """
    if isinstance(message, ChatMessageTool):
        said = f"Error: {message.error.message}" if message.error else _text(message)
        return {"role": "tool", "tool_call_id": message.tool_call_id, "name": message.function, "content": said}
    if isinstance(message, ChatMessageAssistant) and message.tool_calls:
        calls = [
            {"id": one.id, "type": "function", "function": {"name": one.function, "arguments": json.dumps(one.arguments)}}
            for one in message.tool_calls
        ]
        return {"role": "assistant", "content": _text(message) or None, "tool_calls": calls}
    return {"role": message.role, "content": _text(message)}


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    texts: list[str] = []
    for part in message.content:
        if isinstance(part, ContentText):
            texts.append(part.text)
        elif not isinstance(part, ContentReasoning):  # the model's own, which it remembers
            raise ValueError(
                f"found content of type `{part.type}` in a message of the role `{message.role}`; expected text, the only "
                "thing that Greenroom's models read: leave it out, or use another model"
            )
    return "\n".join(texts)


def settings_of(config: GenerateConfig) -> dict[str, Any]:
    """The settings of a reply as the server reads them."""
    given = {name: getattr(config, name) for name in _SAME}
    if config.stop_seqs:
        given["stop"] = config.stop_seqs
    if config.num_choices:
        given["n"] = config.num_choices
    if config.reasoning_effort:
        given["reasoning_effort"] = _EFFORTS.get(config.reasoning_effort, config.reasoning_effort)
    if config.reasoning_tokens:
        given["reasoning"] = {"max_tokens": config.reasoning_tokens}
    if (form := config.response_schema) is not None:
        schema = form.json_schema.model_dump(by_alias=True, exclude_none=True)
        given["response_format"] = {"type": "json_schema", "json_schema": {"name": form.name, "schema": schema}}
    return {**{name: value for name, value in given.items() if value is not None}, **(config.extra_body or {})}


def _tools_of(tools: Sequence[ToolInfo], choice: ToolChoice) -> dict[str, Any]:
    if not tools:
        return {}
    functions = [
        {
            "name": one.name,
            "description": one.description,
            "parameters": one.parameters.model_dump(by_alias=True, exclude_none=True),
        }
        for one in tools
    ]
    named: Any = {"any": "required"}.get(choice, choice) if isinstance(choice, str) else choice
    if isinstance(choice, ToolFunction):
        named = {"type": "function", "function": {"name": choice.name}}
    return {"tools": [{"type": "function", "function": one} for one in functions], "tool_choice": named}


def _output(model: str, answer: Mapping[str, Any]) -> ModelOutput:
    usage: dict[str, Any] = answer["usage"]
    told: dict[str, Any] = answer.get("greenroom") or {}
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return ModelOutput(
        model=model,
        choices=[_choice(model, one) for one in answer["choices"]],
        usage=ModelUsage(
            # Inspect counts here what was not read from a cache.
            input_tokens=usage["prompt_tokens"] - cached,
            output_tokens=usage["completion_tokens"],
            total_tokens=usage["total_tokens"],
            input_tokens_cache_read=cached,
            reasoning_tokens=usage["completion_tokens_details"]["reasoning_tokens"],
        ),
        input_context_tokens=usage["prompt_tokens"],
        time=told["total_ms"] / 1000 if "total_ms" in told else None,
        metadata={"greenroom": told},
        response_id=answer["id"],
    )


def _choice(model: str, choice: Mapping[str, Any]) -> ChatCompletionChoice:
    message, logprobs = choice["message"], choice["logprobs"]
    text: str = message["content"] or ""
    content: str | list[Content] = text
    if thought := message.get("reasoning_content"):
        content = [ContentReasoning(reasoning=thought), ContentText(text=text)]
    made: list[dict[str, Any]] = message.get("tool_calls") or []
    calls = [_call(one) for one in made]
    return ChatCompletionChoice(
        message=ChatMessageAssistant(content=content, tool_calls=calls or None, model=model, source="generate"),
        stop_reason=_STOPS.get(choice["finish_reason"], "unknown"),
        logprobs=_logprobs(logprobs["content"]) if logprobs and logprobs["content"] is not None else None,
    )


def _call(call: Mapping[str, Any]) -> ToolCall:
    name, text = call["function"]["name"], call["function"]["arguments"]
    given: dict[str, Any] = {}
    error = None
    try:
        read: Any = json.loads(text)
        if isinstance(read, dict):
            given = cast("dict[str, Any]", read)
        else:
            error = f"found {text}; expected an object of arguments"
    except ValueError as wrong:
        error = f"the arguments of `{name}` are no JSON ({wrong}); found {text}"
    return ToolCall(id=call["id"], function=name, arguments=given, parse_error=error)


def _logprobs(tokens: Sequence[Mapping[str, Any]]) -> Logprobs:
    def top(token: Mapping[str, Any]) -> list[TopLogprob]:
        return [TopLogprob(token=one["token"], logprob=one["logprob"], bytes=one["bytes"]) for one in token["top_logprobs"]]

    return Logprobs(
        content=[
            Logprob(token=one["token"], logprob=one["logprob"], bytes=one["bytes"], top_logprobs=top(one)) for one in tokens
        ]
    )
