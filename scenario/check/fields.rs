//! The plain fields of a scenario: its id, its variables, colours.

use super::Checker;
use super::cases::declared;
use super::types::{Mistyped, typed};
use crate::Color;
use crate::cases::CASE;
use crate::schema::Written;
use greenroom_yaml::Path;
use greenroom_yaml::diagnostic::{Diagnostic, suggest};
use indexmap::IndexMap;
use serde_json::Value;
use std::collections::BTreeMap;

impl Checker {
    /// The id names folders, so it is a plain word; without one, the file's name serves.
    pub(super) fn id(&mut self, given: Option<&str>) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let Some(id) = given else {
            let stem = std::path::Path::new(&self.sources.main().name).file_stem().unwrap_or_default();
            let stem: String =
                stem.to_string_lossy().chars().map(|c| if is_plain(c) { c } else { '-' }).collect();
            return if stem.is_empty() { "scenario".into() } else { stem };
        };
        if id.is_empty() || id.len() > 100 || !id.chars().all(is_plain) {
            let message =
                format!("the id `{id}` can't name a folder: use 1 to 100 letters, digits, `-` and `_`");
            let plain: String = id.chars().take(100).map(|c| if is_plain(c) { c } else { '-' }).collect();
            self.error("bad-name", &Path::default().key("id"), message).help = Some(format!(
                "for example `{}`; `title` may be any text",
                if plain.is_empty() { "talk" } else { &plain }
            ));
        }
        id.to_string()
    }

    /// The variables with the values of this run, which texts may use from here on.
    pub(super) fn known_variables(&mut self, written: &Written, overrides: &[(String, Value)]) {
        let values = self.variables(written.variables.clone().unwrap_or_default(), overrides);
        self.names.variables = values.keys().cloned().collect();
        self.names.values = values;
    }

    fn variables(
        &mut self,
        written: IndexMap<String, Value>,
        overrides: &[(String, Value)],
    ) -> BTreeMap<String, Value> {
        let path = Path::default().key("variables");
        let mut values = BTreeMap::new();
        for (name, value) in &written {
            let path = path.key(name.clone());
            if !super::is_identifier(name) {
                let message = format!("`{name}` is not a valid variable name: use letters, digits and `_`");
                let span = self.tree.key(&path);
                let help = format!("for example `{}`", super::phases::identifier_from(name));
                self.push(Diagnostic::error("bad-name", path.to_string(), span, message).help(help));
            }
            // Keys of a mapping are in one order, however they are written: records and hashes hold them.
            let mut value = value.clone();
            value.sort_all_objects();
            values.insert(name.clone(), value);
        }
        // What names a case is not a variable, unless there is one of this name and no case.
        let is_variable = written.contains_key(CASE) && !self.has_cases;
        let is_other = |name: &str| [super::CAST, super::FIRST_RULES].contains(&name);
        let is_value = |name: &str| !is_other(name) && (name != CASE || is_variable);
        for (name, value) in overrides.iter().filter(|(name, _)| is_value(name)) {
            let span = self.tree.key(&path);
            let mut value = value.clone();
            if let Some(declared) = declared(&written, name) {
                match typed(declared, value) {
                    Ok(fitting) => value = fitting,
                    Err(found) => {
                        self.mistyped_variable(name, &found);
                        continue;
                    }
                }
            }
            if let Err(help) = set(&mut values, name, value) {
                let message = format!("the scenario has no variable `{name}`");
                let found = Diagnostic::error("unknown-variable", "", span, message);
                self.push(found).help = help.or(Some("declare it under `variables:`".into()));
            }
        }
        values
    }

    fn mistyped_variable(&mut self, name: &str, found: &Mistyped) {
        let path = Path::default().key("variables");
        let path = name.split('.').fold(path, |path, part| path.key(part));
        let found =
            Diagnostic::error("type", "", self.tree.value(&path), found.with_value(name)).help(found.help());
        self.push(found);
    }

    pub(super) fn color(&mut self, path: &Path, given: &str) -> Option<Color> {
        if let Some(hex) = given.strip_prefix('#') {
            let short = hex.len() == 3;
            let wide: String =
                hex.chars().flat_map(|c| std::iter::repeat_n(c, if short { 2 } else { 1 })).collect();
            let channel = |at: usize| wide.get(at..at + 2).and_then(|c| u8::from_str_radix(c, 16).ok());
            if let (6, Some(r), Some(g), Some(b)) = (wide.len(), channel(0), channel(2), channel(4)) {
                return Some(Color::Rgb(r, g, b));
            }
            self.error("unknown-value", path, format!("`{given}` is not a colour")).help =
                Some("write `#rrggbb` or `#rgb`, e.g. `\"#d9a441\"`".into());
            return None;
        }
        self.word(path, "colour name", &given.to_lowercase(), COLORS)
    }
}

/// Replaces a variable, or a part of one (`a.b`); what is there, as a help, if there is none.
fn set(values: &mut BTreeMap<String, Value>, name: &str, value: Value) -> Result<(), Option<String>> {
    let mut parts = name.split('.');
    let first = parts.next().unwrap_or_default();
    let known: Vec<String> = values.keys().cloned().collect();
    let mut at = values.get_mut(first).ok_or_else(|| suggest(first, known.iter().map(String::as_str)))?;
    for part in parts {
        let Some(fields) = at.as_object_mut() else { return Err(None) };
        let known: Vec<String> = fields.keys().cloned().collect();
        at = fields.get_mut(part).ok_or_else(|| suggest(part, known.iter().map(String::as_str)))?;
    }
    *at = value;
    Ok(())
}

const COLORS: &[(&str, Color)] = &[
    ("black", Color::Indexed(0)),
    ("red", Color::Indexed(1)),
    ("green", Color::Indexed(2)),
    ("yellow", Color::Indexed(3)),
    ("blue", Color::Indexed(4)),
    ("magenta", Color::Indexed(5)),
    ("cyan", Color::Indexed(6)),
    ("white", Color::Indexed(7)),
    ("gray", Color::Indexed(8)),
    ("grey", Color::Indexed(8)),
    ("orange", Color::Indexed(208)),
    ("purple", Color::Indexed(135)),
    ("violet", Color::Indexed(141)),
    ("pink", Color::Indexed(211)),
    ("brown", Color::Indexed(130)),
    ("gold", Color::Indexed(220)),
    ("teal", Color::Indexed(37)),
    ("lime", Color::Indexed(118)),
    ("navy", Color::Indexed(18)),
    ("indigo", Color::Indexed(54)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_knows_the_colours() {
        assert_eq!(COLORS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), crate::schema::COLORS);
    }
}
