//! Templates within bounds: what minijinja gives, to the byte; and an error for everything else.

mod hostile;
mod random;
mod same;

use greenroom_jinja::Jinja;
use minijinja::{Error, UndefinedBehavior, Value, context};

/// An environment as scenarios have it, with the methods that chat templates have.
fn jinja() -> Jinja {
    let jinja = Jinja::new(UndefinedBehavior::Strict).with_ranges();
    jinja.with_methods(minijinja_contrib::pycompat::unknown_method_callback)
}

/// Values that a template may name.
fn names() -> Value {
    context! {
        n => 3,
        text => "Ann and Ben",
        list => [3, 1, 2],
        empty => Vec::<i32>::new(),
        map => context! { b => 1, a => [1, 2] },
        items => [context! { k => "x", v => 2 }, context! { k => "y", v => 1 }, context! { k => "x", v => 3 }],
        none => (),
        long => "x".repeat(1_000_000),
    }
}

fn rendered(source: &str) -> Result<String, Error> {
    jinja().template("t", source)?.render(names())
}
