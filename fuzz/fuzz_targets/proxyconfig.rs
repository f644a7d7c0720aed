//! Any configuration file of `burst proxy`, and any directory file of peers: nothing panics, a refusal is one sentence, and what
//! is accepted lies within the limits.
#![no_main]

use burst_proxy::worker::fuzzed_worker::configurations;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        configurations(text);
    }
});
