"""Make the goldens: log-probabilities that a reference which is not ours, Hugging Face transformers, gives to random models.

A golden answers for `engine/tests/conformance.rs`: it names a model that `greenroom_engine::fixtures::RandomModel` makes
again from its seed, a list of token ids, and the reference's log-probability of each id after those before it.

    pip install 'transformers>=5' torch gguf numpy
    cargo run -p greenroom-engine --features fixtures --example random_gguf -- 1.gguf 1
        and so 2.gguf 2 --n_layers 4, and 3.gguf 3 --n_kv_heads 1 --rope_base 500000
    python3 tests/goldens/make.py 1.gguf 2.gguf 3.gguf                   # writes tests/goldens/llama-seed{1,2,3}.json
    python3 tests/goldens/make.py MODEL.gguf --against scores.jsonl      # compares, writes nothing

`--against` takes lines {"pos", "id", "logprob", "top"} as `greenroom-lab score --ids` prints them, for the ids of a golden that
`--out` put elsewhere. Any `llama` file without rotary scaling will do, in whatever types `gguf` can dequantize; the ids'
seed is the model's, from its name `random-llama-SEED`, else 0.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

import form

# Names of tensors in GGUF and in transformers: of a layer, and of the whole.
LAYER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"}
LAYER |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"} | {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
GLOBAL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def half_split(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """`[n_heads * head_dim, d]`: the rows of a rotary pair are neighbours in GGUF, half a head apart in transformers."""
    rows, d = weight.shape
    return weight.reshape(n_heads, rows // n_heads // 2, 2, d).swapaxes(1, 2).reshape(rows, d)


def load(path: Path) -> tuple[transformers.LlamaForCausalLM, dict[str, Any]]:
    """The file's model in float32 with eager attention, and what `RandomModel` needs to make it again."""
    reader = gguf.GGUFReader(path)

    def value(key: str, default: Any = None) -> Any:
        field = reader.get_field(key)
        return default if field is None else field.contents()

    assert value("general.architecture") == "llama", f"{path}: not a llama"
    assert value("llama.rope.scaling.type", "none") == "none", f"{path}: rotary scaling is not handled"
    n_heads, d_model = value("llama.attention.head_count"), value("llama.embedding_length")
    n_kv_heads = value("llama.attention.head_count_kv", n_heads)
    head_dim = value("llama.attention.key_length", d_model // n_heads)
    assert value("llama.rope.dimension_count", head_dim) == head_dim, f"{path}: partial rotation is not handled"
    rope_base = float(value("llama.rope.freq_base", 10000.0))

    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        x = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = tensor.name.removesuffix(".weight")
        if match := re.fullmatch(r"blk\.(\d+)\.(.+)", name):
            if match[2] in ("attn_q", "attn_k"):
                x = half_split(x, n_heads if match[2] == "attn_q" else n_kv_heads)
            name = f"model.layers.{match[1]}.{LAYER[match[2]]}"
        else:
            name = GLOBAL[name]
        weights[f"{name}.weight"] = torch.from_numpy(np.ascontiguousarray(x))
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])

    config = transformers.LlamaConfig(
        vocab_size=len(weights["model.embed_tokens.weight"]),
        hidden_size=d_model,
        intermediate_size=value("llama.feed_forward_length"),
        num_hidden_layers=value("llama.block_count"),
        num_attention_heads=n_heads,
        num_key_value_heads=n_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=value("llama.context_length"),
        rms_norm_eps=value("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": rope_base},
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    model = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
    model.load_state_dict(weights, strict=True)
    seed = re.fullmatch(r"random-llama-(\d+)", value("general.name", ""))
    facts = {"n_layers": config.num_hidden_layers, "n_kv_heads": n_kv_heads, "rope_base": rope_base}
    return model, {"seed": int(seed[1]) if seed else 0, **facts}


def golden(path: Path) -> dict[str, Any]:
    """The reference's answer."""
    model, facts = load(path)
    ids = form.pseudo_random_ids(facts["seed"], model.config.vocab_size)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].numpy()
    return form.golden(facts, f"transformers {transformers.__version__}, torch {torch.__version__}", ids, logits)


def compare(reference: dict[str, Any], lines: Path) -> str:
    """How far the scores in `lines` are from the reference, in words."""
    scores = [json.loads(line) for line in lines.read_text().splitlines() if line.strip()]
    assert [s["pos"] for s in scores] == list(range(1, form.N_IDS)), f"{lines}: positions 1 to {form.N_IDS - 1} are needed"
    assert [s["id"] for s in scores] == reference["ids"][1:], f"{lines}: other ids were scored"
    off = [abs(s["logprob"] - r) for s, r in zip(scores, reference["logprobs"], strict=True)]
    other = [m for s, t, m in zip(scores, reference["tops"], reference["margins"], strict=True) if s["top"] != t]
    worst = f"largest difference {max(off):.6f} at position {off.index(max(off)) + 1}, mean {sum(off) / len(off):.6f}"
    return f"{worst}; {len(other)} other tops, with margins up to {max(other, default=0.0):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="folder of the goldens")
    parser.add_argument("--against", type=Path, metavar="SCORES.jsonl", help="compare with these scores instead of writing")
    for path in (args := parser.parse_args()).models:
        answer = golden(path)
        if args.against:
            print(f"{path}: {compare(answer, args.against)}")
        else:
            form.write(args.out / f"llama-seed{answer['model']['seed']}.json", answer)


if __name__ == "__main__":
    main()
