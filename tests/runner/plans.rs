//! Plans: who reads what, who waits for whom.

use greenroom::scenario::{Plan, Scenario, compile, load};
use std::sync::Arc;

fn plan(phases: &str) -> (Arc<Scenario>, Plan) {
    let text = format!("id: p\nagents: {{a: {{}}, b: {{}}, c: {{lifecycle: ephemeral}}}}\nphases:\n{phases}");
    let loaded = load("p.yaml", &text, &[]);
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    let plan = compile(&scenario);
    (scenario, plan)
}

#[test]
fn graphs_look_as_before() {
    let (scenario, round) = plan(
        "  - {name: one, agents: [a, b], auto_rounds: 2}\n  - {name: two, agents: [b, c], topology: broadcast, \
         initial_prompt: '${one.messages[b]}'}\n",
    );
    insta::assert_snapshot!("dot", round.dot(&scenario));
    insta::assert_snapshot!("mermaid", round.mermaid(&scenario));
}

#[test]
fn a_broadcast_round_is_unheard_until_the_next() {
    let (_, plan) = plan("  - {name: one, agents: [a, b, c], topology: broadcast, auto_rounds: 2}\n");
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
        "  - {name: one, agents: [a, b], auto_rounds: 2}\n  - {name: two, agents: [c], initial_prompt: \
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
    assert_eq!(counts("auto_rounds: 5, max_turns: 3"), ["one/1/a", "one/1/b", "one/2/a"]);
    assert_eq!(counts("topology: turn_by_turn, max_turns: 3"), ["one/1/a", "one/1/b", "one/2/a"]);
    assert_eq!(counts("max_turns: 9, auto_rounds: 1"), ["one/1/a", "one/1/b"]);
}

#[test]
fn the_shipped_scenarios_have_the_turns_they_promise() {
    let turns = |name: &str, text: &str| {
        let loaded = load(name, text, &[]);
        compile(&loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)))).n_turns()
    };
    assert_eq!(turns("pd.yaml", include_str!("../../scenarios/prisoners-dilemma.yaml")), 27);
    assert_eq!(turns("gossip.yaml", include_str!("../../scenarios/gossip.yaml")), 21);
    assert!(turns("experts.yaml", include_str!("../../scenarios/expert-routing.yaml")) >= 20);
}

#[test]
fn the_next_use_of_a_memory_is_known() {
    let (_, plan) =
        plan("  - {name: one, agents: [a, c], auto_rounds: 2}\n  - {name: two, agents: [c, a]}\n");
    let next: Vec<_> = plan.next_use.iter().map(|next| next.map(|turn| turn.0)).collect();
    // c is ephemeral: its second phase is another memory.
    assert_eq!(next, [Some(2), Some(3), Some(5), None, None, None]);
}
