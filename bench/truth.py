#!/usr/bin/env python3
"""Measures how far greenroom and llama.cpp are from the true values of a quantized model: the same weights in F32.

    python3 bench/truth.py --greenroom target/release/greenroom-lab --text TEXT MODEL.gguf ...
    python3 bench/truth.py --greenroom target/release/greenroom-lab --text TEXT --as Q5_1,IQ4_NL F32.gguf   # quantized first

A model's numbers are exact in F32, so an F32 copy of its file (dequantized by gguf-py) has the meaning of its quantized weights; the remaining
difference is the runner's error: activations in 8 bits, and the order of sums. Both runners read the first ids of a text (llama.cpp's tokenizer, the
same ids for all), with f16 caches, and their log-probabilities of each next id are compared with the copy's. Three truths are shown, to make clear
that the result does not depend on whose F32 arithmetic is used: llama.cpp's with an F32 and with an f16 cache, and greenroom's with an f16 cache.
`difference` is the mean of |greenroom - truth| - |llama.cpp - truth| over the ids, with its standard error: below 0 greenroom is closer.

llama.cpp reads batches of 256 ids without flash attention. Needs gguf, numpy and llama-cpp-python (0.3.36); LLAMA_CPP_LIB_PATH names another
build of llama.cpp's libraries. Copies are made in --folder, four bytes a weight.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

N_BATCH = 256
F16, F32 = 1, 0  # ggml's types
QUIET = llama_cpp.llama_log_callback(lambda *_: None)  # kept, or ctypes would call what is gone


def f32_copy(source: Path, copy: Path) -> Path:
    """The same model with all tensors in F32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(copy, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name == "general.file_type":
            writer.add_uint32(field.name, gguf.LlamaFileType.ALL_F32)
        elif field.name != "general.architecture" and not field.name.startswith("GGUF."):
            sub_type = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, numbers.reshape([int(n) for n in reversed(tensor.shape)]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy


def quantized(source: Path, ftype: str, out: Path, threads: int) -> Path:
    """The model with all matrices in one format, by llama.cpp."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.pure, params.nthread = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{ftype}"), True, threads
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params) != 0:
        sys.exit(f"llama.cpp can't quantize {source} as {ftype}")
    return out


class Llama:
    """A model in llama.cpp."""

    def __init__(self, path: Path) -> None:
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp can't load {path}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *_: object) -> None:
        llama_cpp.llama_model_free(self.model)

    def ids(self, text: str, skip: int, n: int) -> list[int]:
        """Some ids of a text, which begins as the model wants it."""
        data = text.encode()
        room = (llama_cpp.llama_token * (len(data) + 8))()
        found = llama_cpp.llama_tokenize(self.vocab, data, len(data), room, len(room), True, False)
        return list(room[min(skip, found) : min(skip + n, found)])

    def log_probabilities(self, ids: list[int], cache: int, threads: int) -> np.ndarray:
        """Of each id but the first, given those before it."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = -(-len(ids) // N_BATCH) * N_BATCH, N_BATCH, N_BATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.type_k = params.type_v = cache
        context = llama_cpp.llama_init_from_model(self.model, params)
        batch = llama_cpp.llama_batch_init(N_BATCH, 0, 1)
        n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)
        found: list[np.ndarray] = []
        for begin in range(0, len(ids) - 1, N_BATCH):
            some = ids[begin : min(begin + N_BATCH, len(ids) - 1)]
            batch.n_tokens = len(some)
            for i, token in enumerate(some):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, begin + i, 1, 0, 1
            if llama_cpp.llama_decode(context, batch) != 0:
                sys.exit("llama.cpp can't decode")
            pointer = ctypes.cast(llama_cpp.llama_get_logits(context), ctypes.POINTER(ctypes.c_float))
            logits = np.ctypeslib.as_array(pointer, (len(some), n_vocab)).astype(np.float64)
            largest = logits.max(axis=1)
            sums = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
            found.append(logits[np.arange(len(some)), ids[begin + 1 : begin + 1 + len(some)]] - sums)
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        return np.concatenate(found)


def greenroom(program: Path, model: Path, ids: Path, threads: int) -> np.ndarray:
    """Log-probabilities by `greenroom-lab score` with an f16 cache."""
    command = [program.absolute(), "score", "--model", model, "--ids", ids, "--kv", "f16", "--threads", threads]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return np.array([json.loads(line)["logprob"] for line in done.stdout.splitlines()])


def distances(found: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Mean and root mean square."""
    return float(np.abs(found - truth).mean()), float(np.sqrt(((found - truth) ** 2).mean()))


def measure(args: argparse.Namespace, model: Path) -> None:
    copy = f32_copy(model, args.folder / f"{model.stem}-as-f32.gguf")
    with Llama(model) as llama:
        ids = llama.ids(args.text.read_text(), args.skip, args.n_ids)
        theirs = llama.log_probabilities(ids, F16, args.threads)
    file = args.folder / f"{model.stem}.ids"
    file.write_text(" ".join(map(str, ids)))
    ours = greenroom(args.greenroom, model, file, args.threads)
    with Llama(copy) as llama:
        truths = {
            "llama.cpp, F32 cache": llama.log_probabilities(ids, F32, args.threads),
            "llama.cpp, f16 cache": llama.log_probabilities(ids, F16, args.threads),
        }
    truths["greenroom, f16 cache"] = greenroom(args.greenroom, copy, file, args.threads)
    if not args.keep:
        copy.unlink()
    apart = [distances(truths["greenroom, f16 cache"], truth)[0] for truth in list(truths.values())[:2]]
    print(f"\n{model.name}, {len(ids)} ids; mean log-probability {truths['llama.cpp, F32 cache'].mean():.4f}")
    print(f"truths: greenroom's is {apart[0]:.6f} from llama.cpp's with an F32 cache, {apart[1]:.6f} from that with f16 (mean)")
    print(f"{'truth':24}{'llama.cpp mean, rms':>22}{'greenroom mean, rms':>22}{'ratios':>14}{'difference':>20}")
    for name, truth in truths.items():
        (their_mean, their_rms), (our_mean, our_rms) = distances(theirs, truth), distances(ours, truth)
        nearer = np.abs(ours - truth) - np.abs(theirs - truth)
        error = nearer.std(ddof=1) / np.sqrt(len(nearer))
        line = f"{name:24}{their_mean:13.5f}{their_rms:9.5f}{our_mean:13.5f}{our_rms:9.5f}"
        print(f"{line}{our_mean / their_mean:8.3f}{our_rms / their_rms:6.3f}{nearer.mean():+12.5f} ±{error:.5f}", flush=True)
    if args.json:
        figures = {"ids": ids, "llama.cpp": theirs.tolist(), "greenroom": ours.tolist()}
        figures |= {f"truth: {name}": truth.tolist() for name, truth in truths.items()}
        with open(args.json, "a") as out:
            print(json.dumps({"model": model.name} | figures), file=out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--greenroom", type=Path, required=True, metavar="PROGRAM")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE")
    parser.add_argument("--n-ids", type=int, default=1200, metavar="N")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="ids to skip at the beginning of the text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--as", dest="formats", default="", metavar="FORMATS", help="quantize the models first, purely: Q5_1,IQ4_NL")
    parser.add_argument("--folder", type=Path, default=Path(), metavar="DIR", help="folder for the copies [default: here]")
    parser.add_argument("--keep", action="store_true", help="keep the F32 copies")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line with all log-probabilities of each model to this file")
    args = parser.parse_args()
    llama_cpp.llama_log_set(QUIET, None)
    llama_cpp.llama_backend_init()
    print(llama_cpp.llama_print_system_info().decode().strip())
    for model in args.models:
        for ftype in args.formats.split(","):
            out = args.folder / f"{model.stem}-{ftype}.gguf"
            measure(args, quantized(model, ftype, out, args.threads) if ftype else model)


if __name__ == "__main__":
    main()
