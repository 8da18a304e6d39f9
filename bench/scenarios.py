#!/usr/bin/env python3
"""Plays scenarios on a model with greenroom's own engine and through llama.cpp's server, and compares the wall time.

    python3 bench/scenarios.py --greenroom target/release/greenroom --llama llama.cpp/build/bin --model MODEL.gguf scenarios/*.yaml

Both play the same scenarios with the same seed; the program that begins changes from scenario to scenario. Each run is timed as a whole
process. greenroom opens the model in each of them, with an empty cache folder; llama-server has loaded it before, and keeps what it has read
from one scenario to the next. It has four slots, and a host-memory cache of 8 GiB, its default. Replies are drawn by different samplers, so they
differ: tokens a turn are shown beside the seconds. Needs only Python's standard library; bench/peers.md says how to build llama.cpp.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

SLOTS = 4
FIRST = "id: first\nagents: { a: { system_prompt: You are brief. } }\nphases: [{ name: one, agents: [a], prompt: Say hello. }]\n"


@dataclass
class Played:
    """One run of a scenario."""

    seconds: float
    turns: int
    generated: int
    computed: int
    reused: int


def words(*command: object) -> list[str]:
    return [str(word) for word in command]


@contextmanager
def llama_server(args: argparse.Namespace, folder: Path) -> Iterator[str]:
    """llama.cpp's server, ready: its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["-t", args.threads, "-fa", "on", "-c", SLOTS * args.context, "-np", SLOTS, "--host", "127.0.0.1", "--port", port]
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(words(args.llama / "llama-server", "-m", args.model, *flags), stdout=log, stderr=log)
    try:
        while True:
            if process.poll() is not None:
                sys.exit(f"llama-server ended:\n{(folder / 'server.log').read_text(errors='replace')[-2000:]}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).close()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def play(args: argparse.Namespace, scenario: Path, model: str, folder: Path, cache: Path) -> Played:
    """Plays a scenario in a process of its own."""
    out = folder / "run"
    # A scenario that names models gets this one for each.
    names = re.findall(r"^  (\w+): understudy$", scenario.read_text(), re.MULTILINE)
    models = [word for name in names for word in ("--model", f"{name}={model}")] or ["--model", model]
    where = ["--cache-dir", cache, "--out", out, "--threads", args.threads, "--seed", args.seed, "--quiet"]
    began = time.perf_counter()
    done = subprocess.run(words(args.greenroom, "run", scenario, *models, *where), capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        sys.exit(f"{scenario} on {model} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    turns = [json.loads(line) for line in (out / "trace.jsonl").read_text().splitlines()]
    usages = [turn["tokens"] for turn in turns if turn["type"] == "turn"]

    def count(*keys: str) -> int:
        return sum(usage[key] for usage in usages for key in keys)

    return Played(seconds, len(usages), count("generated"), count("prefilled", "recomputed"), count("reused"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", type=Path, nargs="+", metavar="SCENARIO.yaml")
    parser.add_argument("--greenroom", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--llama", type=Path, metavar="DIR", help="folder with llama.cpp's programs; without it greenroom plays alone")
    parser.add_argument("--model", type=Path, required=True, metavar="FILE.gguf")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--context", type=int, default=8192, help="tokens of each of llama-server's slots")
    args = parser.parse_args()
    head = f"{'turns':>7}{'tokens':>7}{'read':>7}{'reused':>8}"
    print(f"{'':20}{'greenroom':>11}{head}{'llama':>11}{head}{'ratio':>8}{'a turn':>8}", flush=True)
    all_played: list[tuple[Played, Played | None]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for n in range(args.rounds):
            cache, first = Path(temporary) / f"cache-{n}", Path(temporary) / "first.yaml"
            first.write_text(FIRST)
            (Path(temporary) / f"first-{n}").mkdir()
            play(args, first, str(args.model), Path(temporary) / f"first-{n}", cache)
            with llama_server(args, Path(temporary)) if args.llama else nothing() as address:
                for i, scenario in enumerate(args.scenarios):
                    sides = {"greenroom": str(args.model)}
                    if address:
                        sides["llama"] = f"llamacpp+{address}?tokenizer={args.model}&slots={SLOTS}"
                    order = list(sides) if (n + i) % 2 == 0 else list(reversed(sides))
                    played = {}
                    for side in order:
                        with tempfile.TemporaryDirectory() as folder:
                            played[side] = play(args, scenario, sides[side], Path(folder), cache)
                    ours = played["greenroom"]
                    theirs = played.get("llama")
                    print(f"{scenario.stem:20}{row(ours)}", f"{row(theirs)}{ratios(ours, theirs)}" if theirs else "", sep="", flush=True)
                    all_played.append((ours, theirs))
    ours = total([ours for ours, _ in all_played])
    theirs = total([theirs for _, theirs in all_played if theirs])
    print(f"{'all':20}{row(ours)}", f"{row(theirs)}{ratios(ours, theirs)}" if theirs.turns else "", sep="")


def row(played: Played) -> str:
    return f"{played.seconds:10.1f}s{played.turns:7}{played.generated:7}{played.computed:7}{played.reused:8}"


def ratios(ours: Played, theirs: Played) -> str:
    """Of the seconds, and of the seconds a turn: dialogues that go another way take other numbers of turns."""
    whole = theirs.seconds / ours.seconds
    return f"{whole:8.2f}{whole * ours.turns / theirs.turns:8.2f}"


def total(runs: list[Played]) -> Played:
    sums = [sum(column) for column in zip(*(astuple(run) for run in runs), strict=True)]
    return Played(*sums) if sums else Played(0.0, 0, 0, 0, 0)


@contextmanager
def nothing() -> Iterator[None]:
    yield None


if __name__ == "__main__":
    main()
