//! Turns of a written-out order: a choice on a single turn counts as one of the phase; and every turn of any
//! plan has a path, and so a seed, of its own.

use crate::constructs::Noting;
use crate::play::{play, scenario};
use crate::today;
use greenroom::backend::{Request, Scripted};
use greenroom::rehearsal::load;
use greenroom::replay::replay;
use greenroom::run::RunOptions;
use greenroom::scenario::{Scenario, turn_seed};
use greenroom::stage::End;
use greenroom::transcript::{Footer, Transcript};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

/// Plays a scenario by the turns' seeds, replays it: every turn's path and what was read and said, and what
/// it came to.
fn played(scenario: &Arc<Scenario>, salt: u64) -> (Vec<(String, String, String)>, Footer) {
    let answer = move |request: &Request| {
        let drawn = turn_seed(salt, &request.path) as usize;
        let options = request.choice.as_ref();
        let option =
            options.map(|options| options.choice.options[drawn % options.choice.options.len()].text.clone());
        // In words, an answer may be none.
        let parsed =
            options.is_some_and(|options| options.choice.method == greenroom::scenario::ChoiceMethod::Parse);
        Some(option.filter(|_| !parsed || drawn % 4 > 0).unwrap_or("words".into()))
    };
    let folder = tempfile::tempdir().unwrap();
    let backend = Arc::new(Noting::new(usize::MAX, answer));
    let played = play(scenario, backend, folder.path(), &RunOptions::default()).unwrap();
    let text = std::fs::read_to_string(&played.transcript).unwrap();
    let transcript = Transcript::parse(&played.transcript, &text).unwrap();
    let replayed = replay(scenario, &transcript, BTreeMap::new()).unwrap();
    let End::Complete(footer) = played.end else { panic!("stopped") };
    assert_eq!(replayed.footer, *footer);
    let turns = transcript.turns.into_iter().map(|turn| turn.record);
    (turns.map(|turn| (turn.path, turn.delta, turn.spoken)).collect(), *footer)
}

/// A phase of turns whose choice is given at the phase, or at each turn.
fn listed(speakers: &[usize], choice: &str, at_turns: bool, rounds: usize, until: &str) -> String {
    let on_turn = if at_turns { format!(", {choice}") } else { String::new() };
    let on_phase = if at_turns { String::new() } else { format!("    {choice}\n") };
    let turns: Vec<String> = speakers.iter().map(|id| format!("{{agent: a{id}{on_turn}}}")).collect();
    let text = format!(
        "id: listed
agents: {{a0: {{}}, a1: {{}}, a2: {{}}, a3: {{strategy: {{list: [x, y, y]}}}}, a4: {{strategy: tit_for_tat}}}}
phases:
  - name: p
    agents: [a0, a1, a2, a3, a4]
    turns: [{}]
    rounds: {rounds}
    until: {until}
{on_phase}  - {{name: after, agents: [a0], when: p.votes.y > 1, prompt: '{{{{ p.votes.x }}}} to {{{{ p.votes.y }}}}'}}
payoff: {{phase: p, each: \"(2 if mine == 'x' else 1) + others | select('eq', mine) | list | length\"}}
outcome: {{votes: p.votes, choices: p.choices, history: p.history, worth: payoffs, invalid: p.invalid}}
assertions: [p.votes.x >= p.votes.y]
",
        turns.join(", ")
    );
    today(&text)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_choice_counts_alike_on_a_phase_and_on_its_turns(
        speakers in proptest::collection::vec(0..5usize, 1..6),
        choice in proptest::sample::select(vec![
            "answer: [x, y]", "parse_choice: [x, y, z]", "choice: {options: {x: I say x, y: I say y}, ask: \
                                                          Which?}",
        ]),
        rounds in 2..5usize,
        until in proptest::sample::select(vec![
            "p.votes.x > 2", "p.votes.x + p.votes.y > 4", "p.choices.a0 == 'y'", "false"
        ]),
        salt in any::<u64>(),
    ) {
        let both = [false, true].map(|at_turns| scenario(&listed(
            &speakers, choice, at_turns, rounds, until
        )));
        let [of_phase, of_turns] = both.map(|scenario| played(&scenario, salt));
        prop_assert!(of_phase.1.outcomes.iter().all(|outcome| outcome.error.is_none()), "{:?}", of_phase.1);
        prop_assert_eq!(of_phase, of_turns);
    }

    #[test]
    fn every_turn_has_a_path_and_a_seed_of_its_own(
        cast in proptest::sample::subsequence(vec![0usize, 1, 2, 3], 2..=4).prop_shuffle(),
        topology in proptest::sample::select(vec![
            "round_robin", "broadcast", "whisper", "interrupt", "moderated", "turns",
        ]),
        edges in proptest::collection::vec((0..4usize, proptest::collection::vec(0..4usize, 1..4)), 1..5),
        decision in proptest::sample::select(vec![
            "none", "majority_vote", "ranked_choice", "coordinator_decides", "consensus"
        ]),
        (rounds, max_turns) in (1..4usize, proptest::option::of(1..9usize)),
        phases in 1..3usize,
    ) {
        let names: Vec<String> = cast.iter().map(|id| format!("a{id}")).collect();
        let mut text = "id: paths\nagents: {a0: {role: moderator}, a1: {lifecycle: ephemeral}, a2: {}, a3: \
                        {}}\nphases:\n".to_string();
        for at in 0..phases {
            writeln!(
                text, "  - name: p{at}\n    agents: [{}]\n    rounds: {rounds}", names.join(", ")
            ).unwrap();
            writeln!(text, "    choice: [x, y, z]\n    decision_mode: {decision}").unwrap();
            if decision == "coordinator_decides" {
                writeln!(text, "    coordinator: {}", names[0]).unwrap();
            }
            if let Some(most) = max_turns {
                writeln!(text, "    max_turns: {most}").unwrap();
            }
            let edge = |(from, to): &(usize, Vec<usize>)| {
                let to: Vec<String> = to.iter().map(|id| format!("a{id}")).collect();
                match topology {
                    "turns" => format!("{{agent: a{from}, to: [{}]}}", to.join(", ")),
                    _ => format!("{{from: a{from}, to: [{}], kind: whisper}}", to.join(", ")),
                }
            };
            let edges: Vec<String> = edges.iter().map(edge).collect();
            match topology {
                "turns" => writeln!(text, "    turns: [{}]", edges.join(", ")).unwrap(),
                "whisper" => writeln!(
                    text, "    topology: whisper\n    interactions: [{}]", edges.join(", ")
                ).unwrap(),
                _ => writeln!(text, "    order: {topology}").unwrap(),
            }
        }
        // Many are refused: somebody absent, a pair listed twice, nobody to moderate.
        if let Some(scenario) = load("paths.yaml", &today(&text), &[]).scenario {
            let plan = scenario.plan();
            let paths: BTreeSet<&str> = plan.order().map(|(_, turn)| turn.path.as_str()).collect();
            prop_assert_eq!(paths.len(), plan.n_turns(), "{}", text);
            let seeds: BTreeSet<u64> = paths.iter().map(|path| turn_seed(1, path)).collect();
            prop_assert_eq!(seeds.len(), plan.n_turns());
        }
    }
}

fn codes(text: &str) -> Vec<(&'static str, usize, String)> {
    let report = load("x.yaml", text, &[]).report;
    let place = |found: &greenroom::diagnostic::Diagnostic| report.sources.place(found.span).1;
    report.diagnostics.iter().map(|found| (found.code, place(found), found.message.clone())).collect()
}

#[test]
fn choices_of_single_turns_count() {
    let text = "
id: three
agents: {ann: {}, ben: {}}
phases:
  - name: v
    agents: [ann, ben]
    turns:
      - { agent: ann, answer: [a, b] }
      - { agent: ben, answer: { one_of: [a, b], free_text: true } }
      - { agent: ann, answer: [a, b] }
    until: v.votes.a >= 2
    rounds: 3
payoff: {phase: v, matrix: {a: {a: [3, 3], b: [0, 5]}, b: {a: [5, 0], b: [1, 1]}}}
outcome: {votes: v.votes.a + v.votes.b, worth: payoffs.ann + payoffs.ben}
";
    let footer = played(&scenario(text), 5).1;
    assert!(
        footer.outcomes.iter().all(|outcome| outcome.error.is_none() && !outcome.value.is_null()),
        "{footer:?}"
    );
}

#[test]
fn each_player_of_a_payoff_may_have_options_of_its_own() {
    let ultimatum = |ben: &str, more: &str| {
        format!(
            "
id: ultimatum
agents: {{ann: {{}}, ben: {{}}}}
phases:
  - name: split
    agents: [ann, ben]
    turns:
      - {{ agent: ann, answer: [3, 5] }}
      - {{ agent: ben, answer: {{ one_of: {ben} }} }}
{more}payoff:
  phase: split
  matrix:
    3: {{yes: [7, 3], no: [0, 0]}}
    5: {{yes: [5, 5], no: [0, 0]}}
outcome:
  offers: split.votes['3'] + split.votes['5']
  taken: split.votes.yes
"
        )
    };
    let footer = played(&scenario(&ultimatum("['yes', 'no']", "")), 1).1;
    let payoffs = footer.payoffs.unwrap();
    assert!(payoffs.rounds[0].values.is_some(), "{payoffs:?}");
    assert_eq!(footer.outcomes[0].value, 1);
    let reported = codes(&ultimatum("['yes', 'no', later]", ""));
    assert_eq!(reported.iter().map(|(code, ..)| *code).collect::<Vec<_>>(), ["missing"; 2], "{reported:?}");
    let reported = codes(&ultimatum("['yes', 'no']", "      - {agent: ann, answer: [again, enough]}\n"));
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!((reported[0].0, reported[0].1), ("contradiction", 12));
    assert!(reported[0].2.contains("the turns of `ann` in `split` have different options"), "{reported:?}");
}

#[test]
fn replies_heard_by_all_by_mistake_are_reported() {
    let phase = |fields: &str| {
        format!(
            "agents: {{ann: {{}}, ben: {{}}, cas: {{}}}}\n\
             phases:\n  - {{name: p, agents: [ann, ben, cas], {fields}}}\n"
        )
    };
    for (fields, code) in [
        ("to: {}", "no-effect"), // played, with a warning of what it means
        ("to: []", "missing"),
        ("to: {ann: []}", "missing"),
        ("overhears: {ann: []}", "missing"),
        ("turns: [{agent: ann, to: []}]", "missing"),
        ("turns: [{agent: ann, to: [ben, ben]}]", "duplicate-name"),
        ("pairs: [[ann, ben], [ann, ben]]", "duplicate-name"),
        ("pairs: [[ann, ben], [ben, ann]]", "duplicate-name"),
        ("pairs: [[ann, ben], [ann, cas], [ann, ben]]", "duplicate-name"),
        ("answer: [x, y], turns: [{agent: ann, answer: [x, z]}]", "no-effect"),
    ] {
        let reported = codes(&phase(fields));
        assert_eq!(
            reported.iter().map(|(code, ..)| *code).collect::<Vec<_>>(),
            [code],
            "{fields}: {reported:?}"
        );
    }
    for fields in [
        "to: {ann: ben, ben: ann}",
        "turns: [{agent: ann, to: ben}, {agent: ben, to: ann}, {agent: ann, to: ben}]",
    ] {
        assert_eq!(codes(&phase(fields)), [], "{fields}");
    }
}

#[test]
fn a_consensus_talks_no_more_than_it_may() {
    let consensus = |fields: &str| {
        let text = format!(
            "id: c\nagents: {{a: {{}}, b: {{}}, m: {{}}}}\n\
             phases:\n  - {{name: p, agents: [a, b, m], vote: {{rule: consensus, answer: [x, y], attempts: \
             4}}, {fields}}}\n"
        );
        let scenario = scenario(&text);
        let plan = scenario.plan();
        let talk =
            plan.order().filter(|(_, turn)| matches!(turn.purpose, greenroom::scenario::Purpose::Speech));
        (talk.count(), plan.order().filter(|(_, turn)| turn.path.ends_with(".vote")).count())
    };
    assert_eq!(consensus("rounds: 1"), (12, 12));
    assert_eq!(consensus("rounds: 1, max_turns: 7"), (7, 12));
    assert_eq!(consensus("rounds: 2, max_turns: 2"), (2, 12));
    assert_eq!(consensus("rounds: 0"), (0, 12));
    // A moderated round is one turn, of one of two.
    assert_eq!(consensus("moderator: m, rounds: 1, max_turns: 2"), (4, 8));
}

#[test]
fn numbers_are_looked_up_as_they_are_written() {
    let text = "
agents: { ann: {}, ben: {} }
variables: { scale: { 1: no, 4: 'yes' }, words: [{ 2: two }] }
state: { tally: { 4: 7 } }
phases:
  - { name: q, agents: [ann, ben], answer: { one_of: { 1: disagree, 4: agree, 'true': sure } } }
outcome:
  dotted: q.votes.4
  bracketed: q.votes[4]
  quoted: q.votes['4']
  none: q.votes[1]
  truth: q.votes[true]
  counted: (q.choices | counts)[4]
  said: scale[q.choices.ann]
  nested: words[0][2] ~ variables.scale[1]
  state: tally[4]
";
    let agree = Scripted::new(|_| Some("agree".into()));
    let folder = tempfile::tempdir().unwrap();
    let played = play(&scenario(text), Arc::new(agree), folder.path(), &RunOptions::default()).unwrap();
    let End::Complete(footer) = played.end else { panic!("it was stopped") };
    let values: Vec<_> = footer.outcomes.iter().map(|outcome| outcome.value.to_string()).collect();
    assert_eq!(values, ["2", "2", "2", "0", "0", "2", "\"yes\"", "\"twono\"", "7"]);
}

#[test]
fn a_cast_that_variables_give_is_known_before_the_run() {
    let text = |more: &str| {
        format!(
            "
agents: {{ ann: {{}}, ben: {{}}, cas: {{}}, dealer: {{}} }}
variables: {{ players: [cas, ann] }}
let: {{ rest: players | without('cas') }}
state: {{ alive: [ann, ben] }}
phases:
  - {{ name: talk, agents: players, rounds: 3, {more} }}
  - {{ name: alone, agents: rest }}
  - {{ name: vote, agents: [ann, ben, cas], rounds: 0, vote: {{ rule: majority, answer: [x, y], by: players }} }}
  - {{ name: night, agents: alive }}
"
        )
    };
    let speakers = |text: &str, phase: &str| {
        let scenario = scenario(text);
        let plan = scenario.plan();
        let here = plan.order().filter(|(_, turn)| scenario.phase(turn.phase).name == phase);
        here.map(|(_, turn)| scenario.agent(turn.speaker).key.clone()).collect::<Vec<_>>()
    };
    assert_eq!(speakers(&text(""), "talk"), ["ann", "cas", "ann", "cas", "ann", "cas"]);
    assert_eq!(speakers(&text(""), "alone"), ["ann"]);
    assert_eq!(speakers(&text(""), "vote"), ["ann", "cas"]);
    assert_eq!(speakers(&text(""), "night").len(), 4, "the state may change");
    // The same as if the keys were written out.
    let listed = text("").replace("agents: players", "agents: [ann, cas]");
    let hash = |text: &str| scenario(text).plan().hash();
    assert_eq!(hash(&text("")), hash(&listed));
    // Somebody who is absent may still have a part: another value may name them.
    let open = text("say: { dealer: Deal. }");
    assert_eq!(codes(&open), []);
    assert_eq!(speakers(&open, "talk").len(), 12);
}

#[test]
fn each_round_begins_with_the_next() {
    let text = |order: &str| {
        format!(
            "id: turning\nagents: {{a0: {{}}, a1: {{}}, a2: {{}}}}\nphases: [{{name: p, agents: [a0, a1, a2], \
             order: {order}, rounds: 4, max_turns: 11}}]"
        )
    };
    let (turns, _) = played(&scenario(&text("rotating")), 1);
    let speakers: Vec<&str> = turns.iter().filter_map(|(path, ..)| path.rsplit('/').next()).collect();
    let rounds = [["a0", "a1", "a2"], ["a1", "a2", "a0"], ["a2", "a0", "a1"], ["a0", "a1", "a2"]];
    assert_eq!(speakers, rounds.concat()[..11]);
}

/// The speaker of each round, by the moderator's choices.
fn floors(again: &str, salt: u64) -> Vec<String> {
    let text = format!(
        "id: floors
agents: {{m: {{}}, a0: {{}}, a1: {{}}, a2: {{}}}}
phases: [{{ name: p, agents: [m, a0, a1, a2], moderator: m, {again}rounds: 9 }}]"
    );
    let answer = move |request: &Request| {
        let Some(options) = &request.choice else { return Some("words".into()) };
        let drawn = turn_seed(salt, &request.path) as usize % options.open.len();
        Some(options.choice.options[options.open[drawn]].text.clone())
    };
    let (folder, backend) = (tempfile::tempdir().unwrap(), Arc::new(Scripted::new(answer)));
    let scenario = scenario(&text);
    let played = play(&scenario, backend, folder.path(), &RunOptions::default()).unwrap();
    let transcript = Transcript::open(&played.transcript).unwrap();
    replay(&scenario, &transcript, BTreeMap::new()).unwrap();
    let turns = transcript.turns.into_iter().map(|turn| turn.record.path);
    turns.filter(|path| !path.ends_with("/m")).collect()
}

#[test]
fn a_moderator_may_not_name_the_last_speaker_again() {
    let repeats = |again: &str| {
        let runs = (0..20).map(|salt| floors(again, salt));
        let speaker = |path: &String| path.rsplit('/').next().unwrap_or_default().to_string();
        runs.map(|run| {
            assert_eq!(run.len(), 9);
            run.windows(2).filter(|two| speaker(&two[0]) == speaker(&two[1])).count()
        })
        .sum::<usize>()
    };
    assert_eq!(repeats("again: false, "), 0);
    assert!(repeats("") > 20 && repeats("again: true, ") > 20);
}
