//! Bounds of one rendering, and the meter that counts what it takes. A panic of minijinja is the last one.

use minijinja::{Error, ErrorKind, State};
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Instructions of one rendering, guards included: some tenths of a second.
pub const MAX_STEPS: u64 = 3_000_000;
/// Values that the operators and filters of one rendering look at, besides its steps. Sixteen bytes of text
/// count as one.
pub const MAX_WORK: usize = 5_000_000;
/// Bytes of the texts and lists that one rendering makes, all together, whether they live on or not.
pub const MAX_MADE: usize = 128 << 20;
/// Bytes of a single text that an operator or a filter makes.
pub const MAX_TEXT: usize = 8 << 20;
/// Bytes that one rendering writes, to its output and to `{% set %}` blocks, macros and the like.
pub const MAX_WRITTEN: usize = 8 << 20;
/// Lists and maps within each other. Comparing, printing and dropping go down a level of the stack at each.
pub const MAX_DEPTH: usize = 64;
/// Filters and tests that are called by filters (`map('map', …)`), within each other.
pub const MAX_NESTED_CALLS: usize = 16;
/// Frames within each other (loops, `with`; a macro's call counts as four): minijinja's own limit, lowered so
/// that a stack of 2 MB is enough in a debug build.
pub const MAX_FRAMES: usize = 250;
/// Maximum width of padding and indentation, and number of pieces, that a filter may be called with.
pub const MAX_WIDTH: i64 = 10_000;
/// Words and signs of a single `{{ … }}` or `{% … %}`. A parser goes down a level at each link of a chain
/// (`1+1+1…`).
pub const MAX_TOKENS: usize = 2_000;
/// Words and signs of a whole template.
pub const MAX_CODE: usize = 400_000;
/// `{% elif %}`s of one `{% if %}`, each of which lies within the one before.
pub const MAX_BRANCHES: usize = 100;

/// Bytes that a constant expression may come to: the compiler works it out once for each operator around it.
pub const MAX_FOLDED: usize = 100_000;

/// Bytes that an item of a list is counted as.
pub(crate) const ITEM: usize = 32;

/// A bound that a template met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// [`MAX_WORK`].
    Work,
    /// [`MAX_MADE`].
    Made,
    /// [`MAX_TEXT`].
    Text,
    /// [`MAX_WRITTEN`].
    Written,
    /// [`MAX_DEPTH`].
    Depth,
    /// [`MAX_NESTED_CALLS`].
    NestedCalls,
    /// [`MAX_WIDTH`].
    Width,
    /// [`MAX_TOKENS`].
    Tokens,
    /// [`MAX_CODE`].
    Code,
    /// [`MAX_BRANCHES`].
    Branches,
    /// [`MAX_FOLDED`].
    Folded,
}

impl Bound {
    /// The bound that an error is about, if it is about one.
    pub fn of(error: &Error) -> Option<Self> {
        std::error::Error::source(error)?.downcast_ref::<Met>()?.bound
    }

    /// The error of a line, where minijinja can't tell it.
    pub(crate) fn on_line(self, line: u16) -> Error {
        let met = Met { bound: Some(self), line: Some(usize::from(line)) };
        Error::new(ErrorKind::InvalidOperation, self.to_string()).with_source(met)
    }

    /// What a template did, and advice to its author.
    fn words(self) -> (String, &'static str) {
        let smaller = "make smaller texts and lists: check what doubles or repeats them";
        let mb = |bytes: usize| bytes >> 20;
        match self {
            Self::Work => (
                format!("this reads too much: filters and operators look at more than {MAX_WORK} values"),
                "compare, sort and search smaller lists and texts, or do so once, outside a loop",
            ),
            Self::Made => {
                (format!("this makes too much: texts and lists of more than {} MB", mb(MAX_MADE)), smaller)
            }
            Self::Text => (format!("this makes too long a text: more than {} MB", mb(MAX_TEXT)), smaller),
            Self::Written => (
                format!("this writes too much: more than {} MB", mb(MAX_WRITTEN)),
                "print less: check what is printed in a loop",
            ),
            Self::Depth => (
                format!("this nests too deep: more than {MAX_DEPTH} lists or maps within each other"),
                "put related values side by side instead of nesting them",
            ),
            Self::NestedCalls => (
                format!("this nests too deep: more than {MAX_NESTED_CALLS} filters within each other"),
                "call the filters one after the other",
            ),
            Self::Width => (
                format!("this asks for too much: a width or a number of pieces above {MAX_WIDTH}"),
                "ask for less padding, or for fewer pieces",
            ),
            Self::Tokens => (
                format!("this is too long: at most {MAX_TOKENS} words and signs are read at once"),
                "compute parts of it first, with `{% set %}` or in an `outcome`",
            ),
            Self::Code => (
                format!("this is too long: at most {MAX_CODE} words and signs of code are read"),
                "shorten it, or split it into several texts",
            ),
            Self::Branches => (
                format!("this is too long: at most {MAX_BRANCHES} branches are read"),
                "look the value up in a map instead",
            ),
            Self::Folded => {
                (format!("this makes too large a constant: more than {} kB", MAX_FOLDED / 1000), smaller)
            }
        }
    }

    /// Advice to an author who ran into it.
    pub fn remedy(self) -> &'static str {
        self.words().1
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().0)
    }
}

impl From<Bound> for Error {
    fn from(bound: Bound) -> Self {
        Error::new(ErrorKind::InvalidOperation, bound.to_string())
            .with_source(Met { bound: Some(bound), line: None })
    }
}

/// The line on which an error happened, as far as it is known.
pub fn line(error: &Error) -> Option<usize> {
    let met = || std::error::Error::source(error)?.downcast_ref::<Met>()?.line;
    error.line().or_else(met)
}

/// An error of a line that minijinja would not see.
pub(crate) fn on_line(detail: String, line: u16) -> Error {
    let met = Met { bound: None, line: Some(usize::from(line)) };
    Error::new(ErrorKind::InvalidOperation, detail).with_source(met)
}

/// Bound and line that an error is about, as its source.
#[derive(Debug)]
struct Met {
    bound: Option<Bound>,
    line: Option<usize>,
}

impl fmt::Display for Met {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.bound.map_or("write it another way", Bound::remedy))
    }
}

impl std::error::Error for Met {}

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Steps taken and values looked at by all renderings of this thread so far, failed ones too. Take the
/// difference.
pub fn taken() -> u64 {
    TAKEN.get()
}

/// Adds to what renderings have taken.
pub(crate) fn take(steps: u64) {
    TAKEN.set(TAKEN.get() + steps);
}

/// Counts what one rendering has taken.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    steps: u64,
    work: usize,
    made: usize,
    written: usize,
    calls: usize,
}

impl Meter {
    /// The meter of the rendering that `state` is about, which takes note of the steps so far.
    pub(crate) fn of<'s>(state: &'s mut State<'_, '_>) -> &'s mut Self {
        let steps = state.fuel_levels().map_or(0, |(steps, _)| steps);
        let meter = state.get_or_insert_extension_with(Self::default);
        take(steps.saturating_sub(std::mem::replace(&mut meter.steps, steps)));
        meter
    }

    /// Values looked at.
    pub(crate) fn look(&mut self, values: usize) -> Result<(), Error> {
        take(values.min(MAX_WORK) as u64);
        add(&mut self.work, values, MAX_WORK, Bound::Work)
    }

    /// Bytes of text looked at.
    pub(crate) fn read(&mut self, bytes: usize) -> Result<(), Error> {
        self.look(1 + bytes / 16)
    }

    /// Bytes made.
    pub(crate) fn make(&mut self, bytes: usize) -> Result<(), Error> {
        add(&mut self.made, bytes, MAX_MADE, Bound::Made)
    }

    /// A single text about to be made; what it takes is counted once it is there.
    pub(crate) fn foresee(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > MAX_TEXT {
            return Err(Bound::Text.into());
        }
        self.foresee_made(bytes)
    }

    /// Bytes about to be made; they are counted once they are there.
    pub(crate) fn foresee_made(&self, bytes: usize) -> Result<(), Error> {
        if self.made.saturating_add(bytes) > MAX_MADE { Err(Bound::Made.into()) } else { Ok(()) }
    }

    /// Bytes that may still be written.
    pub(crate) fn left_to_write(&self) -> usize {
        MAX_WRITTEN.saturating_sub(self.written)
    }

    /// Bytes written.
    pub(crate) fn write(&mut self, bytes: usize) -> Result<(), Error> {
        add(&mut self.written, bytes, MAX_WRITTEN, Bound::Written)
    }

    /// A filter begins, perhaps within another one.
    pub(crate) fn enter(&mut self) -> Result<(), Error> {
        add(&mut self.calls, 1, MAX_NESTED_CALLS, Bound::NestedCalls)
    }

    /// A filter has ended.
    pub(crate) fn leave(&mut self) {
        self.calls = self.calls.saturating_sub(1);
    }
}

fn add(to: &mut usize, n: usize, most: usize, bound: Bound) -> Result<(), Error> {
    *to = to.saturating_add(n).min(most.saturating_add(1));
    if *to > most { Err(bound.into()) } else { Ok(()) }
}

thread_local! {
    /// True if this thread is within [`caught`].
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; a panic in it is an error, and nothing is printed.
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
