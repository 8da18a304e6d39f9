//! Agents from tables, their traits, and changes of the state for each of some agents.

use crate::play::play;
use greenroom::backend::Scripted;
use greenroom::rehearsal::{load, open};
use greenroom::replay::replay;
use greenroom::run::RunOptions;
use greenroom::stage::End;
use greenroom::transcript::Transcript;
use std::collections::BTreeMap;
use std::sync::Arc;

const TOWN: &str = "
state: { wealth: { anna_berg: 0, ___ben___: 0, cas: 0 } }
agents:
  voters:
    from: people.csv
    key: name
    system_prompt: 'You are {{ me }}, {{ me.age }}{% if me.job %}, a {{ me.job }}{% endif %}.'
  mayor: { display_name: Mayor, traits: { age: 60, tags: { kind: true } } }
phases:
  - { name: talk, agents: voters, prompt: 'The mayor is {{ agents.mayor.age }}, you are {{ me.age }}.' }
  - name: poll
    agents: voters
    order: broadcast
    rounds: 2
    answer: ['yes', 'no']
    set:
      - { after: round, each: voters, wealth: \"wealth[me] + (2 if poll.choices[me] == 'yes' else 1)\" }
      - { each: \"['cas']\", wealth: \"wealth | length\" }
outcome: { wealth: wealth }
";
const PEOPLE: &str = "name,age,job\nAnna Berg,30,cook\n{{ Ben }},41,miner\nCas,29,\n";

#[test]
fn a_table_gives_agents_with_traits_and_a_list_of_them() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("people.csv"), PEOPLE).unwrap();
    let file = folder.path().join("town.yaml");
    std::fs::write(&file, TOWN).unwrap();
    let loaded = open(&file, &[]).unwrap();
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    let cast: Vec<(&str, &str, &str)> = scenario
        .agents
        .iter()
        .map(|agent| (agent.key.as_str(), agent.name.as_str(), agent.system.as_str()))
        .collect();
    assert_eq!(
        cast,
        [
            ("anna_berg", "Anna Berg", "You are Anna Berg, 30, a cook."),
            ("___ben___", "{{ Ben }}", "You are {{ Ben }}, 41, a miner."),
            ("cas", "Cas", "You are Cas, 29."),
            ("mayor", "Mayor", "You are Mayor."),
        ]
    );
    // The mayor stands behind the table; only its agents are in the list.
    assert_eq!(scenario.plan().n_turns(), 9);
    let says = Scripted::new(|request| Some(if request.path.contains("anna") { "yes" } else { "no" }.into()));
    let run = folder.path().join("run");
    let played = play(&scenario, Arc::new(says), &run, &RunOptions::default()).unwrap();
    let End::Complete(footer) = played.end else { panic!("it was stopped") };
    let wealth = &footer.outcomes[0].value;
    assert_eq!(*wealth, serde_json::json!({ "anna_berg": 4, "___ben___": 2, "cas": 3 }));
    let transcript = Transcript::open(&played.transcript).unwrap();
    assert!(transcript.turns[0].record.delta.contains("The mayor is 60, you are 30."));
    replay(&scenario, &transcript, BTreeMap::new()).unwrap();
    // The table is a part of the scenario: the run's copy has it.
    assert!(run.join("scenario/people.csv").exists());
    let copied = greenroom::scenario::copied(&run).unwrap();
    let again = open(&copied.main, &[]).unwrap().scenario.unwrap();
    replay(&again, &transcript, BTreeMap::new()).unwrap();
}

/// All that is set for one name is computed from the mapping as it was before.
#[test]
fn entries_change_together() {
    let text = "
state: { purse: { ann: 1, ben: 10, cas: 100 } }
agents: { ann: {}, ben: {}, cas: {} }
phases:
  - name: pay
    agents: [ann, ben, cas]
    rounds: 1
    set: { each: \"['cas', 'ann']\", purse: \"purse.ann + purse.cas + round\" }
outcome: { purse: purse }
";
    let in_rounds = text.replace("set: { each", "set: { after: round, each");
    assert!(load("x.yaml", text, &[]).scenario.is_none(), "a phase has no round");
    let loaded = load("x.yaml", &in_rounds, &[]);
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    let folder = tempfile::tempdir().unwrap();
    let says = Scripted::new(|_| Some("I pay.".into()));
    let played = play(&scenario, Arc::new(says), folder.path(), &RunOptions::default()).unwrap();
    let End::Complete(footer) = played.end else { panic!("it was stopped") };
    assert_eq!(footer.outcomes[0].value, serde_json::json!({ "ann": 102, "ben": 10, "cas": 102 }));
    // It is a part of the plan's hash who they are.
    let others = in_rounds.replace("['cas', 'ann']", "['cas']");
    let others = load("x.yaml", &others, &[]).scenario.unwrap();
    assert_ne!(others.plan().hash(), scenario.plan().hash());
}

/// Judges with names grade; those beside assertions decide, after them.
#[test]
fn judges_grade_without_an_assertion() {
    let text = "
agents: { ann: {}, ben: {} }
phases: [{ name: talk, agents: [ann, ben], order: broadcast, answer: [hello, goodbye] }]
judges:
  tone:
    ask: 'Grade the tone of each. Ann said {{ talk.choices.ann }}.'
    answer: { schema: { type: object, properties: { ann: { type: integer }, ben: { type: integer } }, required: [ann, ben], additionalProperties: false } }
  clarity: { agent: ben, ask: 'Was it clear? {{ tone.verdict.ben }}', answer: [1, 2, 3] }
outcome: { rude: tone.verdict.ben < 3, clarity: clarity.verdict }
assertions:
  - judge: { ask: Did both keep their word?, answer: [kept, broken] }
    that: verdict == 'kept' and clarity.verdict > 1
";
    let loaded = load("x.yaml", text, &[]);
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    let paths: Vec<&str> = scenario.plan().order().map(|(_, turn)| turn.path.as_str()).collect();
    assert_eq!(paths[2..], ["tone/1/tone", "clarity/1/ben", "judge/1/judge"]);
    let folder = tempfile::tempdir().unwrap();
    let says = Scripted::new(|request| {
        let said = match request.path.split('/').next().unwrap() {
            "tone" => r#"{"ann": 4, "ben": 2}"#,
            "clarity" => "3",
            "judge" => "kept",
            _ => "hello",
        };
        Some(said.into())
    });
    let played = play(&scenario, Arc::new(says), folder.path(), &RunOptions::default()).unwrap();
    let End::Complete(footer) = played.end else { panic!("it was stopped") };
    let outcomes: Vec<String> = footer.outcomes.iter().map(|outcome| outcome.value.to_string()).collect();
    assert_eq!(outcomes, ["true", "3"]);
    assert!(footer.holds());
    let transcript = Transcript::open(&played.transcript).unwrap();
    assert!(transcript.turns[3].record.delta.contains("Was it clear? 2"));
    replay(&scenario, &transcript, BTreeMap::new()).unwrap();
}

/// A turn may be that of an agent whom the state names: that one alone acts, and all hear it.
#[test]
fn a_turn_is_played_by_the_agent_that_an_expression_returns() {
    let text = "
agents: { ann: {}, ben: {}, cas: {} }
state: { leader: ben, nobody_leads: null }
phases:
  - name: talk
    agents: [ann, ben, cas]
    rounds: 2
    turns:
      - { agent: leader, ask: 'Who leads next, {{ me }}?', answer: [ann, ben, cas], set: { leader: 'talk.choices[leader]' } }
      - { agent: leader, when: round == 2 }
      - { agent: nobody_leads }
      - { agent: \"['ann', 'cas'][round - 1]\" }
outcome: { leader: leader }
";
    let loaded = load("x.yaml", text, &[]);
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    let folder = tempfile::tempdir().unwrap();
    let says =
        Scripted::new(|request| Some(if request.path.ends_with("ben") { "cas" } else { "ann" }.into()));
    let played = play(&scenario, Arc::new(says), folder.path(), &RunOptions::default()).unwrap();
    let transcript = Transcript::open(&played.transcript).unwrap();
    let paths: Vec<&str> = transcript.turns.iter().map(|turn| turn.record.path.as_str()).collect();
    assert_eq!(paths, ["talk/1/ben", "talk/1/ann.4", "talk/2/cas", "talk/2/ann.2", "talk/2/cas.4"]);
    assert!(
        transcript.turns[1].record.delta.contains("ben: cas"),
        "all hear it: {}",
        transcript.turns[1].record.delta
    );
    let End::Complete(footer) = played.end else { panic!("it was stopped") };
    assert_eq!(footer.outcomes[0].value, "ann");
    replay(&scenario, &transcript, BTreeMap::new()).unwrap();
    // A word that is neither a key nor a value is a mistake in writing.
    let misspelled = load("x.yaml", &text.replace("agent: nobody_leads", "agent: bne"), &[]).report;
    assert_eq!(misspelled.diagnostics[0].code, "unknown-agent", "{}", misspelled.render(false));
    let fails = load("x.yaml", &text.replace("agent: nobody_leads", "agent: leader + 1"), &[]).report;
    assert_eq!(fails.diagnostics.len(), 1, "{}", fails.render(false));
}
