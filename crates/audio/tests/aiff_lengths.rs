//! AIFF headers without lengths, and files that were cut.
#![allow(clippy::unwrap_used)]

use audio::{Error, decode_bytes, decode_reader};

const N_SAMPLES: usize = 2000;

/// 16-bit mono samples at 16 kHz.
fn samples() -> Vec<u8> {
    (0..N_SAMPLES).flat_map(|i| (i as i16 * 7 + 1).to_be_bytes()).collect()
}

fn chunk(id: &[u8; 4], length: u32, body: &[u8]) -> Vec<u8> {
    [id, &length.to_be_bytes()[..], body].concat()
}

/// A file with this outer length, number of frames and length of samples.
fn file(form: u32, n_frames: u32, sound: u32) -> Vec<u8> {
    // 16,000 as a float of 80 bits.
    let rate = [0x40, 0x0C, 0xFA, 0, 0, 0, 0, 0, 0, 0];
    let description =
        [&1u16.to_be_bytes()[..], &n_frames.to_be_bytes(), &16u16.to_be_bytes(), &rate].concat();
    let name = [chunk(b"NAME", 3, b"abc"), vec![0]].concat();
    let sound = chunk(b"SSND", sound, &[vec![0; 8], samples()].concat());
    [chunk(b"FORM", form, b"AIFF"), name, chunk(b"COMM", 18, &description), sound].concat()
}

#[test]
fn samples_end_at_the_end_of_the_file_whatever_the_lengths_say() {
    let n = N_SAMPLES as u32;
    let (sound, form) = (2 * n + 8, 2 * n + 8 + 4 + 12 + 26 + 8);
    for (form, n_frames, sound) in [
        (form, n, sound),
        (0, 0, 0),
        (0, 0, 8),
        (u32::MAX, u32::MAX, u32::MAX),
        (0, n, sound),
        (12, n, sound),
        (form, n, 0),
        (form, 0, 0x7FFF_FFFF),
        (0x7FFF_FFFF, 0x7FFF_FFFF, 0x7FFF_FFFF),
    ] {
        let what = format!("{form:#x}/{n_frames:#x}/{sound:#x}");
        let bytes = file(form, n_frames, sound);
        let pipe = decode_reader(std::io::Cursor::new(bytes.clone()), "-");
        for result in [decode_bytes(bytes, "talk.aiff"), pipe] {
            let audio = result.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!((audio.samples.len(), audio.damage), (N_SAMPLES, None), "{what}");
            assert_eq!((audio.samples[1999] * 32768.0).round() as i32, 1999 * 7 + 1, "{what}");
        }
    }
}

#[test]
fn a_file_that_was_cut_says_so() {
    let n = N_SAMPLES as u32;
    let audio = decode_bytes(file(6 * n + 58, 3 * n, 6 * n + 8), "cut.aiff").unwrap();
    let damage = audio.damage.unwrap();
    assert_eq!((audio.samples.len(), damage.truncated), (N_SAMPLES, true));
    for n_bytes in [0, 11, 12, 20, 60, 66] {
        let begun = &file(6 * n + 58, 3 * n, 6 * n + 8)[..n_bytes];
        assert!(decode_bytes(begun, "cut.aiff").is_err(), "{n_bytes}");
    }
    let mut empty = file(58, 0, 8);
    empty.truncate(empty.len() - 2 * N_SAMPLES);
    assert!(matches!(decode_bytes(empty, "empty.aiff"), Err(Error::Empty { .. })));
}
