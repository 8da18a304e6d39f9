//! Drawings of plans: valid, complete, nothing over anything else.

use greenroom::drawing::{MAX_TURNS, svg};
use greenroom::scenario::{Plan, Scenario, TurnId, load};
use roxmltree::{Document, Node};
use std::sync::Arc;

fn scenario(text: &str) -> (Arc<Scenario>, Plan) {
    let loaded = load("d.yaml", text, &[]);
    let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
    let plan = Plan::clone(scenario.plan());
    (scenario, plan)
}

/// `n` agents who speak for some rounds.
fn talk(n: usize, topology: &str, rounds: usize) -> (Arc<Scenario>, Plan) {
    let names: Vec<String> = (0..n).map(|n| format!("a{n}")).collect();
    let agents: Vec<String> = names.iter().map(|name| format!("{name}: {{}}")).collect();
    let (agents, names) = (agents.join(", "), names.join(", "));
    scenario(&format!(
        "agents: {{{agents}}}\nphases: [{{name: t, agents: [{names}], order: {topology}, rounds: \
         {rounds}}}]"
    ))
}

fn of_class<'a>(drawing: &'a Document<'a>, class: &str) -> Vec<Node<'a, 'a>> {
    let has = |node: &Node<'_, '_>| {
        node.attribute("class").is_some_and(|given| given.split(' ').any(|c| c == class))
    };
    drawing.descendants().filter(has).collect()
}

/// Left, top, right and bottom of a rectangle.
fn corners(node: &Node<'_, '_>) -> [f64; 4] {
    let [x, y, w, h] =
        ["x", "y", "width", "height"].map(|name| node.attribute(name).unwrap().parse::<f64>().unwrap());
    [x, y, x + w, y + h]
}

fn apart(rectangles: &[[f64; 4]]) {
    for (at, a) in rectangles.iter().enumerate() {
        for b in &rectangles[at + 1..] {
            assert!(
                a[2] <= b[0] || b[2] <= a[0] || a[3] <= b[1] || b[3] <= a[1],
                "{a:?} and {b:?} cover each other"
            );
        }
    }
}

/// Checks what holds for every drawing; returns its SVG.
fn check(scenario: &Scenario, plan: &Plan) -> String {
    let text = svg(plan, scenario, None).unwrap();
    let drawing = Document::parse(&text).unwrap();
    let boxes: Vec<_> = of_class(&drawing, "turn").iter().map(corners).collect();
    let bands: Vec<_> = of_class(&drawing, "band").iter().map(corners).collect();
    assert_eq!(boxes.len(), plan.n_turns());
    apart(&boxes);
    apart(&bands);
    for (from, to, within) in
        boxes.iter().map(|b| (b[0], b[2], bands.iter().any(|band| band[0] < b[0] && b[2] < band[2])))
    {
        assert!(from >= 0.0 && to < 1e6 && within, "a turn stands in the band of a phase");
    }
    for (to, _) in plan.order() {
        for (from, _) in plan.needs(to) {
            assert!(boxes[from.0][2] < boxes[to.0][0], "{from:?} stands left of {to:?}, which waits for it");
        }
    }
    text
}

/// What was not played is not drawn; a memory goes on over it.
#[test]
fn a_run_is_drawn_as_it_was_played() {
    let (scenario, plan) = talk(3, "round_robin", 2);
    let played = [0, 1, 3, 5].map(TurnId).into_iter().collect();
    let text = svg(&plan, &scenario, Some(&played)).unwrap();
    let drawing = Document::parse(&text).unwrap();
    let boxes: Vec<_> = of_class(&drawing, "turn").iter().map(corners).collect();
    assert_eq!(boxes.len(), played.len());
    apart(&boxes);
    assert!(boxes.windows(2).all(|two| two[0][2] < two[1][0]), "each waits for the one before it");
    // The first speaker's two turns are joined, and nobody else had two.
    assert_eq!(of_class(&drawing, "memory").len(), 1);
    assert!(text.contains("4 of 6 turns possible, 3 agents, 1 phase"), "{text}");
    let all = plan.order().map(|(id, _)| id).collect();
    assert_eq!(svg(&plan, &scenario, Some(&all)), svg(&plan, &scenario, None));
}

#[test]
fn a_small_plan_looks_as_before() {
    let (scenario, plan) = scenario(
        "id: tea\ntitle: Tea for two\nagents: {ada: {display_name: Ada, color: green}, rolf: {role: baker}}\n\
         phases: [{name: kitchen, label: The kitchen, agents: [ada, rolf]}, {name: alone, agents: [rolf]}]",
    );
    insta::assert_snapshot!(check(&scenario, &plan));
}

#[test]
fn the_shipped_scenarios_are_drawn() {
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).unwrap() {
        let file = file.unwrap().path();
        if file.extension().is_none_or(|kind| kind != "yaml") {
            continue;
        }
        let loaded = greenroom::rehearsal::open(&file, &[]).unwrap();
        let scenario = loaded.scenario.unwrap_or_else(|| panic!("{}", loaded.report.render(false)));
        check(&scenario, scenario.plan());
    }
}

#[test]
fn many_who_hear_each_other_make_few_lines() {
    let lines = |n, topology, rounds| {
        let (scenario, plan) = talk(n, topology, rounds);
        let text = check(&scenario, &plan);
        let drawing = Document::parse(&text).unwrap();
        // The legend has one of its own.
        of_class(&drawing, "hears").len() - 1
    };
    assert_eq!(lines(4, "round_robin", 25), 99, "each turn hears the one before it");
    assert_eq!(lines(10, "broadcast", 3), 2 * 20, "ten lines to a knot and ten from it, twice");
    assert_eq!(lines(2, "broadcast", 3), 4);
}

#[test]
fn names_are_text() {
    let odd = r#"<b>&amp;\"'</svg><script>]]>\u{0}"#.replace("\\u{0}", "");
    let text = format!(
        "id: odd\ntitle: \"{odd}\\0\\e[31m\\uFFFE\"\n\
         agents: {{a: {{display_name: \"{odd}\", role: \"{odd}\"}}, b: {{display_name: \"研究員 of the \
         Department of Very Long Names\"}}}}\nphases: [{{name: p, label: \"{odd}\\x07\", agents: [a, b]}}]"
    );
    let (scenario, plan) = scenario(&text);
    let text = check(&scenario, &plan);
    let drawing = Document::parse(&text).unwrap();
    assert!(drawing.descendants().all(|node| !node.has_tag_name("script") && !node.has_tag_name("b")));
    let name = &scenario.agents[0].name;
    assert!(
        drawing.descendants().any(|node| node.text().is_some_and(|text| text == name)),
        "{name} in {text}"
    );
}

#[test]
fn what_nobody_could_read_is_not_drawn() {
    let (scenario, plan) = talk(2, "round_robin", MAX_TURNS / 2);
    assert!(svg(&plan, &scenario, None).is_some());
    let (scenario, plan) = talk(2, "round_robin", MAX_TURNS / 2 + 1);
    assert_eq!(svg(&plan, &scenario, None), None);
}
