//! Fields with two names: both mean the same, messages use the one in the file, and a file may have only one
//! of them.

use greenroom::rehearsal::load;
use greenroom::scenario::Loaded;

const OLD: &str = "
agents: { ann: {}, ben: {}, mod: { role: moderator } }
phases:
  - name: talk
    agents: [ann, ben, mod]
    moderator: mod
    rounds: 2
    prompt: The gate.
    say: { ben: 'Only you know, {{ me }}.' }
  - name: after
    agents: [ann, ben]
    prompt: 'It is over, {{ me }}.'
";

fn new() -> String {
    let names = [
        ("topology", "order"),
        ("auto_rounds", "rounds"),
        ("per_agent_prompt_templates", "private_prompts"),
        ("initial_prompt_template", "prompt"),
        ("initial_prompt", "prompt"),
    ];
    names.iter().fold(OLD.to_string(), |text, (old, new)| text.replace(old, new))
}

fn reported(text: &str) -> Vec<(String, String, String)> {
    let Loaded { report, .. } = load("x.yaml", text, &[]);
    let each = report.diagnostics.into_iter();
    each.map(|found| (found.path, found.message, found.help.unwrap_or_default())).collect()
}

#[test]
fn both_names_mean_the_same() {
    let [old, new] = [OLD, &new()].map(|text| {
        let loaded = load("x.yaml", text, &[]);
        assert!(loaded.report.diagnostics.is_empty(), "{}", loaded.report.render(false));
        loaded.scenario.unwrap()
    });
    assert_eq!(old.plan().hash(), new.plan().hash());
    assert_eq!(old.phases[0], new.phases[0]);
    let hashes = old.template_hashes();
    assert!(hashes.contains_key("phases[0].initial_prompt"), "{hashes:?}");
    assert!(hashes.contains_key("phases[0].per_agent_prompt_templates.ben"), "{hashes:?}");
    let renamed = new.template_hashes();
    assert_eq!(hashes.values().collect::<Vec<_>>(), renamed.values().collect::<Vec<_>>());
}

#[test]
fn a_message_names_the_field_in_the_file() {
    for (from, to, path, word) in [
        ("auto_rounds: 2", "auto_rounds: two", "phases[0].auto_rounds", "two"),
        ("topology: moderated", "topology: modrated", "phases[0].topology", "modrated"),
        ("{ ben: ", "{ bne: ", "phases[0].per_agent_prompt_templates.bne", "bne"),
        ("The gate.", "'{{ gate }}'", "phases[0].initial_prompt", "gate"),
    ] {
        let found = reported(&OLD.replace(from, to));
        let [(at, message, _)] = found.as_slice() else { panic!("{found:?}") };
        assert!(at == path && message.contains(word), "{found:?}");
        let [from, to] =
            [from, to].map(|text| text.replace("auto_rounds", "rounds").replace("topology", "order"));
        let found = reported(&new().replace(&from, &to));
        assert!(
            found.len() == 1 && !found[0].0.contains("auto") && !found[0].0.contains("per_agent"),
            "{found:?}"
        );
    }
    let zero = "agents: { ann: {} }\nphases: [{ name: p, agents: [ann], rounds: 0 }]\n";
    let found = reported(zero);
    assert!(found[0].2.contains("`auto_rounds`") && found[0].2.contains("`prompt`"), "{found:?}");
    let found = reported(&zero.replace("auto_rounds", "rounds"));
    assert!(found[0].2.contains("leave `rounds` out"), "{found:?}");
}

#[test]
fn what_is_misspelt_is_suggested_by_its_first_name() {
    for (from, to, meant) in [
        ("auto_rounds", "auto_round", "did you mean `rounds`?"),
        ("topology", "topolgy", "did you mean `order`?"),
        ("    initial_prompt:", "    inital_prompt:", "did you mean `prompt`?"),
        ("per_agent_prompt_templates", "per_agent_prompt_template", "did you mean `private_prompts`?"),
    ] {
        let found = reported(&OLD.replace(from, to));
        assert!(found.iter().any(|(_, _, help)| help == meant), "{to}: {found:?}");
    }
}
