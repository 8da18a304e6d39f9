"""Count the faults of dialogues under several sampling settings: words that are glued together, sequences that an agent
repeats, replies that are cut at the limit.

    python3 bench/dialogues.py --program target/release/greenroom --words SMOLLM2.gguf --seeds 5 \\
        --scenario scenarios/gossip.yaml --model QWEN.gguf --set "" --set "--repetition-penalty 1"

Each `--set` is a list of flags of `greenroom run`. A word counts as glued if it is in no vocabulary of words but divides
into two that are, one of them a common short one, if a capital follows a small letter in it, or if a word follows a comma or full stop without a space.
The vocabulary of words is that of `--words`: its tokens that begin with a space. Words in a sequence
of eight that anybody has said before in the same run are repeated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import gguf

N = 8
SMALL = set("the of and to in that with for on is was as at by from you your he she they it but or not".split())


def words_of(path: Path) -> set[str]:
    """Words that a vocabulary has whole, after a space."""
    field = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"]
    tokens = [bytes(field.parts[index]).decode() for index in field.data]
    whole = {token[1:].lower() for token in tokens if token[:1] in "Ġ▁" and token[1:].isalpha()}
    return {word for word in whole if len(word) > 1} | {"a", "i"}


def is_glued(word: str, known: set[str]) -> bool:
    if re.search(r"[a-z][A-Z]", word) and not re.match(r"(Mc|Mac|De|Le|O)[A-Z]", word):
        return True
    low = word.lower()
    if low in known or len(low) < 5 or not low.isalpha():
        return False
    halves = ((low[:n], low[n:]) for n in range(2, len(low) - 1))
    return any(a in known and b in known and (a in SMALL or b in SMALL) for a, b in halves)


def faults(transcript: Path, known: set[str]) -> dict[str, int]:
    count = dict.fromkeys(("turns", "cut", "words", "glued", "repeated"), 0)
    said: dict[str, list[str]] = {}
    lines = [json.loads(line) for line in transcript.read_text().splitlines()]
    names = {word.lower() for line in lines[:1] for word in re.findall(r"[A-Za-z]+", json.dumps(line))}
    for line in lines:
        if line.get("type") != "turn" or line["constraint"] is not None:
            continue
        text: str = line["spoken"]
        count["turns"] += 1
        count["cut"] += line["stop"] in ("length", "sentence")
        words = re.findall(r"[A-Za-z]+", text)
        count["words"] += len(words)
        count["glued"] += sum(is_glued(word, known | names) for word in words)
        count["glued"] += len(re.findall(r"[A-Za-z][,.;!?][A-Za-z]{2}", text))
        before = said.setdefault("", [])
        old = {tuple(before[i : i + N]) for i in range(len(before) - N + 1)}
        new = [word.lower() for word in words]
        hit: set[int] = set()
        for i in range(len(new) - N + 1):
            gram = tuple(new[i : i + N])
            if gram in old:
                hit |= set(range(i, i + N))
            old.add(gram)
        count["repeated"] += len(hit)
        before += new
    return count


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--program", type=Path, required=True)
    arguments.add_argument("--words", type=Path, required=True)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--scenario", type=Path, action="append", required=True)
    arguments.add_argument("--model", type=Path, action="append", required=True)
    arguments.add_argument("--set", action="append", default=[], dest="sets")
    arguments.add_argument("--keep", type=Path, help="folder for the transcripts")
    given = arguments.parse_args()
    known = words_of(given.words)
    for model, flags in itertools.product(given.model, given.sets or [""]):
        total: dict[str, Any] = {}
        for scenario, seed in itertools.product(given.scenario, range(given.seeds)):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "run"
                if given.keep:
                    tag = re.sub(r"[^a-z0-9.]+", "_", flags) or "default"
                    out = given.keep / f"{model.stem}-{scenario.stem}-{seed}-{tag}"
                command = [given.program, "run", scenario, "--model", model, "--seed", str(seed), "--out", out]
                subprocess.run(
                    [*map(str, command), "--cache-dir", f"{folder}/cache", *shlex.split(flags)],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                for name, n in faults(out / "transcript.jsonl", known).items():
                    total[name] = total.get(name, 0) + n
        words, turns = max(total["words"], 1), max(total["turns"], 1)
        print(
            f"{model.stem} | {flags or 'defaults'} | glued {100 * total['glued'] / words:.2f} % "
            f"| repeated {100 * total['repeated'] / words:.1f} % | cut {100 * total['cut'] / turns:.0f} % "
            f"| {total['words'] / turns:.0f} words a turn",
            flush=True,
        )


main()
