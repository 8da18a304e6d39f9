"""Requests of coding agents, as the programs sent them (long texts replaced by others of their length): Claude Code 2.1.197, Codex CLI 0.171.0 and
opencode 1.18.33 with their tools, streams and limits; and what the programs send next.

The programs themselves: GREENROOM_AGENTS=node_modules/.bin, a folder with `claude` (@anthropic-ai/claude-code), `codex` (@openai/codex), `opencode`
(opencode-ai) and `cn` (@continuedev/cli) from npm."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import long_model
import pytest
from server import TIMEOUT, Server

REQUESTS = Path(__file__).parent / "requests"
NAMES = [path.name.removesuffix(".json.gz") for path in sorted(REQUESTS.glob("*.json.gz"))]
AGENTS = os.environ.get("GREENROOM_AGENTS")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("long")
    file = long_model.write(folder / "long.gguf")
    with Server(folder / "server", "--model", f"coder={file}", "--threads", "2") as running:
        yield running


def events(server: Server, path: str, body: dict[str, Any], headers: dict[str, str]) -> list[dict[str, Any]]:
    answer = httpx.post(server.origin + path, json=body, headers=headers, timeout=TIMEOUT)
    assert answer.status_code == 200, answer.text
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


def reply(path: str, parts: list[dict[str, Any]]) -> tuple[str, int, int]:
    """The text, and the tokens of the prompt: all of them, and those that were read before."""
    if "messages" in path:
        text = "".join(part["delta"].get("text", "") for part in parts if part["type"] == "content_block_delta")
        assert parts[-1]["type"] == "message_stop"
        usage = parts[-2]["usage"]
        return text, usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"], usage["cache_read_input_tokens"]
    if "responses" in path:
        response = parts[-1]["response"]
        assert parts[-1]["type"] == "response.completed"
        text = "".join(part["text"] for item in response["output"] for part in item["content"])
        return text, response["usage"]["input_tokens"], response["usage"]["input_tokens_details"]["cached_tokens"]
    text = "".join(part["choices"][0]["delta"].get("content") or "" for part in parts if part["choices"])
    usage = parts[-1]["usage"]
    return text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_request_is_answered_and_continued(long: Server, name: str) -> None:
    for request in json.loads(gzip.decompress((REQUESTS / f"{name}.json.gz").read_bytes())):
        path, body, headers = request["path"], request["body"], request["headers"]
        text, all_tokens, _ = reply(path, events(long, path, body, headers))
        assert all_tokens > 500
        more = {"role": "user", "content": "Go on."}
        if "responses" in path:
            said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
            body = body | {"input": [*body["input"], said, {"type": "message"} | more]}
        else:
            body = body | {"messages": [*body["messages"], {"role": "assistant", "content": text}, more]}
        _, _, cached = reply(path, events(long, path, body, headers))
        assert cached >= all_tokens - 1, "what was read is not read again"


def test_a_call_that_breaks_its_schema_is_asked_for_once_more(tmp_path: Path) -> None:
    """The scripted model says the same again: the answer is as it said it, and says what it breaks."""
    file = long_model.write(tmp_path / "scripted.gguf", ["weather"], {"city": "Oslo"})
    with Server(tmp_path / "server", "--model", f"m={file}", "--threads", "2") as server:

        def ask(**more: Any) -> dict[str, Any]:
            city = {"type": "string"} | more.pop("city", {})
            tool = {"name": "weather", "parameters": {"type": "object", "properties": {"city": city}, "required": ["city"]}}
            body = {"messages": [{"role": "user", "content": "The weather?"}], "tools": [{"type": "function", "function": tool}], "seed": 5, "greenroom": True}
            answer = httpx.post(f"{server.origin}/v1/chat/completions", json=body | more, timeout=TIMEOUT)
            assert answer.status_code == 200, answer.text
            return answer.json()

        right, wrong = ask(), ask(city={"not": {"const": "Oslo"}})
        for answer in (right, wrong):
            (call,) = answer["choices"][0]["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"} and answer["greenroom"]["seed"] == 5
        assert "warnings" not in right["greenroom"]
        assert ["asked again" in line for line in wrong["greenroom"]["warnings"]] == [False, True]
        n = right["usage"]["completion_tokens"]
        assert wrong["usage"]["completion_tokens"] == 2 * n, "both count"
        # Within the limit there is no room for another.
        assert ask(city={"not": {"const": "Oslo"}}, max_tokens=n)["usage"]["completion_tokens"] == n


# How each program runs a command: the tokens of its tool's name, and the argument; how it is started, and how its session goes on.
PROGRAMS = {
    "claude": (["B", "ash"], "command", ["claude", "--allowedTools", "Bash", "--output-format", "json", "-p"], ["-c"]),
    "codex": (["exec", "_command"], "cmd", ["codex", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"], ["resume", "--last"]),
    "opencode": (["bash"], "command", ["opencode", "run", "-m", "g/coder"], ["-c"]),
    "cn": (["B", "ash"], "command", ["cn", "--config", "config.yaml", "--allow", "Bash", "-p"], ["--resume"]),
}


def run_program(agent: str, server: Server, folder: Path, again: bool) -> str:
    """Gives a program a task, for a second time in the session of the first one; what it prints."""
    _, _, command, more = PROGRAMS[agent]
    base = f"{server.origin}/v1"
    (folder / "config.toml").write_text(f'model = "coder"\nmodel_provider = "g"\n[model_providers.g]\nname = "g"\nbase_url = "{base}"\nwire_api = "responses"\n')
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "g", "options": {"baseURL": base, "apiKey": "none"}, "models": {"coder": {"name": "coder"}}}
    (folder / "opencode.json").write_text(json.dumps({"provider": {"g": provider}, "permission": {"bash": "allow"}}))
    model = f"{{name: here, provider: openai, model: coder, apiBase: {base}, apiKey: none, roles: [chat], capabilities: [tool_use]}}"
    (folder / "config.yaml").write_text(f"name: test\nversion: 1.0.0\nschema: v1\nmodels:\n  - {model}\n")
    home = {"HOME": str(folder), "CODEX_HOME": str(folder), "CONTINUE_GLOBAL_DIR": str(folder / ".continue"), "PATH": f"{AGENTS}:{os.environ['PATH']}"}
    claude = {"ANTHROPIC_BASE_URL": server.origin, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "coder", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "IS_SANDBOX": "1"}
    words = [*command, *(more if again else []), "Go."]
    done = subprocess.run(words, cwd=folder, env=home | claude, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.skipif(not AGENTS, reason="GREENROOM_AGENTS names no folder of programs")
@pytest.mark.parametrize("agent", PROGRAMS)
def test_the_program_itself(tmp_path: Path, agent: str) -> None:
    """It runs a command that the model asks for, and goes on after the server has restarted."""
    if not (Path(AGENTS or "") / agent).exists():
        pytest.skip(f"{AGENTS} has no {agent}")
    name, argument, *_ = PROGRAMS[agent]
    file = long_model.write(tmp_path / "scripted.gguf", name, {argument: "touch made"}, "It is made")
    folder = tmp_path / "project"
    folder.mkdir()
    for again in (False, True):
        with Server(tmp_path / "server", "--model", f"coder={file}", "--threads", "2") as server:
            said = run_program(agent, server, folder, again)
            assert "It is made" in said, said
            assert (folder / "made").exists(), said
            (folder / "made").unlink()
            recomputed, prefilled = (server.tokens(kind) for kind in ("recomputed", "prefilled"))
            assert recomputed == 0 and (prefilled < 200 or not again), "what was read is not read again"
            server.end()
