"""Seeded generator of the understudy's training text: many-party talk seen by one agent, and recall exercises.

    python corpus.py --seed 1 --chars 60000000 --out corpus.txt      # documents separated by <|endoftext|>
    python corpus.py --seed 7 --show 3                               # print a few documents

Each document is ONE agent's view in ChatML: a system prompt (who the agent is), user messages (what happened since the agent
last spoke, ending in "[Your turn, NAME.]") and assistant messages (what the agent said).
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from exercises import drills, recall
from interrogation import interrogation
from plays import debate, expert, gossip, negotiation, planning, reunion

END = "<|endoftext|>"

PLAYS = [(interrogation, 40), (gossip, 12), (debate, 9), (negotiation, 8), (planning, 10), (reunion, 10), (expert, 11)]


def play(r: random.Random, long: bool) -> list[str]:
    """Views of one random play, for one or two of its agents."""
    w = r.choices([p for p, _ in PLAYS], [k for _, k in PLAYS])[0](r, long)
    speakers = sorted({e.speaker for e in w.events if e.speaker})
    chosen = r.sample(speakers, min(len(speakers), 2))
    return [v for v in (w.view(w.people[s]) for s in chosen) if v]


def documents(seed: int, recall_share: float = 0.35, long: bool = False) -> Iterator[str]:
    """Endless stream of documents."""
    r = random.Random(seed)
    while True:
        if r.random() < recall_share:
            hops = r.choices((1, 2, 3), (6, 3, 2))[0]
            pairs = r.choice((10, 24, 40, 80, 120, 160)) if long else r.choice((3, 4, 6, 8, 12, 16, 24, 32))
            yield recall(r, pairs, r.randint(4, 14) if not long else r.randint(8, 40), hops)
        else:
            yield from play(r, long)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--chars", type=int, default=60_000_000)
    p.add_argument("--recall", type=float, default=0.35, help="share of recall documents")
    p.add_argument("--long", action="store_true", help="longer recall lists")
    p.add_argument("--drill", action="store_true", help="short recall exercises only")
    p.add_argument("--out", type=Path)
    p.add_argument("--show", type=int, default=0, help="print this many documents and stop")
    a = p.parse_args()
    source = drills(a.seed) if a.drill else documents(a.seed, a.recall, a.long)
    if a.show:
        for _ in range(a.show):
            print(next(source), END, sep="")
        return
    total = 0
    with a.out.open("w") if a.out else sys.stdout as f:
        while total < a.chars:
            d = next(source)
            f.write(d + END)
            total += len(d)


if __name__ == "__main__":
    main()
