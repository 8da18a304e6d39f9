"""Concordia: its simulations on Greenroom's models."""

from __future__ import annotations

import math
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from .programs import EXAMPLES, Ran

import greenroom as gr

pytest.importorskip("concordia", reason="gdm-concordia is not installed")

from greenroom.adapters import concordia

STORY = "Alice lives in Riverbend, near the old mill. " * 30


@pytest.fixture
def model(engine: gr.Engine) -> concordia.LanguageModel:
    """The understudy."""
    return concordia.LanguageModel(engine, seed=1)


def test_texts_go_on_as_their_settings_say(model: concordia.LanguageModel) -> None:
    def said(**settings: Any) -> str:
        text: str = model.sample_text("Question: Who is Alice?\nAnswer: Alice is", max_tokens=24, **settings)
        return text

    assert said(temperature=0) == said(temperature=0)
    assert said(temperature=1, seed=7) == said(temperature=1, seed=7) != said(temperature=1, seed=8)
    assert said(temperature=1, top_k=1, seed=3) == said(temperature=0)
    assert said(temperature=1, top_p=1e-6, seed=3) == said(temperature=0)
    free = said(temperature=0)
    word = free.split()[2]
    assert free.startswith(said(temperature=0, terminators=[word, ""])) and word not in said(temperature=0, terminators=(word,))
    # Without a seed, a call depends on the model's seed and on how often the prompt was asked.
    one, two, other = (concordia.LanguageModel(model.engine, seed=seed, max_tokens=24) for seed in (1, 1, 2))
    first = [one.sample_text("Alice is", temperature=1) for _ in range(2)]
    assert first == [two.sample_text("Alice is", temperature=1) for _ in range(2)]
    assert first[0] not in (first[1], other.sample_text("Alice is", temperature=1))


def test_a_prompt_in_the_chat_template_is_the_engines(model: concordia.LanguageModel) -> None:
    """The tokens around a prompt are those of the engine's own rendering: greedy replies are equal."""
    prompt = "Question: Who is Alice?\nAnswer: Alice is <|im_end|> a marks' tester"
    request = {
        "messages": [{"role": "system", "content": concordia.SYSTEM}, {"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": 24,
        "greenroom": True,
    }
    answer = model.engine.request("/v1/chat/completions", request).result()
    assert len(model._ids(prompt)) == answer["usage"]["prompt_tokens"]
    assert model.sample_text(prompt, temperature=0, max_tokens=24) == answer["choices"][0]["message"]["content"]


def test_a_choice_is_one_of_the_responses(model: concordia.LanguageModel) -> None:
    index, response, info = model.sample_choice(f"{STORY}Is it cold?\n  (a) Yes\n  (b) No\nAnswer: (", ["a", "b"])
    assert ["a", "b"][index] == response
    assert math.isclose(sum(info["shares"].values()), 1, rel_tol=1e-6)
    assert math.isclose(info["mass"], sum(map(math.exp, info["logprobs"].values())), rel_tol=1e-6)
    likeliest = max(info["shares"], key=info["shares"].get)
    greedy = concordia.LanguageModel(model.engine, choice_temperature=0)
    assert greedy.sample_choice(f"{STORY}Is it cold?\n  (a) Yes\n  (b) No\nAnswer: (", ["a", "b"])[1] == likeliest
    drawn = [model.sample_choice("Heads or tails? ", ["heads", "tails"], seed=n)[1] for n in range(40)]
    share = model.sample_choice("Heads or tails? ", ["heads", "tails"])[2]["shares"]["heads"]
    assert abs(drawn.count("heads") / 40 - share) < 0.3
    for wrong in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="expected one or more, each once"):
            model.sample_choice("?", wrong)


@pytest.mark.parametrize("form", ["chat", "text"])
def test_what_prompts_have_in_common_is_not_read_again(engine: gr.Engine, form: Any) -> None:
    model = concordia.LanguageModel(engine, form=form, seed=1, max_tokens=8)
    around = len(model._ids("")) if form == "chat" else 0
    before = len(model._before)
    common = before + engine.count(STORY)

    def cost(prompt: str) -> tuple[int, int]:
        earlier = model.usage
        model.sample_text(prompt)
        assert model.usage.calls == earlier.calls + 1
        return model.usage.read - earlier.read, model.usage.reused - earlier.reused

    assert cost(f"{STORY}Who is Alice?") == (around + engine.count(f"{STORY}Who is Alice?"), 0)
    _, second = cost(f"{STORY}Where does she live, and since when?")
    _, third = cost(f"{STORY}Does Alice have a brother?")
    # At the second prompt the story gets a memory of its own, from where it is no longer sealed with what follows.
    assert common - 256 <= second <= common and common - 2 <= third <= common
    # A document that grows by its reply and a new question.
    document = f"{STORY}Question: What does Alice do?\nAnswer:"
    reply = model.sample_text(document)
    read, reused = cost(f"{document}{reply}\nQuestion: And Bob?\nAnswer:")
    assert reused >= engine.count(document) and read - reused < 60


def test_calls_at_once_give_what_calls_in_turn_give(engine: gr.Engine) -> None:
    prompts = [f"{STORY}Question {n}: who is Alice?\nAnswer:" for n in range(12)] * 2

    def all_of(folder: str, workers: int) -> list[str]:
        model = concordia.LanguageModel(engine, seed=3, max_tokens=8)
        with ThreadPoolExecutor(workers) as pool:
            return sorted(pool.map(model.sample_text, prompts))

    assert all_of("one", 1) == all_of("many", 8)


def test_timeouts_and_what_is_wrong(model: concordia.LanguageModel, tmp_path: Path) -> None:
    ids = [model._ids(STORY * 3)]
    assert len(ids[0]) < 8192
    with pytest.raises(TimeoutError, match="longer than 0.001 seconds"):
        model.sample_text(STORY * 3, timeout=0.001)
    assert model.sample_text("Alice is", max_tokens=4)
    with pytest.raises(gr.EngineError, match="context is 8192"):
        model.sample_text("the sea " * 9000)
    with pytest.raises(ValueError, match="expected 'chat' or 'text'"):
        concordia.LanguageModel(model.engine, form="prose")  # type: ignore[arg-type]
    with pytest.raises(gr.ModelError, match="nowhere.gguf"):
        concordia.LanguageModel(tmp_path / "nowhere.gguf")


def test_an_associative_memory(engine: gr.Engine) -> None:
    from concordia.associative_memory.basic_associative_memory import AssociativeMemoryBank

    memory = AssociativeMemoryBank(sentence_embedder=concordia.embedder(engine))
    memory.extend(["The boat is at the pier.", "Bread costs two coins."])
    assert list(memory.retrieve_associative("The boat is at the pier.", k=1)) == ["The boat is at the pier."]


def test_concordias_own_tests_of_entities(engine: gr.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of the installed package's prefabs, on the understudy in the place of no model."""
    from concordia.language_model import no_language_model
    from concordia.prefabs.entity import prefabs_test

    models: list[concordia.LanguageModel] = []

    def made() -> concordia.LanguageModel:
        models.append(concordia.LanguageModel(engine, seed=1, max_tokens=24))
        return models[-1]

    monkeypatch.setattr(no_language_model, "NoLanguageModel", made)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(prefabs_test.EntityPrefabsTest)
    result = unittest.TextTestRunner(stream=sys.stderr).run(suite)
    assert result.wasSuccessful() and result.testsRun == len(models) >= 4
    assert all(model.usage.calls >= 2 and model.usage.reused > 0 for model in models)


def test_the_example(ran: Ran) -> None:
    program = EXAMPLES / "concordia_dilemma.py"
    # (Concordia lists the options of a choice in an order that no seed fixes.)
    first, second = ran("python", program), ran("python", program)
    assert all("Marco learned that Marco serves" in out and "24 calls" in out for out in (first, second))

    def reused(out: str) -> float:
        words = out.splitlines()[-1].split()
        return int(words[-5]) / int(words[3])

    # The second run finds what the first one has stored.
    assert 0.2 < reused(first) < reused(second), (first, second)
