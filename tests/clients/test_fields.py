"""Fields by API: each is honoured, or refused by its name (docs/server.md has the table)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

PROMPT = "Good evening, Mira. How was the market today?"


def of_options(body: dict[str, Any]) -> dict[str, Any]:
    """Ollama has all settings in `options`, but for the form."""
    own = {name: body.pop(name) for name in ("model", "messages", "prompt", "format") if name in body}
    return own | {"stream": False, "greenroom": True, "options": body}


Call = Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]
CHAT = {"messages": [{"role": "user", "content": PROMPT}]}
# Path, what is asked, what it has besides, and where the text of the answer is.
APIS: dict[str, tuple[str, dict[str, Any], Callable[[dict[str, Any]], str]]] = {
    "chat": ("/v1/chat/completions", CHAT, lambda a: a["choices"][0]["message"]["content"]),
    "completions": ("/v1/completions", {"prompt": PROMPT}, lambda a: a["choices"][0]["text"]),
    "responses": ("/v1/responses", {"input": PROMPT}, lambda a: "".join(p["text"] for i in a["output"] for p in i["content"])),
    "messages": ("/v1/messages", CHAT, lambda a: "".join(part["text"] for part in a["content"])),
    "native": ("/completion", {"prompt": PROMPT}, lambda a: a["content"]),
    "ollama chat": ("/api/chat", CHAT, lambda a: a["message"]["content"]),
    "ollama generate": ("/api/generate", {"prompt": PROMPT}, lambda a: a["response"]),
}
GREEDY = {"temperature": 0, "max_tokens": 24, "seed": 1}


@pytest.fixture(params=list(APIS))
def api(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ask(api: str, http: httpx.Client, model: str) -> Callable[..., httpx.Response]:
    path, asked, _ = APIS[api]
    if "prompt" in asked and api != "ollama generate":  # without a chat template
        asked = {"prompt": http.post("/apply-template", json=CHAT | {"model": model}).json()["prompt"]}

    def one(**fields: Any) -> httpx.Response:
        body = {"model": model} | asked | GREEDY | fields | {"greenroom": True}
        if api == "responses":
            body["max_output_tokens"] = body.pop("max_tokens")
        return http.post(path, json=of_options(body) if api.startswith("ollama") else body)

    return one


@pytest.fixture
def say(api: str, ask: Callable[..., httpx.Response]) -> Callable[..., str]:
    def one(**fields: Any) -> str:
        answer = ask(**fields)
        assert answer.status_code == 200, answer.text
        return APIS[api][2](answer.json())

    return one


def ids(http: httpx.Client, model: str, text: str) -> list[int]:
    return http.post("/tokenize", json={"model": model, "content": text, "parse_special": False}).json()["tokens"]


def test_a_stop_cuts_where_it_begins(say: Callable[..., str]) -> None:
    text = say()
    assert len(text) > 12
    for at in (1, 5, 8):  # within tokens, and between them
        stop = text[at : at + 4]
        assert say(stop=stop) == text[: text.index(stop)]
        assert say(stop=[stop, "never said"]) == text[: text.index(stop)]
    assert say(stop=text[:3]) == ""


def test_a_token_that_is_banned_does_not_come(say: Callable[..., str], http: httpx.Client, model: str) -> None:
    text = say()
    first = ids(http, model, text)[0]
    for bias in ({str(first): -100}, [[first, False]]):
        assert first not in ids(http, model, say(logit_bias=bias))[:1]
    wanted = ids(http, model, " melons")
    for bias in ({str(wanted[0]): 100}, {" melons": 100}, [[" melons", 100]]):
        assert set(wanted) & set(ids(http, model, say(logit_bias=bias, max_tokens=3))), bias


def test_penalties_keep_tokens_from_coming_again(say: Callable[..., str], http: httpx.Client, model: str) -> None:
    for penalty in ({"presence_penalty": 100}, {"frequency_penalty": 100}, {"repeat_penalty": 1000, "repeat_last_n": -1}):
        said = ids(http, model, say(max_tokens=40, **penalty))
        assert len(said) > 4 and len(said) == len(set(said)), penalty
    for penalty in ({"presence_penalty": -100}, {"frequency_penalty": -100}):
        said = ids(http, model, say(max_tokens=20, ignore_eos=True, **penalty))
        assert len(set(said)) < 12, penalty


def test_a_reply_is_as_long_as_it_is_asked_to_be(api: str, ask: Callable[..., httpx.Response], say: Callable[..., str]) -> None:
    n = lambda **fields: ask(max_tokens=60, **fields).json()["greenroom"] and say(max_tokens=60, **fields)
    short = say(max_tokens=2)
    assert short and len(short) < len(say(max_tokens=60, min_tokens=50))
    assert len(n(ignore_eos=True)) > len(short)
    assert ask(max_tokens=1_000_000).status_code == 200, "as long as there is room"


def test_a_token_may_end_the_reply(say: Callable[..., str], http: httpx.Client, model: str) -> None:
    text = say()
    third = ids(http, model, text)[2]
    said = say(stop_token_ids=[third])
    assert text.startswith(said) and len(said) < len(text)


def test_a_reply_has_the_form_that_is_asked_for(api: str, say: Callable[..., str]) -> None:
    schema = {"type": "object", "properties": {"ripe": {"type": "boolean"}}, "required": ["ripe"], "additionalProperties": False}
    by_schema = [
        {"json_schema": schema},
        {"guided_json": schema},
        {"structured_outputs": {"json": schema}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        {"response_format": {"type": "json_object", "schema": schema}},
    ]
    if api.startswith("ollama"):
        by_schema = [{"format": schema}]
    for form in by_schema:
        assert re.fullmatch(r'\{"ripe": ?(true|false)\}', say(**form)), form
    for form in ({"grammar": 'root ::= "melon" ("s" | "!"{2})'}, {"guided_regex": "melons|melon!!"}, {"guided_choice": ["melons", "melon!!"]}):
        assert say(**form) in ("melons", "melon!!"), form


def test_a_seed_is_enough(say: Callable[..., str]) -> None:
    hot = lambda seed: say(temperature=1.5, seed=seed, max_tokens=20)
    assert hot(3) == hot(3)
    assert len({hot(seed) for seed in range(3)}) == 3
    assert say(seed=-1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("typical_p", 0.5),
        ("mirostat", 2),
        ("xtc_probability", 0.1),
        ("samplers", ["top_k"]),
        ("use_beam_search", True),
        ("suffix", "x"),
        ("lora", [{"id": 0}]),
        ("logit_bias", {"5": "much"}),
        ("logit_bias", {"99999999": 1}),
        ("stop_token_ids", [99_999_999]),
        ("temperature", "hot"),
        ("max_tokens", "many"),
        ("seed", "lucky"),
        ("stop", 3),
        ("grammar", "root ::= thing"),
        ("guided_regex", "("),
    ],
)
def test_what_would_change_a_reply_is_refused_by_its_name(api: str, ask: Callable[..., httpx.Response], field: str, value: Any) -> None:
    answer = ask(**{field: value})
    assert answer.status_code == 400, answer.text
    named = "max_output_tokens" if api == "responses" and field == "max_tokens" else field
    assert named in answer.text


def test_what_switches_a_setting_off_is_accepted(say: Callable[..., str]) -> None:
    off = {"typical_p": 1.0, "mirostat": 0, "top_k": -1, "min_p": 0, "tfs_z": 1, "xtc_probability": 0, "logit_bias": None, "suffix": None}
    assert say(**off, stop=None, grammar="", samplers=[]) == say(top_k=0, top_p=1)
