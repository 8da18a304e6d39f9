"""The same study from Python: `python framing.py [MODEL]`."""

import sys
from pathlib import Path

import greenroom as gr

FILE = Path(__file__).parent / "framing.yaml"

study = gr.experiment(FILE, sys.argv[1] if len(sys.argv) > 1 else None, sweep={"frame": ["saved", "die"]})
for row in study.figures.rows():
    if row["figure"] == "outcome agrees":
        print(f"{row['frame']}: {row['value']:.0%} agree, 95 % interval {row['low']:.0%} to {row['high']:.0%}")
for one in study.differences:
    if one["figure"] == "outcome agrees":
        print(f"difference {one['difference']:+.0%}, from {one['low']:+.0%} to {one['high']:+.0%}, {one['pairs']} pairs")
