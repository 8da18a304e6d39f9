//! There is one door to files and one to standard output; no code above the engine goes around them.

use std::path::Path;

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
    &["scenario/files/mod.rs"],
);

/// Calls that write to standard output, or end the program where it can't be written, and the file that may
/// make them.
const OUTPUT: (&[&str], &[&str]) =
    (&["io::stdout", "std::print", "std::eprint", "stdout()"], &["runner/terminal/output.rs"]);

/// The macros, which are the standard's but in the commands.
const MACROS: &[&str] = &["println!(", "print!("];

/// All files of a folder, by their paths from the root, without their tests.
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

fn above_the_engine() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = ["yaml", "scenario", "play", "runner"];
    let files: Vec<_> = crates.iter().flat_map(|name| sources(&root.join(name), root)).collect();
    assert!(files.len() > 300);
    files
}

#[test]
fn files_are_opened_and_output_is_written_in_one_place_each() {
    let mut around = Vec::new();
    for (name, code) in above_the_engine() {
        for (ways, doors) in [FILES, OUTPUT] {
            let found = ways.iter().filter(|way| code.replace("Term::stdout()", "").contains(**way));
            around.extend(
                found.filter(|_| !doors.contains(&name.as_str())).map(|way| format!("{name}: {way}")),
            );
        }
        // `runner/commands/mod.rs` shadows them for all files below it.
        let found = MACROS.iter().filter(|way| code.contains(**way) && !name.starts_with("runner/commands/"));
        around.extend(found.map(|way| format!("{name}: {way}")));
    }
    assert!(around.is_empty(), "use `files` and `terminal::output` instead:\n{}", around.join("\n"));
}
