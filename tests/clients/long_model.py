"""A model for requests of real programs: Qwen2.5's vocabulary and chat template, room for 65,536 tokens, and weights by chance that are read fast.
A reply ends after some 20 tokens: every state has the same first number, which the end of a turn is drawn by.

With a call it is scripted: to a user it replies with that call, to its result with a text. Then a state is that of the last token alone, and a
prompt that ends with a result ends with a token of its own."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import gguf
import numpy as np

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
WIDTH, HIDDEN, HEADS, ROOM = 64, 64, 1, 65_536
LINE_BREAK, AFTER_RESULT = "Ċ", "<|after_result|>"
MARKS = ["<call>", "</call>", "<key>", "</key>", "<value>", "</value>", AFTER_RESULT]
CONTROL, USER_DEFINED = 3, 4
# Calls whose arguments are texts between marks, and a prompt after a result that ends with a mark.
SCRIPTED = """{% if tools %}<|im_start|>system
{% for t in tools %}{{ t | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user
Result: {{ m.content }}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{% if m.tool_calls %}{% for c in m.tool_calls %}<call>{{ c.function.name }}{% for k, v in c.function.arguments | items %}<key>{{ k }}</key><value>{{ v if v is string else v | tojson }}</value>{% endfor %}</call>{% endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% if messages[-1].role == 'tool' %}<|after_result|>{% else %}{{ '\\n' }}{% endif %}{% endif %}"""


def write(out: Path, call: list[str] | None = None, arguments: dict[str, str] | None = None, speech: str = "It is done") -> Path:
    """Writes the file, and returns its path. `call` are the tokens of a tool's name; `arguments` and `speech` are of letters and spaces."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as unpacked:
        unpacked.write(gzip.decompress((FIXTURES / "vocab" / "qwen2.gguf.gz").read_bytes()))
        unpacked.flush()
        fields = gguf.GGUFReader(unpacked.name).fields
        tokens, types, merges = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges"))
    template = (FIXTURES / "templates" / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text()
    links: list[tuple[str, str]] = []
    if call:
        template, values = SCRIPTED, list((arguments or {}).values())
        words = [*values, speech]
        tokens, types = [*tokens, *MARKS, *words], [*types, *[CONTROL] * len(MARKS), *[USER_DEFINED] * len(words)]
        links = list(zip([LINE_BREAK, "<call>", *call], ["<call>", *call, "<key>"]))
        for key, value in (arguments or {}).items():
            # (A grammar allows the keys in their order, and no end before what is required.)
            links += [("<key>", key), (key, "</key>"), ("<value>", value), (value, "</value>")]
        links += [("</key>", "<value>"), ("</value>", "</call>"), ("</value>", "<key>"), ("</call>", "<|im_end|>")]
        links += [(AFTER_RESULT, speech), (speech, "<|im_end|>")]
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
    writer.add_chat_template(template)
    chance = np.random.default_rng(0)

    def by_chance(*shape: int) -> np.ndarray:
        return (chance.standard_normal(shape) * 0.05).astype(np.float32)

    embedding, output = by_chance(len(tokens), WIDTH), by_chance(len(tokens), WIDTH)
    embedding[:, 0], output[:, 0] = 1, 0
    output[tokens.index("<|im_end|>"), 0] = 1.2
    dimensions = {word: n for n, word in enumerate(dict.fromkeys(following for _, following in links), start=1)}
    for last in dict.fromkeys(last for last, _ in links):
        embedding[tokens.index(last)] = 0
    for last, following in links:
        # The first of several is the likeliest.
        at, dimension = tokens.index(last), dimensions[following]
        embedding[at, dimension] = 16 - 4 * np.count_nonzero(embedding[at])
        output[tokens.index(following), dimension] = 20
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
