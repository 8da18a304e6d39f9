//! Figures are the same on every machine: no source that a transcript, a table or a comparison may depend on
//! calls the platform's own mathematics library (`exp`, `ln`, `powf`, …, which differ in last digits). The
//! `libm` crate has the same functions for all.
//!
//! Functions that IEEE 754 rounds exactly (`sqrt`, `mul_add`, `floor`, `abs`) are the same everywhere, so
//! they may be used.

use std::path::{Path, PathBuf};

/// Methods of std's floats whose last digits are the platform's.
const PLATFORM: &[&str] = &[
    "exp", "exp2", "exp_m1", "ln", "ln_1p", "log", "log2", "log10", "powf", "powi", "cbrt", "hypot", "sin",
    "cos", "tan", "sin_cos", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "gamma", "ln_gamma", "erf", "erfc",
];

/// Calls of that name that are something else, and how many there are: the kernels' own polynomial, the same
/// in all instruction sets.
const OWN: &[(&str, &str, usize)] = &[
    ("kernels/attention/mod.rs", "exp", 3),
    ("kernels/divergence.rs", "exp", 2),
    ("kernels/pointwise.rs", "exp", 3),
    ("kernels/recurrence.rs", "exp", 1),
    ("kernels/vocabulary.rs", "exp", 1),
];

/// Files that hold tests alone.
const TESTS: &[&str] = &[
    "engine/device/reference/cache.rs",
    "engine/device/reference/decoder.rs",
    "engine/device/reference/recurrence.rs",
    "engine/turns/sampler/chances.rs",
    "engine/turns/sampler/tests.rs",
    "runner/statistics/coverage.rs",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && !["tests", "benches", "target"].iter().any(|name| path.ends_with(name)) {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The code that is compiled into the program: no comments, and not the tests at the file's end.
fn code(text: &str) -> String {
    let before_tests = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let without = |line: &str| line.split("//").next().unwrap_or_default().to_string() + "\n";
    before_tests.lines().map(without).collect()
}

/// The number of calls of a method of floats: as a method, or by its path.
fn calls(code: &str, name: &str) -> usize {
    let ways = [format!(".{name}("), format!("f64::{name}"), format!("f32::{name}")];
    let whole = |at: usize| !code[at..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let count = |way: &String| {
        code.match_indices(way).filter(|(at, _)| way.ends_with('(') || whole(at + way.len())).count()
    };
    ways.iter().map(count).sum()
}

#[test]
fn nothing_that_is_recorded_or_compared_depends_on_the_platforms_mathematics() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut files, mut wrong) = (Vec::new(), Vec::new());
    ["engine", "kernels", "grammar", "jinja", "yaml", "scenario", "play", "runner"]
        .iter()
        .for_each(|folder| sources(&root.join(folder), &mut files));
    assert!(files.len() > 150, "{} files", files.len());
    for file in files {
        let name = file.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
        if TESTS.contains(&name.as_str()) {
            continue;
        }
        let code = code(&std::fs::read_to_string(&file).unwrap());
        for method in PLATFORM {
            let own =
                OWN.iter().find(|(file, own, _)| *file == name && own == method).map_or(0, |(.., n)| *n);
            let n = calls(&code, method);
            if n != own {
                wrong.push(format!("{name}: {n} calls of `{method}`, {own} expected"));
            }
        }
    }
    assert!(wrong.is_empty(), "use the libm crate instead:\n{}", wrong.join("\n"));
}

#[test]
fn the_guard_finds_what_it_looks_for() {
    let text = "let a = x.exp() + f64::powf(x, 2.0); // y.ln()\nlet b = xs.map(f32::ln);\n\
                let c = f64::exp_m1(x);\n#[cfg(test)]\nmod tests {\n    x.sin();\n}\n";
    let found: Vec<(&str, usize)> =
        PLATFORM.iter().map(|name| (*name, calls(&code(text), name))).filter(|(_, n)| *n > 0).collect();
    assert_eq!(found, [("exp", 1), ("exp_m1", 1), ("ln", 1), ("powf", 1)]);
}
