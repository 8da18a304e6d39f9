"""Runs: the same as the program's, with players, tools and scorers in Python; experiments; what is asked of them."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import ROOT, SCENARIOS, TALK

import greenroom as gr


def test_the_program_gives_the_same_transcript(dilemma: Path, tmp_path: Path) -> None:
    run = gr.run(dilemma, seed=7, out=tmp_path / "module", max_tokens=20, set={"only_silent": 20})
    flags = ["run", str(dilemma), "--seed", "7", "--out", "program", "--max-tokens", "20", "--set", "only_silent=20"]
    done = subprocess.run([sys.executable, "-m", "greenroom", *flags, "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert run.transcript.read_bytes() == (tmp_path / "program" / "transcript.jsonl").read_bytes()
    assert not run.diff("program") and "program" not in str(run.diff("program"))
    assert run.seed == 7 and run.complete and run.holds
    assert run.replay() and run.replay().passed


def test_a_run_has_tables(dilemma: Path) -> None:
    run = gr.run(dilemma, max_tokens=12)
    assert run.folder.name == "prisoners-dilemma-1"
    choices = run.choices.to_dict()
    assert choices["agent"] == ["marco", "danny"] and len(run.choices) == 2
    assert set(run.tables) >= {"runs", "turns", "choices", "options", "payoffs"}
    assert run.outcomes["years_in_all"] == sum(run.payoff.values())
    assert len(run.turns) == len(run.lines) == 27
    assert "Marco:" in run.dialogue()
    assert run.cost["wall_ms"] > 0
    assert "Marco" in run.explain("marco", 2) and "<pre" in run.explain("marco")._repr_html_()
    assert "Marco" in run.prompt("marco", "yard/1/marco")
    assert run.report().startswith("<!DOCTYPE html>") and "srcdoc" in run._repr_html_()
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    frame = polars.DataFrame(run.choices)
    assert frame["option"].to_list() == choices["option"]
    assert list(pandas.DataFrame.from_arrow(run.choices)["option"]) == choices["option"]
    choice_table = run.choices
    assert duckdb.sql("select count(*) from choice_table").fetchone() == (2,)


def test_pandas_needs_no_pyarrow(dilemma: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    run = gr.run(dilemma, max_tokens=4)
    with_arrow = run.choices.to_pandas()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    without = run.choices.to_pandas()
    assert list(without) == list(with_arrow) and list(without["share"]) == list(with_arrow["share"])


def test_a_scenario_is_one_plan_however_it_is_given(tmp_path: Path, talk: gr.Scenario) -> None:
    built = gr.Scenario(**TALK)
    (tmp_path / "talk.yaml").write_text(built.to_yaml())
    of_file = gr.Scenario.load(tmp_path / "talk.yaml")
    of_text = gr.Scenario.load(built.to_yaml())
    assert built.plan_hash == of_file.plan_hash == of_text.plan_hash == talk.plan_hash
    assert [turn.path for turn in built.plan][:2] == ["hall/1/ann", "hall/1/ben"]
    assert built.plan[1].needs == ["hall/1/ann"]
    assert list(built.agents) == ["ann", "ben"] and built.id == "talk"
    assert "ann" in built._repr_html_().lower() and "2 agents" in repr(built)
    one, two = gr.run(built, seed=3, max_tokens=8), gr.run(of_file, seed=3, max_tokens=8)
    assert not one.diff(two)
    assert one.header["plan"] == built.plan_hash
    dilemma = gr.Scenario.load(SCENARIOS / "prisoners-dilemma.yaml", only_silent=20)
    assert dilemma.variables["only_silent"] == 20
    assert dilemma.with_variables(only_silent=30).variables["only_silent"] == 30
    assert dilemma.plan and dilemma.title == "The Ferry Money"


def test_a_wrong_scenario_lists_its_errors() -> None:
    with pytest.raises(gr.ScenarioError) as found:
        gr.Scenario.load({**TALK, "phases": [{"name": "hall", "agents": ["ann", "bob"]}]})
    (first, *_) = found.value.diagnostics
    assert first.code == "unknown-agent" and first.line > 1 and first.column > 1 and first.severity == "error"
    assert "ben" in (first.help or "") and "unknown-agent" in str(found.value)
    with pytest.raises(gr.GreenroomError, match="nowhere.yaml"):
        gr.Scenario.load("nowhere.yaml")
    with pytest.raises(TypeError, match="can't stand in a scenario"):
        gr.Scenario(**TALK, title=object())
    warned = gr.Scenario.load({**TALK, "tools": {"sums": "calculator"}})
    assert warned.warnings and warned.check()


def test_players_and_tools_in_python(tmp_path: Path) -> None:
    views: list[gr.View] = []

    @gr.player
    def ben(view: gr.View) -> str:
        views.append(view)
        return view.options[-1] if view.options else f"I heard {len(view.heard)} letters."

    agents = {"ann": {"system_prompt": "You are Ann."}, "ben": {"system_prompt": "You are Ben.", "strategy": ben}}
    scenario = gr.Scenario(**{**TALK, "agents": agents})
    run = gr.run(scenario, max_tokens=8)
    assert [view.path for view in views] == ["hall/1/ben", "hall/2/ben", "vote/1/ben"]
    assert views[2].options == ["yes", "no"] and len(views[2].past) == 2 and views[0].system == "You are Ben."
    assert run.choices.to_dict()["option"][1] == "no"
    assert run.replay().passed
    assert gr.Run(run.folder).lines[1]["spoken"] == views[2].past[0][1]

    with pytest.raises(ValueError, match="strategy: human"):
        gr.run(TALK, players={"ann": ben})
    with pytest.raises(ValueError, match="no agent `bob`"):
        gr.run(TALK, players={"bob": ben})

    @gr.player
    def wrong(view: gr.View) -> str:
        return "maybe"

    with pytest.raises(gr.RunError, match="`maybe` is not an option"):
        gr.run(gr.Scenario(**{**TALK, "agents": agents}), players={"ben": wrong}, max_tokens=4)

    @gr.player
    def breaks(view: gr.View) -> str:
        raise ZeroDivisionError("oh")

    with pytest.raises(gr.RunError, match="hall/1/ben.*ZeroDivisionError: oh") as found:
        gr.run(scenario, players={"ben": breaks}, out=tmp_path / "broken", max_tokens=4)
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    again = gr.run(scenario, players={"ben": ben}, out=tmp_path / "broken", resume=True, max_tokens=4)
    assert again.complete


def test_a_tool_is_called_in_a_run() -> None:
    asked: list[str] = []

    @gr.tool
    def weather(town: Literal["Ghent", "Lyon"]) -> str:
        """Tells the weather of a town."""
        asked.append(town)
        if len(asked) > 1:
            raise LookupError("no such town")
        return "rain"

    fields: dict[str, Any] = {
        "id": "weather",
        "agents": {"ann": {"system_prompt": "You are Ann.", "tools": [weather]}},
        "phases": [{"name": "ask", "agents": ["ann"], "rounds": 2, "answer": {"call": "weather"}, "prompt": "Ask."}],
    }
    scenario = gr.Scenario(**fields)
    assert "function: weather" in scenario.to_yaml()
    run = gr.run(scenario)
    calls = [line["call"] for line in run.lines if line.get("call")]
    assert [(call["result"], call["failed"]) for call in calls] == [("rain", False), ("LookupError: no such town", True)]
    assert [call["arguments"]["town"] for call in calls] == asked
    assert run.replay().passed
    # What calls took is counted, too.
    traced = [json.loads(line) for line in (run.folder / "trace.jsonl").read_text().splitlines()]
    tokens = [line["tokens"] for line in traced if line["type"] == "turn"]
    assert len(tokens) == 4 and run.cost["turns"] == 2
    assert all(run.cost["agents"]["ann"]["tokens"][kind] == sum(one[kind] for one in tokens) for kind in ("prefilled", "generated"))
    done = subprocess.run([sys.executable, "-m", "greenroom", "run", scenario.file()], capture_output=True, text=True)
    assert done.returncode == 4 and "the function `weather` of a Python program" in done.stderr
    again = gr.run(gr.Scenario.load(scenario.to_yaml()), tools=[weather])
    assert again.complete


def test_scores_are_outcomes(talk: gr.Scenario) -> None:
    @gr.scorer
    def letters(run: gr.Run) -> int:
        return len(run.dialogue())

    run = gr.run(talk, scorers=[letters], max_tokens=8)
    assert run.scores == {"letters": len(run.dialogue())} and run.outcomes["letters"] == run.scores["letters"]
    assert run.replay().passed
    study = gr.experiment(talk, seeds=4, scorers=[letters], max_tokens=8)
    figures = study.figures.to_dict()
    assert any("letters" in name for name in figures["figure"])
    assert "outcome.letters" in study.tables["runs"].column_names

    def fails(run: gr.Run) -> int:
        raise LookupError("nothing")

    with pytest.raises(gr.RunError, match="the scorer `fails` failed"):
        gr.run(talk, scorers=[fails], max_tokens=4)
    with pytest.raises(gr.RunError, match="the scorer `fails` failed"):
        gr.experiment(talk, seeds=2, scorers=[fails], max_tokens=4)


def test_an_experiment_pools_conditions_and_cases(talk: gr.Scenario, dilemma: Path) -> None:
    ended: list[gr.Run] = []
    study = gr.experiment(
        dilemma, seeds=range(5, 8), sweep={"only_silent": [8, 20]}, jobs=2, max_tokens=6, progress=ended.append
    )
    assert len(ended) == len(study.runs) == 6 and {run.seed for run in ended} == {5, 6, 7}
    assert set(study.tables["runs"].to_dict()["only_silent"]) == {8, 20}
    assert study.summary and "srcdoc" in study._repr_html_() and "6 runs" in repr(study)
    names = study.figures.column_names
    assert {"low", "high"} <= set(names), names
    fields = {**TALK, "variables": {"town": "Ghent"}}
    cased = gr.experiment(gr.Scenario.load(fields), cases=[{"town": "Ghent"}, {"town": "Lyon"}], max_tokens=4)
    assert len(cased.runs) == 2
    with pytest.raises(ValueError, match="is a file"):
        gr.experiment(dilemma, cases=[{"only_silent": 3}])
    with pytest.raises(ValueError, match="leaves nothing out"):
        gr.experiment(talk, seeds=range(0, 10, 2))
    with pytest.raises(gr.RunError, match="nonsense"):
        gr.experiment(talk, sweep={"nonsense": [1, 2]})


def test_forks_share_what_came_before(dilemma: Path) -> None:
    run = gr.run(dilemma, max_tokens=10)
    fork = run.fork(say={"yard/1/marco": "I said nothing."}, seed=9)
    spoken = {line["path"]: line["spoken"] for line in fork.lines}
    before = {line["path"]: line["spoken"] for line in run.lines}
    assert spoken["yard/1/marco"] == "I said nothing." and spoken["room_b/3/danny"] == before["room_b/3/danny"]
    found = run.diff(fork)
    assert found and found.differences and "I said nothing." in found.text
    assert fork.header["forked"]["at"]
    with pytest.raises(gr.GreenroomError, match="nobody"):
        run.fork(at="nobody/1/x")


def test_a_fork_is_played_by_the_model_of_its_run(
    talk: gr.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copy(ROOT / "models" / "understudy.gguf", tmp_path / "copy.gguf")
    with gr.Engine(copy, threads=1) as engine:
        run = gr.run(talk, engine, max_tokens=4)
        held = gr.Engine.holding(run.header["model"]["identity"])
        assert held is not None and held.info["identity"] == engine.info["identity"]
        assert run.fork(at="vote/1/ann", seed=3).complete
    # Nothing has it open: it is opened by its name.
    monkeypatch.setattr(gr.Engine, "holding", lambda identity: None)
    assert run.fork(at="vote/1/ann", seed=4).complete
    latest = gr.Engine._latest
    assert latest is not None and latest.model.name == str(copy)


def test_events_are_seen_and_a_run_is_controlled(talk: gr.Scenario) -> None:
    seen: list[gr.Event] = []
    run = gr.run(talk, watch=seen.append, max_tokens=6)
    names = [event.name for event in seen]
    assert names[0] == "plan" and names.count("turn") == 6
    text = "".join(event.data["text"] for event in seen if event.name == "text" and event.data["path"] == "hall/1/ann")
    assert text.strip().startswith(run.lines[0]["spoken"].split("\n")[0][:5])

    async def stepped() -> gr.Run:
        playing = gr.start(talk, max_tokens=6)
        playing.pause()
        playing.resume()
        events = [event async for event in playing]
        assert events[-1].name in ("turn", "stage", "route", "text")
        return await playing

    assert not asyncio.run(stepped()).diff(run)

    def breaks(event: gr.Event) -> None:
        raise LookupError("seen enough")

    with pytest.raises(gr.RunError) as found:
        gr.run(talk, watch=breaks, max_tokens=6)
    assert isinstance(found.value.__cause__, LookupError)


def test_a_human_is_answered_while_the_run_goes_on() -> None:
    agents = {"ann": {"system_prompt": "You are Ann."}, "ben": {"strategy": "human"}}
    playing = gr.start({**TALK, "agents": agents}, max_tokens=6)
    for event in playing:
        if event.name == "asked":
            with pytest.raises(gr.GreenroomError, match="no human is asked"):
                playing.answer("hall/9/ben", "?")
            playing.answer(event.data["path"], event.data["options"][0] if event.data["options"] else "Hello, Ann.")
    run = playing.result(10)
    assert run.lines[1]["spoken"] == "Hello, Ann." and playing.done and "Hello" in run.dialogue()


def test_a_cancelled_run_stops_and_goes_on(dilemma: Path, tmp_path: Path) -> None:
    async def cancelled() -> None:
        playing = gr.start(dilemma, out=tmp_path / "run")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_turns(playing, 3), timeout=0.4)
        playing.stop()
        playing.result(20)

    async def _turns(playing: gr.Playing, n: int) -> gr.Run:
        return await playing

    asyncio.run(cancelled())
    begun = gr.Run(tmp_path / "run")
    assert not begun.complete and "so far" in repr(begun)
    whole = gr.run(dilemma, out=tmp_path / "run", resume=True)
    assert whole.complete
    assert not whole.diff(gr.run(dilemma, out=tmp_path / "at-once"))


def test_what_is_wrong_with_a_run_says_so(talk: gr.Scenario, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unknown settings: loudness"):
        gr.run(talk, loudness=3)
    with pytest.raises(gr.RunError, match=r"invalid value '7' for `top_p`: expected a number from 0 to 1$"):
        gr.run(talk, top_p=7)
    with pytest.raises(gr.ModelError):
        gr.run(talk, "nowhere.gguf")
    gr.run(talk, out=tmp_path / "run", max_tokens=4)
    with pytest.raises(gr.RunError, match="already contains a run") as found:
        gr.run(talk, out=tmp_path / "run", max_tokens=4)
    assert found.value.exit_code == 4
    with pytest.raises(gr.GreenroomError, match="there is no run"):
        gr.Run(tmp_path / "nowhere")
    with pytest.raises(gr.GreenroomError, match="there is no experiment"):
        gr.Experiment(tmp_path / "run")
    changed = (tmp_path / "run" / "transcript.jsonl").read_text().replace("yes", "yea")
    (tmp_path / "run" / "transcript.jsonl").write_text(changed)
    verdict = gr.Run(tmp_path / "run").replay()
    assert not verdict and verdict.text and json.dumps(verdict.details)


def test_an_experiment_goes_on(talk: gr.Scenario, tmp_path: Path) -> None:
    gr.experiment(talk, seeds=2, out=tmp_path / "study", max_tokens=4)
    whole = gr.experiment(talk, seeds=2, out=tmp_path / "study", max_tokens=4, resume=True)
    assert len(whole.runs) == 2 and whole.replay().passed


def test_cells_can_be_run_again(talk: gr.Scenario, tmp_path: Path) -> None:
    folder = tmp_path / "talk"
    first = gr.run(talk, seed=5, max_tokens=6, out=folder)
    again = gr.run(talk, max_tokens=6, out=folder, resume=True)
    assert (again.seed, again.lines) == (5, first.lines)
    with pytest.raises(gr.RunError, match="had other settings"):
        gr.run(talk, max_tokens=7, out=folder, resume=True)
    with pytest.raises(gr.RunError) as found:
        gr.run(talk, max_tokens=6, out=folder)
    assert "`resume`" in str(found.value) and "--" not in str(found.value)
    # An interrupted run goes on with the seed that it has.
    cut = folder.parent / "cut"
    cut.mkdir()
    (cut / "transcript.jsonl").write_text("".join(first.transcript.read_text().splitlines(keepends=True)[:3]))
    assert gr.run(talk, max_tokens=6, out=cut, resume=True).transcript.read_bytes() == first.transcript.read_bytes()
