//! WAV headers of recorders that did not know the length of the recording.
#![allow(clippy::unwrap_used)]

use crate::common::{Sample, correlation, expected, tones, wav};
use audio::{Audio, Error, Result, decode, decode_bytes, decode_reader};

/// Number of 16-bit mono samples at 16 kHz.
const N_SAMPLES: usize = 2000;

fn samples() -> Vec<u8> {
    (0..N_SAMPLES).flat_map(|i| (i as i16 * 7 + 1).to_le_bytes()).collect()
}

fn chunk(id: &[u8; 4], length: u32, body: &[u8]) -> Vec<u8> {
    [id, &length.to_le_bytes()[..], body].concat()
}

fn format() -> Vec<u8> {
    let body = [1, 0, 1, 0, 0x80, 0x3E, 0, 0, 0, 0x7D, 0, 0, 2, 0, 16, 0];
    chunk(b"fmt ", 16, &body)
}

/// A file with this outer length and length of samples.
fn file(riff: u32, data: u32) -> Vec<u8> {
    [chunk(b"RIFF", riff, b"WAVE"), format(), chunk(b"data", data, &samples())].concat()
}

/// Decodes the bytes from memory, from a file on disk, and through a pipe.
fn every_way(bytes: &[u8]) -> Vec<Result<Audio>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("talk.wav");
    std::fs::write(&path, bytes).unwrap();
    let pipe = decode_reader(std::io::Cursor::new(bytes.to_vec()), "-");
    vec![decode_bytes(bytes, "talk.wav"), decode(path), pipe]
}

#[track_caller]
fn is_whole(bytes: &[u8], what: &str) {
    let first = |audio: &Audio, i: usize| (audio.samples[i] * 32768.0).round() as i32;
    for (way, result) in every_way(bytes).into_iter().enumerate() {
        let audio = result.unwrap_or_else(|error| panic!("{what}, way {way}: {error}"));
        assert_eq!((audio.samples.len(), audio.damage.clone()), (N_SAMPLES, None), "{what}, way {way}");
        assert_eq!((first(&audio, 0), first(&audio, 1999)), (1, 1999 * 7 + 1), "{what}, way {way}");
    }
}

#[test]
fn samples_end_at_the_end_of_the_file_whatever_the_lengths_say() {
    let n = 2 * N_SAMPLES as u32;
    for (riff, data) in [
        (n + 36, n),
        (0, 0),
        (36, 0),
        (n + 36, u32::MAX),
        (0, n),
        (20, n),
        (u32::MAX, n),
        (u32::MAX, 0),
        (0, u32::MAX),
        (u32::MAX, u32::MAX),
        // These lengths are those of sox, espeak, arecord, parec and ffmpeg.
        (0x7FFF_F024, 0x7FFF_F000),
        (0x7FFF_FFFF, 0x7FFF_FFDB),
        (0x8000_0024, 0x8000_0000),
        (0x7FFF_FFFF, 0x7FFF_FFFF),
        (0x8000_0020, 0x7FFF_FFFC),
        (0xFFFF_F024, 0xFFFF_F000),
        (u32::MAX, 0xFFFF_FFB2),
        (u32::MAX, 0xFFFF_FFDB),
        (n + 36, 0x8000_0000),
    ] {
        is_whole(&file(riff, data), &format!("{riff:#x}/{data:#x}"));
    }
}

#[test]
fn chunks_before_and_behind_the_samples_are_no_sound() {
    let n = 2 * N_SAMPLES as u32;
    let data = |length| chunk(b"data", length, &samples());
    let list = chunk(b"LIST", 27, b"INFOISFT\x0e\0\0\0Lavf61.7.100\0\0o");
    let padded = [list.clone(), vec![0]].concat();
    let junk = chunk(b"JUNK", 5000, &[0; 5000]);
    let fact = chunk(b"fact", 4, &[0; 4]);
    let long_fact = chunk(b"fact", 8, &[9; 8]);
    let head = |riff| chunk(b"RIFF", riff, b"WAVE");
    let known = [head(9999), junk.clone(), format(), padded.clone(), fact.clone(), data(n)].concat();
    is_whole(&known, "padded");
    is_whole(&[head(9999), format(), list.clone(), data(n)].concat(), "without padding");
    is_whole(&[head(0), format(), list.clone(), long_fact, data(0)].concat(), "in front of unknown lengths");
    is_whole(&[head(9999), format(), data(n), padded.clone()].concat(), "behind");
    is_whole(&[head(9999), format(), data(n), list.clone()].concat(), "behind, without padding");
    is_whole(&[head(9999), format(), data(n), b"garbage".to_vec()].concat(), "garbage behind");
    // A length of 0 before complete chunks means that there are no samples. A pipe cannot look
    // ahead.
    let empty = [head(9999), format(), chunk(b"data", 0, b""), padded, junk].concat();
    assert!(matches!(decode_bytes(empty, "empty.wav"), Err(Error::Empty { .. })));
    let nothing = [head(36), format(), chunk(b"data", 0, b"")].concat();
    for result in every_way(&nothing) {
        assert!(matches!(result, Err(Error::Empty { .. })), "{result:?}");
    }
    for result in every_way(&[head(36), format()].concat()) {
        assert!(matches!(result, Err(Error::NotAudio { .. })), "{result:?}");
    }
}

#[test]
fn long_files_say_their_length_elsewhere() {
    let n = 2 * N_SAMPLES as u64;
    let long = |id: &[u8; 4], length: u64, data: u32| {
        let body = [length.wrapping_add(72).to_le_bytes(), length.to_le_bytes(), (length / 2).to_le_bytes()]
            .concat();
        let ds64 = chunk(b"ds64", 28, &[body, vec![0; 4]].concat());
        [chunk(id, u32::MAX, b"WAVE"), ds64, format(), chunk(b"data", data, &samples())].concat()
    };
    for id in [b"RF64", b"BW64", b"RIFF"] {
        for (length, data) in [(n, u32::MAX), (0, u32::MAX), (u64::MAX, u32::MAX), (n, n as u32), (0, 0)] {
            is_whole(&long(id, length, data), &format!("{length}, {data}"));
        }
        let mut behind = long(id, n, u32::MAX);
        behind.extend(chunk(b"LIST", 4, b"INFO"));
        is_whole(&behind, "a chunk behind");
        let cut = decode_bytes(long(id, 4 * n, u32::MAX), "cut.wav").unwrap();
        assert_eq!((cut.samples.len(), cut.damage.is_some_and(|damage| damage.truncated)), (N_SAMPLES, true));
    }
}

#[test]
fn a_file_that_was_cut_says_so() {
    let n = 2 * N_SAMPLES as u32;
    for result in every_way(&file(3 * n + 36, 3 * n)) {
        let audio = result.unwrap();
        let damage = audio.damage.unwrap();
        assert_eq!((audio.samples.len(), damage.truncated), (N_SAMPLES, true));
        assert!((damage.expected_seconds.unwrap() - 0.375).abs() < 1e-9, "{damage:?}");
    }
}

#[test]
fn every_sample_type_without_a_length() {
    let frames: Vec<f64> = tones(16_000, 0.5).concat();
    for sample in [Sample::U8, Sample::S16, Sample::S24, Sample::S32, Sample::F32, Sample::F64] {
        let mut bytes = wav(16_000, 2, sample, &frames);
        for (riff, data) in [(0u32, 0u32), (36, 0), (0x8000_0024, 0x8000_0000), (u32::MAX, u32::MAX)] {
            bytes[4..8].copy_from_slice(&riff.to_le_bytes());
            bytes[40..44].copy_from_slice(&data.to_le_bytes());
            for result in every_way(&bytes) {
                let audio = result.unwrap();
                assert_eq!((audio.samples.len(), audio.damage), (8000, None), "{sample:?}");
                assert!(correlation(&audio.samples, &expected(0.5)) > 0.999, "{sample:?}");
            }
        }
    }
}

/// A file with one channel at 16 kHz, with this tag and bits, and these bytes after the first
/// sixteen of its description.
fn described(tag: u16, bits: u16, n_bytes: u16, behind: &[u8], data: &[u8]) -> Vec<u8> {
    let mut body = [tag.to_le_bytes(), 1u16.to_le_bytes(), 16_000u16.to_le_bytes(), [0, 0]].concat();
    body.extend_from_slice(&(16_000 * u32::from(n_bytes)).to_le_bytes());
    body.extend([n_bytes.to_le_bytes(), bits.to_le_bytes()].concat());
    body.extend_from_slice(behind);
    let format = chunk(b"fmt ", body.len() as u32, &body);
    let pad = vec![0; body.len() % 2];
    [chunk(b"RIFF", 0, b"WAVE"), format, pad, chunk(b"data", 0, data)].concat()
}

#[test]
fn descriptions_of_samples_vary_from_writer_to_writer() {
    let extensible = |used: u16, kind: u8| {
        let guid = [kind, 0, 0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xAA, 0, 0x38, 0x9B, 0x71];
        [&[22, 0][..], &used.to_le_bytes(), &[4, 0, 0, 0], &guid].concat()
    };
    let half = 0x4000u16.to_le_bytes();
    for (what, bytes) in [
        ("no extension", described(1, 16, 2, &[], &half)),
        ("an empty extension", described(1, 16, 2, &[0, 0], &half)),
        ("bytes after the format", described(1, 16, 2, &[4, 0, 1, 2, 3, 4], &half)),
        ("an odd number of them", described(1, 16, 2, &[1, 0, 9], &half)),
        ("12 bits of 16", described(1, 12, 2, &[], &half)),
        ("20 bits of 24", described(1, 20, 3, &[], &[0, 0, 0x40])),
        ("extensible", described(0xFFFE, 16, 2, &extensible(16, 1), &half)),
        ("extensible, no word of bits", described(0xFFFE, 16, 2, &extensible(0, 1), &half)),
        ("extensible, 20 of 24", described(0xFFFE, 24, 3, &extensible(20, 1), &[0, 0, 0x40])),
        ("extensible floats", described(0xFFFE, 32, 4, &extensible(0, 3), &0.5f32.to_le_bytes())),
        ("floats", described(3, 32, 4, &[0, 0], &0.5f32.to_le_bytes())),
        ("floats with an extension", described(3, 32, 4, &[2, 0, 0, 0], &0.5f32.to_le_bytes())),
        ("long floats", described(3, 64, 8, &[], &0.5f64.to_le_bytes())),
    ] {
        let audio = decode_bytes(bytes, what).unwrap();
        assert_eq!(audio.samples, [0.5], "{what}");
    }
    // These bytes are the middle of the range of both laws, with and without the extension's
    // length.
    for (tag, byte) in [(6, 0xD5), (7, 0xFF)] {
        for behind in [&[][..], &[0, 0], &[2, 0, 0, 0]] {
            let audio = decode_bytes(described(tag, 8, 1, behind, &[byte; 100]), "law.wav").unwrap();
            assert_eq!(audio.samples.len(), 100);
            assert!(audio.samples.iter().all(|sample| sample.abs() < 0.001), "{tag}: {}", audio.samples[0]);
        }
        let extensible = described(0xFFFE, 8, 1, &extensible(8, tag as u8), &[byte; 100]);
        assert_eq!(decode_bytes(extensible, "law.wav").unwrap().samples.len(), 100);
    }
}
