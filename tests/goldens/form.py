"""The form of a golden: which ids are asked for, and what is kept of a reference's answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

N_IDS = 700  # past the border of the engine's second block of 256 tokens


def pseudo_random_ids(seed: int, n_vocab: int) -> list[int]:
    """Ids by Knuth's 64-bit LCG (MMIX), started at the seed: x <- 6364136223846793005 x + 1442695040888963407 mod 2^64;
    an id is the step's upper 31 bits mod n_vocab."""
    ids, x = [], seed
    for _ in range(N_IDS):
        x = (6364136223846793005 * x + 1442695040888963407) % 2**64
        ids.append((x >> 33) % n_vocab)
    return ids


def golden(facts: dict[str, Any], reference: str, ids: list[int], logits: np.ndarray, digits: int = 6) -> dict[str, Any]:
    """`logits: [n_ids, n_vocab]`; log-probabilities are rounded to `digits` decimals. Entry i of `logprobs`, `tops` and `margins`
    (top's logit less the second's): position i + 1."""
    x = logits[:-1].astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    logprobs = x[np.arange(len(x)), ids[1:]] - np.log(np.exp(x).sum(axis=-1))
    second, top = np.sort(x, axis=-1)[:, -2:].T
    return {
        "model": facts,
        "reference": reference,
        "ids": ids,
        "logprobs": [round(x, digits) for x in logprobs.tolist()],
        "tops": x.argmax(axis=-1).tolist(),
        "margins": [round(x, 3) for x in (top - second).tolist()],
    }


def write(path: Path, golden: dict[str, Any]) -> None:
    """One line for each entry."""
    path.write_text("{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in golden.items()) + "\n}\n")
    print(f"{path}: {path.stat().st_size} bytes")
