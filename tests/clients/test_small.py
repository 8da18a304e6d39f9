"""The small endpoints: health, metrics, tokens, templates, current activity, the description of the API."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

TEXT = "Good evening, Mira. — Wie geht's? 早上好 🍈"
LINE = re.compile(r'^[a-zA-Z_:][\w:]*(\{[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*"(,[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*")*\})? (\S+)$')


def chat(http: httpx.Client, model: str, **options: Any) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": TEXT}], "max_tokens": 8, "seed": 1} | options
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def metrics(http: httpx.Client) -> dict[str, float]:
    """Figures by name and labels; every line must be one of Prometheus's."""
    answer = http.get("/metrics")
    assert answer.status_code == 200 and "text" in answer.headers["content-type"]
    found = {}
    for line in answer.text.splitlines():
        if line and not line.startswith("#"):
            assert LINE.match(line), line
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


def test_health(http: httpx.Client) -> None:
    answer = http.get("/health")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


def test_an_unknown_path_is_told(http: httpx.Client) -> None:
    for method, path in (("GET", "/nothing"), ("POST", "/v1/nothing"), ("GET", "/v1/chat/completions"), ("DELETE", "/health")):
        answer = http.request(method, path)
        assert answer.status_code in (404, 405) and path in answer.json()["error"]["message"]


@pytest.mark.needs("GET /metrics")
def test_metrics_count_what_happens(http: httpx.Client, model: str) -> None:
    before, reply, after = metrics(http), chat(http, model), metrics(http)
    gained = lambda name: after.get(name, 0) - before.get(name, 0)
    assert gained('greenroom_tokens_total{kind="generated"}') == reply["usage"]["completion_tokens"]
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert gained('greenroom_tokens_total{kind="reused"}') == cached
    read = gained('greenroom_tokens_total{kind="prefilled"}') + gained('greenroom_tokens_total{kind="recomputed"}')
    assert read == reply["usage"]["prompt_tokens"] - cached
    assert sum(gained(name) for name in after if name.startswith("greenroom_matches_total")) == 1
    assert gained('greenroom_requests_total{route="/v1/chat/completions",status="200"}') == 1
    assert after["greenroom_requests_at_work"] == 0


@pytest.mark.needs("POST /tokenize", "POST /detokenize")
def test_a_text_survives_its_tokens(http: httpx.Client, model: str) -> None:
    tokens = http.post("/tokenize", json={"content": TEXT}).json()["tokens"]
    assert tokens and all(isinstance(token, int) for token in tokens)
    assert http.post("/detokenize", json={"tokens": tokens}).json()["content"] == TEXT
    for wrong in ({"tokens": [10**7]}, {"tokens": [-1]}, {"tokens": ["a"]}, {}):
        assert http.post("/detokenize", json=wrong).status_code == 400
    assert http.post("/tokenize", json={"content": "", "model": model}).json()["tokens"] == []
    assert http.post("/tokenize", json={"content": "a", "model": "gpt-4o"}).status_code == 404


@pytest.mark.needs("POST /apply-template", "POST /tokenize")
def test_the_template_is_what_is_read(http: httpx.Client, model: str) -> None:
    messages = [{"role": "system", "content": "You are Mira."}, {"role": "user", "content": TEXT}]
    prompt = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert "You are Mira." in prompt and TEXT in prompt
    read = chat(http, model, messages=messages)["usage"]["prompt_tokens"]
    counted = len(http.post("/tokenize", json={"content": prompt, "parse_special": True}).json()["tokens"])
    # Segments are tokenized alone: where they meet, a text cut as a whole may have other tokens.
    assert abs(counted - read) <= 4


@pytest.mark.needs("GET /props")
def test_props(http: httpx.Client) -> None:
    props = http.get("/props").json()
    assert props["total_slots"] == 8 and props["default_generation_settings"]["n_ctx"] >= 2048
    assert http.get("/props?model=gpt-4o").status_code == 404


@pytest.mark.needs("GET /slots")
def test_slots(http: httpx.Client, model: str) -> None:
    chat(http, model)
    slots = http.get("/slots").json()
    assert slots and [slot["id"] for slot in slots] == list(range(len(slots)))
    assert not any(slot["is_processing"] for slot in slots) and any(slot["n_tokens"] > 0 for slot in slots)


@pytest.mark.needs("GET /openapi.json")
def test_the_api_is_described(http: httpx.Client) -> None:
    api = http.get("/openapi.json").json()
    assert api["openapi"].startswith("3.") and api["info"]["title"] and api["paths"]
    assert {"/health", "/v1/models", "/v1/chat/completions"} <= api["paths"].keys()
    for path, methods in api["paths"].items():
        for method, described in methods.items():
            assert described["responses"], (method, path)
            # What is described is served: a route that is missing says so.
            filled = re.sub(r"\{[^}]+\}", "x", path)
            if method == "get" and "event" not in path and "window" not in path:
                with http.stream("GET", filled) as answer:
                    if answer.status_code == 404:
                        assert f"GET {filled} does not exist" not in answer.read().decode()
    references = re.findall(r'"\$ref": ?"#/([^"]+)"', http.get("/openapi.json").text)
    for reference in set(references):
        found: Any = api
        for step in reference.split("/"):
            found = found[step]
