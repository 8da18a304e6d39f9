"""Share of the shipped scenarios' word n-grams that occur in the training corpus (is the text really held out?).

python overlap.py --corpus corpus.txt --scenarios ../../scenarios
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

WORD = re.compile(r"[a-z0-9']+")


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def grams(tokens: list[str], n: int) -> Iterator[int]:
    return (hash(tuple(tokens[i : i + n])) for i in range(len(tokens) - n + 1))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", type=Path, nargs="+", required=True)
    p.add_argument("--scenarios", type=Path, required=True, help="folder of *.yaml")
    p.add_argument("-n", type=int, nargs="+", default=[5, 8, 13])
    a = p.parse_args()
    files = sorted(a.scenarios.glob("*.yaml"))
    wanted = {f.name: {n: set(grams(words(f.read_text()), n)) for n in a.n} for f in files}
    everything = {n: set().union(*(w[n] for w in wanted.values())) for n in a.n}
    found: dict[int, set[int]] = {n: set() for n in a.n}
    for path in a.corpus:
        with path.open() as f:
            while lines := f.readlines(1 << 24):
                tokens = words("".join(lines))
                for n in a.n:
                    found[n].update(everything[n].intersection(grams(tokens, n)))
    print("scenario".ljust(32) + "".join(f"{n}-grams".rjust(20) for n in a.n))
    for name, sets in wanted.items():
        cells = [f"{len(s & found[n])}/{len(s)} = {len(s & found[n]) / max(1, len(s)):.2%}" for n, s in sets.items()]
        print(name.ljust(32) + "".join(c.rjust(20) for c in cells))


if __name__ == "__main__":
    main()
