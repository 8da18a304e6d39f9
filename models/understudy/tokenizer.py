"""The understudy's byte-level BPE tokenizer with the qwen2 pre-tokenizer, and the encoding of corpora to uint16 files.

python tokenizer.py --corpus corpus.txt --vocab 3072 --out tokenizer.json     # train
python tokenizer.py --encode corpus.txt --tokenizer tokenizer.json --out corpus.bin
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from world import MODERATORS, NAMES, TITLES, WORDS

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(corpus: Path, vocab: int) -> Tokenizer:
    """BPE of `vocab` tokens, special tokens last."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    text = corpus.read_text()
    for s in SPECIAL:
        text = text.replace(s, "\n\n")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIAL),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    whole = [*WORDS, *NAMES, *TITLES, *MODERATORS]  # single tokens, as names and recall answers should be
    words = [" ".join(["", *whole]) + "\n" + "\n".join(whole)] * 4000
    tok.train_from_iterator(text.split("\n\n") + words, trainer)
    if tok.get_vocab_size() != vocab - len(SPECIAL):
        raise SystemExit(f"only {tok.get_vocab_size()} tokens learned")
    tok.add_special_tokens([AddedToken(s, special=True) for s in SPECIAL])
    return tok


def encode(tok: Tokenizer, corpus: Path) -> np.ndarray:
    """Token ids of a corpus file; documents stay separated by <|endoftext|>."""
    end = tok.token_to_id(SPECIAL[0])
    out: list[np.ndarray] = []
    docs = corpus.read_text().split(SPECIAL[0])
    for i in range(0, len(docs), 2000):
        for e in tok.encode_batch([d for d in docs[i : i + 2000] if d]):
            out.append(np.array([*e.ids, end], dtype=np.uint16))
    return np.concatenate(out)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", type=Path, help="train on this text")
    p.add_argument("--vocab", type=int, default=3072)
    p.add_argument("--encode", type=Path, help="encode this text")
    p.add_argument("--tokenizer", type=Path)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    if a.corpus:
        train(a.corpus, a.vocab).save(str(a.out))
    else:
        ids = encode(Tokenizer.from_file(str(a.tokenizer)), a.encode)
        ids.tofile(a.out)
        print(f"{len(ids)} tokens")


if __name__ == "__main__":
    main()
