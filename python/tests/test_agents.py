"""Agents of an engine: replies, choices, memories, forks, forms, tools, and many at once."""

from __future__ import annotations

import asyncio
import enum
import gc
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import greenroom as gr


def test_a_reply_can_be_waited_for_in_four_ways(engine: gr.Engine) -> None:
    said = engine.agent("a", system="You are Ada.").say("Who are you?", max_tokens=12).result()
    assert said.text and str(said) == said.text and said.stop in ("end_of_turn", "length")
    assert said.usage.kind == "cold" and said.usage.generated == len(said.tokens)

    pending = engine.agent("b", system="You are Ada.").say("Who are you?", max_tokens=12)
    pieces = list(pending)
    assert "".join(pieces).strip() == pending.result().text.strip() == said.text.strip()

    async def awaited() -> tuple[str, str]:
        one = await engine.agent("c", system="You are Ada.").say("Who are you?", max_tokens=12)
        two = engine.agent("d", system="You are Ada.").say("Who are you?", max_tokens=12)
        pieces = [piece async for piece in two]
        assert (await two).text.strip() == "".join(pieces).strip()
        return one.text, (await two).text

    assert asyncio.run(awaited()) == (said.text, said.text)


def test_a_second_turn_extends_the_memory(engine: gr.Engine) -> None:
    ada = engine.agent("ada", system="You are Ada.", temperature=0, max_tokens=10)
    first = ada.say("Who are you?").result()
    second = ada.say("And who am I?").result()
    assert second.usage.kind == "extend"
    assert second.usage.reused >= first.usage.prefilled
    assert second.usage.recomputed == 0
    assert ada.memory.tokens == second.usage.reused + second.usage.prefilled + second.usage.generated
    # Another agent's memory is not part of its own.
    other = engine.agent("ben", max_tokens=4)
    reply = other.say("The sea. " * 300).result()
    assert 0 < ada.memory.bytes < other.memory.bytes < reply.usage.memory_bytes
    assert [turn["user"] for turn in ada.turns] == ["Who are you?", "And who am I?"]
    assert ada.system == "You are Ada."
    assert "2 turns" in repr(ada)
    assert "And who am I?" in ada._repr_html_()


def test_a_memory_survives_its_engine(tmp_path: Path) -> None:
    with gr.Engine(cache_dir=tmp_path / "memories") as engine:
        ada = engine.agent("ada", run="study", system="You are Ada.", temperature=0, max_tokens=8)
        ada.say("Remember the boat.").result()
        whole = ada.say("What do you remember?").result()
    with gr.Engine(cache_dir=tmp_path / "memories") as engine:
        assert [(one["run"], one["agent"]) for one in engine.stored()] == [("study", "ada")]
        again = engine.resume("ada", run="study", temperature=0, max_tokens=8)
        assert again.memory.tokens > 0
        third = again.say("And what else?").result()
        assert third.usage.kind == "extend" and third.usage.source == "disk"
        assert [turn["user"] for turn in again.turns][:2] == ["Remember the boat.", "What do you remember?"]
        # Another past under the same name is refused, unless it is to be replaced.
        with pytest.raises(gr.EngineError, match="stored memory"):
            engine.agent("ada", run="study", system="You are Bo.").say("Hello.").result()
        engine.agent("ada", run="study", system="You are Bo.", replace=True).say("Hello.").result()
        engine.remove("ada", run="study")
        with pytest.raises(gr.EngineError) as found:
            engine.resume("ada", run="study")
        assert found.value.kind == "notfound"
    assert whole.text


def test_equal_seeds_give_equal_replies_and_forks_share_the_past(engine: gr.Engine) -> None:
    def dialogue(name: str, seed: int) -> list[str]:
        agent = engine.agent(name, system="You are Ada.", seed=seed, temperature=1, max_tokens=16)
        return [agent.say(text).result().text for text in ("Who are you?", "Where are you?")]

    assert dialogue("a", 1) == dialogue("b", 1)
    ada = engine.agent("ada", system="You are Ada.", temperature=0, max_tokens=8)
    ada.say("Who are you?").result()
    twin = ada.fork("twin")
    one, two = ada.say("And now?").result(), twin.say("And now?").result()
    assert one.text == two.text
    assert two.usage.recomputed == 0 and two.usage.reused > 0


def test_a_choice_has_probabilities(engine: gr.Engine) -> None:
    ada = engine.agent("ada", system="You are Ada.")
    choice = ada.choose("Stay or go?", ["stay", "go"]).result()
    assert choice.option in ("stay", "go") and str(choice) == choice.option
    assert choice.index == ["stay", "go"].index(choice.option)
    assert math.isclose(sum(choice.shares.values()), 1, abs_tol=1e-6)
    assert 0 < choice.mass <= 1
    assert math.isclose(choice.mass, sum(math.exp(value) for value in choice.logprobs.values()), rel_tol=1e-5)
    assert choice.option in choice._repr_html_()
    for options in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="each once"):
            ada.choose("?", options)


def test_ranks_scores_and_embeddings(engine: gr.Engine) -> None:
    ranked = engine.rank("Is the sea cold?", ["yes", "no", "perhaps"], system="You are Ada.")
    assert [one.logprob for one in ranked] == sorted((one.logprob for one in ranked), reverse=True)
    ada = engine.agent("ada", system="You are Ada.")
    assert {one.option: one.logprob for one in ada.rank("Is the sea cold?", ["yes", "no", "perhaps"])} == {
        one.option: one.logprob for one in ranked
    }
    assert ada.turns == []
    scores = engine.score("The sea is cold. The sea is cold.")
    assert len(scores) >= engine.count("The sea is cold. The sea is cold.") - 1
    assert all(one.logprob <= 0 for one in scores)
    one, two = engine.embed(["the sea", "a boat"])
    assert len(one) == len(two) > 100
    assert math.isclose(sum(value * value for value in one), 1, rel_tol=1e-3)
    assert asyncio.run(_embedded(engine)) == [one]


async def _embedded(engine: gr.Engine) -> list[list[float]]:
    return await engine.embed_async(["the sea"])


class Mood(enum.Enum):
    GLAD = "glad"
    SAD = "sad"


@dataclass
class Answer:
    mood: Mood
    reasons: list[Literal["rain", "sun"]]


def test_replies_have_the_form_that_is_asked_for(engine: gr.Engine) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Plan(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        goes: bool
        hours: int

    ada = engine.agent("ada", max_tokens=60)
    plan = ada.say("When do you go?", schema=Plan, seed=3).result()
    assert plan.parsed is None or isinstance(plan.parsed, Plan)
    mood = ada.say("How are you?", schema=Mood).result()
    assert mood.parsed in Mood
    assert ada.say("A number?", regex="[0-9]{2}").result().text in {f"{n:02}" for n in range(100)}
    assert ada.say("Hm?", lark='start: "oh" | "ah"').result().text in ("oh", "ah")
    with pytest.raises(TypeError, match="exclude each other"):
        ada.say("?", regex="a", lark="b")
    with pytest.raises(gr.EngineError):
        ada.say("?", regex="(").result()
    assert len(ada.turns) == 4


def test_schemas_of_types() -> None:
    from greenroom.functions import as_schema

    schema = as_schema(Answer)
    assert schema["properties"]["mood"] == {"enum": ["glad", "sad"]}
    assert schema["properties"]["reasons"] == {"type": "array", "items": {"enum": ["rain", "sun"]}}
    assert as_schema(dict[str, float]) == {"type": "object", "additionalProperties": {"type": "number"}}
    assert as_schema(int | None) == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    with pytest.raises(TypeError, match="JSON Schema"):
        as_schema(object)


def test_logprobs_of_a_reply(engine: gr.Engine) -> None:
    said = engine.agent("ada").say("Hello.", logprobs=3, max_tokens=5, temperature=0).result()
    assert said.logprobs and all(len(one["top"]) == 3 for one in said.logprobs)
    assert all(one["logprob"] <= 0 for one in said.logprobs)


def test_tools_are_described_by_their_hints() -> None:
    @gr.tool
    def weather(town: str, day: Literal["today", "tomorrow"] = "today") -> str:
        """Tells the weather
        of a town.

        More than agents need.
        """
        return f"{town}: rain {day}"

    assert weather.about == "Tells the weather of a town."
    assert weather.arguments["required"] == ["town"]
    assert weather.arguments["properties"]["day"] == {"enum": ["today", "tomorrow"]}
    assert weather.called({"town": "Ghent"}) == ("Ghent: rain today", False)
    assert weather("Ghent") == "Ghent: rain today"

    @gr.tool
    async def fails(town: str) -> None:
        """Fails."""
        raise ValueError(town)

    assert fails.called({"town": "x"}) == ("ValueError: x", True)
    assert asyncio.run(fails.called_async({"town": "x"})) == ("ValueError: x", True)
    for wrong in (lambda town: town, _no_hint):
        with pytest.raises(TypeError):
            gr.tool(wrong)


def _no_hint(town):  # type: ignore[no-untyped-def]
    """Has no hint."""


def test_a_hundred_agents_speak_at_once(engine: gr.Engine) -> None:
    alone = engine.agent("alone", system="You are agent 7.", seed=7, temperature=1, max_tokens=12)
    expected = alone.say("Who are you?").result().text

    async def one(number: int) -> str:
        agent = engine.agent(f"a{number}", system=f"You are agent {number}.", seed=number, temperature=1, max_tokens=12)
        return (await agent.say("Who are you?")).text

    async def all_of() -> list[str]:
        return await asyncio.gather(*(one(number) for number in range(100)))

    replies = asyncio.run(all_of())
    assert len(replies) == 100 and replies[7] == expected


def test_a_cancelled_turn_is_taken_back(engine: gr.Engine) -> None:
    ada = engine.agent("ada", system="You are Ada.", temperature=0)
    ada.say("Hello.", max_tokens=5).result()

    async def cancelled() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_all(ada), timeout=0.05)

    async def _all(ada: gr.Agent) -> Any:
        return await ada.say("Tell me everything.", max_tokens=1500, regex="[a-z ]{1400,1500}")

    asyncio.run(cancelled())
    gc.collect()
    assert [turn["user"] for turn in ada.turns] == ["Hello."]
    said = ada.say("Still there?", max_tokens=5).result()
    assert said.usage.reused > 0
    dropped = ada.say("Tell me everything.", max_tokens=1500, regex="[a-z ]{1400,1500}")
    dropped.cancel()
    with pytest.raises(gr.EngineError, match="taken back"):
        dropped.result()
    assert len(ada.turns) == 2


def test_what_is_wrong_says_so(tmp_path: Path) -> None:
    with pytest.raises(gr.ModelError, match="nowhere.gguf"):
        gr.Engine(tmp_path / "nowhere.gguf")
    with pytest.raises(gr.ModelError, match="device"):
        gr.Engine("understudy", device="abacus")
    with pytest.raises(TypeError, match="to Model"):
        gr.Engine(gr.Model("understudy"), kv="q8")
    with gr.Engine("understudy", cache_dir=tmp_path) as engine:
        with pytest.raises(TypeError, match="loudness"):
            engine.agent("ada", loudness=3)
        with pytest.raises(gr.EngineError, match="temperature"):
            engine.agent("ada").say("?", temperature=-1).result()
        with pytest.raises(gr.EngineError, match="at most 20"):
            engine.agent("ada").say("?", logprobs=50).result()
        assert engine.info["name"] and engine.info["context_length"] > 0
        assert "understudy" in repr(engine) and "n_params" in engine._repr_html_()
    with pytest.raises(gr.EngineError, match="closed"):
        engine.agent("ada")


def test_the_same_model_is_opened_once(tmp_path: Path) -> None:
    model = gr.Model("understudy", cache_dir=tmp_path)
    engine = gr.Engine.of(model)
    assert gr.Engine.of(gr.Model("understudy", cache_dir=tmp_path)) is engine
    assert gr.Engine.of(engine) is engine
    engine.close()
    assert gr.Engine.of(model) is not engine
    gr.Engine.of(model).close()


def test_memories_on_disk_keep_within_their_limit(tmp_path: Path) -> None:
    def taken() -> int:
        return sum(file.stat().st_size for file in (tmp_path / "memories").rglob("*") if file.is_file())

    limit = 1 << 20
    with gr.Engine(cache_dir=tmp_path / "memories", cache_disk=limit, threads=2) as engine:
        for n in range(12):
            engine.agent(f"a{n}", max_tokens=2).say(f"{n}. " + "The sea is cold. " * 120).result()
        before = taken()
        engine.native.shrink()
        assert taken() <= limit < before, (before, taken())
    with gr.Engine(cache_dir=tmp_path / "memories", cache_disk="unlimited") as engine:
        engine.native.shrink()
