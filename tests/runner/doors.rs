//! There is one door to files and one to standard output; no code of the runner goes around them.

use std::path::{Path, PathBuf};

/// Calls that open, read or write a file by its path, and the files that may make them: each says why.
const FILES: (&[&str], &[&str]) = (
    &[
        "fs::read(",
        "fs::read_to_string",
        "fs::write(",
        "fs::copy(",
        "File::open",
        "File::create",
        ".open(path)",
        ".open(&",
    ],
    &["files/mod.rs"],
);

/// Calls that write to standard output, or end the program where it can't be written, and the file that may
/// make them.
const OUTPUT: (&[&str], &[&str]) =
    (&["io::stdout", "std::print", "std::eprint", "stdout()"], &["terminal/output.rs"]);

/// The macros, which are the standard's but in the commands.
const MACROS: &[&str] = &["println!(", "print!("];

/// All files of the runner, by their names in it, without their tests.
fn sources(folder: &Path, root: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files.extend(sources(&path, root));
        } else if path.extension().is_some_and(|end| end == "rs") && !path.ends_with("coverage.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let name = path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
            files.push((name, code.collect::<Vec<_>>().join("\n")));
        }
    }
    files
}

fn runner() -> Vec<(String, String)> {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("runner");
    let files = sources(&root, &root);
    assert!(files.len() > 100);
    files
}

#[test]
fn files_are_opened_and_output_is_written_in_one_place_each() {
    let mut around = Vec::new();
    for (name, code) in runner() {
        for (ways, doors) in [FILES, OUTPUT] {
            let found = ways.iter().filter(|way| code.replace("Term::stdout()", "").contains(**way));
            around.extend(
                found.filter(|_| !doors.contains(&name.as_str())).map(|way| format!("{name}: {way}")),
            );
        }
        // `commands/mod.rs` shadows them for all files below it.
        let found = MACROS.iter().filter(|way| code.contains(**way) && !name.starts_with("commands/"));
        around.extend(found.map(|way| format!("{name}: {way}")));
    }
    assert!(around.is_empty(), "use `files` and `terminal::output` instead:\n{}", around.join("\n"));
}
