"""Frameworks as people use them against the server: each streams a reply, calls a tool and hears its result, and goes on after a restart with
nothing read again. They are many packages, so they are tested where they are installed:

    venv/bin/pip install -r tests/clients/requirements-frameworks.txt
    venv/bin/pytest tests/clients/test_frameworks.py"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import long_model
import pytest
from server import TIMEOUT, Server

Start = Callable[..., Server]
MODEL, SPEECH = "scripted", "It rains in Oslo"
QUESTION = "What is the weather in Oslo?"


def weather(city: str) -> str:
    """The weather in a city now."""
    assert city == "Oslo"
    return "Rain in Oslo, 7 degrees."


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return long_model.write(tmp_path_factory.mktemp("scripted") / "scripted.gguf", ["weather"], {"city": "Oslo"}, SPEECH)


@pytest.fixture(name="start")
def start_scripted(start: Start, file: Path) -> Start:
    """Servers of a model that replies with a call, and to its result with a text."""
    return lambda **more: start("--model", f"{MODEL}={file}", **more)


def restarted(start: Start, server: Server) -> Server:
    """A server in the place of another, which has ended."""
    server.end()
    return start(folder=server.folder)


def went_on(server: Server) -> None:
    """A restarted server has read no conversation again, but for a last token that it was asked for again."""
    assert server.tokens("reused") > 5 and server.tokens("recomputed") <= 1


def test_langchain(start: Start) -> None:
    pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    server = start()

    def model(server: Server) -> Any:
        return ChatOpenAI(base_url=f"{server.origin}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=60, max_retries=0)

    assert "".join(str(part.content) for part in model(server).stream("Say hello."))
    messages: list[Any] = [HumanMessage(QUESTION)]
    called = model(server).bind_tools([tool(weather)], tool_choice="any").invoke(messages)
    (call,) = called.tool_calls
    assert call["name"] == "weather" and set(call["args"]) == {"city"}, called
    messages += [called, ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]
    server = restarted(start, server)
    answer = model(server).bind_tools([tool(weather)], tool_choice="none").invoke(messages)
    assert answer.content == SPEECH and not answer.tool_calls
    went_on(server)


def test_langchain_with_anthropics_api(start: Start) -> None:
    pytest.importorskip("langchain_anthropic")
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    server = start()

    def model(server: Server) -> Any:
        return ChatAnthropic(base_url=server.origin, api_key="none", model_name=MODEL, temperature=0, max_tokens=60, max_retries=0)

    assert "".join(str(part.text) for part in model(server).stream("Say hello."))
    messages: list[Any] = [HumanMessage(QUESTION)]
    called = model(server).bind_tools([tool(weather)], tool_choice="any").invoke(messages)
    (call,) = called.tool_calls
    messages += [called, ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]
    server = restarted(start, server)
    assert model(server).bind_tools([tool(weather)]).invoke(messages).text == SPEECH
    went_on(server)


def test_langgraph(start: Start) -> None:
    pytest.importorskip("langgraph")
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    server = start()

    def agent(server: Server) -> Any:
        model = ChatOpenAI(base_url=f"{server.origin}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=60, max_retries=0)
        return create_agent(model, [weather], system_prompt="You are brief. Call weather for any question about the weather.")

    state = agent(server).invoke({"messages": [("user", QUESTION)]})
    kinds = [message.type for message in state["messages"]]
    assert kinds == ["human", "ai", "tool", "ai"], state["messages"]
    server = restarted(start, server)
    parts = list(agent(server).stream({"messages": [*state["messages"], ("user", "Thank you.")]}, stream_mode="messages"))
    assert "".join(str(part.content) for part, _ in parts)
    went_on(server)


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama_chat"])
def test_litellm(start: Start, provider: str) -> None:
    litellm = pytest.importorskip("litellm")
    server = start()

    def ask(server: Server, messages: list[Any], **more: Any) -> Any:
        base = f"{server.origin}/v1" if provider == "openai" else server.origin
        tools = [{"type": "function", "function": {"name": "weather", "description": "The weather in a city now.", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
        return litellm.completion(f"{provider}/{MODEL}", messages, api_base=base, api_key="none", temperature=0, max_tokens=60, tools=tools, **more)

    # Its adapter for Ollama has no tool_choice.
    choice = {} if provider == "ollama_chat" else {"tool_choice": "required"}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    called = ask(server, messages, **choice).choices[0].message
    assert called.tool_calls, called
    call = called.tool_calls[0]
    assert call.function.name == "weather"
    messages += [called.model_dump(), {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "Rain, 7 degrees."}]
    server = restarted(start, server)
    parts = list(ask(server, messages, stream=True))
    assert "".join(part.choices[0].delta.content or "" for part in parts) == SPEECH
    went_on(server)


@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_pydantic_ai(start: Start, api: str) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    server = start()

    def agent(server: Server) -> Any:
        if api == "anthropic":
            model: Any = AnthropicModel(MODEL, provider=AnthropicProvider(base_url=server.origin, api_key="none"))
        else:
            kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
            model = kind(MODEL, provider=OpenAIProvider(base_url=f"{server.origin}/v1", api_key="none"))
        settings = {"temperature": 0.0, "max_tokens": 60}
        return Agent(model, tools=[weather], system_prompt="You are brief. Call weather for any question about the weather.", model_settings=settings)

    first = agent(server).run_sync(QUESTION)
    kinds = [part.part_kind for message in first.all_messages() for part in message.parts]
    assert "tool-call" in kinds and "tool-return" in kinds and first.output, kinds
    server = restarted(start, server)

    async def stream() -> str:
        async with agent(server).run_stream("Thank you.", message_history=first.all_messages()) as result:
            return "".join([part async for part in result.stream_text(delta=True)])

    assert asyncio.run(stream())
    went_on(server)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_openai_agents(start: Start, api: str) -> None:
    agents = pytest.importorskip("agents")
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    server = start()

    def agent(server: Server) -> Any:
        client = AsyncOpenAI(base_url=f"{server.origin}/v1", api_key="none", max_retries=0)
        kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
        return agents.Agent(
            name="Ann",
            instructions="You are brief. Call weather for any question about the weather.",
            model=kind(model=MODEL, openai_client=client),
            tools=[agents.function_tool(weather)],
            model_settings=agents.ModelSettings(temperature=0, max_tokens=60),
        )

    async def session() -> list[str]:
        nonlocal server
        first = await agents.Runner.run(agent(server), QUESTION)
        server = await asyncio.to_thread(restarted, start, server)
        more = agents.Runner.run_streamed(agent(server), [*first.to_input_list(), {"role": "user", "content": "Thank you."}])
        kinds = [event.type async for event in more.stream_events()]
        assert more.final_output
        return [type(item).__name__ for item in first.new_items] + kinds

    kinds = asyncio.run(session())
    assert "ToolCallItem" in kinds and "raw_response_event" in kinds, kinds
    went_on(server)


def test_llm(start: Start, tmp_path: Path) -> None:
    """Simon Willison's `llm`: models of an OpenAI-compatible server, and conversations that go on."""
    pytest.importorskip("llm")
    import sys

    server = start()
    program = Path(sys.executable).parent / "llm"

    def run(server: Server, *words: str) -> str:
        (tmp_path / "extra-openai-models.yaml").write_text(
            f"- model_id: here\n  model_name: {MODEL}\n  api_base: {server.origin}/v1\n  supports_tools: true\n"
        )
        home = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=TIMEOUT, env=os.environ | home, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(server, "-m", "here", "-o", "max_tokens", "20", "Say hello.").strip()
    source = "def weather(city: str) -> str:\n    'The weather in a city now.'\n    return f'Rain in {city}.'"
    told = run(server, "-m", "here", "-o", "max_tokens", "60", "-o", "temperature", "0", "--functions", source, QUESTION, "-n")
    assert told.strip() == SPEECH
    server = restarted(start, server)
    assert run(server, "-c", "-o", "max_tokens", "20", "Thank you.").strip()
    went_on(server)


def test_requests_of_open_webui(start: Start) -> None:
    """What Open WebUI 0.12.4's backend asks an OpenAI connection and an Ollama one (`routers/openai.py`, `routers/ollama.py`)."""
    server = start()
    tools = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
    headers = {"Authorization": "Bearer none", "X-OpenWebUI-User-Name": "Ann", "X-OpenWebUI-Chat-Id": "c1"}
    with httpx.Client(base_url=server.origin, headers=headers, timeout=TIMEOUT) as http:
        assert http.get("/v1/models").json()["data"][0]["id"] == MODEL
        for path in ("/api/version", "/api/tags", "/api/ps"):
            assert http.get(path).status_code == 200, path
        assert http.post("/api/show", json={"name": MODEL}).status_code == 200
        messages: list[Any] = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": QUESTION}]
        body = {"model": MODEL, "messages": messages, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": 60, "tools": tools, "tool_choice": "required"}
        answer = http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200 and '"weather"' in answer.text, answer.text
        # The title and the tags of a chat.
        title = {"model": MODEL, "messages": [{"role": "user", "content": "### Task:\nGenerate a concise title."}], "stream": False, "max_completion_tokens": 20}
        assert http.post("/v1/chat/completions", json=title).status_code == 200
        said = {"role": "assistant", "content": "", "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}]}
        body["messages"] = [*messages, said, {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}]
        body.pop("tool_choice")
        assert "[DONE]" in http.post("/v1/chat/completions", json=body).text
    server = restarted(start, server)
    with httpx.Client(base_url=server.origin, headers=headers, timeout=TIMEOUT) as http:
        ollama = {"model": MODEL, "messages": messages, "stream": True, "options": {"temperature": 0, "num_predict": 20, "num_ctx": 4096}, "keep_alive": "5m"}
        lines = http.post("/api/chat", json=ollama).text.splitlines()
        assert len(lines) > 1 and '"done":true' in lines[-1].replace(" ", ""), lines
        assert http.post("/v1/chat/completions", json=body).status_code == 200
    went_on(server)
