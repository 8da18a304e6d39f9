//! Which part of a text of unknown origin is speech, and which is reasoning.

use greenroom_engine::ThoughtForm;
use std::ops::Range;
use std::sync::LazyLock;

/// Marks of reasoning in a text whose template isn't known. It may have opened the reasoning itself.
pub(crate) static KNOWN: LazyLock<ThoughtForm> = LazyLock::new(|| ThoughtForm::of_text().perhaps_opened());

/// The bytes of a reply of unknown origin that are its speech.
pub(crate) fn speech_of(raw: &str) -> Range<usize> {
    KNOWN.parts(raw).speech
}
