# Common tasks, for https://just.systems. `just` lists them; you can also type the commands yourself.

_list:
    @just --list

# Play a scenario on the bundled model
play file="scenarios/prisoners-dilemma.yaml" *args:
    cargo run --release -- run {{ file }} {{ args }}

# All tests in Rust
test:
    cargo test --workspace

# Checks to run before pushing, without the tests
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Everything that CI does
ci:
    .ci/run

# Review changed snapshots and accept them
snapshots:
    cargo insta review

# Generate the schema and the reference of all fields from the program
generate:
    cargo run -- schema > scenarios/schema.json
    cargo run -- schema --format markdown > docs/reference.md

# Advisories, licences and sources of all dependencies
deny:
    cargo deny check

# Build the documentation site in site/book
site:
    .ci/site

# Type-check for macOS and Windows
platforms:
    .ci/platforms

# Make an archive and installers for this machine in target/distrib, and try them
package:
    .ci/release-files
    dist build
    .ci/try-installers

# Build the Python wheel for this machine in dist/wheels, and try it
wheel:
    .ci/wheel
