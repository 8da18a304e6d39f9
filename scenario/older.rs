//! Words and fields of earlier versions: a file that has them is read as today's words say it, with a
//! warning. In the papers' format they are no older than the rest, so there is none.

use greenroom_yaml::diagnostic::Diagnostic;
use greenroom_yaml::{Path, Tree};
use serde_json::json;

/// Brings a file to today's words. Fields have their first names ([`super::names`]).
pub(super) fn renew(tree: &mut Tree) -> Vec<Diagnostic> {
    let (top, mut found) = (Path::default(), Vec::new());
    if tree.keys_at(&top).iter().any(|key| key == "ui") {
        found.push(warning(tree, &top.key("ui"), "`ui` has no effect", "remove it"));
        tree.take(&top, "ui");
    }
    let agents = top.key("agents");
    for key in tree.keys_at(&agents) {
        overflow(tree, &agents.key(key), &mut found);
    }
    orders(tree, &top.key("phases"), &mut found);
    found
}

/// `on_overflow: summarize` is `memory: { keep: summary }`, and `fail` is the default.
fn overflow(tree: &mut Tree, agent: &Path, found: &mut Vec<Diagnostic>) {
    let field = agent.key("on_overflow");
    if !tree.keys_at(agent).iter().any(|key| key == "on_overflow") {
        return;
    }
    let written = tree.json_at(&field);
    let error = |code, message: &str| Diagnostic::error(code, field.to_string(), tree.value(&field), message);
    let older = "`on_overflow` is an older name for `memory`";
    found.push(match written.as_str() {
        _ if !tree.json_at(&agent.key("memory")).is_null() => {
            error("contradiction", &format!("{older}, so it can't be used with it"))
                .help("remove `on_overflow`")
        }
        Some("summarize") => warning(tree, &field, older, "write `memory: { keep: summary }`"),
        Some("fail") => warning(tree, &field, older, "remove it: this is the default"),
        None if written.is_null() => warning(tree, &field, older, "remove it"),
        _ => error("unknown-value", &format!("{older}, and expects `fail` or `summarize`"))
            .help("write `memory: { keep: summary }`, or remove it"),
    });
    if written == "summarize" && tree.json_at(&agent.key("memory")).is_null() {
        tree.put(agent, "memory", &json!({ "keep": "summary" }));
    }
    tree.take(agent, "on_overflow");
}

/// `order: turn_by_turn` is `round_robin`, in a list of phases and in those of the blocks in it.
fn orders(tree: &mut Tree, list: &Path, found: &mut Vec<Diagnostic>) {
    for at in 0..tree.n_items(list) {
        let phase = list.index(at);
        orders(tree, &phase.key("phases"), found);
        let order = phase.key("order");
        if tree.json_at(&order) == "turn_by_turn" {
            let message = "`turn_by_turn` is an older word for `round_robin`";
            found.push(warning(tree, &order, message, "write `round_robin`, or leave it out"));
            tree.put(&phase, "order", &"round_robin".into());
        }
    }
}

fn warning(tree: &Tree, field: &Path, message: &str, help: &str) -> Diagnostic {
    Diagnostic::warning("older", field.to_string(), tree.key(field), message).help(help)
}
