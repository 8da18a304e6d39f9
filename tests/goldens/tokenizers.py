"""Make the vocabularies and goldens of the tokenizers' tests: ten thousand lines, and what references make of them.

    pip install gguf tokenizers sentencepiece protobuf tiktoken
    python3 -P tests/goldens/tokenizers.py PROGRAM LLAMA_CPP/models [NAME...]  # writes tests/fixtures/vocab; -P, for its name is a package

PROGRAM is by_llama_cpp.cpp, built; `LLAMA_CPP/models` is the folder of that name in llama.cpp's source, with its `ggml-vocab-*.gguf`. Written are `lines.jsonl.gz`
(a JSON string a line) and, for each vocabulary, `NAME.gguf.gz` and `NAME.crc.gz`: of each line the CRC-32 of its ids, as
little-endian 32-bit numbers. `engine/tests/inside/texts.rs` makes the same of each line.

The references are not ours: llama.cpp (`parse_special = false`) for byte-level BPE, Google's sentencepiece for its own kind,
and the makers' own where llama.cpp is known to be wrong. It reads those lines too, and may differ in these alone (`known`):

- `llama-spm`, `gemma`: lines with a `▁`, which it does not see as the space that it is in a user-defined token.
- `gpt-4o`, `tekken`, `kimi-k2` (OpenAI's tiktoken): lines with letters or marks outside ASCII; its pattern tells their case in ASCII only, and
  Kimi's nowhere.
- `deepseek-llm` (Hugging Face's tokenizers, as in DeepSeek's `tokenizer.json`): lines with U+3000, which it turns into a
  vertical tab before it looks for the punctuation that DeepSeek counts it among.

One thing is changed for every reference: the texts of control tokens and of user-defined ones that look like markup are
renamed to what no line spells. Otherwise a message could hold them: llama.cpp finds user-defined tokens in any text, merges
characters into `</s>`, and sentencepiece finds its user-defined symbols. A message of ours never holds one, so it must read
as if they were not there. No line is left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import struct
import subprocess
import tempfile
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import sentencepiece
import tiktoken
import tokenizers
from sentencepiece import sentencepiece_model_pb2

PROGRAM = Path()  # by_llama_cpp.cpp, built
OUT = Path(__file__).parent.parent / "fixtures" / "vocab"
N_LINES = 10_000
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Lines ------------------------------------------------------------------------------------------------------------

PROSE = """
The committee hasn't decided; they'll vote at 10:45 on 2024-07-26, won't they? I'd say WE'VE lost, she'S sure, it'LL do.
Rolf's "plan" — if you can call it that — cost $1,234,567.89 (about 3.5 % more). Don't; can't; y'all'd've; rock 'n' roll 'em.
Größe, Übermut, Straße, naïve café, œuvre, señor ¿qué? ¡Olé! Čeština, Łódź, İstanbul, ĳsvogel, ǅungla, ﬁne ﬂow.
Быстрая бурая лиса, щука и ёж; Ελληνικά με τόνους, ΑΒΓ αβγ; Հայերեն, ქართული, עברית עם נִקּוּד, العربية مع تَشكيل ١٢٣٤٥
今天天气很好，我们去公园吧。中文（繁體）「引號」、日本語のテキスト、カタカナ、ﾊﾝｶｸ、漢字かな交じり文。한국어 문장입니다, 안녕하세요!
สวัสดีครับ ภาษาไทยไม่มีช่องว่าง ລາວ ភាសាខ្មែរ မြန်မာ བོད་ཡིག हिन्दी में लिखा हुआ वाक्य १२३ বাংলা লেখা தமிழ் மொழி తెలుగు ಕನ್ನಡ
Tiếng Việt có dấu, Zażółć gęślą jaźń, e\u0301 a\u030a\u0323 Z\u0351\u0310a\u0300l\u0301go, አማርኛ ጽሑፍ, ᏣᎳᎩ, ⰀⰁⰂ, 𐐀𐐨 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 Ⅷ ½ ² ① ٣ ४ ๕
👩‍👩‍👧‍👦 👍🏽 🇩🇪🇯🇵 🏳️‍🌈 ❤️ 🤷🏻‍♀️ ☃ ♞ ∑∫√∞ ≠ ≤ → ⇒ ─│┌┐ █▓▒░ ¤ £ € ¥ ₿ № © ® ™ † ‡ § ¶ • … ‰ ‹› «» „“ ‚‘ ＡＢＣ１２３！？
""".strip().split("\n")

CODE = r"""
fn main() { let x: Vec<u32> = (0..10).map(|i| i * 2).collect(); println!("{x:?}"); }
def f(self, *args, **kwargs): return {k: v for k, v in kwargs.items() if v is not None}  # TODO
for (int i = 0; i < n; ++i) { a[i] += b[i] & 0xFF; } /* done */ // end
<div class="box" id='a1'><p>Hi&nbsp;there</p><br/></div><table><tr><td>1</td></tr></table>
SELECT * FROM users WHERE name LIKE '%o''brien%' AND age >= 18 ORDER BY id DESC LIMIT 10;
{"key": [1, 2.5e-10, true, null], "path": "C:\\Users\\x", "url": "https://example.org/a/b?c=d&e=f#g"}
$ git commit -am "fix" && make -j8 2>&1 | tee build.log; echo $? >> ~/.log
x ^= (y << 3) ~ z`w` @dec #tag !important %d\n \t\r\0 \u00e9 a/b\\c _under__score__ CamelCaseWord HTTPServer2Go iPhone14ProMax
1+1=2, 12, 123, 1234, 12345, 123456, 1234567890, 3.14159, 1e9, 0x1F, 1_000_000, v2.0.1-rc.3, +49 (0)30 901820
""".strip().split("\n")

SPECIAL = """
<|im_start|> <|im_end|> <|endoftext|> <|begin_of_text|> <|end_of_text|> <|eot_id|> <|start_header_id|> <s> </s> <unk> <pad>
<0x0A> <0xFF> <bos> <eos> <start_of_turn> <end_of_turn> <｜begin▁of▁sentence｜> <｜end▁of▁sentence｜> <｜User｜> <｜Assistant｜>
<|User|> <|Assistant|> <|EOT|> <think> </think> <tool_call> [INST] [/INST] <<SYS>> <|channel|> <|message|> <|return|> <|call|>
<|end|> <|start|> [PAD151646] [PAD32022] [PAD100015] <unused0> <2mass> [toxicity] <b> </b> <h1> </code> <table> <｜fim▁hole｜>
""".split()

SPACES = [" ", "  ", "   ", "    ", " " * 7, " " * 16, " " * 40, "\t", "\t\t", "\t\t\t\t", "\n", "\n\n", "\n\n\n", "\n" * 5, "\n" * 40]
SPACES += ["\r", "\r\n", "\r\n\r\n", " \n", "\n ", " \n \n  ", "\t \t", "\v", "\f", "\u0085", "\u00a0", "\u2003", "\u2028", "\u3000", "\u202f"]
INVISIBLE = ["\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u200e", "\u202e", "\x00", "\x01", "\x07", "\x1b[0m", "\x1f", "\x7f"]
INVISIBLE += ["\ufffd", "\ufffe", "\U0010ffff", "\ue000", "\ufe0f", "\u20e3", "\u0301", "\u0300\u0323", "▁", "▁▁", "Ġ", "Ċ", "ø", "÷", "ÿ", "Ã©"]
# From and up to, without: blocks of old standing, for which all tables of categories agree.
BLOCKS = [(0x20, 0x7F), (0xA1, 0x180), (0x180, 0x250), (0x370, 0x400), (0x400, 0x500), (0x5D0, 0x5EB), (0x620, 0x660)]
BLOCKS += [(0x660, 0x66A), (0x905, 0x940), (0x985, 0x9B0), (0xE01, 0xE50), (0x10D0, 0x10F0), (0x1200, 0x1240), (0x1780, 0x17D0)]
BLOCKS += [(0x1E00, 0x1F00), (0x2010, 0x2028), (0x2030, 0x205E), (0x2100, 0x2140), (0x2150, 0x2185), (0x2190, 0x2400), (0x2460, 0x2600)]
BLOCKS += [(0x3001, 0x3040), (0x3041, 0x3097), (0x30A1, 0x3100), (0x4E00, 0x9FA0), (0xAC00, 0xD7A0), (0xFF01, 0xFFA0), (0x1F300, 0x1F600)]


def lines(seed: int, n: int, special: list[str]) -> list[str]:
    """Texts of every kind, no two runs different. `'ſ` is none of them: some references read it as `'s`."""
    rng = random.Random(seed)
    words = [word for text in PROSE + CODE for word in text.split(" ")]
    blocks = [[chr(c) for c in range(*block) if unicodedata.category(chr(c)) != "Cn"] for block in BLOCKS]

    def passage() -> str:
        text = rng.choice(PROSE + CODE)
        start = rng.randrange(len(text))
        return text[start : start + rng.randrange(1, 60)]

    def characters() -> str:
        block = rng.choice(blocks)
        return "".join(rng.choice(block) for _ in range(rng.randrange(1, 12)))

    def digits() -> str:
        return "".join(rng.choice("0123456789") for _ in range(rng.randrange(1, 14)))

    kinds: list[tuple[int, Callable[[], str]]] = [
        (30, lambda: rng.choice(words)), (20, passage), (14, characters), (6, digits), (25, lambda: rng.choice(SPACES)),
        (12, lambda: " "), (5, lambda: rng.choice(INVISIBLE)), (7, lambda: rng.choice(special)),
        (5, lambda: rng.choice(["'s", "'T", "'re", "'VE", "'m", "'Ll", "'d", "'", "''", "’s"])),
        (3, lambda: rng.choice("!?.,;:-/#*=~<>[]{}()\"`^&@%$|+_\\") * rng.randrange(1, 9)),
    ]  # fmt: skip
    weights, makers = [weight for weight, _ in kinds], [maker for _, maker in kinds]
    edge = [*PROSE, *CODE, *special, *SPACES, *INVISIBLE, ""] + [f"a{s}b" for s in special + SPACES + INVISIBLE]
    found = edge + ["".join(maker() for maker in rng.choices(makers, weights, k=rng.randrange(1, 14))) for _ in range(n - len(edge))]
    return [text.replace("'ſ", "' ſ") for text in found]


# Vocabularies -----------------------------------------------------------------------------------------------------


@dataclass
class Vocabulary:
    """What of a GGUF's tokenizer the tests need."""

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    ids: dict[str, int] = field(default_factory=dict)
    add_bos: bool | None = None
    add_space_prefix: bool | None = None

    @staticmethod
    def read(path: Path) -> Vocabulary:
        reader = gguf.GGUFReader(path)

        def value(key: str):
            found = reader.get_field(f"tokenizer.ggml.{key}")
            return None if found is None else found.contents()

        ids = {key: value(f"{key}_token_id") for key in ("bos", "eos", "eot", "unknown", "padding")}
        return Vocabulary(
            value("model"), value("pre"), value("tokens"), value("token_type"), value("scores"), value("merges"),
            {key: id for key, id in ids.items() if id is not None}, value("add_bos_token"), value("add_space_prefix"),
        )  # fmt: skip

    def write(self, path: Path) -> None:
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(64), writer.add_embedding_length(64), writer.add_block_count(1)
        writer.add_feed_forward_length(64), writer.add_head_count(1), writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model(self.model), writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens), writer.add_token_types(self.types)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        if self.merges is not None:
            writer.add_token_merges(self.merges)
        for key, id in self.ids.items():
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", id)
        if self.add_bos is not None:
            writer.add_add_bos_token(self.add_bos)
        if self.add_space_prefix is not None:
            writer.add_add_space_prefix(self.add_space_prefix)
        writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.close()

    def hidden(self) -> Vocabulary:
        """With every token renamed that a message must not hold."""
        special = [t in (CONTROL, UNKNOWN) or (t == USER_DEFINED and is_markup(text)) for text, t in zip(self.tokens, self.types)]
        tokens = [f"\U0010fffd{id}\U0010fffd" if hide else text for id, (text, hide) in enumerate(zip(self.tokens, special))]
        return replace(self, tokens=tokens)


HTML = "table caption thead tbody tfoot tr th td h1 h2 h3 h4 h5 h6 blockquote strong em b i u sub sup code pre".split()
PUNCTUATION = set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def is_markup(text: str) -> bool:
    """Holds ASCII punctuation, is longer than that, and is no element of HTML."""
    tags = {f"<{name}>" for name in HTML} | {f"</{name}>" for name in HTML}
    return text not in tags and len(text.encode()) > 1 and bool(PUNCTUATION & set(text))


def byte_stand_ins() -> list[str]:
    """GPT-2's printable character of each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def trained_bpe(pre: str, plain: list[str], corpus: list[str], all_pairs: bool) -> Vocabulary:
    """A small byte-level BPE. It was trained on whole lines, so that its tokens straddle every place where a family cuts:
    a wrong cut changes the ids. `all_pairs` lists merges as converters of tiktoken vocabularies do."""
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=3000, initial_alphabet=byte_stand_ins(), show_progress=False, max_token_length=12)
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trained.train_from_iterator(corpus, trainer)
    ids = trained.get_vocab()
    tokens = sorted(ids, key=ids.__getitem__)
    merges = [" ".join(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    if all_pairs:
        cuts = ([(t[:i], t[i:]) for i in range(1, len(t)) if t[:i] in ids and t[i:] in ids] for t in tokens)
        merges = [f"{a} {b}" for pairs in cuts for a, b in sorted(pairs, key=lambda p: (ids[p[0]], ids[p[1]]))]
    control, markup = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>", "[INST]", "[/INST]"]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(control) + [USER_DEFINED] * (len(markup) + len(plain))
    end = len(tokens)
    return Vocabulary("gpt2", pre, [*tokens, *control, *markup, *plain], types, merges=merges, ids={"bos": end, "eos": end + 2})


NEWER = ("minicpm5", "seed-coder", "bailingmoe2", "laguna", "exaone-moe", "falcon")


def trained_characters(corpus: list[str]) -> Vocabulary:
    """A small BPE of characters, as Gemma 4 has it: `▁` for a space, lines merged whole, a token for each byte of other characters."""
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=4000, limit_alphabet=600, show_progress=False, max_token_length=12)
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("[^\n]+|\n+"), "isolated")
    trained.train_from_iterator((line.replace(" ", "▁").replace("\0", "") for line in corpus), trainer)
    ids = trained.get_vocab()
    learned = sorted(ids, key=ids.__getitem__)
    merges = [" ".join(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    control, markup = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"], ["<|think|>", "[multimodal]"]
    tokens = [*control, *(f"<0x{b:02X}>" for b in range(256)), *markup, *learned]
    types = [CONTROL] * 3 + [UNKNOWN] + [CONTROL] * 2 + [BYTE] * 256 + [USER_DEFINED] * len(markup) + [NORMAL] * len(learned)
    named = {"padding": 0, "eos": 1, "bos": 2, "unknown": 3}
    return Vocabulary("gemma4", "gemma4", tokens, types, [0.0] * len(tokens), merges, named, True, False)


def trained_spm(corpus: list[str]) -> Vocabulary:
    """A small SentencePiece vocabulary of gemma's kind, as converters write it: user-defined `▁` as spaces."""
    user_defined = ["<2mass>", "[toxicity]", *("\n" * n for n in range(1, 32)), *("▁" * n for n in range(2, 32)), "\t\t", "ø"]
    user_defined += [f"<{slash}{name}>" for name in HTML[:-1] for slash in ("", "/")]
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_prefix=f"{folder}/gemma", model_type="bpe", vocab_size=8000, num_threads=1,
            byte_fallback=True, add_dummy_prefix=False, remove_extra_whitespaces=False, normalization_rule_name="identity",
            pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>", minloglevel=2,
            user_defined_symbols=user_defined, control_symbols=["<start_of_turn>", "<end_of_turn>", "<unused0>"],
            max_sentence_length=10_000, character_coverage=0.98, hard_vocab_limit=False,
        )  # fmt: skip
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(Path(f"{folder}/gemma.model").read_bytes())
    types = [piece.type for piece in model.pieces]  # numbered alike
    tokens = [p.piece.replace("▁", " ") if p.type == USER_DEFINED else p.piece for p in model.pieces]
    ids = {"padding": 0, "eos": 1, "bos": 2, "unknown": 3}
    return Vocabulary("llama", "default", tokens, types, [p.score for p in model.pieces], None, ids, True, False)


# References -------------------------------------------------------------------------------------------------------

Reference = Callable[[str], list[int]]


def llama_cpp(vocabulary: Vocabulary) -> Reference:
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "vocab.gguf"
    vocabulary.write(path)
    process = subprocess.Popen([PROGRAM, "tokenize_each", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def encode(text: str, _alive=folder) -> list[int]:
        data = text.encode()
        process.stdin.write(struct.pack("<I", len(data)) + data)
        process.stdin.flush()
        (n,) = struct.unpack("<I", process.stdout.read(4))
        return list(struct.unpack(f"<{n}I", process.stdout.read(4 * n)))

    return encode


def google(vocabulary: Vocabulary) -> Reference:
    model = sentencepiece_model_pb2.ModelProto()
    for text, kind, score in zip(vocabulary.tokens, vocabulary.types, vocabulary.scores):
        text = text.replace(" ", "▁") if kind == USER_DEFINED else text
        model.pieces.add(piece=text, type=kind, score=score)
    spec, normalizer = model.trainer_spec, model.normalizer_spec
    spec.model_type, spec.byte_fallback = spec.BPE, True
    spec.unk_id, spec.bos_id, spec.eos_id = (vocabulary.ids[key] for key in ("unknown", "bos", "eos"))
    spec.pad_id = vocabulary.ids.get("padding", -1)
    spec.unk_piece, spec.bos_piece, spec.eos_piece = (vocabulary.tokens[id] for id in (spec.unk_id, spec.bos_id, spec.eos_id))
    spec.pad_piece = vocabulary.tokens[spec.pad_id] if spec.pad_id >= 0 else "<pad>"
    normalizer.name, normalizer.remove_extra_whitespaces = "identity", False
    normalizer.add_dummy_prefix = vocabulary.add_space_prefix is not False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString()).encode


O200K = [
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
]  # fmt: skip
HAN = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = [
    r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{HAN[0]}*{HAN[1]}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    rf"[^\r\n\p{{L}}\p{{N}}]?{HAN[0]}+{HAN[1]}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", *O200K[4:],
]  # fmt: skip
TEKKEN = [O200K[0].split("(?i")[0], O200K[1].split("(?i")[0], r"\p{N}", *O200K[3:]]


TIKTOKEN = {"gpt-4o": O200K, "tekken": TEKKEN, "kimi-k2": KIMI}


def openai(vocabulary: Vocabulary, patterns: list[str]) -> Reference:
    byte_of = {c: b for b, c in enumerate(byte_stand_ins())}
    normal = [text for text, kind in zip(vocabulary.tokens, vocabulary.types) if kind == NORMAL]
    ranks = {bytes(byte_of[c] for c in text): id for id, text in enumerate(normal)}
    return tiktoken.Encoding("o200k", pat_str="|".join(patterns), mergeable_ranks=ranks, special_tokens={}).encode_ordinary


DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ"
    "\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲"
    "𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
DEEPSEEK = ["[\r\n]", rf"\s?[{DEEPSEEK_LETTERS}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$", "[一-龥ࠀ-一가-\ud7ff]+"]


def hugging_face(vocabulary: Vocabulary, patterns: list[str]) -> Reference:
    vocab = {text: id for id, text in enumerate(vocabulary.tokens)}
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    pre = tokenizers.pre_tokenizers
    splits = [pre.Split(tokenizers.Regex(pattern), "isolated") for pattern in patterns]
    steps = [*splits, pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = pre.Sequence(steps)
    added = [text for text, kind in zip(vocabulary.tokens, vocabulary.types) if kind == USER_DEFINED]
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in added])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def references(vocabulary: Vocabulary) -> Iterator[Reference]:
    """The one that counts, then llama.cpp."""
    hidden = vocabulary.hidden()
    if vocabulary.model == "llama":
        yield google(hidden)
    elif vocabulary.pre in TIKTOKEN:
        yield openai(vocabulary, TIKTOKEN[vocabulary.pre])
    elif vocabulary.pre == "deepseek-llm":
        yield hugging_face(hidden, DEEPSEEK)
    yield llama_cpp(hidden)


def known(vocabulary: Vocabulary, text: str) -> bool:
    """Whether llama.cpp is known to be wrong about a line."""
    if vocabulary.model == "llama":
        return "▁" in text
    if vocabulary.pre == "kimi-k2" and re.search("[a-z][A-Z]", text):
        return True
    if vocabulary.pre in TIKTOKEN:
        return any(ord(c) > 127 and unicodedata.category(c)[0] in "LM" for c in text)
    return vocabulary.pre == "deepseek-llm" and "\u3000" in text


def write_gzip(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data, 9, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("names", nargs="*", help="vocabularies to make; default: all")
    parser.add_argument("--ids", type=Path, help="a folder for the ids themselves, to look at what differs")
    args = parser.parse_args()
    global PROGRAM
    PROGRAM = args.program.resolve()
    texts, corpus = lines(1, N_LINES, SPECIAL), lines(2, N_LINES, ["<|", "|>"])
    write_gzip(OUT / "lines.jsonl.gz", "".join(json.dumps(text) + "\n" for text in texts).encode())
    real = ["llama-spm", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder"]
    vocabularies = {name: Vocabulary.read(args.models / f"ggml-vocab-{name}.gguf") for name in real}
    vocabularies["gemma"] = trained_spm(corpus)
    for pre in TIKTOKEN:
        vocabularies[pre] = trained_bpe(pre, [], corpus, all_pairs=True)
    for pre in ("deepseek-v3", "qwen35", "smollm", "gpt-2", "default", *NEWER):
        vocabularies[pre] = trained_bpe(pre, ["\n" * 5, " " * 16], corpus, all_pairs=False)
    vocabularies["gemma4"] = trained_characters(corpus)
    for name, vocabulary in vocabularies.items():
        if args.names and name not in args.names:
            continue
        path = OUT / f"{name}.gguf"
        if name not in ("llama-bpe", "qwen2"):  # which stand there as llama.cpp ships them
            vocabulary.write(path)
            write_gzip(path.with_suffix(".gguf.gz"), path.read_bytes())
            path.unlink()
        first, *others = ([encode(text) for text in texts] for encode in references(vocabulary))
        sums = [zlib.crc32(struct.pack(f"<{len(ids)}I", *ids)) for ids in first]
        write_gzip(OUT / f"{name}.crc.gz", struct.pack(f"<{len(sums)}I", *sums))
        differ = [text for text, a, b in zip(texts, first, [*others, first][0]) if a != b]
        assert all(known(vocabulary, text) for text in differ), [text for text in differ if not known(vocabulary, text)]
        print(f"{name}: {len(texts)} lines, {sum(map(len, first))} tokens; llama.cpp is wrong about {len(differ)}", flush=True)
        if args.ids:
            rows = ({"text": text, "ids": ids} for text, ids in zip(texts, first))
            (args.ids / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
