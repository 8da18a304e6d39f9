//! A panic of minijinja, the last resort: it ends in an error instead of the program, and nothing is printed.

use minijinja::{Error, ErrorKind};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// True if this thread is within [`caught`].
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; a panic in it is an error.
///
/// Leftovers are dropped with its state: environments don't change while they are used.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !WITHIN.get() {
                before(info);
            }
        }));
    });
    let outer = WITHIN.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    WITHIN.set(outer);
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_default();
        let detail =
            format!("minijinja can't evaluate this ({text}): please report it, and write it another way");
        Err(Error::new(ErrorKind::InvalidOperation, detail))
    })
}
