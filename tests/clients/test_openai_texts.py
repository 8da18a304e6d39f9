"""OpenAI's Python SDK against completions of texts without a chat template, and embeddings."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Completion

ONCE = "Once upon a time an old well stood"


def complete(client: OpenAI, model: str, prompt: Any = ONCE, **options: Any) -> Completion:
    return client.completions.create(**({"model": model, "prompt": prompt, "max_tokens": 16, "seed": 1} | options))


def cached(completion: Completion) -> int:
    assert completion.usage and completion.usage.prompt_tokens_details
    return completion.usage.prompt_tokens_details.cached_tokens or 0


def ids(http: httpx.Client, text: str) -> list[int]:
    answer = http.post("/tokenize", json={"content": text})
    assert answer.status_code == 200, answer.text
    return answer.json()["tokens"]


@pytest.mark.needs("POST /v1/completions")
class TestCompletions:
    def test_a_text_goes_on(self, client: OpenAI, model: str) -> None:
        reply = complete(client, model)
        (choice,) = reply.choices
        assert reply.object == "text_completion" and reply.model == model and reply.id.startswith("cmpl-")
        assert (choice.index, choice.finish_reason) in ((0, "stop"), (0, "length")) and choice.text
        assert reply.usage and 0 < reply.usage.completion_tokens <= 16
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
        assert choice.text == complete(client, model).choices[0].text
        assert len({complete(client, model, seed=seed).choices[0].text for seed in range(4)}) > 1

    def test_a_stream_is_the_text(self, client: OpenAI, model: str) -> None:
        whole = complete(client, model)
        chunks = list(complete(client, model, stream=True, stream_options={"include_usage": True}))
        assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
        assert {chunk.object for chunk in chunks} == {"text_completion"}
        finish = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
        assert finish == [whole.choices[0].finish_reason]
        assert chunks[-1].choices == [] and chunks[-1].usage and whole.usage
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    @pytest.mark.needs("POST /tokenize")
    def test_ids_are_the_text_that_they_are(self, client: OpenAI, http: httpx.Client, model: str) -> None:
        assert complete(client, model, ids(http, ONCE)).choices[0].text == complete(client, model).choices[0].text

    @pytest.mark.needs("POST /tokenize")
    def test_several_prompts(self, client: OpenAI, http: httpx.Client, model: str) -> None:
        prompts = [ONCE, "Good evening, Mira. How"]
        both = complete(client, model, prompts)
        alone = [complete(client, model, prompt) for prompt in prompts]
        assert [choice.index for choice in both.choices] == [0, 1]
        assert both.choices[0].text == alone[0].choices[0].text
        assert both.usage and both.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in alone if one.usage)
        as_ids = complete(client, model, [ids(http, prompt) for prompt in prompts])
        assert [choice.text for choice in as_ids.choices] == [choice.text for choice in both.choices]
        assert both.choices[1].text == alone[1].choices[0].text, "a prompt's reply does not depend on its neighbours"

    def test_stop_and_n(self, client: OpenAI, model: str) -> None:
        whole = complete(client, model).choices[0].text
        stop = whole.split()[-1]
        ended = complete(client, model, stop=stop).choices[0]
        assert ended.text.rstrip() == whole[: whole.index(stop)].rstrip() and ended.finish_reason == "stop"
        several = complete(client, model, n=3).choices
        assert [choice.index for choice in several] == [0, 1, 2] and several[0].text == whole
        assert len({choice.text for choice in several}) > 1

    def test_log_probabilities(self, client: OpenAI, model: str) -> None:
        reply = complete(client, model, logprobs=2, temperature=0).choices[0]
        found = reply.logprobs
        assert found and found.tokens and found.token_logprobs and found.top_logprobs and found.text_offset
        assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset)
        assert "".join(found.tokens).strip() == reply.text.strip()
        assert all(logprob is not None and logprob <= 0 for logprob in found.token_logprobs)
        assert all(len(top) <= 2 and max(top.values()) == logprob for top, logprob in zip(found.top_logprobs, found.token_logprobs, strict=True))

    def test_what_was_read_is_not_read_again(self, client: OpenAI, model: str) -> None:
        first = complete(client, model, "The miller of the valley had three sons and a mill.")
        assert first.usage
        more = "The miller of the valley had three sons and a mill." + first.choices[0].text + " And"
        assert cached(complete(client, model, more)) >= first.usage.prompt_tokens - 2

    @pytest.mark.parametrize(
        ("options", "word"),
        [
            ({"prompt": "word " * 20_000}, "context"),
            ({"prompt": []}, "prompt"),
            ({"prompt": [10_000_000]}, "10000000"),
            ({"suffix": "the end"}, "suffix"),
            ({"best_of": 3}, "best_of"),
        ],
    )
    def test_what_is_wrong_is_named(self, client: OpenAI, model: str, options: dict[str, Any], word: str) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            complete(client, model, **options)
        assert word in refused.value.message


@pytest.mark.needs("POST /v1/embeddings")
class TestEmbeddings:
    TEXTS = ("The melons are ripe.", "The melons are sweet and ripe.", "A ship sails at night.")

    def test_vectors_of_texts(self, client: OpenAI, model: str) -> None:
        found = client.embeddings.create(model=model, input=list(self.TEXTS), encoding_format="float")
        assert [one.index for one in found.data] == [0, 1, 2] and found.object == "list" and found.model == model
        assert {one.object for one in found.data} == {"embedding"} and len({len(one.embedding) for one in found.data}) == 1
        for one in found.data:
            assert math.isclose(sum(x * x for x in one.embedding), 1, rel_tol=1e-3), "of length 1"
        assert found.usage.prompt_tokens == found.usage.total_tokens > 8
        alone = client.embeddings.create(model=model, input=self.TEXTS[1], encoding_format="float")
        assert alone.data[0].embedding == found.data[1].embedding
        near, far = (sum(a * b for a, b in zip(found.data[0].embedding, found.data[n].embedding, strict=True)) for n in (1, 2))
        assert near > far

    def test_base64_is_the_same(self, client: OpenAI, http: httpx.Client, model: str) -> None:
        as_floats = client.embeddings.create(model=model, input=self.TEXTS[0], encoding_format="float").data[0].embedding
        by_default = client.embeddings.create(model=model, input=self.TEXTS[0]).data[0].embedding  # the SDK asks for base64
        body = {"model": model, "input": self.TEXTS[0], "encoding_format": "base64"}
        raw = base64.b64decode(http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"])
        values = struct.unpack(f"<{len(raw) // 4}f", raw)
        bits = lambda values: struct.pack(f"<{len(values)}f", *values)
        assert bits(values) == bits(as_floats) == bits(by_default)

    @pytest.mark.needs("POST /tokenize")
    def test_ids_are_the_text_that_they_are(self, client: OpenAI, http: httpx.Client, model: str) -> None:
        by_ids = client.embeddings.create(model=model, input=ids(http, self.TEXTS[0]), encoding_format="float")
        by_text = client.embeddings.create(model=model, input=self.TEXTS[0], encoding_format="float")
        assert by_ids.data[0].embedding == by_text.data[0].embedding

    @pytest.mark.parametrize("wrong", [{"input": []}, {"input": ""}, {"input": "a", "encoding_format": "hex"}, {"input": "word " * 20_000}])
    def test_what_is_wrong_is_refused(self, client: OpenAI, model: str, wrong: dict[str, Any]) -> None:
        with pytest.raises(openai.BadRequestError):
            client.embeddings.create(**({"model": model, "encoding_format": "float"} | wrong))
