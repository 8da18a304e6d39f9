//! JUnit XML, as CI systems read it: a test case for each recording, and for what an experiment asserts over
//! many runs.

use crate::verify::{ProblemKind, Verdict};
use anyhow::Context as _;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

/// Verdicts as JUnit XML. What drifted, or asserted in vain, is a failure; what can't be judged an error.
///
/// # Errors
/// The report can't be written as XML.
pub fn junit(verdicts: &[Verdict]) -> anyhow::Result<String> {
    let mut suite = TestSuite::new("greenroom replay");
    suite.add_test_cases(verdicts.iter().map(case));
    let mut report = Report::new("greenroom");
    report.add_test_suite(suite);
    report.to_string().context("can't write JUnit XML")
}

fn case(verdict: &Verdict) -> TestCase {
    let status = match verdict.worst() {
        None => TestCaseStatus::success(),
        Some(worst) => {
            let kind = match worst {
                ProblemKind::Assertion | ProblemKind::Drift => NonSuccessKind::Failure,
                ProblemKind::Invalid | ProblemKind::Environment => NonSuccessKind::Error,
            };
            let mut status = TestCaseStatus::non_success(kind);
            let texts: Vec<String> = verdict.problems.iter().map(|problem| problem.plain()).collect();
            if let Some(first) = verdict.problems.iter().find(|problem| problem.kind == worst) {
                status.set_message(first.headline()).set_type(format!("{worst:?}").to_lowercase());
            }
            status.set_description(texts.join("\n\n"));
            status
        }
    };
    let mut case = TestCase::new(verdict.name(), status);
    case.set_classname(verdict.scenario.as_deref().unwrap_or("greenroom"));
    let figures = verdict.figures.iter().map(|figure| format!("{figure}\n"));
    let out: String = figures.chain(verdict.notes.iter().map(|note| format!("note: {note}\n"))).collect();
    if !out.is_empty() {
        case.set_system_out(out);
    }
    case.set_time(Duration::try_from_secs_f64(verdict.seconds).unwrap_or_default());
    case
}
