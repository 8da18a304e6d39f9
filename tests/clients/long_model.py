"""A model for requests of real programs: Qwen2.5's vocabulary and chat template, room for 65,536 tokens, and weights by chance that are read fast.
A reply ends after some 20 tokens: every state has the same first number, which the end of a turn is drawn by."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import gguf
import numpy as np

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
WIDTH, HIDDEN, HEADS, ROOM = 64, 64, 1, 65_536


def write(out: Path) -> Path:
    """Writes the file, and returns its path."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as unpacked:
        unpacked.write(gzip.decompress((FIXTURES / "vocab" / "qwen2.gguf.gz").read_bytes()))
        unpacked.flush()
        fields = gguf.GGUFReader(unpacked.name).fields
        tokens, types, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges"))
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name("long")
    writer.add_context_length(ROOM)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template((FIXTURES / "templates" / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text())
    chance = np.random.default_rng(0)

    def by_chance(*shape: int) -> np.ndarray:
        return (chance.standard_normal(shape) * 0.05).astype(np.float32)

    embedding, output = by_chance(len(tokens), WIDTH), by_chance(len(tokens), WIDTH)
    embedding[:, 0], output[:, 0] = 1, 0
    output[tokens.index("<|im_end|>"), 0] = 1.2
    writer.add_tensor("token_embd.weight", embedding.astype(np.float16))
    writer.add_tensor("output.weight", output.astype(np.float16))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(WIDTH, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        writer.add_tensor(f"blk.0.{name}.weight", by_chance(WIDTH, WIDTH))
    for name, shape in (("ffn_gate", (HIDDEN, WIDTH)), ("ffn_up", (HIDDEN, WIDTH)), ("ffn_down", (WIDTH, HIDDEN))):
        writer.add_tensor(f"blk.0.{name}.weight", by_chance(*shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
