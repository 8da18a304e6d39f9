#!/usr/bin/env python3
"""Measures greenroom and llama.cpp alternately on one model file, and prints medians of the ratios.

    python3 bench/peers.py --llama llama.cpp/build/bin --greenroom target/release/greenroom-lab --model MODEL.gguf --threads 2 --rounds 3

Each round takes one measurement after another, each with all programs in turn; the program that begins changes from round to round. A ratio is
formed within its round, so that anything that slows down both (a busy machine, a hot one) cancels out. Above 1 greenroom is faster. greenroom
runs with its default cache, llama.cpp with f16, its default and faster than q4_0 (--llama-kv f16,q4_0 measures both). Needs only Python's
standard library; bench/peers.md says how to build llama.cpp.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

N_NEW, N_DECODED = 256, 64
N_SHORT = 40  # tokens of a short prompt
N_SEQUENCES, BATCH_DEPTH, N_BATCHED = 4, 512, 32
N_CACHED, N_EXTENDED = 2000, 32
PREFILLS = (512, 2048, 8000)
SAMPLED = (1.0, 0.95)  # temperature, top_p

Figures = dict[str, float]  # by the name of what was measured

TIMES = (f"{N_CACHED} cached + {N_EXTENDED} new tokens to the first, ms", "loading the model, ms")


def speeds(depth: int) -> dict[str, Callable[[Any], float]]:
    """What is measured in tokens a second, and how."""
    prefills = {f"prefill {n}, tokens/s": lambda side, n=n: side.prefill(n, 0) for n in PREFILLS}
    sampled = "decode at temperature {}, top_p {}".format(*SAMPLED)
    return prefills | {
        "decode, tokens/s": lambda side: side.decode(N_DECODED, 0),
        f"{sampled}, tokens/s": lambda side: side.sampled(N_DECODED, 0),
        f"decode of {N_SEQUENCES} at depth {BATCH_DEPTH}, tokens/s": lambda side: side.batched(),
        f"prefill {N_NEW} at depth {depth}, tokens/s": lambda side: side.prefill(N_NEW, depth),
        f"decode at depth {depth}, tokens/s": lambda side: side.decode(N_DECODED, depth),
        f"{sampled}, depth {depth}, tokens/s": lambda side: side.sampled(N_DECODED, depth),
    }


def run(*command: str | Path) -> str:
    """Runs a program, which must succeed; returns its standard output."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


class Greenroom:
    """This project's own measurements."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.program = args.greenroom.absolute()
        self.common = ["--model", args.model, "--threads", args.threads, "--repeat", 1, "--json"]

    def rows(self, what: str, **options: Any) -> list[dict[str, Any]]:
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return json.loads(run(self.program, "bench", what, *self.common, *words))["rows"]

    def speed(self, what: str, **options: Any) -> float:
        row = self.rows(what, **options)[0]
        depth = options["depth"]
        assert not depth or row["depth"] >= depth - 1, f"the history held {row['depth']} tokens, not {depth}"
        return row["tokens_per_s"]["median"]

    def prefill(self, n: int, depth: int) -> float:
        return self.speed("prefill", tokens=n, depth=depth)

    def decode(self, n: int, depth: int) -> float:
        return self.speed("decode", tokens=n, depth=depth)

    def sampled(self, n: int, depth: int) -> float:
        settings = {"temperature": SAMPLED[0], "top-p": SAMPLED[1]}
        return self.speed("decode", tokens=n, depth=depth, **settings)

    def batched(self) -> float:
        return self.rows("batch", sequences=N_SEQUENCES, depth=BATCH_DEPTH, tokens=N_BATCHED)[0]["tokens_per_s"]["median"]

    def restore(self) -> tuple[float, float]:
        restored = self.rows("ttft", context=N_CACHED, extend=N_EXTENDED)[0]
        assert restored["warm_reused"] >= N_CACHED, f"only {restored['warm_reused']} tokens were restored"
        return restored["warm_ms"]["median"], restored["load_ms"]["median"]


class Llama:
    """llama.cpp with one cache format."""

    def __init__(self, args: argparse.Namespace, kv: str) -> None:
        self.folder, self.model, self.threads, self.kv = args.llama.absolute(), args.model, args.threads, kv
        self.cache = ["-ctk", kv, "-ctv", kv]

    def bench(self, *sizes: str | int) -> float:
        flags = ["-m", self.model, "-t", self.threads, "-fa", 1, *self.cache, "-r", 1, "-o", "jsonl"]
        return json.loads(run(self.folder / "llama-bench", *flags, *sizes).splitlines()[0])["avg_ts"]

    def prefill(self, n: int, depth: int) -> float:
        return self.bench("-p", n, "-n", 0, "-d", depth)

    def decode(self, n: int, depth: int) -> float:
        return self.bench("-p", 0, "-n", n, "-d", depth)

    def sampled(self, n: int, depth: int) -> float:
        """By the server, because llama-bench does not sample; what it says of its own decoding."""
        ids = random.Random(1).choices(range(32, 250), k=max(depth, N_SHORT))
        settings = {"temperature": SAMPLED[0], "top_p": SAMPLED[1], "top_k": 0, "min_p": 0, "seed": 1, "ignore_eos": True}
        with tempfile.TemporaryDirectory() as folder, self.server(Path(folder), depth + N_SHORT + n + 256) as (ask, _):
            answer = ask("/completion", {"prompt": ids, "n_predict": n, **settings})
        return answer["timings"]["predicted_per_second"]

    def batched(self) -> float:
        n_ctx = N_SEQUENCES * (BATCH_DEPTH + N_BATCHED) + 256
        sizes = ["-npp", BATCH_DEPTH, "-ntg", N_BATCHED, "-npl", N_SEQUENCES, "-c", n_ctx]
        flags = ["-m", self.model, "-t", self.threads, "-fa", "on", *self.cache, "--output-format", "jsonl"]
        out = run(self.folder / "llama-batched-bench", *flags, *sizes)
        return next(json.loads(line)["speed_tg"] for line in out.splitlines() if line.startswith("{"))

    def restore(self) -> tuple[float, float]:
        """Milliseconds from a slot's file to the first token, and of starting the server."""
        ids = random.Random(1).choices(range(32, 250), k=N_CACHED + N_EXTENDED)  # a byte each, in byte-level vocabularies
        with tempfile.TemporaryDirectory() as folder:
            with self.server(Path(folder)) as (ask, _):
                ask("/completion", {"prompt": ids[:N_CACHED], "n_predict": 1, "id_slot": 0, "cache_prompt": True})
                ask("/slots/0?action=save", {"filename": "slot.bin"})
            with self.server(Path(folder)) as (ask, load_ms):
                began = time.perf_counter()
                ask("/slots/0?action=restore", {"filename": "slot.bin"})
                answer = ask("/completion", {"prompt": ids, "n_predict": 1, "id_slot": 0, "cache_prompt": True})
                first_ms = (time.perf_counter() - began) * 1e3
        read = answer["timings"]["prompt_n"]
        assert read <= N_EXTENDED + 1, f"llama-server read {read} tokens again: the slot was not restored"
        return first_ms, load_ms

    @contextmanager
    def server(self, folder: Path, n_ctx: int = 4096) -> Iterator[tuple[Callable[[str, dict[str, Any]], Any], float]]:
        """A running server: a function that sends it requests, and the milliseconds until it was ready."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        flags = ["-m", self.model, "-t", self.threads, "-fa", "on", *self.cache, "-c", n_ctx, "-np", 1, "--cache-ram", 0]
        where = ["--host", "127.0.0.1", "--port", port, "--slot-save-path", f"{folder}/"]
        began = time.perf_counter()
        command = [str(word) for word in (self.folder / "llama-server", *flags, *where)]
        with open(folder / "server.log", "ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)

        def ask(path: str, body: dict[str, Any] | None) -> Any:
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
            with urllib.request.urlopen(request, timeout=600) as answer:
                return json.load(answer)

        try:
            while True:
                if process.poll() is not None:
                    sys.exit(f"llama-server ended:\n{(folder / 'server.log').read_text(errors='replace')[-2000:]}")
                try:
                    ask("/health", None)
                    break
                except (urllib.error.URLError, ConnectionError):
                    time.sleep(0.01)
            yield ask, (time.perf_counter() - began) * 1e3
        finally:
            process.terminate()
            process.wait()


def table(rounds: list[dict[str, Figures]]) -> Iterator[str]:
    """Lines: each figure's medians for all programs, and the median, minimum and maximum of the ratios."""
    formats = [side for side in rounds[0] if side != "greenroom"]
    head = f"{'':58}{'greenroom':>11}"
    yield head + "".join(f"{'llama ' + kv:>13}{'ratio':>8}{'(least–most)':>15}" for kv in formats)
    for name in rounds[0]["greenroom"]:
        ours = [figures["greenroom"][name] for figures in rounds]
        line = f"{name:58}{statistics.median(ours):11.1f}"
        for kv in formats:
            theirs = [figures[kv][name] for figures in rounds]
            pairs = zip(ours, theirs, strict=True)
            ratios = [their / our if name in TIMES else our / their for our, their in pairs]
            spread = f"({min(ratios):.2f}–{max(ratios):.2f})"
            line += f"{statistics.median(theirs):13.1f}{statistics.median(ratios):8.2f}{spread:>15}"
        yield line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=Path, required=True, metavar="DIR", help="folder with llama.cpp's programs")
    parser.add_argument("--greenroom", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--model", type=Path, required=True, metavar="FILE.gguf")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=4096, help="depth in tokens at which the last two speeds are measured")
    parser.add_argument("--llama-kv", default="f16", metavar="TYPES", help="llama.cpp's cache types, with commas between them")
    parser.add_argument("--only", default="", metavar="REGEX", help="measure only figures whose name matches")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures of all rounds to this file")
    args = parser.parse_args()
    sides = {"greenroom": Greenroom(args)} | {kv: Llama(args, kv) for kv in args.llama_kv.split(",")}
    rounds: list[dict[str, Figures]] = []
    for n in range(args.rounds):
        order = list(sides) if n % 2 == 0 else list(reversed(sides))
        figures: dict[str, Figures] = {side: {} for side in order}
        for what, measure in speeds(args.depth).items():
            if not re.search(args.only, what):
                continue
            print(f"round {n + 1} of {args.rounds}: {what}", file=sys.stderr, flush=True)
            for side in order:
                figures[side][what] = measure(sides[side])
        if re.search(args.only, TIMES[0]):
            for side in order:
                figures[side] |= dict(zip(TIMES, sides[side].restore(), strict=True))
        rounds.append(figures)
        if args.json:
            args.json.write_text(json.dumps(rounds, indent=1) + "\n")
    print(f"{args.model.name}, {args.threads} threads, {args.rounds} rounds; above 1 greenroom is faster")
    print("\n".join(table(rounds)))


if __name__ == "__main__":
    main()
