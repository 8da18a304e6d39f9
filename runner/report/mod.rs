//! The report of a run: one self-contained HTML page without scripts, which can be shared as a file.
//!
//! [`html`] makes it from [`ReportSources`]. The contents are computed here; the layout is in
//! `templates/report/`. Everything that the template prints is cleaned and escaped in one place, the
//! formatter, so no text of a model or an author can be missed.

mod cache;
mod cast;
mod chart;
mod comparison;
mod cost;
mod dialogue;
mod hearing;
mod making;
mod matrix;
mod results;
mod sources;
mod text;
mod views;

pub use comparison::comparison;
pub use sources::{Caveat, ReportSources};

use anyhow::Context as _;
use cast::{CastIndex, Member};
use dialogue::TurnLine;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value, escape_formatter};
use serde::Serialize;

/// The file's name in a run's folder.
pub const FILE: &str = "report.html";
/// The mark of a page made by this program: only such a file is overwritten.
pub const MARK: &str = r#"<meta name="generator" content="greenroom report" />"#;

const PARTS: [(&str, &str); 11] = [
    ("report.html", include_str!("../../templates/report/report.html")),
    ("experiment.html", include_str!("../../templates/report/experiment.html")),
    ("macros.html", include_str!("../../templates/report/macros.html")),
    ("head.html", include_str!("../../templates/report/head.html")),
    ("results.html", include_str!("../../templates/report/results.html")),
    ("dialogue.html", include_str!("../../templates/report/dialogue.html")),
    ("views.html", include_str!("../../templates/report/views.html")),
    ("hearing.html", include_str!("../../templates/report/hearing.html")),
    ("cache.html", include_str!("../../templates/report/cache.html")),
    ("making.html", include_str!("../../templates/report/making.html")),
    ("style.css", include_str!("../../templates/report/style.css")),
];

/// Everything on the page.
#[derive(Serialize)]
struct PageContext<'a> {
    mark: Value,
    title: &'a str,
    description: &'a str,
    caveats: &'a [Caveat],
    cast: Vec<&'a Member>,
    results: Option<results::ResultsView>,
    particulars: Vec<(String, String)>,
    variables: Vec<(&'a str, String)>,
    graph: Option<Value>,
    /// True if it shows turns that were not played, too.
    all_turns: bool,
    scenes: Vec<dialogue::PhaseView>,
    views: Vec<views::AgentView>,
    hearing: Option<hearing::Hearing>,
    cache: Option<cache::CacheView>,
    making: making::Making,
    n_turns: usize,
}

/// The page. Identical runs with identical traces give identical pages. Its picture of the plan shows the turns
/// that were played, or all that were possible (`all_turns`).
///
/// ```no_run
/// use greenroom::report::{ReportSources, html};
///
/// let sources = ReportSources::open("runs/gossip-1".as_ref(), &Default::default())?;
/// std::fs::write("gossip.html", html(&sources, false)?)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
///
/// # Errors
/// A built-in template fails, which is a bug.
pub fn html(sources: &ReportSources, all_turns: bool) -> anyhow::Result<String> {
    let header = &sources.transcript.header.record;
    let cast = CastIndex::new(sources);
    let lines = TurnLine::all(&sources.transcript);
    let turns: Vec<TurnLine<'_>> = lines.iter().filter(|line| !line.is_call).copied().collect();
    let scenario = sources.scenario.as_ref();
    let graph = sources.plan.as_ref().zip(scenario).and_then(|(plan, scenario)| {
        let played = (!all_turns).then(|| sources.played());
        let drawn = crate::drawing::svg(plan, scenario, played.as_ref())?;
        Some(Value::from_safe_string(drawn))
    });
    let page = PageContext {
        mark: Value::from_safe_string(MARK.to_string()),
        title: scenario.map_or(header.scenario.id.as_str(), |scenario| scenario.title.as_str()),
        description: scenario.map_or("", |scenario| scenario.description.trim()),
        caveats: &sources.caveats,
        cast: cast.members().collect(),
        results: results::results(sources, &cast),
        particulars: results::particulars(sources),
        variables: header.variables.iter().map(|(name, v)| (name.as_str(), text::value(v))).collect(),
        graph,
        all_turns,
        scenes: dialogue::scenes(sources, &cast, &turns),
        views: views::views(sources, &cast, &turns),
        hearing: hearing::hearing(sources, &cast, &turns),
        cache: cache::cache(sources, &cast, &lines),
        making: making::making(sources),
        n_turns: turns.iter().filter(|line| !line.is_summary).count(),
    };
    let environment = environment()?;
    let template = environment.get_template("report.html")?;
    template
        .render(Value::from(Serde(page)))
        .context("the report's template failed (this is a bug in greenroom)")
}

fn environment() -> anyhow::Result<Environment<'static>> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|name| {
        if name.ends_with(".html") { AutoEscape::Html } else { AutoEscape::None }
    });
    environment.set_formatter(|out, state, value| match value.as_str().filter(|_| !value.is_safe()) {
        Some(text) => escape_formatter(out, state, &Value::from(text::clean(text))),
        None => escape_formatter(out, state, value),
    });
    // Not `tojson`: it writes `I'm` as `I\u0027m`.
    environment.add_filter("json", text::json);
    environment.add_filter("thousands", text::thousands);
    environment.add_filter("duration", text::duration);
    environment.add_filter("bytes", text::bytes);
    for (name, part) in PARTS {
        environment.add_template(name, part)?;
    }
    Ok(environment)
}
