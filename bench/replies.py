#!/usr/bin/env python3
"""Counts defects in the replies of transcripts: cut off, copied from the stage, spoken for others, said before.

    python3 bench/replies.py runs/before runs/after        # a row for each folder or transcript
    python3 bench/replies.py --show runs/after             # and the replies that were counted

It reads only transcripts, and counts the free replies of models, as sampled, without choices and rules. A reply is *cut* if it
reached its limit and does not end with a whole sentence. It copies a *cue* if it contains a square bracket, or asks a member of the
cast to speak in the words of the stage. It has a *direction* if one of its lines begins with a parenthesis or emphasis (`(sighs)`,
`*sighs*`). It copies the *stage* if one of its lines begins with the first four words of a line that the agent has read and nobody
said. It *speaks for another* if somebody else's name and a colon begin a line or a sentence; *own name* is the same with the
speaker's. *Said before* is the share of all 8-grams of words that the same agent has said in an earlier reply of the run. Needs
Python 3.10, no packages.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, Iterator

N = 8
N_FIRST = 4
ENDS = re.compile(r"[.!?…。！？][\"'”’»)\]*_」』）]*$")
Turn = dict[str, Any]


def transcripts(path: Path) -> list[Path]:
    """The transcript itself, or all transcripts below a folder."""
    return [path] if path.is_file() else sorted(p for p in path.rglob("*.jsonl") if p.name != "trace.jsonl")


def turns(path: Path) -> Iterator[tuple[dict[str, str], Turn, bool]]:
    """The names of the cast by key, each turn, and whether it is a free reply of a model."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    cast = lines[0]["agents"]
    names = {key: agent["name"] for key, agent in cast.items()}
    for line in lines[1:]:
        if line["type"] == "turn":
            is_decoded = (line["constraint"] or {}).get("method") == "decode"
            yield names, line, not is_decoded and not cast[line["agent"]].get("strategy")


def header(names: list[str]) -> re.Pattern[str]:
    """A name and a colon, as a script has them, where a line or a sentence begins."""
    any_name = "|".join(map(re.escape, names)) or r"(?!)"
    return re.compile(rf"(?:^|[.!?\"”])[\s*_\"“>#-]*(?:{any_name})(?:\s*\([^)\n]*\))?[*_]*\s*:", re.I | re.M)


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return re.findall(r"[\w']+", text.lower())


def stage_lines(names: dict[str, str], delta: str) -> set[tuple[str, ...]]:
    """The first words of the lines that nobody said."""
    spoken = tuple(mark for name in names.values() for mark in (f"{name}:", f"{name} ("))
    begins = (tuple(words(line)[:N_FIRST]) for line in delta.split("\n") if not line.startswith(spoken))
    return {begin for begin in begins if len(begin) == N_FIRST}


def faults(names: dict[str, str], turn: Turn, stage: set[tuple[str, ...]]) -> set[str]:
    """The defects of a reply."""
    raw, own = turn["raw"], names[turn["agent"]]
    others = [name for name in names.values() if name != own]
    any_name = "|".join(map(re.escape, names.values()))
    found = {
        "cut": turn["stop"] in ("length", "sentence") and not ENDS.search(raw.rstrip()),
        "cue": bool(re.search(rf"\[|\byour turn, (?:{any_name})\b", raw, re.I)),
        "direction": bool(re.search(r"^\s*(?:\(|\*[^*\s])", raw, re.M)),
        "stage": any(tuple(words(line)[:N_FIRST]) in stage for line in raw.split("\n")),
        "speaks for another": bool(header(others).search(raw)),
        "own name": bool(header([own]).search(raw)),
        "empty": not turn["spoken"].strip(),
    }
    return {fault for fault, is_so in found.items() if is_so}


def grams(text: str) -> list[tuple[str, ...]]:
    """All runs of N words."""
    all_words = words(text)
    return [tuple(all_words[i : i + N]) for i in range(len(all_words) - N + 1)]


FAULTS = ["cut", "cue", "stage", "direction", "speaks for another", "own name", "empty"]


def row(paths: list[Path], show: bool) -> list[str]:
    """Counts over transcripts."""
    counts, n, at_limit, n_tokens = dict.fromkeys(FAULTS, 0), 0, 0, 0
    n_grams, n_repeated = 0, 0
    for path in paths:
        said: dict[str, set[tuple[str, ...]]] = {}
        read: dict[str, set[tuple[str, ...]]] = {}
        for names, turn, is_free in turns(path):
            stage = read.setdefault(turn["agent"], set())
            stage |= stage_lines(names, turn["delta"])
            if not is_free:
                continue
            n += 1
            n_tokens += len(turn["tokens"])
            at_limit += turn["stop"] in ("length", "sentence")
            found = faults(names, turn, stage)
            for fault in found:
                counts[fault] += 1
            if show and found:
                print(f"{path.name} {turn['path']} {sorted(found)}: {turn['raw']!r}")
            before, new = said.setdefault(turn["agent"], set()), grams(turn["spoken"])
            n_grams += len(new)
            n_repeated += sum(gram in before for gram in new)
            before.update(new)
    share = lambda count, of: f"{100 * count / max(of, 1):.1f} %"
    return [str(n), f"{n_tokens / max(n, 1):.0f}", share(at_limit, n)] + [share(counts[f], n) for f in FAULTS] + [share(n_repeated, n_grams)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="TRANSCRIPT|FOLDER")
    parser.add_argument("--show", action="store_true", help="print the replies that were counted")
    parser.add_argument("--each", action="store_true", help="print a row for each transcript")
    args = parser.parse_args()
    titles = ["", "replies", "tokens each", "at the limit", *FAULTS, f"{N}-grams said before"]
    print("| " + " | ".join(titles) + " |\n|" + "---|" * len(titles))
    for path in args.paths:
        groups = [[p] for p in transcripts(path)] if args.each else [transcripts(path)]
        for group in groups:
            name = str(group[0] if args.each else path)
            print("| " + " | ".join([name, *row(group, args.show)]) + " |")


if __name__ == "__main__":
    main()
