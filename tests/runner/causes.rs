//! A replay blames what changed: a choice that was renamed, a rule that plays otherwise; and a recording
//! itself says what it is.

use crate::drift::greenroom_with;
use crate::play::play;
use crate::verify::{DOORS, file, judged, recorded, write};
use greenroom::backend::{Request, Scripted};
use greenroom::run::{ForkFrom, RunOptions};
use greenroom::scenario::load;
use greenroom::transcript::{
    Cause, Drift, Header, Line, PROGRAM, Transcript, TurnRecord, chain, same_settings,
};
use greenroom::verify::forms::{github, json, junit, markdown};
use greenroom::verify::{ProblemKind, accept};
use std::path::Path;
use std::sync::Arc;

/// Rewrites a recording with another header and other turns, so that every line fits its hash.
fn rewrite(file: &Path, header: impl Fn(&mut Header), turn: impl Fn(&mut TurnRecord)) {
    let Transcript { header: was, turns, footer, .. } = Transcript::open(file).unwrap();
    let mut first = was.record;
    header(&mut first);
    let mut lines = vec![Line::Header(Box::new(first))];
    for mut line in turns {
        turn(&mut line.record);
        lines.push(Line::Turn(Box::new(line.record)));
    }
    lines.extend(footer.map(|footer| Line::Footer(footer.record)));
    std::fs::write(file, chain(&lines).unwrap()).unwrap();
}

/// The only problem: its title, detail, and the scenario's line that it comes from.
fn blamed(folder: &tempfile::TempDir) -> (String, String, String, Option<usize>) {
    let verdict = judged(folder);
    let [problem] = verdict.problems.as_slice() else { panic!("{verdict:#?}") };
    assert_eq!(problem.kind, ProblemKind::Drift);
    let line = problem.place.as_ref().map(|place| place.line);
    (problem.at.clone(), problem.title.clone(), problem.detail.clone(), line)
}

#[test]
fn an_option_that_is_called_otherwise_is_the_scenarios_doing() {
    // No prompt shows what options are called, so nothing else drifts before.
    let plain = DOORS.split("payoff:").next().unwrap();
    for choice in ["choice", "parse_choice"] {
        let text = plain.replace("    choice: {options", &format!("    {choice}: {{options"));
        for (from, to, detail) in [
            ("{left: Left,", "{links: Left,", "option `left` is now called `links`"),
            // Nobody chose this one.
            ("right: Right}", "1: Right}", "option `right` is now called `1`"),
            (
                "{left: Left, right: Right}",
                "{right: Left, left: Right}",
                "option `left` is now called `right`, option `right` is now called `left`",
            ),
        ] {
            // A reply of `Left` would name two options.
            if choice == "parse_choice" && to.starts_with("{right") {
                continue;
            }
            let folder = crate::play::checkout();
            write(&folder, &text);
            let name = folder.path().join("doors.yaml").display().to_string();
            let scenario = load(&name, &text, &[]).scenario.unwrap();
            let left = |request: &Request| Some(request.choice.as_ref().map_or("Hm.", |_| "Left").into());
            let backend = Arc::new(Scripted::new(left));
            play(&scenario, backend, &folder.path().join("run"), &RunOptions::default()).unwrap();
            crate::play::without_copy(&folder.path().join("run"));
            assert_eq!(judged(&folder).problems, []);
            assert!(text.contains(from), "{from}");
            write(&folder, &text.replace(from, to));
            let (at, title, found, line) = blamed(&folder);
            assert_eq!(
                (at.as_str(), title.as_str(), line),
                ("door/1/a", "the choice changed", Some(14)),
                "{to}: {found}"
            );
            assert_eq!(found, detail, "{to}");
            // Accepted, it is what the scenario says.
            accept(&file(&folder)).unwrap();
            assert_eq!(judged(&folder).problems, [], "{to}");
        }
    }
}

#[test]
fn a_choice_that_was_edited_is_the_recordings_doing() {
    let folder = recorded(&[]);
    rewrite(
        &file(&folder),
        |_| (),
        |turn| {
            if let (Some(choice), true) = (&mut turn.constraint, turn.path == "door/1/b") {
                choice.chosen = "right".into();
            }
        },
    );
    let (at, title, detail, _) = blamed(&folder);
    assert_eq!((at.as_str(), title.as_str()), ("door/1/b", "the recorded line was altered"));
    assert_eq!(detail, "the reply is read as `left`, but `right` is recorded");
}

/// Everybody but the first is played by a rule; the last says something that nobody hears.
const RULES: &str = "
id: rules
agents:
  ann: {}
  tit: {strategy: tit_for_tat}
  dice: {strategy: {random: 0.5}}
  list: {strategy: {list: [take, share]}}
  parrot: {strategy: {always: Hello.}}
phases:
  - { name: game, agents: [ann, tit, dice, list], order: broadcast, rounds: 3, answer: [share, take] }
  - {name: end, agents: [parrot]}
";

fn ruled() -> tempfile::TempDir {
    let folder = crate::play::checkout();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let scenario =
        load(&folder.path().join("rules.yaml").display().to_string(), RULES, &[]).scenario.unwrap();
    let ann = Arc::new(Scripted::new(|request| {
        Some(if request.sampling.seed % 2 == 0 { "share" } else { "take" }.into())
    }));
    play(&scenario, ann, &folder.path().join("run"), &RunOptions::default()).unwrap();
    folder
}

#[test]
fn what_rules_say_is_worked_out_again() {
    let folder = ruled();
    assert_eq!(judged(&folder).problems, []);
    // A recording in which a rule said something else, every line fit for its hash.
    rewrite(
        &file(&folder),
        |_| (),
        |turn| {
            if turn.path == "end/1/parrot" {
                (turn.raw, turn.spoken) = ("Good day.".into(), "Good day.".into());
            }
        },
    );
    let (at, title, _, line) = blamed(&folder);
    assert_eq!(
        (at.as_str(), title.as_str(), line),
        ("end/1/parrot", "the strategy's reply changed", Some(8))
    );
    accept(&file(&folder)).unwrap();
    assert_eq!(judged(&folder).problems, [], "what the rule says now is taken over");
    let last = Transcript::open(&file(&folder)).unwrap().turns.pop().unwrap();
    assert_eq!(last.record.raw, "Hello.");
    // The same for what they choose.
    for (path, was) in [("game/1/tit", "share"), ("game/2/list", "share"), ("game/1/list", "take")] {
        let folder = ruled();
        rewrite(
            &file(&folder),
            |_| (),
            |turn| {
                if turn.path == path {
                    assert_eq!(turn.raw, was);
                    let other = if was == "share" { "take" } else { "share" };
                    (turn.raw, turn.spoken) = (other.into(), other.into());
                    turn.constraint.as_mut().unwrap().chosen = other.into();
                }
            },
        );
        assert_eq!(
            (blamed(&folder).0.as_str(), blamed(&folder).1.as_str()),
            (path, "the strategy's reply changed")
        );
    }
}

#[test]
fn what_rules_said_is_worked_out_again_before_a_run_goes_on() {
    let folder = ruled();
    rewrite(
        &file(&folder),
        |_| (),
        |turn| {
            if turn.path == "end/1/parrot" {
                (turn.raw, turn.spoken) = ("Good day.".into(), "Good day.".into());
            }
        },
    );
    let text = std::fs::read_to_string(file(&folder)).unwrap();
    let whole: Vec<&str> = text.lines().collect();
    // No footer: interrupted.
    std::fs::write(file(&folder), whole[..whole.len() - 1].join("\n") + "\n").unwrap();
    let scenario =
        load(&folder.path().join("rules.yaml").display().to_string(), RULES, &[]).scenario.unwrap();
    let nobody = Arc::new(Scripted::new(|_| None));
    let options = RunOptions { resume: true, ..RunOptions::default() };
    let error = play(&scenario, nobody, &folder.path().join("run"), &options).unwrap_err();
    let drift = error.downcast_ref::<Drift>().unwrap();
    assert_eq!((&*drift.path, drift.cause), ("end/1/parrot", Cause::RuleChanged), "{error:?}");
}

#[test]
fn a_rules_altered_line_is_still_an_altered_line() {
    let folder = ruled();
    let text = std::fs::read_to_string(file(&folder)).unwrap();
    std::fs::write(file(&folder), text.replacen("\"raw\":\"Hello.\"", "\"raw\":\"Hullo.\"", 1)).unwrap();
    assert_eq!(blamed(&folder).1, "the recorded line was altered");
}

#[test]
fn forks_and_rankings_of_rules_replay() {
    let dir = crate::play::checkout();
    for name in ["strategies", "rankings"] {
        let ranked =
            "agents: {a: {}, b: {strategy: {always: y}}, c: {strategy: {random: 0.3}}, d: {strategy: grim}}
phases:
- { name: vote, agents: [a, b, c, d], vote: { rule: ranked, answer: { one_of: [x, y, z], shuffle: true } } }
";
        let text = match name {
            "strategies" => std::fs::read_to_string(
                Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios/strategies.yaml"),
            )
            .unwrap(),
            _ => ranked.to_string(),
        };
        let place = dir.path().join(format!("{name}.yaml"));
        std::fs::write(&place, &text).unwrap();
        let scenario = load(&place.display().to_string(), &text, &[]).scenario.unwrap();
        let first = || {
            Arc::new(Scripted::new(|request| {
                let option = request
                    .choice
                    .as_ref()
                    .map(|options| options.choice.options[options.open[0]].text.clone());
                option.or(Some("Hm.".into()))
            }))
        };
        let run = dir.path().join(name);
        play(&scenario, first(), &run, &RunOptions::default()).unwrap();
        let at = if name == "strategies" { "with_grim/3/model" } else { "vote/1/c.vote-1" };
        let fork = Some(ForkFrom { run: run.clone(), at: Some(at.into()), changes: Default::default() });
        let options = RunOptions { fork, seed: 77, ..RunOptions::default() };
        play(&scenario, first(), &dir.path().join(format!("{name}-fork")), &options).unwrap();
    }
    let (code, text) = greenroom_with(dir.path(), &["replay", "."], &[]);
    assert!(code == 0 && text.contains("4 recordings: 4 pass"), "{text}");
}

#[test]
fn carried_replies_are_reported_in_every_form() {
    let folder = recorded(&[]);
    write(&folder, &DOORS.replace("two doors", "three doors"));
    judged(&folder);
    accept(&file(&folder)).unwrap();
    let verdict = judged(&folder);
    assert!(verdict.carried && verdict.problems.is_empty(), "{verdict:?}");
    let all = [verdict];
    let said = "carried over from another recording";
    let forms = [github(&all, None), json(&all).unwrap(), junit(&all).unwrap(), markdown(&all)];
    forms.iter().for_each(|form| assert!(form.contains(said), "{form}"));
    assert!(forms[0].starts_with("::notice file="), "{}", forms[0]);
    assert!(forms[3].contains("1 pass; 1 with carried replies"), "{}", forms[3]);
    roxmltree::Document::parse(&forms[2]).unwrap();
    let (code, text) = greenroom_with(folder.path(), &["replay", "run"], &[("CI", "1")]);
    assert!(code == 0 && text.contains(said), "{text}");
    // Also where it drifts again, and in a fork that takes such replies over.
    write(&folder, &DOORS.replace("two doors", "four doors"));
    assert!(judged(&folder).notes.iter().any(|note| note.contains(said)));
    write(&folder, &DOORS.replace("two doors", "three doors"));
    let fork = |at: &str| {
        let name = folder.path().join("doors.yaml");
        let scenario = load(&name.display().to_string(), &std::fs::read_to_string(&name).unwrap(), &[])
            .scenario
            .unwrap();
        let from =
            ForkFrom { run: folder.path().join("run"), at: Some(at.into()), changes: Default::default() };
        let options = RunOptions { fork: Some(from), ..RunOptions::default() };
        let out = crate::play::checkout();
        let script =
            Arc::new(Scripted::new(|request| Some(request.choice.as_ref().map_or("Hm.", |_| "Left").into())));
        let played = play(&scenario, script, &out.path().join("fork"), &options).unwrap();
        Transcript::open(&played.transcript).unwrap().header.record.carried
    };
    assert!(fork("door").is_some(), "the talk before is carried over");
    assert_eq!(fork("talk"), None, "nothing is taken over");
}

#[test]
fn another_version_is_reported_and_passes() {
    let folder = recorded(&[]);
    assert_eq!(judged(&folder).notes, Vec::<String>::new());
    rewrite(&file(&folder), |header| header.engine = "greenroom 0.0.7".into(), |_| ());
    let verdict = judged(&folder);
    assert_eq!(verdict.problems, []);
    assert_eq!(verdict.notes, [format!("recorded by greenroom 0.0.7; this is {PROGRAM}")]);
}

#[test]
fn a_recording_in_which_strategies_forgot_still_replays_and_a_rerun_says_what_changed() {
    const TEXT: &str = "
id: forgot
agents: {opp: {strategy: {always: take}}, tit: {strategy: tit_for_tat}, bot: {strategy: {list: [Hello., share, take]}}}
phases:
  - {name: talk, agents: [bot]}
  - repeat: 2
    phases:
      - { name: game, agents: [opp, tit], order: broadcast, answer: [share, take] }
";
    // As recorded when strategies began again at each phase.
    let folder = crate::play::checkout();
    let place = folder.path().join("forgot.yaml");
    std::fs::write(&place, TEXT).unwrap();
    let scenario = load(&place.display().to_string(), TEXT, &[]).scenario.unwrap();
    let nobody = || Arc::new(Scripted::new(|_| None));
    play(&scenario, nobody(), &folder.path().join("run"), &RunOptions::default()).unwrap();
    let say = |path: &str, text: &str, rules: Option<u32>| {
        rewrite(
            &file(&folder),
            |header| header.rules = rules,
            |turn| {
                if turn.path == path {
                    (turn.raw, turn.spoken) = (text.into(), text.into());
                    turn.constraint.as_mut().unwrap().chosen = text.into();
                }
            },
        );
    };
    let last = |turns: &Transcript| turns.turns.last().unwrap().record.raw.clone();
    assert_eq!(last(&Transcript::open(&file(&folder)).unwrap()), "take");
    say("game.2/1/tit", "share", None);
    assert_eq!(judged(&folder).problems, []);
    let (code, text) = greenroom_with(folder.path(), &["replay", "run", "--rerun=choices"], &[]);
    assert!(code == 3 && text.contains("game.2/1/tit: the strategy's reply changed"), "{code} {text}");
    // What no rule has ever said is still drift.
    say("game.2/1/tit", "take", None);
    say("game.1/1/tit", "take", None);
    assert_eq!(blamed(&folder).1, "the strategy's reply changed");
    // So is what an earlier version would have said, in a recording of this one.
    say("game.1/1/tit", "share", None);
    say("game.2/1/tit", "share", Some(2));
    assert_eq!(blamed(&folder).1, "the strategy's reply changed");
}

#[test]
fn a_vote_that_an_earlier_version_read_otherwise_is_not_called_altered() {
    const TEXT: &str = "
id: votes
agents: {ann: {}, ben: {}, cas: {}}
phases:
  - { name: vote, agents: [ann], answer: { one_of: [ben, cas], free_text: true } }
";
    let folder = crate::play::checkout();
    let place = folder.path().join("votes.yaml");
    std::fs::write(&place, TEXT).unwrap();
    let scenario = load(&place.display().to_string(), TEXT, &[]).scenario.unwrap();
    let ann = Arc::new(Scripted::new(|_| Some("Nobody should vote for Ben.".into())));
    play(&scenario, ann, &folder.path().join("run"), &RunOptions::default()).unwrap();
    assert_eq!(judged(&folder).problems, []);
    rewrite(
        &file(&folder),
        |header| header.rules = None,
        |turn| turn.constraint.as_mut().unwrap().chosen = "ben".into(),
    );
    let (_, title, detail, line) = blamed(&folder);
    assert_eq!((title.as_str(), line), ("the reply is read differently now", Some(5)));
    assert!(detail.contains("an earlier version read the reply as `ben`"), "{detail}");
}

#[test]
fn an_experiment_that_an_earlier_version_began_continues_by_its_rules() {
    const TEXT: &str = "
id: list
agents: {ann: {strategy: {always: Done.}}}
phases:
  - name: t
    agents: [ann]
    prompt: \"{% if true %}One{% endif %}\\ntwo\"
";
    let folder = crate::play::checkout();
    std::fs::write(folder.path().join("list.yaml"), TEXT).unwrap();
    let run = |more: &[&str]| {
        let args = [&["run", "list.yaml", "--repeat", "2", "--out", "all", "--quiet"], more].concat();
        let (code, text) = greenroom_with(folder.path(), &args, &[]);
        assert_eq!(code, 0, "{text}");
    };
    run(&[]);
    let file = |seed: usize| folder.path().join(format!("all/seed-{seed}/transcript.jsonl"));
    let read = |seed: usize| {
        let transcript = Transcript::open(&file(seed)).unwrap();
        (transcript.header.record.rules, transcript.turns[0].record.delta.clone())
    };
    let (rules, delta) = read(1);
    assert!(rules == Some(2) && delta.contains("One\ntwo"), "{delta}");
    let first_rules = vec![("{% %}".to_string(), serde_json::Value::Null)];
    let templates = load("list.yaml", TEXT, &first_rules).scenario.unwrap().template_hashes();
    rewrite(
        &file(0),
        |header| (header.rules, header.templates) = (None, templates.clone()),
        |turn| turn.delta = turn.delta.replace("One\ntwo", "Onetwo"),
    );
    std::fs::remove_dir_all(folder.path().join("all/seed-1")).unwrap();
    run(&["--resume"]);
    let (rules, delta) = read(1);
    assert!(rules.is_none() && delta.contains("Onetwo"), "{delta}");
    // One that was begun by other rules than its settings say is not continued by these.
    let header = |rules| Header { rules, ..Transcript::open(&file(1)).unwrap().header.record };
    let error = same_settings(&header(None), &header(Some(2))).unwrap_err().to_string();
    assert!(error.contains("an earlier version began the run"), "{error}");
}

#[test]
fn options_that_are_errors_now_replay_where_they_were_recorded() {
    const TEXT: &str = "
id: rating
agents: {ann: {}, ben: {}}
phases:
  - { name: rate, agents: [ann, ben], answer: { one_of: [5, 5%, {more: +}], free_text: true } }
";
    let options = TEXT.replace("[5, 5%, {more: +}]", "{a: 5, b: 5%, more: +}");
    let first_rules = vec![("{% %}".to_string(), serde_json::Value::Null)];
    assert!(load("rating.yaml", &options, &[]).scenario.is_none());
    let loaded = load("rating.yaml", &options, &first_rules);
    assert!(loaded.scenario.is_some(), "{}", loaded.report.render(false));
    assert_eq!(loaded.report.diagnostics.len(), 2, "{}", loaded.report.render(false));
}

#[test]
fn what_an_earlier_version_took_as_spoken_is_not_called_altered() {
    let folder = recorded(&[]);
    rewrite(
        &file(&folder),
        |header| header.rules = None,
        |turn| {
            if turn.path == "talk/1/a" {
                turn.spoken = "something else".into();
            }
        },
    );
    let (at, title, detail, _) = blamed(&folder);
    assert_eq!(
        (at.as_str(), title.as_str(), detail.as_str()),
        (
            "talk/1/a",
            "the reply is read differently now",
            "an earlier version took another part of it as spoken"
        )
    );
}
