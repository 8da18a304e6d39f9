#!/usr/bin/env python3
"""Load on `greenroom serve`: many clients that talk, stream, give up, disconnect, read slowly and send nonsense; then a kill and a restart.

    python3 bench/load.py --greenroom target/release/greenroom --clients 64 --seconds 60

Each client continues its own conversation, with a separate seed for each turn and by one API or another, some with tools as coding agents
send them, so the expected replies are known: a sample of the conversations is played again, turn by turn, on a fresh server by chat
completions, and every reply and its digest must be the same. The server is killed (SIGKILL) while all
clients are active. After a restart the sample continues, and earlier turns must not be read again. Ends with exit code 1 if any check
fails. Needs httpx.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from server import NAMES, Server, Story

CHAT = "/v1/chat/completions"
N_SAID = 24  # tokens of a reply, at most
MOST_TOKENS = 5_000  # of a conversation; then the client begins another one
SLACK_TOKENS = 256  # that may be read again after the restart: a block
SLACK_BYTES = 400 << 20  # of memory, beside the budget of memories
LONGEST_S = 300.0

Message = dict[str, str]


@dataclass
class Turn:
    """A turn that was answered."""

    messages: list[Message]
    seed: int
    text: str
    total: int
    digest: str
    tools: list[Any]
    api: str


@dataclass
class Talk:
    """A conversation of a client."""

    client: int
    messages: list[Message]
    tools: list[Any] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


@dataclass
class Seen:
    """All that happened."""

    counts: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    talks: list[Talk] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    is_over: bool = False

    def fault(self, words: str) -> None:
        if not self.is_over:
            self.faults.append(words)

    def status(self, status: int, expected: tuple[int, ...], what: str) -> None:
        self.statuses[status] += 1
        if status not in expected:
            self.fault(f"{what}: status {status}, not {expected}")


READ = {"type": "object", "properties": {"file_path": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["file_path"]}
RUN = {"type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "number", "not": {"const": 0}}}, "required": ["command"]}
TOOLS = [{"name": "Read", "description": "Reads a file.", "parameters": READ}, {"name": "Bash", "description": "Runs a command.", "parameters": RUN}]


# Ollama samples in another way by default.
PLAIN = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repeat_penalty": 1, "num_ctx": 4096}


def body_of(api: str, model: str, messages: list[Message], seed: int, tools: list[Any]) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request: the same question by any API, as its clients write it."""
    body: dict[str, Any] = {"model": model, "seed": seed, "temperature": 1, "greenroom": True}
    system, *others = messages
    if api == "chat":
        functions = [{"type": "function", "function": tool} for tool in tools]
        return CHAT, body | {"messages": messages, "max_tokens": N_SAID} | ({"tools": functions, "tool_choice": "none"} if tools else {})
    if api == "messages":
        own = [{"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]} for tool in tools]
        blocks = [{"type": "text", "text": system["content"], "cache_control": {"type": "ephemeral"}}]
        more = {"tools": own, "tool_choice": {"type": "none"}} if tools else {}
        return "/v1/messages?beta=true", body | {"system": blocks, "messages": others, "max_tokens": N_SAID} | more
    if api == "responses":
        own = [{"type": "function", "strict": False} | tool for tool in tools] + [{"type": "web_search"}]
        return "/v1/responses", body | {
            "instructions": system["content"], "input": others, "max_output_tokens": N_SAID, "store": False, "tools": own, "tool_choice": "none"
        }
    return "/api/chat", {"model": model, "messages": messages, "stream": False, "greenroom": True, "options": PLAIN | {"seed": seed, "num_predict": N_SAID}}


def read_of(api: str, reply: dict[str, Any]) -> tuple[str, int, int, str]:
    """The text of an answer, the tokens of its prompt and in all, and its digest."""
    digest = reply["greenroom"]["digest"]
    if api == "chat":
        usage = reply["usage"]
        return reply["choices"][0]["message"]["content"], usage["prompt_tokens"], usage["total_tokens"], digest
    if api == "messages":
        usage = reply["usage"]
        n = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
        return "".join(block["text"] for block in reply["content"]), n, n + usage["output_tokens"], digest
    if api == "responses":
        usage = reply["usage"]
        text = "".join(part["text"] for item in reply["output"] for part in item["content"])
        return text, usage["input_tokens"], usage["total_tokens"], digest
    return reply["message"]["content"], reply["prompt_eval_count"], reply["prompt_eval_count"] + reply["eval_count"], digest


class Client:
    """One of many."""

    def __init__(self, http: httpx.AsyncClient, origin: str, model: str, number: int, seen: Seen) -> None:
        self.http, self.origin, self.model, self.number, self.seen = http, origin, model, number, seen
        self.draw = random.Random(number)
        self.story = Story(1.5)
        self.n_turns = 0
        self.talk = self.begin()

    def begin(self) -> Talk:
        """Another conversation."""
        name = NAMES[self.number % len(NAMES)]
        words = f"You are {name}, guest {self.number}, in your {len(self.seen.talks)}th talk. {self.story.told(self.draw.getrandbits(32), self.draw.choice([40, 200, 900]))}"
        talk = Talk(self.number, [{"role": "system", "content": words}], TOOLS if self.draw.random() < 0.3 else [])
        self.seen.talks.append(talk)
        return talk

    def asked(self, **more: Any) -> tuple[list[Message], int, dict[str, Any]]:
        """The conversation with one more message, the turn's seed, and the body."""
        self.n_turns += 1
        seed = self.number * 1_000_003 + self.n_turns
        heard = self.story.told(self.draw.getrandbits(32), self.draw.choice([10, 40, 160]))
        messages = [*self.talk.messages, {"role": "user", "content": heard}]
        return messages, seed, body_of("chat", self.model, messages, seed, self.talk.tools)[1] | more

    async def run(self) -> None:
        """Does one thing after another until all is over."""
        actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.speak, 40),
            (self.stream, 25),
            (self.give_up, 10),
            (self.disconnect, 5),
            (self.read_slowly, 4),
            (self.send_nonsense, 8),
            (self.send_too_much, 4),
            (self.send_far_too_much, 1),
            (self.rest, 10),
        ]
        while not self.seen.is_over:
            (action, _), *_ = self.draw.choices(actions, [weight for _, weight in actions])
            try:
                await action()
            except httpx.HTTPError as error:
                self.seen.fault(f"{action.__name__}: {error!r}")
                await asyncio.sleep(0.1)
            self.seen.counts[action.__name__] += not self.seen.is_over

    def heard(self, messages: list[Message], seed: int, said: tuple[str, int, int, str], api: str) -> None:
        """A turn was answered: the conversation goes on from there."""
        text, read, total, digest = said
        if self.talk.turns and read < self.talk.turns[-1].total:
            self.seen.fault(f"client {self.number}: a prompt of {read} tokens, behind {self.talk.turns[-1].total}")
        self.talk.turns.append(Turn(messages, seed, text, total, digest, self.talk.tools, api))
        self.talk.messages = [*messages, {"role": "assistant", "content": text}]
        if total > MOST_TOKENS:
            self.talk = self.begin()

    async def busy(self, answer: httpx.Response) -> None:
        """The queue is full: comes again later."""
        self.seen.counts["told to wait"] += 1
        if not answer.headers.get("retry-after", "").isdigit():
            self.seen.fault("429 without retry-after")
        await asyncio.sleep(self.draw.random() + 0.2)

    async def speak(self) -> None:
        messages, seed, _ = self.asked()
        # (Ollama's API can't say that no tool is to be called.)
        api = self.draw.choice(["chat", "messages", "responses"] if self.talk.tools else ["chat", "messages", "responses", "ollama"])
        path, body = body_of(api, self.model, messages, seed, self.talk.tools)
        answer = await self.http.post(path, json=body)
        self.seen.status(answer.status_code, (200, 429), f"a turn by {path}: {answer.text[:200]}")
        if answer.status_code == 429:
            return await self.busy(answer)
        if answer.status_code == 200:
            self.seen.counts[f"by {api}"] += 1
            self.heard(messages, seed, read_of(api, answer.json()), api)

    async def stream(self, pause_s: float = 0.0) -> None:
        messages, seed, body = self.asked(stream=True, stream_options={"include_usage": True})
        text, usage, digest, is_done = "", None, "", False
        async with self.http.stream("POST", CHAT, json=body) as answer:
            self.seen.status(answer.status_code, (200, 429), "a stream")
            if answer.status_code == 429:
                return await self.busy(answer)
            if answer.status_code != 200:
                return
            async for line in answer.aiter_lines():
                is_done |= line == "data: [DONE]"
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        return self.seen.fault(f"a stream broke off: {chunk}")
                    text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
                    usage = chunk.get("usage") or usage
                    digest = (chunk.get("greenroom") or {}).get("digest") or digest
                if pause_s:
                    await asyncio.sleep(pause_s)
        if not is_done or not usage:
            return self.seen.fault("a stream ended without its end")
        self.heard(messages, seed, (text, usage["prompt_tokens"], usage["total_tokens"], digest), "chat, streamed")

    async def read_slowly(self) -> None:
        await self.stream(pause_s=0.05)

    async def give_up(self) -> None:
        """Closes a stream in the midst of a long reply: the turn does not stand."""
        _, _, body = self.asked(stream=True, max_tokens=600)
        n = self.draw.randint(0, 12)
        async with self.http.stream("POST", CHAT, json=body) as answer:
            self.seen.status(answer.status_code, (200, 429), "a stream")
            async for _ in answer.aiter_lines():
                n -= 1
                if n < 0:
                    return

    async def disconnect(self) -> None:
        """Sends a request, or half of one, and is gone; or asks for much and reads nothing for a while."""
        _, _, body = self.asked(stream=True, max_tokens=600, logprobs=True, top_logprobs=20)
        data = json.dumps(body).encode()
        address, port = self.origin.removeprefix("http://").split(":")
        try:
            _, writer = await asyncio.open_connection(address, int(port))
            head = f"POST {CHAT} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + (data if self.draw.random() < 0.7 else data[: len(data) // 2]))
            await writer.drain()
            await asyncio.sleep(self.draw.choice([0, 0, 0.2, 3]))
            writer.transport.abort()
        except OSError as error:
            self.seen.fault(f"disconnect: {error!r}")

    async def send_nonsense(self) -> None:
        _, _, body = self.asked()
        wrong: list[Any] = [
            b"{",
            b"\xff\xfe",
            b"[" * 50_000,
            json.dumps(body).encode()[:-9],
            body | {"messages": []},
            body | {"temperature": -1},
            body | {"messages": [{"role": "wizard", "content": "x"}]},
            body | {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}},
        ]
        one = self.draw.choice(wrong)
        answer = await self.http.post(CHAT, content=one) if isinstance(one, bytes) else await self.http.post(CHAT, json=one)
        self.seen.status(answer.status_code, (400,), f"nonsense ({str(one)[-60:]})")

    async def send_too_much(self) -> None:
        """A prompt beyond the context."""
        body = self.asked()[2] | {"messages": [{"role": "user", "content": "melon " * 30_000}]}
        answer = await self.http.post(CHAT, json=body)
        self.seen.status(answer.status_code, (400,), "a prompt beyond the context")

    async def send_far_too_much(self) -> None:
        """A body beyond its limit; the connection may be closed on it."""
        try:
            answer = await self.http.post(CHAT, content=b" " * (9 << 20))
            self.seen.status(answer.status_code, (413,), "a body beyond its limit")
        except httpx.WriteError:
            pass

    async def rest(self) -> None:
        await asyncio.sleep(self.draw.random())


async def watched(origin: str, pid: int, seen: Seen) -> None:
    """Asks for the server's health, and looks at its memory, again and again."""
    async with httpx.AsyncClient(base_url=origin, timeout=LONGEST_S) as http:
        while not seen.is_over:
            began = time.perf_counter()
            try:
                seen.status((await http.get("/health")).status_code, (200,), "health")
            except httpx.HTTPError as error:
                seen.fault(f"health: {error!r}")
            if not seen.is_over:
                seen.health_ms.append((time.perf_counter() - began) * 1e3)
            status = Path(f"/proc/{pid}/status").read_text()
            rss = [line for line in status.splitlines() if line.startswith("VmRSS")]
            seen.peak_bytes = max(seen.peak_bytes, int(rss[0].split()[1]) << 10 if rss else 0)
            await asyncio.sleep(0.05)


async def loaded(server: Server, args: argparse.Namespace) -> Seen:
    """All clients for a while, to the server's sudden end."""
    seen, origin = Seen(), f"http://127.0.0.1:{server.port}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=args.clients)
    async with httpx.AsyncClient(base_url=origin, timeout=LONGEST_S, limits=limits) as http:
        clients = [Client(http, origin, args.name, number, seen) for number in range(args.clients)]
        work = [asyncio.create_task(client.run()) for client in clients] + [asyncio.create_task(watched(origin, server.process.pid, seen))]
        for _ in range(args.seconds):
            await asyncio.sleep(1)
            if server.process.poll() is not None:
                seen.fault(f"the server ended with {server.process.returncode}")
                break
        seen.is_over = True
        server.process.kill()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    server.process.wait()
    return seen


def again(server: Server, model: str, turn: Turn) -> dict[str, Any]:
    """The answer to a turn that was asked before."""
    path, body = body_of("chat", model, turn.messages, turn.seed, turn.tools)
    status, reply = server.call("POST", path, body)
    return reply if status == 200 else {"status": status, "reply": reply}


def compared(talks: list[Talk], start: Callable[[Path], Server], model: str) -> list[str]:
    """The turns to which a fresh server gives another reply."""
    faults = []
    with tempfile.TemporaryDirectory() as folder:
        server = start(Path(folder))
        for talk in talks:
            for number, turn in enumerate(talk.turns):
                reply = again(server, model, turn)
                text, _, _, digest = read_of("chat", reply) if "choices" in reply else (reply, 0, 0, "")
                if (text, digest) != (turn.text, turn.digest):
                    faults.append(f"client {talk.client}, turn {number + 1} of {len(talk.turns)}, by {turn.api}: {turn.text!r}, alone {text!r}")
                    break
        server.end()
    return faults


def gone_on(talks: list[Talk], server: Server, model: str) -> list[str]:
    """The memories that are missing after the restart."""
    faults = []
    for talk in talks:
        last = talk.turns[-1]
        messages = [*last.messages, {"role": "assistant", "content": last.text}, {"role": "user", "content": "Are you still there?"}]
        reply = again(server, model, Turn(messages, 1, "", 0, "", last.tools, ""))
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"] if "usage" in reply else -1
        if cached < last.total - SLACK_TOKENS:
            faults.append(f"client {talk.client}: {cached} tokens cached of {last.total} ({reply if cached < 0 else len(talk.turns)})")
    return faults


def percentile(values: list[float], share: float) -> float:
    """By nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--greenroom", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--model", type=Path, metavar="FILE.gguf", help="default: the bundled understudy")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", type=int, default=64, metavar="MIB", help="budget of memories")
    parser.add_argument("--sample", type=int, default=12, help="conversations that are played again, and continued after the restart")
    parser.add_argument("--health-ms", type=float, default=1000, help="maximum 99th percentile of /health")
    args = parser.parse_args()
    args.name = "model" if args.model else "understudy"
    model = ["--model", f"model={args.model}"] if args.model else []

    def start(folder: Path) -> Server:
        flags = ["--listen", "127.0.0.1:0", "--cache-dir", folder / "cache", "--cache-memory", f"{args.memory}M", "--threads", args.threads]
        return Server([args.greenroom, "serve", *flags, *model], None, folder)

    faults: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = start(folder)
        print(f"{args.clients} clients for {args.seconds} s", file=sys.stderr, flush=True)
        seen = asyncio.run(loaded(server, args))
        answered = [talk for talk in seen.talks if talk.turns]
        sample = random.Random(1).sample(answered, min(args.sample, len(answered)))
        print(f"killed; {len(sample)} of {len(answered)} conversations are continued", file=sys.stderr, flush=True)
        server = start(folder)
        lost = gone_on(sample, server, args.name)
        server.end()
    print("and played again", file=sys.stderr, flush=True)
    wrong = compared(sample, start, args.name)
    errors = [status for status in seen.statuses if status >= 500]
    faults += seen.faults[:20] + lost + wrong
    faults += [f"{seen.statuses[status]} answers with status {status}" for status in errors]
    budget = (args.memory << 20) + SLACK_BYTES
    if seen.peak_bytes > budget:
        faults.append(f"{seen.peak_bytes >> 20} MiB of memory; expected {budget >> 20} at most")
    if not percentile(seen.health_ms, 0.99) <= args.health_ms:
        faults.append(f"p99 of /health is {percentile(seen.health_ms, 0.99):.0f} ms")
    if not answered:
        faults.append("no turn was answered")
    turns = [turn for talk in seen.talks for turn in talk.turns]
    print(f"turns answered: {len(turns)} in {len(answered)} conversations, the longest with {max((turn.total for turn in turns), default=0)} tokens")
    print("done: " + ", ".join(f"{name} {n}" for name, n in sorted(seen.counts.items())))
    print("answers by status: " + ", ".join(f"{status}: {n}" for status, n in sorted(seen.statuses.items())))
    print(f"/health: p50 {percentile(seen.health_ms, 0.5):.1f} ms, p99 {percentile(seen.health_ms, 0.99):.1f} ms, of {len(seen.health_ms)}")
    print(f"memory: at most {seen.peak_bytes >> 20} MiB, including the memories' budget of {args.memory} MiB")
    print(f"played again on a fresh server: {sum(len(talk.turns) for talk in sample)} turns of {len(sample)} conversations, {len(wrong)} of which differ")
    print(f"after the kill: {len(sample) - len(lost)} of {len(sample)} memories intact")
    for fault in faults:
        print(f"FAULT: {fault}")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
