//! Gives bytes to the reader `memory`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = greenroom_fuzz::memory(bytes);
});
