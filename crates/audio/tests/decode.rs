//! Every container, sample type, rate and channel count, compared with the original signal.

use crate::common::{Sample, correlation, expected, fixture, tones, wav};
use audio::{AudioStream, BLOCK_SAMPLES, Error, decode, decode_bytes, decode_reader};

#[test]
fn compressed_files_give_the_signal() {
    // The lossy codecs change far less than 1 %; a shift by one sample already shows in the third
    // digit.
    for (name, format, codec, rate, n_channels) in [
        ("tones.mp3", "mp3", "mp3", 44_100, 2),
        ("tones_8k.mp3", "mp3", "mp3", 8_000, 1),
        ("tones.flac", "flac", "flac", 48_000, 2),
        ("tones.ogg", "ogg", "vorbis", 22_050, 1),
        ("tones.m4a", "isomp4", "aac", 44_100, 2),
    ] {
        let audio = decode(fixture(name)).unwrap();
        let info = &audio.info;
        assert_eq!((info.format.as_str(), info.codec.as_str()), (format, codec), "{name}");
        assert_eq!((info.sample_rate, info.n_channels), (rate, Some(n_channels)), "{name}");
        assert_eq!(audio.damage, None, "{name}");
        // An MP4 file's edit list is not read: the encoder's delay of 1024 frames stays.
        let delay = if name.ends_with("m4a") { 1024 * 16_000 / 44_100 } else { 0 };
        let found = correlation(&audio.samples[delay..], &expected(0.5));
        println!("{name}: {} samples, correlation {found:.6}", audio.samples.len());
        // The delay is not a whole number of samples; half a sample costs up to 2 % in the sweep.
        let bound = if delay > 0 { 0.98 } else { 0.99 };
        assert!(found > bound, "{name}: correlation {found}");
        let tolerance = if delay > 0 { 372 } else { 1 };
        assert!(
            audio.samples[delay..].len().abs_diff(8000) <= tolerance,
            "{name}: {} samples",
            audio.samples.len()
        );
    }
}

#[test]
fn every_sample_type_of_wav_at_every_rate() {
    for rate in [8_000, 11_025, 16_000, 22_050, 44_100, 48_000] {
        for sample in [Sample::U8, Sample::S16, Sample::S24, Sample::S32, Sample::F32, Sample::F64] {
            let frames: Vec<f64> = tones(rate, 0.5).concat();
            let audio = decode_bytes(wav(rate, 2, sample, &frames), "test.wav").unwrap();
            let found = correlation(&audio.samples, &expected(0.5));
            // With 8 bits, noise is 48 dB below full scale, and the signal is at about -13 dB.
            let bound = if matches!(sample, Sample::U8) { 0.999 } else { 0.9999 };
            assert!(found > bound, "{rate} Hz {sample:?}: correlation {found}");
            assert!(audio.samples.len().abs_diff(8000) <= 1);
        }
    }
}

#[test]
fn mono_16_khz_is_exact() {
    let values = [0.0, 0.5, -1.0, 32767.0 / 32768.0, -1.0 / 32768.0];
    let expected: Vec<f32> = values.iter().map(|&v| v as f32).collect();
    for sample in [Sample::S16, Sample::S24, Sample::S32, Sample::F32, Sample::F64] {
        assert_eq!(
            decode_bytes(wav(16_000, 1, sample, &values), "w").unwrap().samples,
            expected,
            "{sample:?}"
        );
    }
    let jfk = decode(fixture("jfk.wav")).unwrap();
    let bytes = std::fs::read(fixture("jfk.wav")).unwrap();
    let data = &bytes[bytes.len() - 2 * jfk.samples.len()..];
    assert_eq!(jfk.samples.len(), 176_000);
    assert!(
        jfk.samples
            .iter()
            .zip(data.chunks_exact(2))
            .all(|(&sample, pair)| { sample == f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32768.0 })
    );
}

#[test]
fn channels_are_averaged() {
    let frame = [0.5, -0.25, 0.125, 0.0, 1.0 / 64.0, -0.5];
    for n_channels in 1..=6 {
        let frames = frame[..n_channels].repeat(100);
        let audio = decode_bytes(wav(16_000, n_channels as u16, Sample::F32, &frames), "w").unwrap();
        let mean = frame[..n_channels].iter().sum::<f64>() / n_channels as f64;
        assert_eq!(audio.info.n_channels, Some(n_channels));
        assert!(audio.samples.iter().all(|&s| (f64::from(s) - mean).abs() < 1e-7), "{n_channels}");
        assert_eq!(audio.samples.len(), 100);
    }
}

#[test]
fn nan_becomes_silence() {
    let frames = [f64::NAN, f64::INFINITY, -1e30, 0.25, 2.0];
    let audio = decode_bytes(wav(16_000, 1, Sample::F32, &frames), "w").unwrap();
    assert_eq!(audio.samples, [0.0, 0.0, -1_048_576.0, 0.25, 2.0]);
}

#[test]
fn file_bytes_and_reader_agree_and_blocks_are_seconds() {
    for name in ["jfk.wav", "tones.mp3", "tones.flac", "tones.ogg", "tones.m4a"] {
        let bytes = std::fs::read(fixture(name)).unwrap();
        let from_file = decode(fixture(name)).unwrap();
        assert_eq!(from_file.samples, decode_bytes(bytes.clone(), name).unwrap().samples, "{name}");
        // The index of the MP4 file is at its end.
        let reader = decode_reader(std::io::Cursor::new(bytes), name).unwrap();
        assert_eq!(from_file.samples, reader.samples, "{name}");
    }
    let lengths: Vec<usize> =
        AudioStream::open(fixture("jfk.wav")).unwrap().map(|block| block.unwrap().len()).collect();
    assert_eq!(lengths, [BLOCK_SAMPLES; 11]);
}

#[test]
fn chained_files_change_rate_and_keep_their_time() {
    let ogg = std::fs::read(fixture("tones.ogg")).unwrap();
    let audio = decode_bytes([ogg.clone(), ogg].concat(), "chained.ogg").unwrap();
    assert!(audio.samples.len().abs_diff(16_000) <= 2, "{}", audio.samples.len());
    assert!(correlation(&audio.samples[8000..], &expected(0.5)) > 0.99);
}

#[test]
fn a_chained_file_that_was_cut_gives_what_it_has() {
    let ogg = std::fs::read(fixture("tones.ogg")).unwrap();
    let whole = decode_bytes(ogg.clone(), "tones.ogg").unwrap();
    for n_bytes in [1, 20, 27, 28, 100, ogg.len() / 2, ogg.len() - 1] {
        let cut = [&ogg[..], &ogg[..n_bytes]].concat();
        let audio = decode_bytes(cut, "cut.ogg").unwrap_or_else(|error| panic!("{n_bytes}: {error}"));
        assert!(
            audio.samples.len() + 16_000 / 100 >= whole.samples.len(),
            "{n_bytes}: {}",
            audio.samples.len()
        );
    }
}

#[test]
fn what_is_not_audio_says_so() {
    let open = |path: &str| AudioStream::open(path).err().map(|e| e.to_string()).unwrap();
    let message = open("/nonexistent/talk.wav");
    assert!(message.starts_with("/nonexistent/talk.wav: cannot be opened:"), "{message}");
    assert!(open("/").contains("directory"), "{}", open("/"));
    let text = "It was the best of times, it was the worst of times. ".repeat(500);
    let error = decode_bytes(text.as_bytes(), "tale.txt").unwrap_err();
    assert!(matches!(&error, Error::NotAudio { name, .. } if name == "tale.txt"), "{error}");
    assert!(matches!(decode_bytes([], "empty"), Err(Error::NotAudio { .. })));

    let error = decode(fixture("tones.opus")).unwrap_err();
    assert!(matches!(&error, Error::Codec { codec, .. } if codec == "Opus"), "{error}");
    assert!(error.to_string().contains("ffmpeg"), "{error}");
    let webm =
        decode_bytes(*b"\x1A\x45\xDF\xA3\x9F\x42\x86\x81\x01\x42\xF7\x81\x01", "talk.webm").unwrap_err();
    assert!(webm.to_string().contains("ffmpeg"), "{webm}");
}
