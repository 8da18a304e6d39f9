//! The JSON Schema and the reader are of one mind: what is shipped validates, mistakes of shape and of words
//! don't.

use greenroom::scenario::load;
use greenroom::scenario::schema::json_schema;
use std::path::PathBuf;

fn validates(text: &str) -> Result<(), String> {
    let mut value: serde_yaml::Value = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
    value.apply_merge().map_err(|error| error.to_string())?;
    let value = with_text_keys(value);
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.add_resource("scenario.json", json_schema().as_value().clone()).unwrap();
    let schema = compiler.compile("scenario.json", &mut schemas).unwrap();
    schemas.validate(&value, schema).map_err(|error| error.to_string())
}

/// Editors read `true:` and `1:` as the texts that JSON has for keys.
fn with_text_keys(value: serde_yaml::Value) -> serde_json::Value {
    use serde_yaml::Value;
    match value {
        Value::Mapping(entries) => {
            let key = |key: Value| match key {
                Value::String(key) => key,
                other => serde_yaml::to_string(&other).unwrap().trim().to_string(),
            };
            entries.into_iter().map(|(name, value)| (key(name), with_text_keys(value))).collect()
        }
        Value::Sequence(items) => items.into_iter().map(with_text_keys).collect(),
        other => serde_json::to_value(other).unwrap(),
    }
}

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
    files.sort();
    files
}

#[test]
fn what_is_right_validates() {
    for folder in ["scenarios", "tests/scenarios", "templates/scenarios"] {
        // An included file has no phases, so it is no scenario.
        for path in files(folder).into_iter().filter(|path| !path.ends_with("cast.yaml")) {
            let text = std::fs::read_to_string(&path).unwrap().replace("NAME", "name");
            validates(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

/// Mistakes that no schema can see: of names, of templates and expressions, of numbers that depend on each
/// other. `rounds: 0` is right before a vote.
const UNSEEN: &[&str] = &[
    "tool_function_name",
    "tool_function_no_about",
    "whisper_to_itself",
    "for_within_for",
    "pass_that_is_not",
    "matrix_of_couples",
    "tit_for_tat_of_a_set",
    "vote_of_a_set",
    "size_too_large",
    "pairs_with_max_turns",
    "pairs_twice_in_a_round",
    "pairs_of_strangers",
    "item_outside",
    "for_of_unequal_items",
    "for_of_the_state",
    "for_of_a_taken_name",
    "for_is_no_list",
    "call_without_the_tool",
    "call_of_nothing",
    "each_of_a_number",
    "each_of_nobody",
    "me_without_each",
    "personas_twice",
    "personas_no_column",
    "personas_no_file",
    "personas_no_trait",
    "trait_of_all",
    "agent_named_nobody",
    "overhears_itself",
    "pairs_of_one",
    "say_field_as_agent",
    "state_named_after",
    "state_named_each",
    "to_itself",
    "to_word",
    "vote_and_answer",
    "vote_in_a_form",
    "vote_leader_of_two",
    "vote_ranked_in_words",
    "vote_without_leader",
    "word_after",
    "assertion_share_turned",
    "parse_choice_crossed",
    "parse_choice_same_words",
    "parse_choice_without_words",
    "tool_too_large",
    "tool_unknown",
    "tool_undeclared",
    "tool_built_in",
    "tool_built_in_long",
    "tool_two_kinds",
    "tool_no_kind",
    "tool_lookup_no_key",
    "tool_lookup_no_file",
    "tool_lookup_column",
    "tool_lookup_no_rows",
    "tool_command_no_about",
    "tool_command_no_arguments",
    "tool_arguments_no_object",
    "tool_server_name",
    "tool_server_header_own",
    "tool_of_a_rule",
    "schema_no_file",
    "schema_no_json",
    "schema_list",
    "schema_key_twice",
    "schema_keyword",
    "cases_no_file",
    "cases_absolute",
    "cases_empty",
    "cases_no_rows",
    "cases_ragged",
    "cases_semicolons",
    "template_in_a_command",
    "template_in_a_language",
    "template_in_a_model",
    "template_in_a_result",
    "template_in_a_schema",
    "template_before_the_run",
    "template_in_a_name",
    "template_of_braces",
    "cases_column_twice",
    "cases_column_unnamed",
    "cases_column_misspelt",
    "cases_column_part",
    "cases_type",
    "cases_type_list",
    "cases_name_twice",
    "cases_name_blank",
    "cases_not_utf8",
    "cases_json",
    "cases_json_list",
    "cases_json_twice",
    "cases_json_type",
    "cases_json_empty",
    "cases_reserved_name",
    "include_with_cases",
    "judge_as_agent",
    "judge_ask_undefined",
    "judge_ephemeral",
    "judge_name_taken",
    "judge_name_twice",
    "judge_reserved_name",
    "judge_that_fails",
    "judge_too_early",
    "judge_two_models",
    "judge_unknown_agent",
    "judge_unknown_model",
    "judge_unknown_name",
    "verdict_without_judge",
    "embeddings_unknown",
    "memory_empty_window",
    "route_absent",
    "route_and_expression",
    "route_ephemeral",
    "route_later_phase",
    "route_observer",
    "route_of_nobody",
    "route_of_one",
    "route_otherwise",
    "route_twice",
    "model_unknown",
    "include_with_settings",
    "model_not_listed",
    "model_permanent_twice",
    "model_twice_in_a_phase",
    "model_without_file",
    "type_choice_text",
    "block_too_deep",
    "block_too_long",
    "block_zero",
    "cast_no_agents",
    "cast_no_list",
    "cast_one_agent",
    "let_too_early",
    "let_unknown",
    "open_twice",
    "own_phase_in_block",
    "pass_outside_block",
    "payoff_phase_twice",
    "payoff_phases_differ",
    "state_and_variable",
    "state_in_rounds",
    "state_in_system_prompt",
    "state_set_type",
    "state_set_unknown",
    "voters_absent",
    "type_present_text",
    "grammar_lark",
    "grammar_regex",
    "reply_always",
    "reply_and_choice",
    "reply_and_choice_of_turn",
    "reply_and_grammar",
    "reply_elsewhere",
    "reply_circle",
    "reply_nothing",
    "reply_null",
    "reply_of_rule",
    "reply_type",
    "announce_absent",
    "language_unknown_value",
    "language_lacks_options",
    "language_blank",
    "language_rules_undefined",
    "language_lines",
    "rounds_no_number",
    "rounds_of_a_result",
    "type_rounds",
    "announce_later_phase",
    "round_in_opening",
    "outcome_fails",
    "payoff_two_choices_of_one",
    "template_fails_on_every_choice",
    "template_payoffs_too_early",
    "when_later_phase_of_phases",
    "agent_absent_coordinator",
    "agent_absent_interaction",
    "agent_absent_payoff",
    "agent_absent_private",
    "agent_absent_turn",
    "agent_by_display_name",
    "agent_observer_speaks",
    "agent_one_name",
    "agent_twice",
    "agent_unknown",
    "agent_unknown_interaction",
    "agent_unknown_moderator",
    "agent_unknown_payoff",
    "agent_unknown_private",
    "agent_unknown_quote",
    "agent_unknown_result",
    "agent_unknown_turn",
    "agent_whispers_to_itself",
    "choice_blank_option",
    "choice_duplicate",
    "choice_yes_no_twice",
    "decision_ranked_parsed",
    "decision_without_coordinator",
    "include_absolute",
    "include_broken",
    "include_missing",
    "include_with_phases",
    "name_clash",
    "name_reserved",
    "outcome_unknown",
    "payoff_flat",
    "payoff_missing_cell",
    "payoff_not_a_number",
    "payoff_unknown_option",
    "chance_as_name",
    "chance_before_the_run",
    "chance_of_rounds",
    "chance_of_too_many",
    "payoff_without_choice",
    "payoff_wrong_number",
    "payoffs_without_payoff",
    "phase_nobody_speaks",
    "phase_too_long",
    "phase_twice",
    "phase_unknown_payoff",
    "phase_unknown_quote",
    "phase_whisper_and_public",
    "template_later_phase",
    "template_message_key",
    "template_own_phase",
    "template_phase_field",
    "template_syntax",
    "template_system_varies",
    "template_unclosed_braces",
    "template_undefined",
    "template_undefined_part",
    "filter_unknown_unreached",
    "template_unknown_filter",
    "type_rounds_zero",
    "until_later_phase",
    "until_syntax",
    "when_braces",
    "when_field",
    "when_in_words",
    "when_later_phase",
    "when_own_phase",
    "when_single_equals",
    "when_undefined",
    "word_strategy_no_option",
];

#[test]
fn mistakes_of_shape_and_of_words_do_not_validate() {
    let mut wrong = Vec::new();
    for path in files("tests/runner/broken") {
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        // The schema is that of our own format.
        if name.trim_start_matches("warn_").starts_with("papers_") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let seen = validates(&text).is_err();
        // Warned of is right.
        let unseen = UNSEEN.contains(&name.as_str()) || name.starts_with("warn_");
        if seen == unseen {
            wrong.push((name, seen));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn absent_and_null_are_the_same() {
    let schema = json_schema().as_value();
    let fields = |at: &str| -> Vec<String> {
        let at = schema.pointer(at).unwrap();
        let required: Vec<_> = at["required"].as_array().into_iter().flatten().collect();
        let fields = at["properties"].as_object().unwrap().keys();
        fields.filter(|key| !required.iter().any(|needed| *needed == key.as_str())).cloned().collect()
    };
    let nulls = |at: &str, except: &[&str]| -> String {
        let fields = fields(at).into_iter().filter(|field| !except.contains(&field.as_str()));
        fields.map(|field| format!(", {field}: ~")).collect()
    };
    let text = format!(
        "{{agents: {{ann: {{display_name: Ann{}}}, ben: ~}}, phases: [{{name: p, agents: [ann, ben]{}}}, \
         {{name: t, agents: [ann, ben], turns: [{{agent: ann{}}}]}}, {{name: c, agents: [ann, ben], answer: \
         {{one_of: [x, y]{}}}, say: [{{text: Hush.{}}}]}}, {{name: v, agents: [ann, ben], vote: {{rule: \
         majority, answer: [x, y]{}}}}}], payoff: {{phase: c, each: 1{}}}, sampling: {{temperature: 1{}}}, \
         assertions: [{{that: 1{}}}]{}}}",
        nulls("/$defs/Agent", &["display_name"]),
        nulls("/$defs/Phase", &["order", "turns", "pairs", "moderator"]),
        nulls("/$defs/Turn", &[]),
        nulls("/$defs/LongAnswer", &["one_of", "some_of", "schema", "regex", "lark"]),
        nulls("/$defs/Say", &[]),
        nulls("/$defs/Vote", &[]),
        nulls("/$defs/Payoff", &["each", "matrix"]),
        nulls("/$defs/Sampling", &["temperature"]),
        nulls("/$defs/LongAssertion", &[]),
        nulls("", &["agents", "payoff", "sampling", "assertions"]),
    );
    validates(&text).unwrap_or_else(|error| panic!("{error}"));
    let report = load("x.yaml", &text, &[]).report;
    assert!(report.diagnostics.is_empty(), "{}", report.render(false));
}
