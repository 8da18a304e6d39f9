"""Inspect: evals on Greenroom's models, and runs as its logs."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from .programs import EXAMPLES, SCENARIOS, Ran

import greenroom as gr

pytest.importorskip("inspect_ai", reason="inspect-ai is not installed")

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentImage,
    ContentText,
    GenerateConfig,
    Model,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import includes
from inspect_ai.solver import chain, generate, use_tools, user_message
from inspect_ai.tool import Tool, ToolCall, ToolFunction, ToolInfo, tool
from inspect_ai.util import JSONSchema

from greenroom.adapters.inspect import GreenroomAPI, write_log


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """The understudy, with memories of its own."""
    return get_model("greenroom/understudy", cache_dir=str(tmp_path / "inspect"), memoize=False)


GREEDY = GenerateConfig(temperature=0, max_tokens=12, seed=1)


@pytest.mark.anyio
async def test_a_conversation_continues_its_memory(model: Model) -> None:
    messages: list[Any] = [ChatMessageSystem(content="You are Ada."), ChatMessageUser(content="Who are you?")]
    first = await model.generate(messages, config=GREEDY)
    assert first.completion and first.stop_reason in ("stop", "max_tokens")
    assert first.usage is not None and first.usage.input_tokens_cache_read == 0
    messages += [first.message, ChatMessageUser(content="And who am I?")]
    second = await model.generate(messages, config=GREEDY)
    usage = second.usage
    assert usage is not None and usage.input_tokens_cache_read is not None
    assert usage.input_tokens_cache_read >= first.usage.input_tokens + first.usage.output_tokens - 1
    assert usage.total_tokens == usage.input_tokens + usage.input_tokens_cache_read + usage.output_tokens
    assert second.input_context_tokens == usage.input_tokens + usage.input_tokens_cache_read
    # Another continuation of the first reply is another conversation with the same beginning.
    messages[-1] = ChatMessageUser(content="Why?")
    third = await model.generate(messages, config=GREEDY)
    assert third.usage is not None and (third.usage.input_tokens_cache_read or 0) >= first.usage.input_tokens


@pytest.mark.anyio
async def test_a_reply_is_what_other_ways_give(model: Model, engine: gr.Engine) -> None:
    messages: list[Any] = [ChatMessageSystem(content="You are Ada."), ChatMessageUser(content="Who are you?")]
    config = GenerateConfig(temperature=1, seed=7, max_tokens=20)
    said = [(await model.generate(messages, config=config)).completion for _ in range(2)]
    body = {
        "messages": [{"role": one.role, "content": one.text} for one in messages],
        "temperature": 1,
        "seed": 7,
        "max_tokens": 20,
    }
    answer = engine.request("/v1/chat/completions", body).result()
    assert said == [answer["choices"][0]["message"]["content"]] * 2


@pytest.mark.anyio
async def test_settings_of_a_reply(model: Model) -> None:
    hello = "Tell me about the sea."
    scored = await model.generate(hello, config=GREEDY.merge(GenerateConfig(logprobs=True, top_logprobs=3)))
    logprobs = scored.choices[0].logprobs
    assert logprobs is not None and len(logprobs.content) == (scored.usage and scored.usage.output_tokens)
    assert all(one.logprob <= 0 and len(one.top_logprobs or []) == 3 for one in logprobs.content)
    several = await model.generate(hello, config=GenerateConfig(num_choices=3, max_tokens=5, temperature=1, seed=1))
    assert len(several.choices) == 3
    form = ResponseSchema(name="mood", json_schema=JSONSchema(enum=["glad", "sad"]))
    chosen = await model.generate(hello, config=GREEDY.merge(GenerateConfig(response_schema=form)))
    assert chosen.completion in ('"glad"', '"sad"')
    free = await model.generate(hello, config=GREEDY)
    word = free.completion.split()[1]
    cut = await model.generate(hello, config=GREEDY.merge(GenerateConfig(stop_seqs=[word])))
    assert word not in cut.completion and free.completion.startswith(cut.completion)
    assert cut.stop_reason == "stop"


WEATHER = ToolInfo.model_validate(
    {
        "name": "weather",
        "description": "The weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string", "enum": ["Oslo", "Ghent"], "description": "The town."}},
            "required": ["town"],
        },
    }
)


@pytest.mark.parametrize("choice", ["any", ToolFunction("weather")])
@pytest.mark.anyio
async def test_a_tool_is_called_and_its_result_is_read(model: Model, choice: Any) -> None:
    messages: list[Any] = [ChatMessageUser(content="What is the weather in Oslo?")]
    config = GREEDY.merge(GenerateConfig(max_tokens=60))
    first = await model.generate(messages, tools=[WEATHER], tool_choice=choice, config=config)
    assert first.stop_reason == "tool_calls" and first.message.tool_calls
    (call,) = first.message.tool_calls
    assert call.function == "weather" and call.arguments["town"] in ("Oslo", "Ghent") and call.parse_error is None
    messages += [first.message, ChatMessageTool(content="Rain.", tool_call_id=call.id, function="weather")]
    # (With the choice "none" Inspect leaves out the tools, which the prompt begins with.)
    second = await model.generate(messages, tools=[WEATHER], tool_choice="auto", config=config)
    assert second.usage is not None and first.usage is not None
    assert (second.usage.input_tokens_cache_read or 0) >= first.usage.input_tokens


@pytest.mark.anyio
async def test_whole_conversations_that_no_memory_has(model: Model) -> None:
    call = ToolCall(id="c1", function="weather", arguments={"town": "Oslo"})
    messages: list[Any] = [
        ChatMessageSystem(content="You are brief."),
        ChatMessageUser(content=[ContentText(text="The weather"), ContentText(text="in Oslo?")]),
        ChatMessageAssistant(content="", tool_calls=[call]),
        ChatMessageTool(content="Rain.", tool_call_id="c1", function="weather"),
        ChatMessageAssistant(content="It rains."),
        ChatMessageUser(content="Thank you."),
    ]
    said = await model.generate(messages, tools=[WEATHER], config=GREEDY)
    assert said.completion or said.message.tool_calls
    assert said.usage is not None and said.usage.input_tokens_cache_read == 0


@pytest.mark.anyio
async def test_what_is_wrong_says_so(model: Model, tmp_path: Path) -> None:
    image = ChatMessageUser(content=[ContentImage(image="data:image/png;base64,iVBORw0KGgo=")])
    with pytest.raises(ValueError, match="`image` in a message of the role `user`; expected text"):
        await model.generate([image], config=GREEDY)
    with pytest.raises(Exception, match="`best_of` is not supported"):
        await model.generate("Hello.", config=GenerateConfig(best_of=2))
    long = await model.generate("the sea " * 9000, config=GREEDY)
    assert long.stop_reason == "model_length" and "context is 8192" in long.completion
    with pytest.raises(TypeError, match="loudness; expected some of device"):
        get_model("greenroom/understudy", loudness=3, memoize=False)
    with pytest.raises(gr.ModelError, match="nowhere.gguf"):
        get_model(f"greenroom/{tmp_path / 'nowhere.gguf'}", memoize=False)
    with pytest.raises(ValueError, match="openai-api"):
        get_model("greenroom/understudy", base_url="http://127.0.0.1:1", memoize=False)


@pytest.mark.anyio
async def test_a_cancelled_reply_is_taken_back(model: Model) -> None:
    assert isinstance(model.api, GreenroomAPI)
    long = GenerateConfig(max_tokens=4000, extra_body={"guided_regex": "[a-z ]{6000}"})
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(model.generate("Hello.", config=long), 0.3)
    assert (await model.generate("Hello.", config=GREEDY)).completion


@pytest.mark.anyio
async def test_tokens_are_the_models(model: Model, engine: gr.Engine) -> None:
    assert await model.api.count_text_tokens("The sea is cold.") == engine.count("The sea is cold.")


@tool
def weather() -> Tool:
    async def execute(town: Literal["Oslo", "Ghent"]) -> str:
        """The weather of a town.

        Args:
            town: The town.
        """
        return f"Rain in {town}."

    return execute


def test_an_eval(model: Model, tmp_path: Path) -> None:
    tasks = [
        Task(
            dataset=[Sample(input="Do you talk?", target="e"), Sample(input="Are you silent?", target="e")],
            solver=chain(generate(), user_message("And now?"), generate()),
            scorer=includes(),
            name="talk",
        ),
        Task(
            dataset=[Sample(input="The weather?", target="Rain")],
            solver=chain(use_tools(weather(), tool_choice="any"), generate(tool_calls="single", max_tokens=60)),
            name="call",
        ),
    ]
    talk, call = eval(tasks, model=model, log_dir=str(tmp_path / "logs"), display="none", max_tokens=16, seed=1)
    assert talk.status == call.status == "success", (talk.error, call.error)
    assert talk.samples is not None and call.samples is not None
    for sample in talk.samples:
        (usage,) = sample.model_usage.values()
        assert usage.input_tokens_cache_read and usage.input_tokens_cache_read > usage.input_tokens / 2
    roles = [message.role for message in call.samples[0].messages]
    assert roles == ["user", "assistant", "tool"] and "Rain in" in call.samples[0].messages[-1].text


def test_the_example(ran: Ran, tmp_path: Path) -> None:
    out = ran(
        *("inspect", "eval", "inspect_dilemma.py", "--model", "greenroom/understudy", "--seed", "7", "--epochs", "2"),
        *("--display", "plain", "--log-dir", tmp_path / "logs"),
        cwd=EXAMPLES,
    )
    (log,) = (tmp_path / "logs").glob("*.eval")
    read = read_eval_log(str(log))
    assert read.status == "success" and read.samples is not None and len(read.samples) == 4, out
    assert {sample.output.completion for sample in read.samples} <= {'"I stay silent"', '"I talk"'}
    (usage,) = read.stats.model_usage.values()
    assert usage.input_tokens_cache_read, out


def test_a_second_process_has_a_folder_of_its_own(ran: Ran) -> None:
    """Evals at once share the user's folder of memories, which only one process can serve from."""
    with gr.Engine("understudy") as engine:
        engine.request("/v1/models", method="GET").result()
        code = (
            "import warnings, greenroom as gr; from greenroom.adapters._shared import opened\n"
            "with warnings.catch_warnings(record=True) as seen:\n"
            "    warnings.simplefilter('always'); engine = opened('understudy')\n"
            "assert opened('understudy') is engine\n"
            "body = {'messages': [{'role': 'user', 'content': 'Hello.'}], 'max_tokens': 4}\n"
            "print(engine.request('/v1/chat/completions', body).result()['object'], *(one.message for one in seen))"
        )
        out = ran("python", "-c", code)
    assert out.startswith("chat.completion another server keeps its records in") and "until it ends" in out


TOWN = {"type": "object", "properties": {"town": {"enum": ["Oslo"]}}, "required": ["town"], "additionalProperties": False}
TOLD = {
    "id": "told",
    "agents": {
        "ann": {"system_prompt": "You are Ann.", "tools": ["weather"]},
        "ben": {"strategy": "tit_for_tat"},
        "cas": {"strategy": "human"},
    },
    "tools": {"weather": {"function": "weather", "about": "Weather.", "arguments": TOWN}},
    "phases": [
        {"name": "ask", "agents": ["ann"], "answer": {"call": "weather"}, "prompt": "Ask."},
        {"name": "talk", "agents": ["ann", "cas"], "prompt": "Talk."},
        {"name": "vote", "agents": ["ann", "ben"], "order": "broadcast", "answer": {"one_of": ["stay", "go"]}},
    ],
    "outcome": {"stays": "vote.votes.stay"},
    "assertions": ["vote.votes.stay <= 2", {"that": "vote.votes.stay > 2", "why": "it can't"}],
}


@pytest.fixture
def told() -> gr.Run:
    """A run with a call, a player, a strategy, choices, and an assertion that fails."""

    @gr.tool
    def weather(town: str) -> str:
        """Weather."""
        return f"Rain in {town}."

    return gr.run(TOLD, seed=3, tools=[weather], players={"cas": lambda view: "Good evening."}, max_tokens=20)


def test_a_run_as_a_log(told: gr.Run, tmp_path: Path) -> None:
    told.score(words)
    file = write_log(told, tmp_path / "told.eval")
    log = read_eval_log(str(file))
    assert (log.status, log.eval.task, log.eval.model) == ("success", "told", "greenroom/understudy")
    assert log.samples is not None
    (sample,) = log.samples
    assert (sample.id, sample.epoch, sample.metadata["seed"]) == ("told", 1, 3)
    spoken = [(one.metadata or {})["agent"] for one in sample.messages if one.role == "assistant"]
    assert spoken == [line["agent"] for line in told.lines]
    (result,) = [one for one in sample.messages if isinstance(one, ChatMessageTool)]
    (called,) = [one for one in sample.messages if isinstance(one, ChatMessageAssistant) and one.tool_calls]
    assert result.content == "Rain in Oslo." and called.tool_calls and called.tool_calls[0].id == result.tool_call_id
    scores = sample.scores or {}
    assert scores["stays"].value == told.outcomes["stays"] and scores["words"].value == told.scores["words"]
    choice = scores["choice.vote/1/ann"]
    assert choice.value in ("stay", "go") and set((choice.metadata or {})["logprobs"]) == {"stay", "go"}
    assert 0 < (choice.metadata or {})["mass"] <= 1
    assert scores["assertions"].value is False and "it can't" in (scores["assertions"].explanation or "")
    asked = [event for event in sample.events if event.event == "model"]
    assert [event.role for event in asked] == [one["agent"] for one in told.lines if one["agent"] == "ann"]
    assert [len(event.input) for event in asked] == sorted(len(event.input) for event in asked)
    traced = map(json.loads, (told.folder / "trace.jsonl").read_text().splitlines())
    costs = [one["tokens"] for one in traced if one.get("agent") == "ann"]
    cost = {name: sum(one[name] for one in costs) for name in costs[0]}
    usage = log.stats.role_usage["ann"]
    assert usage.input_tokens_cache_read == cost["reused"] and usage.output_tokens == cost["generated"]
    assert usage.input_tokens == cost["prefilled"] + cost["recomputed"]
    assert {event.source for event in sample.events if event.event == "info"} == {"tit_for_tat", "human"}
    assert write_log(told.folder, tmp_path / "told.json").is_file()


@gr.scorer
def words(run: gr.Run) -> int:
    """Words that were said."""
    return sum(len(line["spoken"].split()) for line in run.lines)


def test_an_experiment_as_a_log_and_data_frames(tmp_path: Path) -> None:
    analysis = pytest.importorskip("inspect_ai.analysis")
    pytest.importorskip("pandas", reason="pandas is not installed")
    experiment = gr.experiment(
        SCENARIOS / "prisoners-dilemma.yaml", seeds=2, sweep={"temperature": [0, 1]}, max_tokens=12
    )
    file = write_log(experiment, tmp_path / "logs")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d-]+\+00-00_prisoners-dilemma_[0-9a-f]+\.eval", file.name)
    (row,) = analysis.evals_df(file).to_dict("records")
    assert (row["task_name"], row["completed_samples"], row["dataset_samples"]) == ("prisoners-dilemma", 4, 2)
    samples = analysis.samples_df(file)
    assert sorted(samples["epoch"]) == [1, 1, 2, 2] and samples["id"].nunique() == 2
    assert set(samples["score_silent"]) <= {0, 1, 2}
    assert {"score_payoff.marco", "score_choice.two_sheets/1/danny", "score_assertions"} <= set(samples.columns)
    messages = analysis.messages_df(file)
    lines = sum(len(run.lines) for run in experiment.runs)
    assert (messages["role"] == "assistant").sum() == lines
    assert len(analysis.events_df(file)) >= lines
    with pytest.raises(gr.GreenroomError, match="found no complete run"):
        write_log([], tmp_path / "none.eval")


@pytest.mark.anyio
async def test_scout_reads_runs(told: gr.Run, tmp_path: Path) -> None:
    scout = pytest.importorskip("inspect_scout", reason="inspect-scout is not installed")
    write_log(told, tmp_path / "logs" / "told.eval")
    async with scout.transcripts_from(str(tmp_path / "logs")).reader() as reader:
        (info,) = [one async for one in reader.index()]
        assert (info.task_set, info.model) == ("told", "greenroom/understudy")
        transcript = await reader.read(info, scout.TranscriptContent(messages="all", events="all"))
    assert len([one for one in transcript.messages if one.role == "assistant"]) == len(told.lines)
    assert any(event.event == "model" for event in transcript.events)


def test_the_example_of_logs(ran: Ran, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    out = ran("python", EXAMPLES / "inspect_logs.py", SCENARIOS / "prisoners-dilemma.yaml")
    assert "score_payoff.marco" in out and (tmp_path / "logs").is_dir()


def test_the_entry_point() -> None:
    from importlib.metadata import entry_points

    (found,) = entry_points(group="inspect_ai", name="greenroom")
    assert importlib.import_module(found.value).GreenroomAPI is GreenroomAPI
