# Common tasks, for https://just.systems. `just` lists them; each is a line that can be typed instead.

_list:
    @just --list

# Play a scenario on the bundled model
play file="scenarios/prisoners-dilemma.yaml" *args:
    cargo run --release -- run {{ file }} {{ args }}

# All tests in Rust
test:
    cargo test --workspace

# What a change is held against before it is pushed, without the tests
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --locked -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked

# Everything that CI does
ci:
    .ci/run

# Look at changed snapshots and accept them
snapshots:
    cargo insta review

# Pages that are made from the program: the schema and the reference of all fields
generate:
    cargo run -- schema > scenarios/schema.json
    cargo run -- schema --format markdown > docs/reference.md

# Advisories, licences and sources of all dependencies
deny:
    cargo deny check

# The documentation's site, in site/book
site:
    .ci/site

# An archive for a platform, in dist/
package target="x86_64-unknown-linux-musl":
    .ci/package {{ target }}
