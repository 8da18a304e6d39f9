#!/usr/bin/env python3
"""Compares `greenroom serve` with llama.cpp's server, with the same prompts: more agents than memory, and a restart.

    python3 bench/server.py --greenroom target/release/greenroom --llama llama.cpp/build/bin --model MODEL.gguf --threads 2 --rounds 4

Twelve agents, each with a separate memory of 1,500 tokens, take turns. Before each turn an agent hears what the others said since its last
one: 320 new tokens, to which it replies. There is memory for four agents. Then both servers are restarted, and each agent is asked once more.
Both servers get whole conversations through `/v1/chat/completions`, which only grow at their ends. The replies in them are greenroom's for
both servers. Finally each agent is played alone, on a fresh server of each kind, to get the expected replies. Needs only Python's standard
library; bench/peers.md says how to build llama.cpp, and what the figures mean.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

N_MEMORY, N_NEW, N_SAID = 1500, 320, 24  # tokens: of a memory, that come before a turn, of a reply at most
N_SLOTS = 4
SLACK = 64  # tokens that may be read again before a memory counts as lost
LONGEST_S = 1800.0
AGAIN = -1  # the round behind the restart

NAMES = "Ada Bela Cleo Dora Emil Faye Gus Hana Ivo Jana Kurt Lena Milo Nora Otto Pia Quinn Rolf Sara Tom Uma Vera Wim Yara".split()
VERBS = "carried sold lent hid counted fetched mended stole".split()
GOODS = "plums melons nails letters candles coins ropes eggs lamps stones".split()
PLACES = "the mill,the old well,the bridge,the barn,the market,the north gate,the chapel,the ferry".split(",")

Message = dict[str, str]


@dataclass
class Turn:
    """An agent is asked."""

    agent: int
    round: int
    messages: list[Message]


@dataclass
class Reply:
    """The answer."""

    text: str
    first_ms: float
    whole_ms: float
    n_prompt: int
    n_cached: int


@dataclass
class Side:
    """All measurements of one server."""

    turns: list[Turn] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    alone: dict[int, list[str]] = field(default_factory=dict)  # replies of each agent, played alone


class Server:
    """A server with OpenAI's API, as a child process."""

    def __init__(self, command: list[Any], port: int | None, folder: Path) -> None:
        began = time.perf_counter()
        self.log = open(folder / "server.log", "ab")
        out = self.log if port else subprocess.PIPE
        self.process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=self.log, bufsize=0)
        self.peak_bytes = 0
        try:
            self.port = port or self._told_port()
            while not self._is_ready():
                if self.process.poll() is not None:
                    sys.exit(f"{command[0]} ended:\n{(folder / 'server.log').read_text(errors='replace')[-2000:]}")
                time.sleep(0.02)
        except BaseException:
            self.process.kill()
            raise
        self.start_s = time.perf_counter() - began

    def _told_port(self) -> int:
        """The port that greenroom says it listens at."""
        assert self.process.stdout
        line = self.process.stdout.readline().decode()
        if "http://" not in line:
            sys.exit(f"greenroom does not listen (it said {line!r}); see its log")
        return int(line.split("http://")[1].split("/")[0].rsplit(":", 1)[1])

    def _is_ready(self) -> bool:
        try:
            return self.call("GET", "/health")[0] == 200
        except OSError:
            return False

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")

    def ask(self, messages: list[Message], n: int = N_SAID) -> Reply:
        """A greedy reply, streamed; the clock stops at its first text."""
        body = {
            "model": "model",
            "messages": messages,
            "max_tokens": n,
            "temperature": 0,
            "seed": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_prompt": True,
        }
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"status {answer.status}: {answer.read()[:500]!r}")
        text, first, usage = "", 0.0, None
        while line := answer.readline():
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                sys.exit(f"a stream broke off: {chunk}")
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content") or ""
                if piece and not text:
                    first = time.perf_counter()
                text += piece
            usage = chunk.get("usage") or usage
        ended = time.perf_counter()
        assert usage, "the stream ended without its usage"
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        return Reply(text, ((first or ended) - began) * 1e3, (ended - began) * 1e3, usage["prompt_tokens"], cached)

    def end(self) -> None:
        """Ends it as a service manager does."""
        status = Path(f"/proc/{self.process.pid}/status")
        if status.exists() and self.process.poll() is None:
            peaks = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
            self.peak_bytes = int(peaks[0].split()[1]) << 10 if peaks else 0
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


class Kind:
    """A way to start a server; `is_alone`: for one agent, with unlimited memory."""

    name: str

    def command(self, folder: Path, is_alone: bool) -> tuple[list[Any], int | None]:
        raise NotImplementedError

    @contextmanager
    def running(self, folder: Path, side: Side | None = None, is_alone: bool = False) -> Iterator[Server]:
        server = Server(*self.command(folder, is_alone), folder)
        try:
            yield server
        finally:
            server.end()
            if side:
                side.start_s.append(server.start_s)
                side.peak_bytes = max(side.peak_bytes, server.peak_bytes)


class Greenroom(Kind):
    name = "greenroom"

    def __init__(self, args: argparse.Namespace, memory_bytes: int) -> None:
        self.args, self.memory_bytes = args, memory_bytes

    def command(self, folder: Path, is_alone: bool) -> tuple[list[Any], int | None]:
        args = self.args
        flags: list[Any] = ["--model", f"model={args.model}", "--threads", args.threads, "--kv", args.kv]
        flags += [] if is_alone else ["--cache-memory", self.memory_bytes]
        return [args.greenroom, "serve", "--listen", "127.0.0.1:0", "--cache-dir", folder / "cache", *flags], None


class Llama(Kind):
    """llama-server with four slots, and other memory (`--cache-ram`, in MiB) for sequences evicted from them."""

    def __init__(self, args: argparse.Namespace, ram_mib: int, n_context: int) -> None:
        self.args, self.ram_mib, self.n_context = args, ram_mib, n_context
        self.name = f"llama, {ram_mib} MiB" if ram_mib else "llama, slots"

    def command(self, folder: Path, is_alone: bool) -> tuple[list[Any], int | None]:
        args, n_slots = self.args, 1 if is_alone else N_SLOTS
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        program = args.llama / "llama-server" if args.llama.is_dir() else args.llama
        flags: list[Any] = ["-m", args.model, "-t", args.threads, "-fa", "on", "-ctk", args.llama_kv, "-ctv", args.llama_kv]
        flags += ["-np", n_slots, "-c", n_slots * self.n_context, "--no-kv-unified", "--cache-ram", 0 if is_alone else self.ram_mib]
        return [program, *flags, "--host", "127.0.0.1", "--port", port], port


class Story:
    """Texts of given lengths in tokens, the same for a seed."""

    def __init__(self, tokens_per_word: float) -> None:
        self.tokens_per_word = tokens_per_word

    def told(self, seed: int, n_tokens: int) -> str:
        """A text of about this many tokens."""
        draw, sentences, n = random.Random(seed), [], 0.0
        while n < n_tokens:
            who, other = draw.sample(NAMES, 2)
            what, where = f"{draw.randint(2, 99)} {draw.choice(GOODS)}", draw.choice(PLACES)
            sentences.append(f"On day {draw.randint(1, 300)} {who} {draw.choice(VERBS)} {what} at {where}, and {other} saw it.")
            n += len(sentences[-1].split()) * self.tokens_per_word
        return " ".join(sentences)

    def said(self, seed: int, n_tokens: int) -> str:
        """The beginning of a sentence, with at most this many tokens."""
        return " ".join(self.told(seed, 1).split()[: max(1, int(n_tokens / self.tokens_per_word))])

    def system(self, agent: int, n_agents: int) -> Message:
        others = ", ".join(NAMES[other] for other in range(n_agents) if other != agent)
        words = f"You are {NAMES[agent]}. You speak with {others}. You say one short sentence at a time. This you remember:"
        return {"role": "system", "content": f"{words}\n{self.told(agent, N_MEMORY)}"}

    def heard(self, agent: int, number: int, said: list[str]) -> Message:
        """What the others said, padded with news to the given length."""
        told = "\n".join(said)
        left = N_NEW - len(told.split()) * self.tokens_per_word - 16
        news = self.told(1000 * (agent + 1) + number, int(left)) if left > 0 else ""
        return {"role": "user", "content": f"{told}\nNews: {news}\nWhat do you say now, {NAMES[agent]}?"}


def played(kind: Kind, story: Story, args: argparse.Namespace, script: list[Turn] | None) -> Side:
    """Plays all turns, with a restart in between. Without a script, this server's replies become the script."""
    side = Side()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        conversations = [[story.system(agent, args.agents)] for agent in range(args.agents)]
        spoken: list[tuple[int, str]] = []
        heard = [0] * args.agents

        def turn(server: Server, agent: int, number: int) -> None:
            if script:
                asked = script[len(side.turns)]
            else:
                said = [f"{NAMES[other]}: {text}" for other, text in spoken[heard[agent] :] if other != agent]
                heard[agent] = len(spoken)
                conversations[agent].append(story.heard(agent, number, said))
                asked = Turn(agent, number, list(conversations[agent]))
            reply = server.ask(asked.messages)
            side.turns.append(asked)
            side.replies.append(reply)
            if not script:
                text = reply.text if args.history == "greenroom" else story.said(77 * agent + number, N_SAID - 8)
                conversations[agent].append({"role": "assistant", "content": text})
                spoken.append((agent, text))

        with kind.running(folder, side) as server:
            for number in range(args.rounds):
                print(f"{kind.name}: round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
                for agent in range(args.agents):
                    turn(server, agent, number)
        print(f"{kind.name}: restarted", file=sys.stderr, flush=True)
        with kind.running(folder, side) as server:
            for agent in range(args.agents):
                turn(server, agent, AGAIN)
    return side


def play_alone(kind: Kind, side: Side, args: argparse.Namespace) -> None:
    """Each agent's turns, on a fresh server."""
    for agent in range(args.agents):
        print(f"{kind.name}: {NAMES[agent]} alone", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder, kind.running(Path(folder), is_alone=True) as server:
            side.alone[agent] = [server.ask(turn.messages).text for turn in side.turns if turn.agent == agent]


def measured(args: argparse.Namespace) -> tuple[float, int]:
    """Tokens a word, and bytes of greenroom's memory of the longest conversation."""
    with tempfile.TemporaryDirectory() as folder, Greenroom(args, 0).running(Path(folder), is_alone=True) as server:
        text = Story(1.0).told(1, 1500)
        ask = lambda text: server.ask([{"role": "user", "content": text}], 1).n_prompt
        tokens_per_word = (ask(text) - ask("a")) / len(text.split())
        story = Story(tokens_per_word)
        longest = [story.system(0, args.agents)]
        for number in range(args.rounds + 1):
            longest += [story.heard(0, number, []), {"role": "assistant", "content": story.told(number, N_SAID)}]
        server.ask(longest[:-1], 1)
        if args.memory:
            return tokens_per_word, (args.memory << 20) // N_SLOTS
        status, slots = server.call("GET", "/slots")
        assert status == 200, f"GET /slots: {status} {slots}"
        return tokens_per_word, max(slot.get("bytes_in_memory", 0) for slot in slots)


def percentile(values: list[float], share: float) -> float:
    """By nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def figures(side: Side) -> dict[str, float]:
    """The figures printed for a server. The first round is cold on both servers, and counts only for the total time."""
    held: dict[int, int] = {}
    first: dict[bool, list[float]] = {False: [], True: []}
    read: dict[bool, list[float]] = {False: [], True: []}
    lost = {False: 0, True: 0}
    said: dict[int, list[str]] = {}
    for turn, reply in zip(side.turns, side.replies, strict=True):
        is_again = turn.round == AGAIN
        if turn.agent in held:
            first[is_again].append(reply.first_ms)
            read[is_again].append(reply.n_prompt - reply.n_cached)
            lost[is_again] += reply.n_cached < held[turn.agent] - SLACK
        held[turn.agent] = reply.n_prompt
        said.setdefault(turn.agent, []).append(reply.text)
    pairs = [(reply, alone) for agent, replies in said.items() for reply, alone in zip(replies, side.alone.get(agent, []))]
    return {
        "first token, p50, ms": percentile(first[False], 0.5),
        "first token, p95, ms": percentile(first[False], 0.95),
        "first token after the restart, p50, ms": percentile(first[True], 0.5),
        "first token after the restart, p95, ms": percentile(first[True], 0.95),
        "all turns, s": sum(reply.whole_ms for reply in side.replies) / 1e3,
        "starting again, s": side.start_s[-1],
        "tokens read a turn": statistics.mean(read[False]),
        "tokens read a turn after the restart": statistics.mean(read[True]),
        f"memories lost, of {len(first[False])} turns": lost[False],
        f"memories lost in the restart, of {len(first[True])}": lost[True],
        f"replies unlike the agent's alone, of {len(pairs)}": sum(reply != alone for reply, alone in pairs),
        "peak memory, MiB": side.peak_bytes / 2**20,
    }


def table(found: dict[str, dict[str, float]]) -> Iterator[str]:
    """Lines: each figure for all servers, with the ratio of times to greenroom's."""
    ours, *theirs = found
    yield f"{'':45}{ours:>12}" + "".join(f"{name:>18}{'ratio':>8}" for name in theirs)
    for what, own in found[ours].items():
        line = f"{what:45}{own:12.1f}"
        for name in theirs:
            value = found[name][what]
            is_time = what.endswith(("ms", ", s"))
            line += f"{value:18.1f}" + (f"{value / own:8.2f}" if is_time and own else f"{'':8}")
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--greenroom", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--llama", type=Path, metavar="DIR", help="llama-server, or its folder; without it only greenroom is measured")
    parser.add_argument("--model", type=Path, required=True, metavar="FILE.gguf")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each agent before the restart; at least 2")
    parser.add_argument("--agents", type=int, default=12)
    parser.add_argument("--memory", type=int, metavar="MIB", help="greenroom's memory [default: four times the most that one agent needs]")
    parser.add_argument("--kv", default="auto", help="greenroom's cache formats")
    parser.add_argument("--llama-kv", default="f16", help="llama.cpp's cache format")
    parser.add_argument("--cache-ram", default="0,8192", metavar="MIB,…", help="llama-server's host prompt cache, one measurement for each value: 0 is memory for four agents in total, 8192 its default")
    parser.add_argument("--history", choices=["greenroom", "fixed"], default="greenroom", help="replies in the conversations: greenroom's, or fixed texts from neither server")
    parser.add_argument("--skip-alone", action="store_true", help="don't play each agent alone, which takes as long as everything else together")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and replies to this file")
    args = parser.parse_args()
    if args.rounds < 2 or not 2 <= args.agents <= len(NAMES):
        parser.error(f"expected 2 rounds or more, and 2 to {len(NAMES)} agents")
    tokens_per_word, bytes_each = measured(args)
    story, memory_bytes = Story(tokens_per_word), N_SLOTS * bytes_each
    kinds: list[Kind] = [Greenroom(args, memory_bytes)]
    sides: dict[str, Side] = {}
    script: list[Turn] | None = None
    for kind in kinds:
        sides[kind.name] = side = played(kind, story, args, script)
        if script is None and args.llama:
            n_longest = max(reply.n_prompt for reply in side.replies)
            n_context = -(-(n_longest + N_SAID + 256) // 256) * 256
            kinds += [Llama(args, int(ram), n_context) for ram in args.cache_ram.split(",")]
        script = side.turns
        # Alone all llama-servers are one: without slots or a host's cache to choose from.
        known = next((other.alone for name, other in sides.items() if name.startswith("llama") and other.alone), None)
        if isinstance(kind, Llama) and known:
            side.alone = known
        elif not args.skip_alone:
            play_alone(kind, side, args)
    found = {name: figures(side) for name, side in sides.items()}
    if args.json:
        replies = {name: [reply.__dict__ for reply in side.replies] for name, side in sides.items()}
        args.json.write_text(json.dumps({"figures": found, "replies": replies}, indent=1) + "\n")
    lengths = [reply.n_prompt for reply in next(iter(sides.values())).replies]
    print(f"{args.model.name}, {args.threads} threads, {args.agents} agents, {args.rounds} rounds and one after a restart;")
    print(f"prompts of {min(lengths):,} to {max(lengths):,} tokens; greenroom's memory for {N_SLOTS}: {memory_bytes / 2**20:.0f} MiB; above 1 greenroom is faster")
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
