"""Write a checkpoint as a GGUF file (llama architecture, Q8_0 matrices, float32 norms, ChatML template).

python export.py --checkpoint run/last.pt --tokenizer tokenizer.json --out understudy.gguf
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = (
    "A tiny stand-in language model for trying out and testing many-agent scenarios. It is trained from scratch on "
    "computer-generated dialogues only; it can keep a simple conversation going and recall names and facts, and knows nothing else."
)


def vocabulary(path: Path) -> tuple[list[str], list[str]]:
    """Tokens in id order and merges of a tokenizers JSON file."""
    spec = json.loads(path.read_text())
    table: dict[str, int] = dict(spec["model"]["vocab"])
    table.update({t["content"]: t["id"] for t in spec["added_tokens"]})
    tokens = sorted(table, key=table.__getitem__)
    if [table[t] for t in tokens] != list(range(len(tokens))):
        raise SystemExit("token ids have gaps")
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    return tokens, merges


def add_vocabulary(w: gguf.GGUFWriter, tokens: list[str], merges: list[str]) -> None:
    """The tokenizer, and the chat template."""
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if t in SPECIAL else gguf.TokenType.NORMAL for t in tokens])
    w.add_token_merges(merges)
    w.add_bos_token_id(tokens.index(SPECIAL[0]))
    w.add_pad_token_id(tokens.index(SPECIAL[0]))
    w.add_eos_token_id(tokens.index(SPECIAL[2]))
    w.add_add_bos_token(False)
    w.add_chat_template(CHATML)


def export(checkpoint: Path, tokenizer: Path, out: Path) -> None:
    """Write to a temporary file, then rename, so that readers never see half a model."""
    state = torch.load(checkpoint, map_location="cpu", weights_only=False)
    c, weights = state["config"], state["model"]
    tokens, merges = vocabulary(tokenizer)
    assert len(tokens) == c["vocab"]
    temporary = out.with_name(out.name + ".tmp")
    w = gguf.GGUFWriter(str(temporary), "llama")
    w.add_name("understudy")
    w.add_description(TEXT)
    w.add_license("MIT OR Apache-2.0")
    w.add_context_length(c["context"])
    w.add_embedding_length(c["dim"])
    w.add_block_count(c["layers"])
    w.add_feed_forward_length(c["ff"])
    w.add_head_count(c["heads"])
    w.add_head_count_kv(c["kv_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_rope_freq_base(c["rope_base"])
    w.add_layer_norm_rms_eps(c["eps"])
    w.add_vocab_size(c["vocab"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_vocabulary(w, tokens, merges)
    q8 = gguf.GGMLQuantizationType.Q8_0
    for name, t in weights.items():
        a = t.float().numpy().astype(np.float32)
        if a.ndim == 1:
            w.add_tensor(name, a)
        else:
            w.add_tensor(name, gguf.quants.quantize(a, q8), raw_dtype=q8)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    temporary.replace(out)
    print(
        f"{out.name}: {out.stat().st_size / 1e6:.2f} MB, step {state['step']}, {state['seen'] / 1e6:.1f}M tokens seen"
    )


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--checkpoint", type=Path, required=True)
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    export(a.checkpoint, a.tokenizer, a.out)


if __name__ == "__main__":
    main()
