//! The package's files agree with the crate's. The rest of its tests are in Python.

use std::path::Path;

fn read(path: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

#[test]
fn the_oldest_python_is_the_same_in_both_manifests() {
    let cargo = read("Cargo.toml");
    let abi = cargo.split("abi3-py3").nth(1).expect("abi3").split('"').next().expect("a version");
    let python = format!("requires-python = \">=3.{abi}\"");
    assert!(read("pyproject.toml").contains(&python), "{python}");
}

#[test]
fn the_wheel_has_the_licences_of_the_repository() {
    for name in ["LICENSE-APACHE", "LICENSE-MIT"] {
        assert_eq!(read(name), read(&format!("../{name}")), "{name}");
    }
}
