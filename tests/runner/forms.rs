//! Replies whose schema has rules that can't be enforced during generation: checked, requested again,
//! recorded and replayed.

use greenroom::backend::{Request, Scripted};
use greenroom::replay::replay;
use greenroom::run::{RunOptions, perform};
use greenroom::scenario::{self, Scenario};
use greenroom::stage::Unwatched;
use greenroom::transcript::Transcript;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

fn scenario(schema: &str) -> Arc<Scenario> {
    let text = format!(
        "sampling: {{ temperature: 0 }}\n\
         agents: {{ ann: {{}} }}\n\
         phases: [{{ name: p, agents: [ann], prompt: Tag it., answer: {{ schema: {schema} }} }}]\n\
         "
    );
    let loaded = scenario::load("tags.yaml", &text, &[]);
    let report = loaded.report.render(false);
    assert_eq!(report.contains("warning[checked-afterwards]"), schema.contains("unique"), "{report}");
    loaded.scenario.expect(&report)
}

fn played(
    scenario: &Arc<Scenario>,
    script: impl Fn(&Request) -> Option<String> + Send + Sync + 'static,
) -> Transcript {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (backend, options) = (Arc::new(Scripted::new(script)), RunOptions::default());
    let mut watch = Unwatched;
    let playing = perform(scenario, backend, folder.path(), &options, &mut watch, std::future::pending());
    let performed = runtime.block_on(playing).unwrap();
    let transcript = Transcript::open(&performed.transcript).unwrap();
    replay(scenario, &transcript, BTreeMap::new()).expect("it replays");
    transcript
}

const TAGS: &str = "{ type: array, items: { type: string }, uniqueItems: true }";

#[test]
fn a_reply_that_breaks_its_schema_is_asked_for_again_and_recorded() {
    let scenario = scenario(TAGS);
    let seeds = Arc::new(Mutex::new(Vec::new()));
    let asked = seeds.clone();
    let transcript = played(&scenario, move |request| {
        let mut seeds = asked.lock().unwrap();
        seeds.push((request.sampling.seed, request.sampling.temperature > 0.0));
        let replies = [r#"["a","a"]"#, r#"["b","c","b"]"#, r#"["a","b"]"#];
        Some(replies[(seeds.len() - 1).min(2)].to_string())
    });
    let form = transcript.turns[0].record.form.as_ref().unwrap();
    assert_eq!((form.value.to_string().as_str(), form.invalid.as_ref()), (r#"["a","b"]"#, None));
    let rejected: Vec<_> = form.rejected.iter().map(|was| (was.raw.as_str(), was.invalid.as_str())).collect();
    let why = |item: &str| format!("the item \"{item}\" appears twice (`uniqueItems`)");
    assert_eq!(rejected, [(r#"["a","a"]"#, why("a").as_str()), (r#"["b","c","b"]"#, why("b").as_str())]);
    // Each time with another seed, and not greedily again.
    let seeds = seeds.lock().unwrap();
    assert_eq!(seeds.iter().map(|(_, is_drawn)| *is_drawn).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(seeds.iter().map(|(seed, _)| seed).collect::<BTreeSet<_>>().len(), 3);
}

#[test]
fn a_reply_that_never_fits_is_invalid_in_the_end() {
    let transcript = played(&scenario(TAGS), |_| Some(r#"["a","a"]"#.into()));
    let form = transcript.turns[0].record.form.as_ref().unwrap();
    assert!(form.value.is_null() && form.invalid.as_deref().unwrap().contains("`uniqueItems`"));
    assert_eq!(form.rejected.len(), 4);
}

#[test]
fn integers_keep_bounds_that_floats_would_round() {
    let schema = "{ type: integer, minimum: 9007199254740993, maximum: 9007199254740995 }";
    let transcript = played(&scenario(schema), |request| {
        // What a mask with rounded bounds would let pass, first.
        let first = request.sampling.temperature == 0.0;
        Some(if first { "9007199254740996" } else { "9007199254740995" }.to_string())
    });
    let form = transcript.turns[0].record.form.as_ref().unwrap();
    assert_eq!(form.value.to_string(), "9007199254740995");
    assert!(form.rejected[0].invalid.contains("greater than 9007199254740995"), "{:?}", form.rejected);
}

#[test]
fn what_can_not_be_followed_is_found_by_check() {
    let report = |schema: &str| {
        let text = format!(
            "agents: {{ ann: {{}} }}\nphases: [{{ name: p, agents: [ann], answer: {{ schema: {schema} }} }}]\n"
        );
        scenario::load("x.yaml", &text, &[]).report.render(false)
    };
    let circle =
        report("{ $defs: { A: { $ref: '#/$defs/B' }, B: { $ref: '#/$defs/A' } }, $ref: '#/$defs/A' }");
    assert!(circle.contains("error[bad-grammar]") && circle.contains("`$ref` is circular"), "{circle}");
    let overlap = report("{ oneOf: [{ type: integer }, { type: number, minimum: 0 }] }");
    assert!(overlap.contains("warning[checked-afterwards]") && overlap.contains("use `anyOf`"), "{overlap}");
    assert!(!overlap.contains("coerce"), "{overlap}");
    let ignored = report(
        "{ type: object, properties: { a: { type: string, format: colour } }, unevaluatedProperties: false }",
    );
    assert!(ignored.contains("`unevaluatedProperties` has no effect"), "{ignored}");
    assert!(ignored.contains("`format` at `properties.a` has no effect"), "{ignored}");
}
