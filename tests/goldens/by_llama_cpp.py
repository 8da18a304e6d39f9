"""Make the goldens of every family: log-probabilities that a reference which is not ours, llama.cpp, gives to random models, and
to trained ones.

    pip install numpy llama-cpp-python
    python3 tests/goldens/by_llama_cpp.py qwen2-1 qwen2-2 ...                     # writes tests/goldens/<name>.json
    python3 tests/goldens/by_llama_cpp.py --build exact-gelu gemma3-1 gemma3-2 ...
    python3 tests/goldens/by_llama_cpp.py --models FOLDER trained-smollm2 ...     # files that tests/models.py fetched

llama.cpp computes in float32 here: files (made) of F32, keys and values cached as F32, no flash attention. In two things it is not what
the models' own code is, and some goldens need a build (LLAMA_CPP_LIB_PATH and LD_LIBRARY_PATH name its folder) where that is mended; `--build` says so:

- `exact-gelu`, for gemma3: GELU on CPUs is a table of half floats, which moves log-probabilities by up to 0.0014. The
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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

import form

REFERENCE = f"llama.cpp of llama-cpp-python {llama_cpp.__version__}"
HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
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
}

# Files of trained models, and the text (below `tests/`) whose beginning they read.
TRAINED: dict[str, dict[str, str]] = {
    "trained-smollm2": {"file": "SmolLM2-135M-Instruct-Q4_1.gguf", "text": "fixtures/pride-and-prejudice.txt"},
    "trained-gemma3": {"file": "gemma-3-270m-Q4_K_M.gguf", "text": "fixtures/pride-and-prejudice.txt"},
}
N_TRAINED_IDS = 400  # past the border of the engine's first block of 256 tokens


def make(facts: dict[str, Any], path: Path) -> None:
    """Writes the model's file."""
    fields = [(f"--{name}", json.dumps(fact)) for name, fact in facts.items() if name not in ("architecture", "seed")]
    example = "cargo run --quiet -p greenroom-engine --features fixtures --example random_gguf --".split()
    arguments = [str(path), str(facts["seed"]), "--family", facts["architecture"], *itertools.chain(*fields)]
    subprocess.run(example + arguments, cwd=HERE, check=True)


def dequantize(path: Path, out: Path) -> None:
    """Writes the same numbers as F32: what llama.cpp multiplies with matrices of other formats it rounds first."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
    assert llama_cpp.llama_model_quantize(bytes(path), bytes(out), params) == 0, f"{path}: llama.cpp doesn't dequantize it"


def tokenize(text: str, vocab: Any) -> list[int]:
    """The first ids of a text, behind the model's begin of sequence if it has one; nothing in the text is special."""
    data = text.encode()
    ids = (llama_cpp.llama_token * (len(data) + 1))()
    n = llama_cpp.llama_tokenize(vocab, data, len(data), ids, len(ids), True, False)
    assert n >= N_TRAINED_IDS, f"the text has {n} tokens"
    return ids[:N_TRAINED_IDS]


def pseudo_random(seed: int, vocab: Any) -> list[int]:
    """The ids of a random model's golden."""
    return form.pseudo_random_ids(seed, llama_cpp.llama_vocab_n_tokens(vocab))


def score(path: Path, ids_of: Callable[[Any], list[int]], cache: int = llama_cpp.GGML_TYPE_F32) -> tuple[list[int], np.ndarray]:
    """The ids that a vocabulary makes, and the logits after each: `[n_ids, n_vocab]`."""
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    params.use_extra_bufts = False  # no repacked weights: some machines' kernels for them (AMX) crash
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"{path}: llama.cpp doesn't load it"
    vocab = llama_cpp.llama_model_get_vocab(model)
    n_vocab, ids = llama_cpp.llama_vocab_n_tokens(vocab), ids_of(vocab)

    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 1024  # all ids in one pass
    params.type_k = params.type_v = cache
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.swa_full = True
    context = llama_cpp.llama_init_from_model(model, params)
    assert context, f"{path}: llama.cpp has no context for it"
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    assert llama_cpp.llama_decode(context, batch) == 0, f"{path}: llama.cpp doesn't compute it"
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (len(ids), n_vocab)).copy()
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return ids, logits


def build_for(family: str, facts: dict[str, Any]) -> str:
    """The build of llama.cpp that a golden needs."""
    if family == "gemma3":
        return "exact-gelu"
    return "plain-yarn" if family == "gpt-oss" and "rope_scaling" in facts else "plain"


def random_golden(name: str, build: str) -> dict[str, Any]:
    """What llama.cpp makes of a random model, which is made for it."""
    family = name.rpartition("-")[0]
    facts = {"architecture": family} | GOLDENS[name]
    needed = build_for(family, facts)
    assert build == needed, f"{name} needs a build `{needed}`, and --build to say so"
    with tempfile.TemporaryDirectory() as folder:
        make(facts, path := Path(folder) / "model.gguf")
        if "dtype" in facts:
            dequantize(path, path := Path(folder) / "floats.gguf")
        ids, logits = score(path, partial(pseudo_random, facts["seed"]))
    return form.golden(facts, REFERENCE + (f", {needed}" if needed != "plain" else ""), ids, logits)


def trained_golden(name: str, models: Path) -> dict[str, Any]:
    """What llama.cpp makes of a trained model, whose file is in a folder."""
    facts = TRAINED[name]
    text = (TESTS / facts["text"]).read_text(encoding="utf-8")
    ids, logits = score(models / facts["file"], partial(tokenize, text), llama_cpp.GGML_TYPE_F16)
    return form.golden(facts, REFERENCE, ids, logits, digits=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(GOLDENS), metavar="NAME", help="a golden; default: all of random models")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of the goldens")
    parser.add_argument("--build", choices=["plain", "exact-gelu", "plain-yarn"], default="plain", help="which llama.cpp is used")
    parser.add_argument("--models", type=Path, default=TESTS.parent / "target" / "models", help="folder of trained models")
    args = parser.parse_args()
    for name in args.names:
        golden = trained_golden(name, args.models) if name in TRAINED else random_golden(name, args.build)
        form.write(args.out / f"{name}.json", golden)


if __name__ == "__main__":
    main()
