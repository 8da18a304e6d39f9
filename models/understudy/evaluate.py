"""Perplexity and recall of the understudy on held-out text, through the engine or in plain torch.

    python evaluate.py --model understudy.gguf --binary target/release/greenroom --kv f16
    python evaluate.py --torch run/last.pt --tokenizer tokenizer.json
    python evaluate.py --torch run/last.pt --tokenizer tokenizer.json --sample

The engine is called as `greenroom-lab score --model M --ids FILE --kv KIND`, FILE holding token ids (decimal, separated by blanks).
It writes one JSON object per line: {"pos", "id", "logprob", "top"}, the log-probability of the token at `pos` given the tokens
before it, and the id that is most probable there. Held-out text comes from the corpus generator with a seed of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from corpus import documents
from exercises import Probe, recall_probes
from model import Config, Understudy

SEED = 900_000_001


@dataclass(frozen=True)
class Scored:
    """Log-probability of each token after the first, and whether it was the most probable one."""

    logprob: list[float]
    top: list[int]


Scorer = Callable[[list[int]], Scored]


def engine(binary: str, model: str, kv: str) -> Scorer:
    """Score with the committed engine, one call per sequence."""

    def score(ids: list[int]) -> Scored:
        with tempfile.NamedTemporaryFile("w", suffix=".ids") as f:
            f.write(" ".join(map(str, ids)))
            f.flush()
            done = subprocess.run(
                [binary, "score", "--model", model, "--ids", f.name, "--kv", kv],
                check=True,
                capture_output=True,
                text=True,
            )
        rows = {r["pos"]: r for r in map(json.loads, filter(None, done.stdout.splitlines()))}
        keep = [rows[i] for i in range(1, len(ids))]
        if [r["id"] for r in keep] != ids[1:]:
            raise SystemExit("the engine scored other tokens than it was given")
        return Scored([r["logprob"] for r in keep], [r["top"] for r in keep])

    return score


def load(checkpoint: str) -> Understudy:
    state = torch.load(checkpoint, map_location="cpu", weights_only=False)
    model = Understudy(Config(**state["config"]))
    model.load_state_dict(state["model"])
    return model.eval()


def reference(model: Understudy) -> Scorer:
    """Score with the torch network of the training run."""

    @torch.no_grad()
    def score(ids: list[int]) -> Scored:
        logits = model(torch.tensor([ids[:-1]]))[0].float()
        lp = F.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        return Scored(lp.tolist(), logits.argmax(-1).tolist())

    return score


def gguf_tokenizer(model: str) -> Tokenizer:
    """The tokenizer inside a GGUF file."""
    import gguf
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

    from tokenizer import QWEN2, SPECIAL

    fields = gguf.GGUFReader(model).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ", 1)) for m in fields["tokenizer.ggml.merges"].contents()]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(s, special=True) for s in SPECIAL])
    return tok


def perplexity(score: Scorer, tok: Tokenizer, length: int, count: int) -> float:
    """Mean over the first `length` tokens of `count` held-out documents that are at least that long."""
    total, n = 0.0, 0
    used = 0
    for text in long_documents(length):
        ids = tok.encode(text).ids[:length]
        if len(ids) < length:
            continue
        lp = score(ids).logprob
        total, n, used = total - sum(lp), n + len(lp), used + 1
        if used == count:
            break
    return math.exp(total / n)


def long_documents(length: int):  # noqa: ANN201 - a generator of texts
    """Held-out documents of the long kind, of any length; the same ones for every `length`, cut to it."""
    for text in documents(SEED, 0.25, long=True):
        if len(text) > 15_500:  # about 4,096 tokens; the same documents serve every length
            yield text


def recall(score: Scorer, tok: Tokenizer, probe: Probe) -> tuple[bool, float, int]:
    """Right or wrong, margin of the right answer over the best wrong one of the same list, and distance in tokens."""
    head = tok.encode(probe.prompt).ids
    answer = tok.encode(probe.answer).ids
    s = score(head + answer)
    n = len(answer)
    ok = s.top[-n:] == answer
    right = sum(s.logprob[-n:])
    others = []
    for wrong in probe.others:
        w = tok.encode(wrong).ids
        others.append(sum(score(head + w).logprob[-len(w) :]))
    before = probe.prompt.find(probe.source)
    distance = len(head) - len(tok.encode(probe.prompt[:before]).ids)
    return ok, right - max(others), distance


def sample(model: Understudy, tok: Tokenizer, temperature: float, seed: int, turns: int = 24) -> None:
    """Play a small interrogation with people who are not in the corpus."""
    gen = torch.Generator().manual_seed(seed)
    end = tok.token_to_id("<|im_end|>")
    q, a, b = "Hargreave", "Celso", "Wilma"
    rules = (
        "Two suspects of the museum robbery are held apart. If both stay silent, each serves 2 years. "
        "If one betrays the other, the traitor serves 1 year and the other 10. If both betray, each serves 6."
    )
    system = {
        q: f"You are {q}, the officer who questions the two suspects. You are patient and cunning. You want a confession.",
        a: f"You are {a}, a locksmith under arrest. You are nervous. {b} is your partner. The red painting is hidden in the old mill.",
        b: f"You are {b}, a driver under arrest. You are proud and loyal to {a}. You never talk to the police.",
    }
    log: dict[str, list[str]] = {n: [f"<|im_start|>system\n{system[n]}<|im_end|>\n"] for n in system}
    pending: dict[str, list[str]] = {n: [rules] for n in system}
    phases = [
        (f"A grey interview room. {q} questions {a} alone.", [q, a]),
        (f"The same room, an hour later. {q} questions {b} alone.", [q, b]),
        (f"{a} and {b} meet in the yard. Nobody else can hear them.", [a, b]),
        (f"All three sit at one table. {q} wants the truth.", [q, a, b]),
    ]
    for text, cast in phases:
        print(f"\n--- {text}")
        for n in cast:
            pending[n].append(text)
        for i in range(turns // len(phases)):
            n = cast[i % len(cast)]
            body = "\n".join([*pending[n], f"[Your turn, {n}.]"])
            pending[n] = []
            log[n].append(f"<|im_start|>user\n{body}<|im_end|>\n<|im_start|>assistant\n")
            said = generate(model, tok, "".join(log[n]), temperature, end, gen)
            log[n].append(f"{said}<|im_end|>\n")
            print(f"{n}: {said}")
            for other in cast:
                if other != n:
                    pending[other].append(f"{n}: {said}")


@torch.no_grad()
def generate(model: Understudy, tok: Tokenizer, text: str, temperature: float, end: int, gen: torch.Generator) -> str:
    ids = tok.encode(text).ids
    start = len(ids)
    while len(ids) - start < 80:
        logits = model(torch.tensor([ids]))[0, -1] / temperature
        token = int(torch.multinomial(logits.softmax(-1), 1, generator=gen))
        if token == end:
            break
        ids.append(token)
    return tok.decode(ids[start:])


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", help="GGUF file")
    p.add_argument("--binary", default="target/release/greenroom")
    p.add_argument("--kv", default="f16", help="kind of KV cache the engine keeps")
    p.add_argument("--torch", help="checkpoint, instead of the engine")
    p.add_argument("--tokenizer", help="tokenizer JSON (default: the one in the GGUF file)")
    p.add_argument("--documents", type=int, default=12, help="documents per perplexity")
    p.add_argument("--probes", type=int, default=30, help="recall questions per cell")
    p.add_argument("--sample", action="store_true", help="play a small interrogation and stop (needs --torch)")
    p.add_argument("--temperature", type=float, default=0.7)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    torch.set_num_threads(2)
    tok = Tokenizer.from_file(a.tokenizer) if a.tokenizer else gguf_tokenizer(a.model)
    if a.sample:
        sample(load(a.torch), tok, a.temperature, a.seed)
        return
    score = reference(load(a.torch)) if a.torch else engine(a.binary, a.model, a.kv)
    ppl = {n: perplexity(score, tok, n, a.documents) for n in (1024, 4096)}
    for n, v in ppl.items():
        print(f"perplexity {n:5d}  {v:.3f}")
    print(f"ratio 4096/1024  {ppl[4096] / ppl[1024]:.3f}")
    print("hops  pairs  distance  greedy  ranked  margin")
    for hops in (1, 2, 3):
        for pairs in (12, 24, 60, 120):
            rows = [recall(score, tok, x) for x in recall_probes(SEED, hops, a.probes, pairs // hops * hops)]
            n = len(rows)
            print(
                f"{hops:4d}  {pairs:5d}  {sum(r[2] for r in rows) / n:8.0f}  {sum(r[0] for r in rows) / n:6.2f}"
                f"  {sum(r[1] > 0 for r in rows) / n:6.2f}  {sum(r[1] for r in rows) / n:+6.2f}"
            )


if __name__ == "__main__":
    main()
