"""Make the goldens of `llama`, and give a second opinion on those of other families: log-probabilities that a reference which is
not ours, Hugging Face transformers, gives to random models.

A golden answers for `engine/tests/conformance.rs`: it names a model that `greenroom_engine::fixtures::RandomModel` makes
again from its seed, a list of token ids, and the reference's log-probability of each id after those before it.

    pip install 'transformers>=5' torch gguf numpy
    cargo run -p greenroom-engine --features fixtures --example random_gguf -- 1.gguf 1
        and so 2.gguf 2 --n_layers 4, and 3.gguf 3 --n_kv_heads 1 --rope_base 500000
    python3 tests/goldens/make.py 1.gguf 2.gguf 3.gguf                   # writes tests/goldens/llama-seed{1,2,3}.json
    python3 tests/goldens/make.py MODEL.gguf --against scores.jsonl      # compares, writes nothing
    python3 tests/goldens/make.py --second-opinion                       # compares goldens by llama.cpp, writes nothing
    python3 tests/goldens/make.py --second-opinion granite-1 gemma4-2    # compares these

`--against` takes lines {"pos", "id", "logprob", "top"} as `greenroom-lab score --ids` prints them, for the ids of a golden that
`--out` put elsewhere. Goldens are made of any `llama` file without experts and without scaled rotation, in whatever types `gguf`
can dequantize; the ids' seed is the model's, from its name `random-llama-SEED`, else 0.

`--second-opinion` makes each golden's model again (with cargo, as `by_llama_cpp.py` does), asks transformers for the same ids, and
fails if it differs from the golden by more than float noise. What a file says is put into transformers' terms by `FAMILIES`. Two
things are not there in transformers' configs:

- `rope_freqs.weight`, what each rotary frequency is divided by (in gemma4: of layers without a window). Gemma's own factors are 1 and
  infinity, which is a partial rotation; random models have others. The frequencies are divided once the model is there.
- Files of `deepseek2` name one temperature of YaRN, that of attention; that of rotation is taken to be the same, as in DeepSeek's
  configs.

What remains is of two parts: float noise of 0.00001, and llama.cpp's angles, which it makes by multiplying one frequency after the
other. They are off by more for wider heads and later positions: by up to 0.0002 in granite-r.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(sys.path.pop(0))  # packages first: the `tokenizers` that transformers imports is not the file beside this one

import gguf
import numpy as np
import torch
import transformers

import by_llama_cpp
import form

HERE = Path(__file__).resolve().parent
REFERENCE = f"transformers {transformers.__version__}, torch {torch.__version__}"
NOISE = 1e-4  # mean difference that two references in float32 stay well below; GELU of the other kind is already more

# Goldens that transformers can't answer, and why.
LEFT_OUT = {
    "llama-5": "three heads in a model of width 128: LlamaConfig wants a multiple of the number of heads",
    # The difference is up to 0.9; it is 0.000004 with `"mscale_all_dim": 1.0` and an `attention_factor` of 1 + 0.1 ln(factor), which is
    # what llama.cpp makes of the file, but no model's config.
    "deepseek2-4": "YaRN without a temperature of attention: transformers scales rotated parts by it, llama.cpp all scores too",
}


class File:
    """A GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reader = gguf.GGUFReader(path)
        self.architecture = self.value("general.architecture")

    def value(self, key: str, default: Any = None) -> Any:
        """What the file says under a whole key, else under the architecture's name."""
        field = self.reader.get_field(key) or self.reader.get_field(f"{self.architecture}.{key}")
        return default if field is None else field.contents()

    def has(self, tensor: str) -> bool:
        return any(x.name == tensor for x in self.reader.tensors)


def rotation(file: File) -> dict[str, Any]:
    """The rotary embedding."""
    base = {"rope_theta": float(file.value("rope.freq_base", 10000.0))}
    kind = file.value("rope.scaling.type", "none")
    if kind == "none":
        return base | {"rope_type": "default"}
    assert kind in ("linear", "yarn"), f"{file.path}: rotary scaling `{kind}` is not handled"
    scaled = base | {"rope_type": kind, "factor": file.value("rope.scaling.factor")}
    if kind == "yarn":
        scaled["original_max_position_embeddings"] = file.value("rope.scaling.original_context_length")
    return scaled


def common(file: File) -> dict[str, Any]:
    """What configs of all families have."""
    n_heads, d_model = file.value("attention.head_count"), file.value("embedding_length")
    head_dim = file.value("attention.key_length", d_model // n_heads)
    return {
        "vocab_size": len(file.value("tokenizer.ggml.tokens")),
        "hidden_size": d_model,
        "intermediate_size": file.value("feed_forward_length"),
        "num_hidden_layers": file.value("block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": file.value("attention.head_count_kv", n_heads),
        "head_dim": head_dim,
        "max_position_embeddings": file.value("context_length"),
        "rms_norm_eps": file.value("attention.layer_norm_rms_epsilon"),
        "rope_parameters": rotation(file),
        "tie_word_embeddings": False,
    }


def llama(file: File) -> dict[str, Any]:
    config = common(file)
    assert file.value("rope.dimension_count", config["head_dim"]) == config["head_dim"], f"{file.path}: partial rotation is not handled"
    return config


def mixtral(file: File) -> dict[str, Any]:
    return llama(file) | {"num_local_experts": file.value("expert_count"), "num_experts_per_tok": file.value("expert_used_count")}


def granite(file: File) -> dict[str, Any]:
    config = llama(file)
    return config | {
        "attention_multiplier": file.value("attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": file.value("embedding_scale", 1.0),
        "residual_multiplier": file.value("residual_scale", 1.0),
        "logits_scaling": file.value("logit_scale", 1.0),
    }


def granite_unrotated(file: File) -> dict[str, Any]:
    """Granite 4 without mamba: a config of hybrids, whose layers all have attention, and whose only expert is the shared one."""
    config = granite(file)
    return config | {
        "layer_types": ["full_attention"] * config["num_hidden_layers"],
        "position_embedding_type": None,
        "shared_intermediate_size": config["intermediate_size"],
        "num_local_experts": 0,
    }


def experts(file: File) -> dict[str, Any]:
    return {
        "moe_intermediate_size": file.value("expert_feed_forward_length"),
        "n_routed_experts": file.value("expert_count"),
        "num_experts_per_tok": file.value("expert_used_count"),
        "n_shared_experts": file.value("expert_shared_count"),
        "first_k_dense_replace": file.value("leading_dense_block_count"),
        "n_group": file.value("expert_group_count", 1),
        "topk_group": file.value("expert_group_used_count", 1),
        "norm_topk_prob": file.value("expert_weights_norm", False),
        "routed_scaling_factor": file.value("expert_weights_scale", 1.0),
    }


def glm4moe(file: File) -> dict[str, Any]:
    config = common(file)
    config["rope_parameters"]["partial_rotary_factor"] = file.value("rope.dimension_count") / config["head_dim"]
    return config | experts(file) | {"attention_bias": True, "use_qk_norm": file.has("blk.0.attn_q_norm.weight")}


def deepseek2(file: File) -> dict[str, Any]:
    """Keys and values are put together for each head, while files have a single head of the latent."""
    config = common(file)
    rotated = file.value("rope.dimension_count")
    if file.value("rope.scaling.type") == "yarn":
        multiplier = file.value("rope.scaling.yarn_log_multiplier")
        assert multiplier, f"{file.path}: YaRN without a temperature of attention is not handled"
        multiplier /= 0.1  # files have a tenth of it
        config["rope_parameters"] |= {"mscale": multiplier, "mscale_all_dim": multiplier}
    return config | experts(file) | {
        "num_key_value_heads": config["num_attention_heads"],
        "head_dim": rotated,
        "kv_lora_rank": file.value("attention.kv_lora_rank"),
        "q_lora_rank": file.value("attention.q_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": file.value("attention.key_length_mla") - rotated,
        "v_head_dim": file.value("attention.value_length_mla"),
    }


def gemma4(file: File) -> dict[str, Any]:
    config = common(file)
    windowed = file.value("attention.sliding_window_pattern")
    in_window, beyond = windowed.index(True), windowed.index(False)
    n_kv_heads, d_ff, n_experts = config["num_key_value_heads"], config["intermediate_size"], file.value("expert_count", 0)
    return config | {
        "layer_types": ["sliding_attention" if x else "full_attention" for x in windowed],
        "sliding_window": file.value("attention.sliding_window"),
        "head_dim": file.value("attention.key_length_swa"),
        "global_head_dim": file.value("attention.key_length"),
        "num_key_value_heads": n_kv_heads[in_window],
        "num_global_key_value_heads": n_kv_heads[beyond],
        "attention_k_eq_v": not file.has(f"blk.{beyond}.attn_v.weight"),
        "num_kv_shared_layers": file.value("attention.shared_kv_layers"),
        "intermediate_size": d_ff[0],
        "use_double_wide_mlp": d_ff[-1] == 2 * d_ff[0],
        "hidden_size_per_layer_input": file.value("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": config["vocab_size"],
        "final_logit_softcapping": file.value("final_logit_softcapping"),
        "enable_moe_block": n_experts > 0,
        "num_experts": n_experts,
        "top_k_experts": file.value("expert_used_count"),
        "moe_intermediate_size": file.value("expert_feed_forward_length"),
        "rope_parameters": {
            "full_attention": rotation(file),
            "sliding_attention": {"rope_type": "default", "rope_theta": file.value("rope.freq_base_swa")},
        },
    }


# Names of tensors in GGUF and in transformers, there below a layer's name if they are below one here. Both have the same ending,
# `.weight` or `.bias`, unless it is named. Tensors of one name in transformers are put below each other, in this order.
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {"attn_norm": "input_layernorm", "attn_output": "self_attn.o_proj"} | {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
HEAD_NORMS = {f"attn_{x}_norm": f"self_attn.{x}_norm" for x in "qk"}
FEED_FORWARD = {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
LLAMA = WHOLE | ATTENTION | FEED_FORWARD | {"ffn_norm": "post_attention_layernorm"}
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "ffn_gate_exps.weight": "mlp.experts.gate_up_proj",
    "ffn_up_exps.weight": "mlp.experts.gate_up_proj",
    "ffn_down_exps.weight": "mlp.experts.down_proj",
} | {f"ffn_{x}_shexp": f"mlp.shared_experts.{x}_proj" for x in ("gate", "up", "down")}
LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_k_b": "self_attn.kv_b_proj",
    "attn_v_b": "self_attn.kv_b_proj",
}
GEMMA4 = WHOLE | ATTENTION | HEAD_NORMS | FEED_FORWARD | {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "layer_output_scale.weight": "layer_scalar",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "ffn_down_exps.scale": "router.per_expert_scale",
}


RECURRENT = {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_dt.bias": "mamba.dt_bias",
    "ssm_a": "mamba.A_log",
    "ssm_d": "mamba.D",
    "ssm_norm": "mamba.norm",
    "ssm_out": "mamba.out_proj",
}
SHARED = {"ffn_gate": "shared_mlp.input_linear", "ffn_up": "shared_mlp.input_linear", "ffn_down": "shared_mlp.output_linear"}
DELTA = {
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_a": "linear_attn.A_log",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}


def qwen35(file: File) -> dict[str, Any]:
    config = common(file)
    rotated = file.value("rope.dimension_count") / config["head_dim"]
    config["rope_parameters"] |= {"partial_rotary_factor": rotated, "mrope_section": file.value("rope.dimension_sections")[:3]}
    value = file.value("ssm.inner_size") // file.value("ssm.time_step_rank")
    return config | {
        "layer_types": [
            "linear_attention" if file.has(f"blk.{i}.ssm_a") else "full_attention" for i in range(config["num_hidden_layers"])
        ],
        "linear_conv_kernel_dim": file.value("ssm.conv_kernel"),
        "linear_key_head_dim": file.value("ssm.state_size"),
        "linear_value_head_dim": value,
        "linear_num_key_heads": file.value("ssm.group_count"),
        "linear_num_value_heads": file.value("ssm.time_step_rank"),
    }


def granitehybrid(file: File) -> dict[str, Any]:
    kv = file.value("attention.head_count_kv")
    config = granite(file)
    n_heads = file.value("ssm.time_step_rank")
    inner = file.value("ssm.inner_size")
    return config | {
        "num_key_value_heads": max(kv),
        "layer_types": ["attention" if n > 0 else "mamba" for n in kv],
        "position_embedding_type": "rope" if file.value("rope.scaling.finetuned", True) else None,
        "shared_intermediate_size": config["intermediate_size"],
        "num_local_experts": 0,
        "mamba_n_heads": n_heads,
        "mamba_n_groups": file.value("ssm.group_count"),
        "mamba_d_state": file.value("ssm.state_size"),
        "mamba_d_head": inner // n_heads,
        "mamba_d_conv": file.value("ssm.conv_kernel"),
        "mamba_expand": inner // config["hidden_size"],
    }


def recurrent(file: File, stem: str, x: np.ndarray) -> np.ndarray:
    """Decays are logarithms in transformers, and convolutions have an axis more."""
    if stem == "ssm_a":
        x = np.log(-x)
    elif stem == "ssm_conv1d" and x.ndim == 2:
        x = x[:, None]
    return x.reshape(-1) if stem in ("ssm_a", "ssm_d", "ssm_norm") else x


def delta(file: File, stem: str, x: np.ndarray) -> np.ndarray:
    """Norms' weights are less by 1 in transformers; and heads of values that share a head of keys lie beside each other there, while
    in files of qwen35 every n-th of them shares one."""
    if stem.endswith("_norm") and stem != "ssm_norm":
        return x - 1
    n_keys, n_values = file.value("ssm.group_count"), file.value("ssm.time_step_rank")
    keys = 2 * n_keys * file.value("ssm.state_size")

    def beside(x: np.ndarray) -> np.ndarray:
        return x.reshape(n_values // n_keys, n_keys, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)

    if stem in ("attn_qkv", "ssm_conv1d"):
        x = np.concatenate([x[:keys], beside(x[keys:])])
    elif stem == "ssm_out":
        x = beside(x.T).T
    elif stem in ("attn_gate", "ssm_beta", "ssm_alpha", "ssm_a", "ssm_dt"):
        x = beside(x)
    return recurrent(file, stem, x)


class Family(NamedTuple):
    """How a file is put into transformers' terms."""

    model: str  # a class of transformers
    config: Callable[[File], dict[str, Any]]
    tensors: dict[str, str]
    neighbours: bool = False  # rows of a rotary pair in queries and keys are neighbours in files, half a head apart in transformers
    frequencies: str = "inv_freq"  # what `rope_freqs` divides
    convert: Callable[[File, str, np.ndarray], np.ndarray] = lambda file, stem, x: x  # numbers of a tensor


FAMILIES = {
    "llama": Family("LlamaForCausalLM", llama, LLAMA, neighbours=True),
    "llama, experts": Family("MixtralForCausalLM", mixtral, LLAMA | EXPERTS, neighbours=True),
    "granite": Family("GraniteForCausalLM", granite, LLAMA, neighbours=True),
    "granite, unrotated": Family(
        "GraniteMoeHybridForCausalLM",
        granite_unrotated,
        LLAMA | SHARED,
    ),
    "granitehybrid": Family(
        "GraniteMoeHybridForCausalLM", granitehybrid, LLAMA | SHARED | RECURRENT, neighbours=True, convert=recurrent
    ),
    "qwen35": Family(
        "Qwen3_5ForCausalLM",
        qwen35,
        WHOLE | ATTENTION | HEAD_NORMS | FEED_FORWARD | DELTA | {"post_attention_norm": "post_attention_layernorm"},
        convert=delta,
    ),
    "glm4moe": Family(
        "Glm4MoeForCausalLM",
        glm4moe,
        WHOLE | ATTENTION | HEAD_NORMS | FEED_FORWARD | EXPERTS | {"post_attention_norm": "post_attention_layernorm"},
    ),
    "deepseek2, softmax": Family("DeepseekV2ForCausalLM", deepseek2, LLAMA | EXPERTS | LATENT),
    "deepseek2, sigmoid": Family("DeepseekV3ForCausalLM", deepseek2, LLAMA | EXPERTS | LATENT),
    "gemma4": Family("Gemma4ForCausalLM", gemma4, GEMMA4, frequencies="full_attention_inv_freq"),
}


def family(file: File) -> Family:
    """The file's row of `FAMILIES`."""
    name = file.architecture
    if name == "llama" and file.value("expert_count", 0) > 0:
        name += ", experts"
    elif name == "granite" and not file.value("rope.scaling.finetuned", True):
        name += ", unrotated"
    elif name == "deepseek2":
        name += ", sigmoid" if file.value("expert_gating_func") == gguf.ExpertGatingFuncType.SIGMOID else ", softmax"
    assert name in FAMILIES, f"{file.path}: `{name}` is not handled"
    return FAMILIES[name]


def half_split(weight: np.ndarray, n_heads: int) -> np.ndarray:
    """`[n_heads * head_dim, d]`: the rows of a rotary pair are neighbours in GGUF, half a head apart in transformers."""
    rows, d = weight.shape
    return weight.reshape(n_heads, rows // n_heads // 2, 2, d).swapaxes(1, 2).reshape(rows, d)


def load(file: File) -> transformers.PreTrainedModel:
    """The file's model in float32 with eager attention and eager experts."""
    of = family(file)
    config = of.config(file)
    parts: dict[str, dict[int, np.ndarray]] = {}
    factors = None
    order = list(of.tensors)
    for tensor in file.reader.tensors:
        x = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name == "rope_freqs.weight":
            factors = torch.from_numpy(x)
            continue
        layer, name = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+)", tensor.name).groups()
        stem, _, ending = name.rpartition(".")
        if of.neighbours and stem in ("attn_q", "attn_k"):
            x = half_split(x, config["num_attention_heads" if stem == "attn_q" else "num_key_value_heads"])
        if stem == "attn_k_b":  # `[n_heads, rank, nope]`
            x = x.swapaxes(1, 2)
        x = of.convert(file, stem or name, x)
        row = name if name in of.tensors else stem
        new = of.tensors[row] + ("" if row == name else f".{ending}")
        parts.setdefault(new if layer is None else f"model.layers.{layer}.{new}", {})[order.index(row)] = x

    weights: dict[str, torch.Tensor] = {}
    for name, rows in parts.items():
        x = np.concatenate([rows[i] for i in sorted(rows)], axis=-2) if len(rows) > 1 else next(iter(rows.values()))
        if name.endswith("kv_b_proj.weight"):  # `[n_heads, nope + value, rank]`
            x = x.reshape(-1, x.shape[-1])
        weights[name] = torch.from_numpy(np.ascontiguousarray(x))
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])

    kind = getattr(transformers, of.model)
    model = kind(kind.config_class(**config, attn_implementation="eager", experts_implementation="eager")).to(torch.float32).eval()
    model.load_state_dict(weights, strict=True)
    if factors is not None:
        getattr(model.model.rotary_emb, of.frequencies).div_(factors)
    return model


def logits(model: transformers.PreTrainedModel, ids: list[int]) -> np.ndarray:
    """`[n_ids, n_vocab]`."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].numpy()


def golden(path: Path) -> dict[str, Any]:
    """The reference's answer, and what `RandomModel` needs to make the model again."""
    file = File(path)
    assert family(file) is FAMILIES["llama"], f"{path}: goldens are made of `llama` here"
    assert file.value("rope.scaling.type", "none") == "none", f"{path}: rotary scaling is not handled"
    assert not file.has("rope_freqs.weight"), f"{path}: rotary factors are not handled"
    model = load(file)
    config = model.config
    seed = re.fullmatch(r"random-llama-(\d+)", file.value("general.name", ""))
    facts = {
        "seed": int(seed[1]) if seed else 0,
        "n_layers": config.num_hidden_layers,
        "n_kv_heads": config.num_key_value_heads,
        "rope_base": config.rope_parameters["rope_theta"],
    }
    ids = form.pseudo_random_ids(facts["seed"], config.vocab_size)
    return form.golden(facts, REFERENCE, ids, logits(model, ids))


def read_scores(path: Path, ids: list[int]) -> dict[str, Any]:
    """Scores of these ids that `greenroom-lab score` printed, as goldens have them."""
    scores = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    assert [s["pos"] for s in scores] == list(range(1, form.N_IDS)), f"{path}: positions 1 to {form.N_IDS - 1} are needed"
    assert [s["id"] for s in scores] == ids[1:], f"{path}: other ids were scored"
    return {"logprobs": [s["logprob"] for s in scores], "tops": [s["top"] for s in scores]}


def differences(reference: dict[str, Any], other: dict[str, Any]) -> list[float]:
    """How far log-probabilities are from the reference's."""
    return [abs(x - r) for x, r in zip(other["logprobs"], reference["logprobs"], strict=True)]


def compare(reference: dict[str, Any], other: dict[str, Any]) -> str:
    """How far an answer is from the reference, in words."""
    off = differences(reference, other)
    margins = [m for x, t, m in zip(other["tops"], reference["tops"], reference["margins"], strict=True) if x != t]
    worst = f"largest difference {max(off):.6f} at position {off.index(max(off)) + 1}, mean {sum(off) / len(off):.6f}"
    return f"{worst}; {len(margins)} other tops, with margins up to {max(margins, default=0.0):.3f}"


def second_opinion(name: str) -> bool:
    """Prints how far transformers is from a committed golden; true if that is float noise."""
    reference = json.loads((HERE / f"{name}.json").read_text())
    if name in LEFT_OUT:
        print(f"{name}: left out: {LEFT_OUT[name]}")
        return True
    with tempfile.TemporaryDirectory() as folder:
        by_llama_cpp.make({"architecture": "llama"} | reference["model"], path := Path(folder) / "model.gguf")
        model = load(File(path))
        answer = form.golden(reference["model"], REFERENCE, reference["ids"], logits(model, reference["ids"]))
    off = differences(reference, answer)
    is_noise = sum(off) / len(off) < NOISE
    print(f"{name} ({type(model).__name__}): {compare(reference, answer)}{'' if is_noise else '; MORE THAN NOISE'}", flush=True)
    return is_noise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the goldens")
    parser.add_argument("--against", type=Path, metavar="SCORES.jsonl", help="compare with these scores instead of writing")
    parser.add_argument("--second-opinion", nargs="*", metavar="NAME", help="compare with these goldens; default: all that can be")
    args = parser.parse_args()
    if not args.models and args.second_opinion is None:
        parser.error("a MODEL.gguf or --second-opinion is needed")
    transformers.logging.set_verbosity_error()
    for path in args.models:
        answer = golden(path)
        if args.against:
            print(f"{path}: {compare(answer, read_scores(args.against, answer['ids']))}")
        else:
            form.write(args.out / f"llama-seed{answer['model']['seed']}.json", answer)
    if args.second_opinion is not None:
        known = {name.partition(",")[0] for name in FAMILIES}
        print(REFERENCE)
        names = args.second_opinion or [name for name in by_llama_cpp.GOLDENS if name.rpartition("-")[0] in known]
        if not all([second_opinion(name) for name in names]):
            sys.exit("transformers and goldens differ")


if __name__ == "__main__":
    main()
