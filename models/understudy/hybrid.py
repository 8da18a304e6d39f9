"""Train a tiny model with recurrent layers on the understudy's corpus, to measure on: a `qwen35` of three layers of the gated delta
rule for each one with attention, heads as wide as real ones. It is not shipped, and speaks worse than the understudy.

    pip install -r requirements.txt transformers==5.24.0
    python corpus.py --seed 1 --chars 12000000 --recall 0.2 --out short.txt
    python tokenizer.py --corpus short.txt --vocab 3072 --out tokenizer.json
    python tokenizer.py --encode short.txt --tokenizer tokenizer.json --out short.bin
    python hybrid.py --data short.bin --tokenizer tokenizer.json --tokens 1e6 --out hybrid.gguf
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import gguf
import numpy as np
import torch
from export import SPECIAL, add_vocabulary, vocabulary
from tokenizers import Tokenizer
from train import Batches, schedule
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

LENGTH, ROWS = 512, 8
DELTA = {
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
ATTENTION = {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"} | {f"self_attn.{x}_norm": f"attn_{x}_norm" for x in "qk"}
LAYER = DELTA | ATTENTION | {f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")} | {
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def shape(vocab: int) -> Qwen3_5TextConfig:
    """As many heads of values as of keys: in files they need no other order then."""
    return Qwen3_5TextConfig(
        vocab_size=vocab,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        tie_word_embeddings=False,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    )


def remember(model: Qwen3_5ForCausalLM) -> None:
    """Steps of 0.001 to 0.1, as Mamba-2's begin: with larger ones heads forget all at once, and their states do not matter."""
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            step = torch.exp(torch.empty_like(parameter).uniform_(np.log(0.001), np.log(0.1)))
            parameter.data = step + torch.log(-torch.expm1(-step))


def train(model: Qwen3_5ForCausalLM, batches: Batches, n_tokens: float, lr: float) -> None:
    """AdamW, at the understudy's schedule."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))
    steps, began = int(n_tokens / LENGTH / ROWS), time.monotonic()
    for step in range(steps):
        x, y, weight = batches.next(ROWS, LENGTH)
        logits = model(x).logits
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
        loss = (each * weight.flatten()).sum() / weight.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * schedule(step / steps)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} of {steps}: {each.mean():.3f}, {time.monotonic() - began:.0f} s", flush=True)


def export(model: Qwen3_5ForCausalLM, tokenizer: Path, out: Path) -> None:
    """In float32."""
    config, (tokens, merges) = model.config, vocabulary(tokenizer)
    w = gguf.GGUFWriter(str(out), "qwen35")
    w.add_name("hybrid")
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_key_length(config.head_dim)
    w.add_value_length(config.head_dim)
    w.add_rope_dimension_count(config.head_dim // 4)
    w.add_rope_dimension_sections([3, 3, 2, 0])
    w.add_rope_freq_base(config.rope_parameters["rope_theta"])
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    w.add_ssm_state_size(config.linear_key_head_dim)
    w.add_ssm_group_count(config.linear_num_key_heads)
    w.add_ssm_time_step_rank(config.linear_num_value_heads)
    w.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
    w.add_full_attention_interval(4)
    w.add_vocab_size(config.vocab_size)
    add_vocabulary(w, tokens, merges)
    for name, parameter in model.named_parameters():
        x = parameter.detach().numpy().astype(np.float32)
        whole, _, ending = name.rpartition(".")
        if whole in WHOLE:
            new = f"{WHOLE[whole]}.{ending}"
        else:
            layer, _, part = name.removeprefix("model.layers.").partition(".")
            own = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}.get(part)
            new = f"blk.{layer}.{own or LAYER[part.rpartition('.')[0]] + '.' + ending}"
        if name.endswith("A_log"):
            x = -np.exp(x)
        elif "norm" in name and "linear_attn.norm" not in name:
            x = x + 1
        w.add_tensor(new, np.ascontiguousarray(x.squeeze()))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, help="packed corpus, uint16")
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--tokens", type=float, default=1e6)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    torch.manual_seed(1)
    tok = Tokenizer.from_file(str(a.tokenizer))
    end, stop = (tok.token_to_id(SPECIAL[i]) for i in (2, 0))
    answer = tuple(tok.encode("<|im_start|>assistant\n").ids)
    batches = Batches(a.data, 1, (0, 1), answer, end, stop, 1.0)
    model = Qwen3_5ForCausalLM(shape(tok.get_vocab_size())).float()
    remember(model)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters")
    train(model, batches, a.tokens, a.lr)
    export(model.eval(), a.tokenizer, a.out)


if __name__ == "__main__":
    main()
