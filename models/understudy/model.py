"""The understudy network: a small Llama (RMSNorm, interleaved RoPE, grouped-query attention, SwiGLU) in plain torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes of the network; everything the GGUF header needs."""

    vocab: int = 3072
    dim: int = 256
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ff: int = 704
    rope_base: float = 100000.0
    eps: float = 1e-5
    context: int = 8192

    def dict(self) -> dict:
        return asdict(self)


def rope_tables(length: int, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, (length, head_dim / 2)."""
    freq = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), freq)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate adjacent pairs of the last axis (GGUF "NORM" RoPE); x is (batch, heads, length, head_dim)."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        f = x.float()
        return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + self.eps) * self.weight).to(x.dtype)


class Block(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.attn_norm = RMSNorm(c.dim, c.eps)
        self.attn_q = nn.Linear(c.dim, c.heads * c.head_dim, bias=False)
        self.attn_k = nn.Linear(c.dim, c.kv_heads * c.head_dim, bias=False)
        self.attn_v = nn.Linear(c.dim, c.kv_heads * c.head_dim, bias=False)
        self.attn_output = nn.Linear(c.heads * c.head_dim, c.dim, bias=False)
        self.ffn_norm = RMSNorm(c.dim, c.eps)
        self.ffn_gate = nn.Linear(c.dim, c.ff, bias=False)
        self.ffn_up = nn.Linear(c.dim, c.ff, bias=False)
        self.ffn_down = nn.Linear(c.ff, c.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        c = self.c
        b, t, _ = x.shape
        h = self.attn_norm(x)
        q = rotate(self.attn_q(h).view(b, t, c.heads, c.head_dim).transpose(1, 2), cos, sin)
        k = rotate(self.attn_k(h).view(b, t, c.kv_heads, c.head_dim).transpose(1, 2), cos, sin)
        v = self.attn_v(h).view(b, t, c.kv_heads, c.head_dim).transpose(1, 2)
        group = c.heads // c.kv_heads
        y = F.scaled_dot_product_attention(
            q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), is_causal=True
        )
        x = x + self.attn_output(y.transpose(1, 2).reshape(b, t, -1))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Understudy(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.token_embd = nn.Embedding(c.vocab, c.dim)
        self.blk = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.output_norm = RMSNorm(c.dim, c.eps)
        self.output = nn.Linear(c.dim, c.vocab, bias=False)
        cos, sin = rope_tables(c.context, c.head_dim, c.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        nn.init.normal_(self.token_embd.weight, std=0.5)
        for name, p in self.named_parameters():
            if p.dim() == 2 and "embd" not in name:
                nn.init.normal_(p, std=c.dim**-0.5)
            if "attn_output" in name or "ffn_down" in name or name == "output.weight":
                nn.init.zeros_(p)

    @torch.no_grad()
    def start_copying(self, alike: list[tuple[int, int]], questions: list[int]) -> None:
        """Start from weights that can already copy ("the token after the last time I saw this one").

        A small model sees too few tokens to find such heads by chance early. In layer 0, head 0 looks one token back and head 2
        two tokens back and they note down what they see in dimensions of their own; in layer 1, heads 0, 2 and 3 look for places
        whose note fits the present token or the last one and bring the token found there. In layer 2, head 0 looks at the last question
        mark (`questions`: tokens that hold one) and takes up the words noted there; in layer 3, head 2 looks for places whose note
        fits them. `alike`: pairs of tokens that differ only by a leading blank; they start from similar vectors. Everything is
        trained further, at first with these few weights held (see `pins`).
        """
        c, hd = self.c, self.c.head_dim
        words, one, two, keys = slice(1, 160), slice(192, 256), slice(160, 192), 28
        e = self.token_embd.weight
        for a, b in alike:
            e[b] = 0.9 * e[a] + 0.43 * e[b]
        e[:, 160:] *= 0.05
        e[:, 0] = 1.0
        p = torch.linalg.qr(torch.randn(159, 64))[0].T  # what is noted of a token
        p2 = torch.linalg.qr(torch.randn(159, 64))[0].T  # what is copied of a token
        angle = c.rope_base ** (-torch.arange(16) * 2 / hd)
        first, second = self.blk[0], self.blk[1]
        for head, kv, back, rows in ((0, 0, 1, one), (2, 1, 2, two)):
            n = rows.stop - rows.start
            q, k = first.attn_q.weight[head * hd :][:hd], first.attn_k.weight[kv * hd :][:hd]
            q.mul_(0.1)
            k.mul_(0.1)
            k[0:32:2, 0] = 3.3
            q[0:32:2, 0] = 3.3 * torch.cos(back * angle)
            q[1:32:2, 0] = -3.3 * torch.sin(back * angle)
            v = first.attn_v.weight[kv * hd :][:hd]
            v.zero_()
            v[:, words] = p
            first.attn_output.weight[rows, head * hd : head * hd + n] = 0.45 * torch.eye(n)
        for head, kv, seen, noted in ((0, 0, words, one), (2, 1, one, two), (3, 1, words, two)):
            q, k = second.attn_q.weight[head * hd :][:hd], second.attn_k.weight[kv * hd :][:hd]
            q.mul_(0.1)
            k.mul_(0.1)
            look = p[:keys] if seen is words else torch.eye(64)[:keys]
            q[-keys:, seen] = 2.0 * look
            k[-keys:, noted] = 2.0 * torch.eye(noted.stop - noted.start)[:keys]
            v = second.attn_v.weight[kv * hd :][:hd]
            v.zero_()
            v[:, words] = p2
            second.attn_output.weight[words, head * hd : (head + 1) * hd] = (2 if noted is two else 1) * p2.T
        third, fourth = self.blk[2], self.blk[3]
        q, k, v = third.attn_q.weight[:hd], third.attn_k.weight[:hd], third.attn_v.weight[:hd]
        q.mul_(0.1)
        k.mul_(0.1)
        mark = e[questions][:, words].mean(0)
        near = slice(16, 36, 2)  # frequencies that tell the last question from those before
        q[near, 0] = 3.0
        k[near, words] = 3.0 * mark / mark.square().sum()
        v.zero_()
        v[:32, 192:224] = torch.eye(32)
        v[32:, two] = torch.eye(32)
        third.attn_output.weight[words, :hd] = 1.5 * torch.cat((p[:32], p[:32])).T
        q, k = fourth.attn_q.weight[2 * hd : 3 * hd], fourth.attn_k.weight[hd:]
        q.mul_(0.1)
        k.mul_(0.1)
        q[-keys:, words] = 2.0 * p[:keys]
        k[-keys:, two] = 2.0 * torch.eye(32)[:keys]
        v = fourth.attn_v.weight[hd:]
        v.zero_()
        v[:, words] = p2
        fourth.attn_output.weight[words, 2 * hd : 3 * hd] = 2 * p2.T
        self.output.weight[:, words] = 0.2 * e[:, words] @ p2.T @ p2

    def pins(self) -> list[Tensor]:
        """Views of the weights that `start_copying` set up, to be held fixed until the rest has learned to use them."""
        first, second = self.blk[0], self.blk[1]
        hd, note = self.c.head_dim, 160
        views = [
            self.token_embd.weight[:, :1],
            self.token_embd.weight[:, note:],
            first.attn_norm.weight,
            second.attn_norm.weight,
        ]
        views += [
            first.attn_k.weight,
            first.attn_v.weight,
            first.attn_output.weight[note:],
            first.ffn_down.weight[note:],
        ]
        views += [second.attn_k.weight, first.attn_output.weight[:1], first.ffn_down.weight[:1]]
        for head in (0, 2):
            rows = slice(head * hd, (head + 1) * hd)
            views += [first.attn_q.weight[rows], second.attn_q.weight[rows], first.attn_output.weight[:, rows]]
        views.append(second.attn_q.weight[3 * hd :])
        views += [self.blk[2].attn_q.weight[:hd], self.blk[2].attn_k.weight[:hd], self.blk[2].attn_norm.weight]
        views += [
            self.blk[3].attn_q.weight[2 * hd : 3 * hd],
            self.blk[3].attn_k.weight[hd:],
            self.blk[3].attn_norm.weight,
        ]
        return [v.detach() for v in views]

    def hidden(self, ids: Tensor) -> Tensor:
        """Final normed states, (batch, length, dim)."""
        t = ids.shape[1]
        cos, sin = self.cos[:t], self.sin[:t]
        x = self.token_embd(ids)
        for block in self.blk:
            x = block(x, cos, sin)
        return self.output_norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.hidden(ids))

    def loss(self, ids: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted loss to minimise and the plain (unweighted) mean loss to report."""
        logits = self(ids)
        each = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        w = weights.flatten()
        return (each * w).sum() / w.sum(), each.detach().mean()
