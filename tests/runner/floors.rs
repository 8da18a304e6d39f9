//! What Cargo can't say of imports: within a crate they form no circle, and few files name a device, the
//! engine or the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Folders of the crates.
const CRATES: &[&str] =
    &["runner", "play", "scenario", "yaml", "engine", "kernels", "grammar", "jinja", "lab"];

/// Files of the runner that may name the engine; all of the server may, which is a face of it.
const MAY_NAME_ENGINE: &[&str] = &[
    "backend/device.rs",
    "backend/embedded.rs",
    "backend/kv.rs",
    "backend/remote/",
    "backend/wire.rs",
    "commands/cache.rs",
    "commands/devices.rs",
    "commands/models.rs",
    "commands/check/mod.rs",
    "commands/check/bounds.rs",
    "commands/check/dry_run.rs",
    "commands/check/models.rs",
    "commands/explain/prompt.rs",
];

/// Files of the engine that open, list or write files; all others go through them. (And tests, of course.)
const MAY_OPEN_FILES: &[&str] = &["files.rs", "store/files.rs"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir()
            && !["tests", "benches", "examples", "target"].iter().any(|name| path.ends_with(name))
        {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    files
}

/// A file without its tests, which are at its end or in a file `tests.rs` below it, and may import anything.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

/// First part of every path in a file that begins so, braces opened.
fn names_after(text: &str, prefix: &str) -> Vec<String> {
    let code =
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices(prefix).filter(|(at, _)| !code[..*at].ends_with("super::")) {
        let rest = &code[at + prefix.len()..];
        if let Some(list) = rest.strip_prefix('{') {
            let (mut depth, mut word) = (0, String::new());
            for c in list.chars() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => found.push(std::mem::take(&mut word)),
                    c if depth == 0 => word.push(c),
                    _ => {}
                }
            }
            found.push(word);
        } else {
            found.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    let head = |name: String| name.trim().split("::").next().unwrap_or("").trim().to_string();
    found.into_iter().map(head).filter(|name| name.starts_with(|c: char| c.is_lowercase())).collect()
}

/// The modules that each module of a folder imports from the same folder, by whatever path.
fn imports(root: &Path, folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut modules: BTreeMap<String, Vec<(usize, PathBuf)>> = BTreeMap::new();
    for file in sources(folder) {
        let inside: Vec<String> =
            file.strip_prefix(folder).unwrap().iter().map(|part| part.to_string_lossy().into()).collect();
        let is_root = inside.len() == 1 && ["mod.rs", "lib.rs", "main.rs"].contains(&inside[0].as_str());
        if !is_root {
            let depth = inside.len() - usize::from(inside.last().unwrap() == "mod.rs");
            modules.entry(inside[0].trim_end_matches(".rs").to_string()).or_default().push((depth, file));
        }
    }
    let above = folder.strip_prefix(root).unwrap().iter().map(|part| format!("{}::", part.to_string_lossy()));
    let absolute = format!("crate::{}", above.collect::<String>());
    let of = |(own, files): (&String, &Vec<(usize, PathBuf)>)| {
        let named = files.iter().flat_map(|(depth, file)| {
            let text = std::fs::read_to_string(file).unwrap();
            let code = without_tests(&text);
            [names_after(code, &absolute), names_after(code, &"super::".repeat(*depth))].concat()
        });
        let named = named.filter(|name| name != own && modules.contains_key(name)).collect();
        (own.clone(), named)
    };
    modules.iter().map(of).collect()
}

/// A way along imports from a module back to itself.
fn circle(imports: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let mut done = BTreeSet::new();
    fn walk(
        at: &String,
        imports: &BTreeMap<String, BTreeSet<String>>,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(begin) = way.iter().position(|before| before == at) {
            return Some(way[begin..].to_vec());
        }
        if !done.insert(at.clone()) {
            return None;
        }
        way.push(at.clone());
        let found = imports[at].iter().find_map(|next| walk(next, imports, way, done));
        way.pop();
        found
    }
    imports.keys().find_map(|module| walk(module, imports, &mut Vec::new(), &mut done))
}

fn folders(root: &Path) -> Vec<PathBuf> {
    let all: BTreeSet<PathBuf> =
        sources(root).iter().map(|file| file.parent().unwrap().to_path_buf()).collect();
    all.into_iter().collect()
}

#[test]
fn no_imports_go_in_a_circle() {
    let (mut n, mut circles) = (0, Vec::new());
    for name in CRATES {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        for folder in folders(&root) {
            let imports = imports(&root, &folder);
            n += imports.values().map(BTreeSet::len).sum::<usize>();
            circles.extend(circle(&imports).map(|circle| format!("{}: {circle:?}", folder.display())));
        }
    }
    assert!(n > 300, "{n} imports");
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}

#[test]
fn a_circle_is_seen() {
    assert_eq!(
        names_after("use crate::{stage::Stage, prompt::{a, b}, timeline};", "crate::"),
        ["stage", "prompt", "timeline"]
    );
    assert_eq!(names_after("super::super::a::B, super::{c::D, e}", "super::"), ["super", "c", "e"]);
    let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<BTreeSet<_>>();
    let one_way = [("a".to_string(), set(&["b", "c"])), ("b".into(), set(&["c"])), ("c".into(), set(&[]))];
    let mut imports = BTreeMap::from(one_way);
    assert_eq!(circle(&imports), None);
    imports.insert("c".into(), set(&["a"]));
    assert_eq!(circle(&imports).unwrap(), ["a", "b", "c"]);
}

/// Above the seam nothing knows what computes; adding a device is a folder in `device/` and an arm in
/// `device::open`.
#[test]
fn only_few_files_name_a_device() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("engine");
    for file in sources(&root) {
        let inside = file.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
        let text = std::fs::read_to_string(&file).unwrap();
        let code = without_tests(&text);
        let may = ["device/", "fixtures/", "probes.rs", "engine.rs", "lib.rs"];
        let is_named = |name: &str| code.contains(name);
        let kernels = code.split("greenroom_kernels::").skip(1);
        let named = ["device::cpu", "device::reference", "device::gpu"]
            .into_iter()
            .find(|name| is_named(name))
            .or(kernels.into_iter().find(|rest| !rest.starts_with("threads") && !rest.starts_with("quant")));
        assert!(
            may.iter().any(|may| inside.starts_with(may)) || named.is_none(),
            "{inside}: `{}`",
            named.unwrap()
        );
    }
}

#[test]
fn only_few_files_name_the_engine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("runner");
    for file in sources(&root) {
        let inside = file.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
        let code = std::fs::read_to_string(&file).unwrap();
        let names_it = code.contains("greenroom_engine::") || code.contains("use greenroom_engine");
        assert!(
            !names_it
                || inside.starts_with("server/")
                || MAY_NAME_ENGINE.iter().any(|known| inside.starts_with(known)),
            "{inside} names the engine"
        );
    }
}

/// A named pipe, a device, a link or a terabyte may be in a file's place: only a guarded reader may open it.
#[test]
fn only_two_files_of_the_engine_touch_the_disk() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("engine");
    let touching = [
        "fs::read",
        "fs::write",
        "fs::metadata",
        "fs::remove",
        "fs::rename",
        "fs::create",
        "File::open",
        "File::create",
        "OpenOptions::new().write",
        ".is_file()",
        ".is_dir()",
        ".exists()",
    ];
    for file in sources(&root) {
        let inside = file.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let found = touching.iter().find(|name| code.contains(**name));
        let exempt = MAY_OPEN_FILES.contains(&inside.as_str());
        assert!(exempt || found.is_none(), "{inside} calls `{}`: see engine/files.rs", found.unwrap());
    }
}
