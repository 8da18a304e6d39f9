//! Plans: who reads what, who waits for whom.

use greenroom::scenario::{
    AgentId, Audience, Choice, ChoiceMethod, Condition, Input, PhaseId, Plan, Purpose, Scenario, Turn,
    TurnId, load,
};
use std::sync::Arc;

fn plan(phases: &str) -> (Arc<Scenario>, Plan) {
    let text = format!("id: p\nagents: {{a: {{}}, b: {{}}, c: {{lifecycle: ephemeral}}}}\nphases:\n{phases}");
    let loaded = load("p.yaml", &text, &[]);
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    let plan = Plan::clone(scenario.plan());
    (scenario, plan)
}

#[test]
fn graphs_look_as_before() {
    let (scenario, round) = plan(
        "  - {name: one, agents: [a, b], rounds: 2}\n  - {name: two, agents: [b, c], topology: \
         broadcast, prompt: '${one.messages[b]}'}\n",
    );
    insta::assert_snapshot!("dot", round.dot(&scenario));
    insta::assert_snapshot!("mermaid", round.mermaid(&scenario));
}

#[test]
fn a_broadcast_round_is_unheard_until_the_next() {
    let (_, plan) = plan("  - {name: one, agents: [a, b, c], order: broadcast, rounds: 2}\n");
    let inputs: Vec<usize> = plan.order().map(|(_, turn)| turn.inputs.len()).collect();
    assert_eq!(inputs, [1, 1, 1, 2, 2, 2]);
    for (id, _) in plan.order().take(3) {
        assert_eq!(plan.needs(id).count(), 0, "the first round waits for nothing");
    }
}

#[test]
fn phases_with_disjoint_casts_do_not_wait_for_each_other() {
    let (_, plan) = plan("  - {name: one, agents: [a]}\n  - {name: two, agents: [b]}\n");
    assert_eq!(plan.graph.edge_count(), 0);
}

#[test]
fn quoting_a_phase_waits_for_all_of_it() {
    let (_, plan) = plan(
        "  - {name: one, agents: [a, b], rounds: 2}\n  - {name: two, agents: [c], prompt: \
         '{{ one.messages.a }}'}\n",
    );
    let last = plan.order().last().unwrap().0;
    assert_eq!(plan.needs(last).count(), 4);
}

#[test]
fn max_turns_cuts_a_phase_short() {
    let counts = |fields: &str| {
        let (_, plan) = plan(&format!("  - {{name: one, agents: [a, b], {fields}}}\n"));
        plan.order().map(|(_, turn)| turn.path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(counts("rounds: 5, max_turns: 3"), ["one/1/a", "one/1/b", "one/2/a"]);
    assert_eq!(counts("order: round_robin, max_turns: 3"), ["one/1/a", "one/1/b", "one/2/a"]);
    assert_eq!(counts("max_turns: 9, rounds: 1"), ["one/1/a", "one/1/b"]);
}

#[test]
fn the_shipped_scenarios_have_the_turns_they_promise() {
    let turns = |name: &str, text: &str| {
        let loaded = load(name, text, &[]);
        let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
        scenario.plan().n_turns()
    };
    assert_eq!(turns("pd.yaml", include_str!("../../scenarios/prisoners-dilemma.yaml")), 27);
    assert_eq!(turns("gossip.yaml", include_str!("../../scenarios/gossip.yaml")), 21);
    assert!(turns("experts.yaml", include_str!("../../scenarios/expert-routing.yaml")) >= 20);
}

#[test]
fn the_next_use_of_a_memory_is_known() {
    let (_, plan) = plan("  - {name: one, agents: [a, c], rounds: 2}\n  - {name: two, agents: [c, a]}\n");
    let next: Vec<_> = plan.next_use.iter().map(|next| next.map(|turn| turn.0)).collect();
    // c is ephemeral: its second phase is another memory.
    assert_eq!(next, [Some(2), Some(3), Some(5), None, None, None]);
}

/// Recordings hold the hash: it changes with all that a turn is and waits for, and with nothing else.
#[test]
fn a_plans_hash_changes_with_each_part_of_a_turn() {
    let phases = "- {name: one, agents: [a, b, c], prompt: Hi.}
- {name: two, agents: [a, b, c], when: \"true\", answer: [yes, no]}";
    let (_, plan) = plan(phases);
    let (speech, choice) = (TurnId(0), TurnId(3));
    let changed = |id: TurnId, change: &dyn Fn(&mut Turn)| {
        let mut plan = plan.clone();
        change(plan.graph.node_weight_mut(petgraph::graph::NodeIndex::new(id.0)).unwrap());
        plan.hash()
    };
    let of_choice = |change: &dyn Fn(&mut Choice)| {
        changed(choice, &|turn| change(Arc::make_mut(&mut turn.constraint.as_mut().unwrap().choice)))
    };
    let whisper = Audience::Whisper { to: vec![AgentId(1)], by: vec![] };
    let mut without_edge = plan.clone();
    without_edge.graph.remove_edge(petgraph::graph::EdgeIndex::new(0));
    let hashes = [
        plan.hash(),
        without_edge.hash(),
        changed(speech, &|turn| turn.path += "."),
        changed(speech, &|turn| turn.cue += "."),
        changed(speech, &|turn| turn.inputs.push(Input::Opening(PhaseId(1)))),
        changed(speech, &|turn| turn.inputs.push(Input::Heard(TurnId(1)))),
        changed(speech, &|turn| turn.inputs.push(Input::Vote(PhaseId(1), 1))),
        changed(speech, &|turn| turn.guard.push(Condition::Opens(PhaseId(0)))),
        changed(speech, &|turn| turn.guard.push(Condition::NotYetEnded(PhaseId(0), 1))),
        changed(speech, &|turn| turn.guard.push(Condition::Chose(TurnId(0), 1))),
        changed(speech, &|turn| turn.guard.push(Condition::NotPlayed(TurnId(0)))),
        changed(speech, &|turn| turn.guard.push(Condition::Undecided(PhaseId(0), 1))),
        changed(speech, &|turn| turn.purpose = Purpose::Floor),
        changed(speech, &|turn| turn.purpose = Purpose::Ballot { attempt: 1, rank: 2 }),
        changed(speech, &|turn| turn.purpose = Purpose::Ballot { attempt: 2, rank: 1 }),
        changed(speech, &|turn| turn.audience = Audience::Nobody),
        changed(speech, &|turn| turn.audience = whisper.clone()),
        changed(choice, &|turn| turn.constraint = None),
        changed(choice, &|turn| turn.constraint.as_mut().unwrap().except.push(TurnId(0))),
        of_choice(&|choice| choice.shuffle = !choice.shuffle),
        of_choice(&|choice| choice.method = ChoiceMethod::Parse),
        of_choice(&|choice| choice.options[0].text += "."),
        of_choice(&|choice| choice.options[0].value = "other".into()),
    ];
    let mut distinct = hashes.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), hashes.len());
    assert!(hashes.iter().all(|hash| Plan::can_compare(hash)));
    assert!(!Plan::can_compare(&plan.hash()[2..]) && !Plan::can_compare("12:00"));
    assert_eq!(of_choice(&|choice| choice.path = greenroom::scenario::Path::default()), hashes[0]);
}
