//! Targets for recordings and pictures.

use std::sync::{Once, OnceLock};

use audio::AudioStream;
use model::{ModelSpec, VisionSpec};
use weights::Access;

use crate::files::fixture;

/// Blocks of audio in a second.
const MAX_BLOCKS: usize = 60;
/// Longest side of a picture, in pixels. A fuzzer learns nothing from larger ones.
const MAX_SIDE: usize = 2048;

/// A recording of any bytes, in every container and codec that is decoded. The result is finite
/// samples or an error.
///
/// A few valid bytes may decode to hours of silence, so only the first minute is decoded. The
/// reader catches panics of decoders (an overflow is a panic only in builds with checks). So the
/// fuzzer must stop only at a panic that escapes the reader.
pub(crate) fn audio(data: &[u8]) {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let of_decoder = info.location().is_some_and(|at| at.file().contains("symphonia"));
            if !of_decoder {
                usual(info);
            }
        }));
    });
    let Ok(mut stream) = AudioStream::from_bytes(data, "fuzz") else { return };
    for block in stream.by_ref().take(MAX_BLOCKS) {
        let Ok(block) = block else { break };
        assert!(!block.is_empty() && block.len() <= audio::BLOCK_SAMPLES);
        assert!(block.iter().all(|sample| sample.is_finite()));
    }
    let _ = stream.damage().map(|damage| damage.to_string());
}

/// A WAV file with a valid header, followed by chunks of any bytes.
pub(crate) fn wav(data: &[u8]) {
    let len = (data.len() as u32).wrapping_add(4).to_le_bytes();
    audio(&[b"RIFF", &len[..], b"WAVE", data].concat());
}

/// A picture of any bytes, decoded and preprocessed for a vision tower.
pub(crate) fn image(data: &[u8]) {
    static SPEC: OnceLock<VisionSpec> = OnceLock::new();
    let spec = SPEC.get_or_init(|| {
        let checkpoint = formats::open(&fixture("models/qwen2_5_vl"), Access::Read).expect("the fixture");
        let spec = ModelSpec::from_checkpoint(&checkpoint).expect("the fixture's numbers");
        spec.vision.expect("a tower")
    });
    let Ok(colours) = vision::decode(data) else { return };
    assert_eq!(colours.bytes.len(), colours.height * colours.width * 3);
    if colours.height.max(colours.width) <= MAX_SIDE
        && let Ok(picture) = vision::prepare(spec, colours)
    {
        spec.check(&picture).expect("a picture that was made for this tower");
    }
}
