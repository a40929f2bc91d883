//! Recordings and pictures.

use std::sync::{Once, OnceLock};

use audio::AudioStream;
use model::{ModelSpec, VisionSpec};
use weights::Access;

use crate::files::fixture;

/// Blocks of a second.
const MAX_BLOCKS: usize = 60;
/// Pixels of a side: larger pictures are right too, but a fuzzer learns nothing from them.
const MAX_SIDE: usize = 2048;

/// A recording of any bytes, in any container and codec that is decoded: finite samples or an error.
///
/// A few bytes may stand for hours of silence by right; a minute of them is looked at. Decoders that panic are caught by
/// the reader (an overflow that this build checks for is a wrong number in others), so the fuzzer must not end at the
/// panic itself, but only at one that comes out.
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

/// A WAV file whose header is right up to its chunks, which are any bytes.
pub(crate) fn wav(data: &[u8]) {
    let len = (data.len() as u32).wrapping_add(4).to_le_bytes();
    audio(&[b"RIFF", &len[..], b"WAVE", data].concat());
}

/// A picture of any bytes, decoded and made ready for a tower.
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
