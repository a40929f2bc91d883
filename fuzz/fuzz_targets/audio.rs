//! A recording of any bytes, in any container and codec that is decoded: finite samples or an error.
//!
//! A few bytes may stand for hours of silence by right; a minute of them is looked at. Decoders that panic are caught by
//! the reader (an overflow that this build checks for is a wrong number in others), so the fuzzer must not end at the
//! panic itself, but only at one that comes out.
#![no_main]

use std::sync::Once;

use audio::AudioStream;
use libfuzzer_sys::fuzz_target;

/// Blocks of a second.
const MAX_BLOCKS: usize = 60;

fuzz_target!(|data: &[u8]| {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| ())));
    let Ok(mut stream) = AudioStream::from_bytes(data, "fuzz") else { return };
    for block in stream.by_ref().take(MAX_BLOCKS) {
        let Ok(block) = block else { break };
        assert!(!block.is_empty() && block.len() <= audio::BLOCK_SAMPLES);
        assert!(block.iter().all(|sample| sample.is_finite()));
    }
    let _ = stream.damage().map(|damage| damage.to_string());
});
