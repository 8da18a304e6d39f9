//! Gives bytes to the reader `scenario`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = greenroom_fuzz::scenario(bytes);
});
