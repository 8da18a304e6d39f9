"""Train the understudy on the CPU: float32 weights, products in bfloat16, one single-threaded worker per core that average their
gradients (steadier on a busy machine than threads), Muon for the matrices and AdamW for the rest, scheduled by tokens.

    python train.py --drill drill.bin --data short.bin --long long.bin --tokenizer tokenizer.json --out run

The length of a sequence grows with the share of the tokens seen (see STAGES); the learning rate warms up, holds and decays
linearly to zero at the end. Each row begins with a document, so that the model always sees who it is. Checkpoints (model,
optimisers, order of the data) are written every --save minutes; a resumed run ends in the same bits as one that never stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tokenizers import Tokenizer
from torch import Tensor

from exercises import recall_probes
from model import Config, Understudy

# from share of the tokens, sequence length, tokens per step, corpus
STAGES = [
    (0.00, 256, 4096, "drill"),
    (0.12, 512, 4096, "data"),
    (0.40, 1024, 4096, "data"),
    (0.80, 4096, 8192, "long"),
    (0.86, 1024, 4096, "data"),
]
DRILL = 5  # every so many steps is one of drill

PINNED = 0.4  # share of the tokens for which the copying heads are held


def orthogonal(g: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices of a stack (Newton-Schulz)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / (g.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.mT
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if flip else x


def add_up(tensors: list[Tensor]) -> None:
    """Sum over the workers, in place."""
    flat = torch.cat([t.flatten() for t in tensors])
    dist.all_reduce(flat)
    for t, part in zip(tensors, flat.split([t.numel() for t in tensors])):
        t.copy_(part.view_as(t))


class Muon:
    """Momentum, orthogonalised update, decoupled weight decay; same-shaped matrices go together."""

    def __init__(
        self, params: list[torch.nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        self.lr, self.momentum, self.decay = lr, momentum, decay
        shapes = sorted({tuple(p.shape) for p in params})
        self.groups = [[p for p in params if tuple(p.shape) == s] for s in shapes]
        self.buffers = [torch.zeros(len(g), *g[0].shape) for g in self.groups]

    @torch.no_grad()
    def step(self, scale: float, rank: int, workers: int) -> None:
        updates = []  # every worker orthogonalises its share; the sum over workers is complete
        for group, buf in zip(self.groups, self.buffers):
            g = torch.stack([p.grad for p in group])
            buf.lerp_(g, 1 - self.momentum)
            u = torch.zeros_like(g)
            mine = slice(rank * len(g) // workers, (rank + 1) * len(g) // workers)
            u[mine] = orthogonal(g[mine].lerp(buf[mine], self.momentum))
            updates.append(u)
        add_up(updates)
        for group, u in zip(self.groups, updates):
            lr = self.lr * scale * max(1.0, group[0].shape[0] / group[0].shape[1]) ** 0.5
            for p, d in zip(group, u):
                p.mul_(1 - self.lr * scale * self.decay).add_(d, alpha=-lr)


class Batches:
    """Rows of a packed uint16 corpus that begin with a document, in shuffled order, each document once before any comes again."""

    def __init__(
        self, path: Path, seed: int, share: tuple[int, int], answer: tuple[int, ...], end: int, stop: int, base: float
    ) -> None:
        self.ids = np.fromfile(path, dtype=np.uint16)
        self.starts = np.concatenate(([0], np.flatnonzero(self.ids[:-1] == stop) + 1))
        self.weight = reply_weights(self.ids, answer, end, base)
        self.seed = seed
        self.rank, self.workers = share  # workers deal out one order among themselves
        self.taken: dict[int, int] = {}  # by length, rows so far
        self.order: dict[int, tuple[int, np.ndarray]] = {}  # by length, the pass over the documents and its order

    def start(self, length: int) -> int:
        """Where the next row of this length begins."""
        fit = self.starts[self.starts + length < len(self.ids)]
        taken = self.taken.get(length, 0)
        self.taken[length] = taken + 1
        round, at = divmod(taken * self.workers + self.rank, len(fit))
        if self.order.get(length, (-1, None))[0] != round:
            self.order[length] = round, np.random.default_rng([self.seed, length, round]).permutation(fit)
        return int(self.order[length][1][at])

    def next(self, rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
        starts = [self.start(length) for _ in range(rows)]
        cut = np.stack([self.ids[s : s + length + 1] for s in starts]).astype(np.int64)
        w = np.stack([self.weight[s + 1 : s + length + 1] for s in starts])
        return torch.from_numpy(cut[:, :-1]), torch.from_numpy(cut[:, 1:].copy()), torch.from_numpy(w)


def reply_weights(
    ids: np.ndarray, answer: tuple[int, ...], end: int, base: float, reply: float = 2.0, short: float = 6.0
) -> np.ndarray:
    """Loss weight per token: `base`, `reply` inside assistant turns, `short` inside very short ones (recall answers)."""
    w = np.full(len(ids), base, dtype=np.float32)
    hit = np.ones(len(ids) - len(answer), dtype=bool)
    for i, t in enumerate(answer):
        hit &= ids[i : len(ids) - len(answer) + i] == t
    starts = np.flatnonzero(hit) + len(answer)
    ends = np.flatnonzero(ids == end)
    at = np.searchsorted(ends, starts)
    ok = at < len(ends)
    for s, e in zip(starts[ok], ends[at[ok]] + 1):
        w[s:e] = short if e - s <= 5 else reply
    return w


def alike(tok: Tokenizer) -> list[tuple[int, int]]:
    """Tokens that differ only by a leading blank or a capital."""
    v = tok.get_vocab()
    pairs = [(v[t[1:]], i) for t, i in v.items() if t[0] == "\u0120" and t[1:] in v]
    return sorted(
        pairs + [(v[t.lower()], i) for t, i in v.items() if t.lower() != t and t.lower() in v and t[0] != "\u0120"]
    )


def schedule(share: float) -> float:
    """Learning rate factor at this share of the tokens."""
    if share < 0.02:
        return 0.05 + 0.95 * share / 0.02
    return 1.0 if share < 0.5 else max(0.0, (1 - share) / 0.5)


@torch.no_grad()
def probe(model: Understudy, tok: Tokenizer, seed: int = 5) -> str:
    """Quick recall check: share of probes whose whole answer is the greedy one, by hops."""
    half = torch.randint(0, tok.get_vocab_size(), (1, 200), generator=torch.Generator().manual_seed(seed))
    guess = model(torch.cat([half, half], 1))[0, 200:-1].argmax(-1)
    out = [f"copy {(guess == half[0, 1:]).float().mean():.2f}"]
    for hops in (1, 2, 3):
        good = 0
        probes = recall_probes(seed, hops, 20, pairs=24 // hops * hops)
        for p in probes:
            a, b = tok.encode(p.prompt).ids, tok.encode(p.answer).ids
            top = model(torch.tensor([a + b]))[0, len(a) - 1 : -1].argmax(-1)
            good += top.tolist() == b
        out.append(f"{hops}hop {good / len(probes):.2f}")
    return " ".join(out)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, help="packed corpus, uint16")
    p.add_argument("--drill", type=Path, required=True, help="packed corpus of short recall exercises, to begin with")
    p.add_argument("--long", type=Path, required=True, help="packed corpus of the long stages")
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True, help="folder of checkpoints")
    p.add_argument("--tokens", type=float, default=16e6, help="tokens to train on")
    p.add_argument("--save", type=float, default=5, help="minutes between checkpoints")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--lr", type=float, default=0.005, help="Muon's")
    p.add_argument("--adam-lr", type=float, default=0.001)
    p.add_argument("--workers", type=int, default=2, help="processes, one per core")
    p.add_argument("--port", type=int, default=29511)
    p.add_argument("--steps", type=int, default=0, help="stop after so many steps (for tests)")
    a = p.parse_args()
    mp.spawn(worker, (a,), nprocs=a.workers)


def worker(rank: int, a: argparse.Namespace) -> None:
    """One data-parallel process; rank 0 keeps the clock, the log and the checkpoints."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
    dist.init_process_group("gloo", rank=rank, world_size=a.workers)
    torch.manual_seed(a.seed)
    torch.set_num_threads(1)
    log = (lambda *x: print(*x, flush=True)) if rank == 0 else (lambda *x: None)
    tok = Tokenizer.from_file(str(a.tokenizer))
    model = Understudy(Config(vocab=tok.get_vocab_size(), layers=5, ff=448))
    model.start_copying(alike(tok), [i for t, i in tok.get_vocab().items() if "?" in t])
    matrices = [q for n, q in model.named_parameters() if q.dim() == 2 and n.startswith("blk.")]
    rest = [q for n, q in model.named_parameters() if not (q.dim() == 2 and n.startswith("blk."))]
    muon = Muon(matrices, a.lr)
    adam = torch.optim.AdamW(rest, lr=a.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    a.out.mkdir(parents=True, exist_ok=True)
    last = a.out / "last.pt"
    step, seen, taken = 0, 0, {}
    if last.exists():
        s = torch.load(last, weights_only=False)
        model.load_state_dict(s["model"])
        adam.load_state_dict(s["adam"])
        muon.buffers = s["muon"]
        step, seen, taken = s["step"], s["seen"], s["taken"]
        log(f"resumed at step {step}, {seen / 1e6:.2f}M tokens")
    answer = tuple(tok.encode("<|im_start|>assistant\n").ids)
    end = tok.token_to_id("<|im_end|>")
    stop = tok.token_to_id("<|endoftext|>")
    data = {
        name: Batches(getattr(a, name), a.seed, (rank, a.workers), answer, end, stop, base)
        for name, base in (("drill", 0.03), ("data", 0.7), ("long", 0.7))
    }
    for name, d in data.items():
        d.taken = taken.get(name, {})
    params = list(model.parameters())
    pins = [(v, v.clone()) for v in model.pins()]
    log(f"{sum(q.numel() for q in params)} parameters, {sum(len(d.ids) for d in data.values())} tokens")
    loss_of = torch.compile(model.loss)
    dist.barrier()
    saved = noted = time.time()
    mean, previous = 0.0, seen

    def save() -> None:
        if rank == 0:
            torch.save(
                {
                    "model": model.state_dict(),
                    "adam": adam.state_dict(),
                    "muon": muon.buffers,
                    "step": step,
                    "seen": seen,
                    "taken": {name: d.taken for name, d in data.items()},  # both workers take equally many
                    "config": dataclasses.asdict(model.c),
                },
                last.with_suffix(".tmp"),
            )
            last.with_suffix(".tmp").replace(last)
            log(f"saved; recall {probe(model, tok)}")

    while seen < a.tokens and not (a.steps and step >= a.steps):
        share = seen / a.tokens
        _, length, tokens, corpus = [s for s in STAGES if s[0] <= share][-1]
        if step % DRILL == 0:
            _, length, tokens, corpus = STAGES[0]
        x, y, w = data[corpus].next(max(1, tokens // length // a.workers), length)
        with torch.autocast("cpu", torch.bfloat16):
            loss, plain = loss_of(x, y, w)
        loss.backward()
        plain = plain.reshape(1) / a.workers
        for q in params:
            q.grad /= a.workers
        add_up([*(q.grad for q in params), plain])
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        scale = schedule(share)
        for g in adam.param_groups:
            g["lr"] = a.adam_lr * scale
        muon.step(scale, rank, a.workers)
        adam.step()
        if share < PINNED:
            for view, value in pins:
                view.copy_(value)
        model.zero_grad(set_to_none=True)
        step += 1
        seen += x.numel() * a.workers
        mean = plain.item() if mean == 0 else 0.95 * mean + 0.05 * plain.item()
        now = time.time()
        if now - noted > 30:
            log(
                f"step {step} len {length} seen {seen / 1e6:.2f}M loss {mean:.4f} lr {scale:.3f} "
                f"tok/s {(seen - previous) / (now - noted):.0f}"
            )
            noted, previous = now, seen
        if now - saved > a.save * 60:
            save()
            saved = now
    save()
    log(f"done: steps {step} tokens {seen} loss {mean:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
