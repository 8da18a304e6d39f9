//! Fields that have a second name: the one of the format that this one grew from. Both mean the same.
//!
//! The program knows a field by its first name. `rename` brings a file's tree to it, and the tree remembers
//! what is in the file; `as_written` gives messages that name back. Hashes of templates are recorded by the
//! second name, as they always were.

use greenroom_yaml::diagnostic::Diagnostic;
use greenroom_yaml::{Path, PathStep, Tree};
use schemars::Schema;
use serde_json::{Value, json};

/// Fields of a phase: the name, and the one that is accepted too.
const FIELDS: [(&str, &str); 4] = [
    ("order", "topology"),
    ("prompt", "initial_prompt"),
    ("private_prompts", "per_agent_prompt_templates"),
    ("rounds", "auto_rounds"),
];
/// An opening of its own in the older format, in place of `initial_prompt` for those who have no private
/// text.
const TEMPLATE: &str = "initial_prompt_template";

/// Names of a phase's fields that are accepted besides those of the reference, each with the one that it
/// stands for.
pub fn others() -> impl Iterator<Item = (&'static str, &'static str)> {
    [(TEMPLATE, "prompt")].into_iter().chain(FIELDS.into_iter().map(|(name, other)| (other, name)))
}

/// The names of fields that are in the file, where they are not the first ones, by the path of their phase.
pub(super) type WrittenNames = Vec<(Path, &'static str, &'static str)>;

/// Brings the fields of phases to their first names. A field that is there by both is an error, and the
/// second is dropped.
pub(super) fn rename(tree: &mut Tree, found: &mut Vec<Diagnostic>) -> WrittenNames {
    let mut written = Vec::new();
    rename_in(&Path::default().key("phases"), tree, found, &mut written);
    written
}

/// The same in one list of phases, and in those of the blocks in it.
fn rename_in(list: &Path, tree: &mut Tree, found: &mut Vec<Diagnostic>, written: &mut WrittenNames) {
    for at in 0..tree.n_items(list) {
        let phase = list.index(at);
        rename_in(&phase.key("phases"), tree, found, written);
        // The older opening for some comes first: it may occur with the older one for all, not with `prompt`.
        for (other, name) in others() {
            let is_there = tree.find(&phase.key(other)).is_some();
            if is_there && tree.find(&phase.key(name)).is_some() {
                found.push(twice(tree, &phase, name, other));
                tree.rename(list, at, other, None);
            } else if !is_there {
                tree.rename(list, at, other, None);
            } else if other != TEMPLATE && tree.rename(list, at, other, Some(name)) {
                written.push((phase.clone(), name, other));
            }
        }
    }
}

/// Adds the other names to the schema of a phase: each holds what the first holds, and only one of the two is
/// there.
pub(super) fn add_to(schema: &mut Schema) {
    let Some(phase) = schema.pointer_mut("/$defs/Phase") else { return };
    let rules = phase["not"]["anyOf"].as_array().cloned().unwrap_or_default();
    for (other, name) in others() {
        let field = phase["properties"][name].clone();
        if let (Value::Object(mut field), Value::Object(fields)) = (field, &mut phase["properties"]) {
            let text = format!("Another name for `{name}`.");
            field.insert("description".into(), text.into());
            fields.entry(other).or_insert(Value::Object(field));
        }
        if let Some(exclusive) = phase["not"]["anyOf"].as_array_mut() {
            // What excludes the field excludes it by its other name as well.
            for mut rule in rules.clone() {
                let fields = rule["required"].as_array_mut().into_iter().flatten();
                let same: Vec<_> = fields.filter(|field| **field == name).collect();
                let is_there = !same.is_empty();
                same.into_iter().for_each(|field| *field = other.into());
                exclusive.extend(is_there.then_some(rule));
            }
            exclusive.push(json!({ "required": [name, other] }));
        }
    }
}

fn twice(tree: &Tree, phase: &Path, name: &str, other: &str) -> Diagnostic {
    let (one, two) = (phase.key(name), phase.key(other));
    let (mut first, mut second) = ((one.clone(), name), (two.clone(), other));
    if tree.key(&one).start > tree.key(&two).start {
        std::mem::swap(&mut first, &mut second);
    }
    let message = format!("`{}` and `{}` are two names for the same field", first.1, second.1);
    let found = Diagnostic::error("duplicate-key", second.0.to_string(), tree.key(&second.0), message);
    found.related(tree.key(&first.0), "first defined here").help(format!("keep only `{name}`"))
}

/// Lets a message name the fields of its phase as the file does.
pub(super) fn as_written(found: &mut Diagnostic, written: &WrittenNames) {
    let path = Path::parse(&found.path);
    for (phase, name, other) in written.iter().filter(|(at, ..)| path.0.starts_with(&at.0)) {
        let head = format!("{phase}.");
        let rest = found.path.strip_prefix(&head).and_then(|rest| rest.strip_prefix(name));
        if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with(['.', '['])) {
            found.path = format!("{head}{other}{rest}");
        }
        // In templates and expressions the name may be one of their own.
        if !["template", "expression", "undefined", "may-fail", "duplicate-key", "unknown-key"]
            .contains(&found.code)
            || found.message.starts_with(&format!("`{name}`"))
        {
            let (from, to) = (format!("`{name}`"), format!("`{other}`"));
            found.message = found.message.replace(&from, &to);
            found.help = found.help.take().map(|help| help.replace(&from, &to));
        }
    }
}

/// The name by which the hash of a template is recorded.
pub fn recorded(path: &Path) -> String {
    let mut path = path.clone();
    // Phases are in the scenario's list, or in that of a block.
    let is_of_list =
        |steps: &[PathStep]| matches!(steps, [PathStep::Key(list), PathStep::Index(_)] if list == "phases");
    let n_steps = path.0.chunks(2).take_while(|steps| is_of_list(steps)).count() * 2;
    if let Some(PathStep::Key(field)) = path.0.get_mut(n_steps).filter(|_| n_steps > 0)
        && let Some((_, other)) = FIELDS.iter().find(|(name, _)| name == field)
    {
        *field = (*other).to_string();
    }
    path.to_string()
}
