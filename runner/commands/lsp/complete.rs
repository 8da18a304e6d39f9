//! Completions at a cursor: fields and words from the schema, names that the scenario declares.

use super::cursor::{At, Cursor, cursors};
use super::document::{Document, range};
use super::names::{CodeKind, DECLARING, Forms, agents, code_at, in_braces, keys, phases, type_of};
use crate::diagnostic::Span;
use crate::scenario::schema::COLORS;
use crate::scenario::template::{
    EXPRESSION_NAMES, FILTERS, FUNCTIONS, PASS_NAMES, PHASE_FIELDS, ROUND_NAMES, STAGE_NAMES,
};
use crate::scenario::{Path, PathStep, text_of};
use lsp_types::{
    CompletionItem, CompletionItemKind, CompletionTextEdit, Documentation, MarkupContent, MarkupKind,
    TextEdit,
};
use serde_json::Value;
use std::collections::BTreeSet;

/// A completion: the word, the inserted text, its kind, and its meaning.
struct CompletionOffer {
    word: String,
    inserted: String,
    kind: CompletionItemKind,
    about: String,
}

impl CompletionOffer {
    fn new(word: impl Into<String>, kind: CompletionItemKind, about: impl Into<String>) -> Self {
        let word = word.into();
        Self { inserted: word.clone(), word, kind, about: about.into() }
    }
}

/// The completions at a byte.
pub(super) fn complete(document: &Document, offset: usize) -> Vec<CompletionItem> {
    let found = cursors(&document.text, offset).into_iter().map(|cursor| (offers(document, &cursor), cursor));
    let Some((offers, cursor)) = found.into_iter().find(|(offers, _)| !offers.is_empty()) else {
        return Vec::new();
    };
    let word = range(&document.source(), Span { file: 0, start: cursor.word.start, end: cursor.word.end });
    let mut seen = BTreeSet::new();
    let offers = offers.into_iter().filter(|offer| seen.insert(offer.word.clone())).enumerate();
    offers
        .map(|(at, CompletionOffer { word: label, inserted, kind, about })| CompletionItem {
            label,
            kind: Some(kind),
            documentation: Some(about).filter(|about| !about.is_empty()).map(|value| {
                Documentation::MarkupContent(MarkupContent { kind: MarkupKind::Markdown, value })
            }),
            // In the order of declaration, not alphabetical.
            sort_text: Some(format!("{at:04}")),
            text_edit: Some(CompletionTextEdit::Edit(TextEdit { range: word, new_text: inserted })),
            ..CompletionItem::default()
        })
        .collect()
}

fn offers(document: &Document, cursor: &Cursor) -> Vec<CompletionOffer> {
    match &cursor.at {
        At::Key => fields(document, cursor),
        At::Value => values(document, cursor),
        At::Text(before) => {
            let is_code = match code_at(&cursor.tree, &cursor.path) {
                Some(CodeKind::Expression) => true,
                Some(CodeKind::Template) => in_braces(before),
                None => false,
            };
            if is_code { code(document, cursor, before) } else { Vec::new() }
        }
    }
}

/// Fields that the mapping at the cursor lacks.
fn fields(document: &Document, cursor: &Cursor) -> Vec<CompletionOffer> {
    let Some((PathStep::Key(_), around)) = cursor.path.0.split_last() else { return Vec::new() };
    let around = Path(around.to_vec());
    let Some(of) = type_of(&cursor.tree, &around) else { return Vec::new() };
    let there = cursor.tree.keys_at(&around);
    if let Some(PathStep::Key(field)) = around.0.last()
        && matches!(field.as_str(), "say" | "to" | "overhears")
    {
        let agents = agents(document, &cursor.tree).into_iter().filter(|key| !there.contains(key));
        let offer = |key: String| CompletionOffer {
            inserted: key.clone() + ": ",
            ..CompletionOffer::new(key, CompletionItemKind::VARIABLE, "")
        };
        return agents.map(offer).collect();
    }
    let Some(fields) = of.of.get("properties").and_then(Value::as_object) else { return Vec::new() };
    let wanted = fields.iter().filter(|(name, _)| !there.contains(name));
    let needed = of.of.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut offers: Vec<CompletionOffer> = wanted
        .map(|(name, field)| {
            let about = field.get("description").and_then(Value::as_str).unwrap_or_default();
            let inserted = if is_list_or_mapping(field) { format!("{name}:") } else { format!("{name}: ") };
            CompletionOffer { inserted, ..CompletionOffer::new(name, CompletionItemKind::FIELD, about) }
        })
        .collect();
    offers.sort_by_key(|offer| !needed.iter().any(|name| *name == offer.word));
    offers
}

/// True for a field whose value usually begins on the next line.
fn is_list_or_mapping(field: &Value) -> bool {
    let is = |of: &Value| of == "array" || of == "object";
    match &field["type"] {
        Value::Array(types) => types.iter().any(is),
        of => is(of),
    }
}

/// The possible values at the cursor.
fn values(document: &Document, cursor: &Cursor) -> Vec<CompletionOffer> {
    let Some(of) = type_of(&cursor.tree, &cursor.path) else { return Vec::new() };
    let forms = Forms::of(of.declared);
    let words = forms.words.iter();
    let mut offers: Vec<CompletionOffer> = words
        .map(|(word, about)| CompletionOffer::new(*word, CompletionItemKind::ENUM_MEMBER, *about))
        .collect();
    let named = |names: Vec<String>, kind: CompletionItemKind| {
        names.into_iter().map(move |name| CompletionOffer::new(name, kind, ""))
    };
    let last = cursor.path.0.iter().rev().find_map(|step| match step {
        PathStep::Key(key) => Some(key.as_str()),
        PathStep::Index(_) => None,
    });
    if forms.has(&["Key", "Keys", "Cast"]) {
        offers.extend(named(agents(document, &cursor.tree), CompletionItemKind::VARIABLE));
    }
    if forms.has(&["PhaseNames"]) {
        let names = phases(&cursor.tree).into_iter().filter_map(|phase| phase.text).collect();
        offers.extend(named(names, CompletionItemKind::EVENT));
    }
    match last {
        Some("model" | "embeddings") => {
            offers.extend(named(keys(&cursor.tree, "models"), CompletionItemKind::MODULE));
        }
        Some("tools") => offers.extend(named(keys(&cursor.tree, "tools"), CompletionItemKind::FUNCTION)),
        Some("color") => {
            offers
                .extend(COLORS.iter().map(|name| CompletionOffer::new(*name, CompletionItemKind::COLOR, "")));
        }
        _ => {}
    }
    if forms.is_truth {
        offers.extend(
            ["true", "false"].map(|word| CompletionOffer::new(word, CompletionItemKind::KEYWORD, "")),
        );
    }
    if code_at(&cursor.tree, &cursor.path) == Some(CodeKind::Expression) {
        offers.extend(code(document, cursor, ""));
    }
    offers
}

/// Names in an expression, or in a text's braces, after the preceding text.
fn code(document: &Document, cursor: &Cursor, before: &str) -> Vec<CompletionOffer> {
    let is_link = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    let start = before.char_indices().rev().take_while(|(_, c)| is_link(*c)).last();
    let chain = start.map_or("", |(at, _)| &before[at..]);
    if let Some(chain) = chain.strip_suffix('.') {
        return members(document, cursor, &chain.split('.').collect::<Vec<_>>());
    }
    if before.trim_end().ends_with('|') {
        return FILTERS
            .iter()
            .map(|(name, about)| CompletionOffer::new(*name, CompletionItemKind::FUNCTION, *about))
            .collect();
    }
    let tree = &cursor.tree;
    let mut offers: Vec<CompletionOffer> = Vec::new();
    for phase in phases(tree).into_iter().filter_map(|phase| phase.text) {
        offers.push(CompletionOffer::new(
            phase,
            CompletionItemKind::EVENT,
            "A phase: what was said and chosen there.",
        ));
    }
    for field in DECLARING.into_iter().filter(|field| *field != "outcome") {
        let names = keys(tree, field).into_iter();
        offers.extend(names.map(|name| {
            CompletionOffer::new(name, CompletionItemKind::CONSTANT, format!("Part of `{field}`."))
        }));
    }
    for agent in agents(document, tree) {
        offers.push(CompletionOffer::new(agent, CompletionItemKind::VARIABLE, "The name of an agent."));
    }
    let functions = FUNCTIONS.iter();
    offers.extend(
        functions.map(|(name, about)| CompletionOffer::new(*name, CompletionItemKind::FUNCTION, *about)),
    );
    let fixed = [EXPRESSION_NAMES, STAGE_NAMES, ROUND_NAMES, PASS_NAMES].concat();
    offers.extend(fixed.into_iter().map(|name| CompletionOffer::new(name, CompletionItemKind::KEYWORD, "")));
    if matches!(
        cursor.path.0.first(), Some(PathStep::Key(field)) if field == "outcome" || field == "assertions"
    ) {
        offers.push(CompletionOffer::new(
            "outcome",
            CompletionItemKind::KEYWORD,
            "Outcomes above this one, by name.",
        ));
    }
    offers
}

/// What may follow a dot.
fn members(document: &Document, cursor: &Cursor, chain: &[&str]) -> Vec<CompletionOffer> {
    let tree = &cursor.tree;
    let named = |names: Vec<String>, kind: CompletionItemKind| -> Vec<CompletionOffer> {
        names.into_iter().map(|name| CompletionOffer::new(name, kind, "")).collect()
    };
    let names = || -> Vec<String> { phases(tree).into_iter().filter_map(|phase| phase.text).collect() };
    let chain = if let ["phases", rest @ ..] = chain
        && !rest.is_empty()
    {
        rest
    } else {
        chain
    };
    match chain {
        ["phases"] => named(names(), CompletionItemKind::EVENT),
        ["outcome"] => named(keys(tree, "outcome"), CompletionItemKind::CONSTANT),
        ["variables"] => named(keys(tree, "variables"), CompletionItemKind::CONSTANT),
        ["payoffs"] => named(agents(document, tree), CompletionItemKind::VARIABLE),
        [phase] if names().iter().any(|name| name == phase) => PHASE_FIELDS
            .iter()
            .map(|field| CompletionOffer::new(*field, CompletionItemKind::PROPERTY, ""))
            .collect(),
        [phase, "votes"] => named(options(document, phase), CompletionItemKind::ENUM_MEMBER),
        [_, "choices" | "said" | "replies"] => named(agents(document, tree), CompletionItemKind::VARIABLE),
        _ => Vec::new(),
    }
}

/// Results of the options of a phase's choice.
fn options(document: &Document, phase: &str) -> Vec<String> {
    let Some(scenario) = &document.scenario else { return Vec::new() };
    let found = scenario.phases.iter().find(|found| found.name == phase);
    let options = found.and_then(|phase| phase.choice.as_ref()).map(|choice| choice.options.iter());
    options.into_iter().flatten().map(|option| text_of(&option.value)).collect()
}
