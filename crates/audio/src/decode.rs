//! Decoding of a file to mono samples at its own sampling rate.
//!
//! Containers and codecs are symphonia's. This file adds checks. Headers are validated before use.
//! A part that is missing or cannot be decoded becomes silence of the same length, so that later
//! timestamps stay right. A truncated file yields its samples up to there, and a panic in a decoder
//! becomes an error.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::common::Limit;
use symphonia::core::errors::Error as MediaError;
use symphonia::core::formats::probe::{Hint, Probe, ProbeOptions};
use symphonia::core::formats::{FormatOptions, FormatReader, Track, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;

use crate::error::{Error, Result};
use crate::{MAX_SOURCE_RATE, MIN_SOURCE_RATE};

/// Largest magnitude of a sample; NaN becomes 0, because a float file may have any value. 2^20
/// leaves room for files scaled as 16-bit integers, and the power of a spectrum still fits in an
/// f32.
pub(crate) const MAX_AMPLITUDE: f32 = 1_048_576.0;
/// Bytes searched for the start of a container after leading tags. MP3 has no file header, only a
/// sync word in each frame, so a longer search is more likely to accept noise as audio.
const PROBE_BYTES: u32 = 64 * 1024;
/// Maximum number of bytes of a text tag or picture that a container may make the decoder hold.
/// Both are unused.
const TAG_BYTES: usize = 64 * 1024;
/// Longest gap that is filled with silence, in seconds, and most silence beyond the decoded length.
/// A longer gap means a broken clock and is ignored: a few bytes must not become hours of silence.
const MAX_HOLE_SECONDS: f64 = 60.0;
/// Maximum number of frames of silence that are emitted at a time.
const SILENCE_CHUNK: u64 = 65_536;
/// Packets that may fail before the first success.
const MAX_BAD_START: u64 = 100;
/// Maximum number of track changes in a row without a packet.
const MAX_RESETS: u32 = 16;

/// Facts about a file's audio from its header.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceInfo {
    /// Short name of the container: `wave`, `mp3`, `flac`, `ogg`.
    pub format: String,
    /// Short name of the codec: `pcm_s16le`, `mp3`, `vorbis`.
    pub codec: String,
    /// Sampling rate in Hz.
    pub sample_rate: u32,
    /// Channels, if the header states them; they are averaged.
    pub n_channels: Option<usize>,
    /// Length in seconds, if the header states it. For an MP3 file without an index, it is an
    /// estimate from the bit rate.
    pub seconds: Option<f64>,
}

/// Faults of a file that could still be decoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Damage {
    /// The file ends, or becomes unreadable, before its audio ends.
    pub truncated: bool,
    /// Seconds decoded.
    pub seconds: f64,
    /// Seconds that the header states, if it does.
    pub expected_seconds: Option<f64>,
    /// Packets that could not be decoded.
    pub n_bad_packets: u64,
    /// Seconds of silence inserted where packets were missing or could not be decoded.
    pub silent_seconds: f64,
    /// The reason why reading stopped before the end of the file.
    pub stopped_by: Option<String>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.truncated {
            match &self.stopped_by {
                None => write!(f, "the file ends early: {:.1} s of audio", self.seconds)?,
                Some(reason) => {
                    write!(f, "the file cannot be read past {:.1} s of audio ({reason})", self.seconds)?
                }
            }
            if let Some(expected) = self.expected_seconds {
                write!(f, " where its header promises {expected:.1} s")?;
            }
        }
        if self.n_bad_packets > 0 || self.silent_seconds > 0.0 {
            let joint = if self.truncated { "; " } else { "" };
            let seconds = self.silent_seconds;
            write!(
                f,
                "{joint}the file is damaged: {} unreadable packets, {seconds:.2} s silent",
                self.n_bad_packets
            )?;
        }
        Ok(())
    }
}

/// A file being decoded.
pub(crate) struct Decoder {
    pub(crate) name: String,
    pub(crate) info: SourceInfo,
    format: Box<dyn FormatReader>,
    codec: Box<dyn AudioDecoder>,
    track_id: u32,
    /// Frames that the header states, unless they are an estimate.
    n_expected: Option<u64>,
    /// Samples of one packet, `[n_channels][n_frames]`.
    planes: Vec<Vec<f32>>,
    /// Seconds per tick of the packets' timestamps.
    tick_seconds: f64,
    /// End of the last packet by its timestamp, in ticks.
    position: Option<f64>,
    /// Frames of silence to emit before `held`.
    n_silent: u64,
    /// The packet after a gap.
    held: Option<Packet>,
    /// Seconds of the tracks before this one in a chained file.
    seconds_before: f64,
    /// Frames of this track so far, silence included.
    n_frames: u64,
    silent_seconds: f64,
    n_good_packets: u64,
    n_bad_packets: u64,
    truncated: bool,
    stopped_by: Option<String>,
}

impl Decoder {
    /// Finds the container, the track and its decoder.
    pub(crate) fn open(source: Box<dyn MediaSource>, name: String) -> Result<Self> {
        let stream = MediaSourceStream::new(source, MediaSourceStreamOptions::default());
        let format = guarded(|| {
            let mut probe =
                Probe::new_with_options(&ProbeOptions { max_probe_depth: PROBE_BYTES, ..Default::default() });
            symphonia::default::register_enabled_formats(&mut probe);
            let tags = MetadataOptions::default()
                .limit_tag_bytes(Limit::Maximum(TAG_BYTES))
                .limit_visual_bytes(Limit::Maximum(TAG_BYTES));
            probe.probe(&Hint::new(), stream, FormatOptions::default(), tags)
        });
        let format = match format {
            Ok(Ok(format)) => format,
            Ok(Err(error)) => return Err(Error::NotAudio { name, reason: reason_of(&error) }),
            Err(reason) => return Err(Error::NotAudio { name, reason }),
        };
        let (track, codec) = open_track(&name, format.as_ref())?;
        Ok(Self {
            name,
            info: track.info,
            codec,
            format,
            track_id: track.id,
            n_expected: track.n_expected,
            planes: Vec::new(),
            tick_seconds: track.tick_seconds,
            position: None,
            n_silent: 0,
            held: None,
            seconds_before: 0.0,
            n_frames: 0,
            silent_seconds: 0.0,
            n_good_packets: 0,
            n_bad_packets: 0,
            truncated: false,
            stopped_by: None,
        })
    }

    /// Decodes the next packet into `mono`, the mean of its channels, and returns its sampling
    /// rate; `None` at the end. After an error it returns nothing more.
    pub(crate) fn next_packet(&mut self, mono: &mut Vec<f32>) -> Result<Option<u32>> {
        mono.clear();
        loop {
            if self.n_silent > 0 {
                let n = self.n_silent.min(SILENCE_CHUNK);
                self.n_silent -= n;
                self.n_frames += n;
                mono.resize(n as usize, 0.0);
                return Ok(Some(self.info.sample_rate));
            }
            let packet = match self.held.take() {
                Some(packet) => packet,
                None => {
                    let Some(packet) = self.read_packet()? else { return Ok(None) };
                    self.n_silent = self.hole_before(&packet);
                    if self.n_silent > 0 {
                        self.silent_seconds += self.n_silent as f64 / f64::from(self.info.sample_rate);
                        self.held = Some(packet);
                        continue;
                    }
                    packet
                }
            };
            let (codec, planes) = (&mut self.codec, &mut self.planes);
            let decoded = guarded(|| {
                codec.decode(&packet).map(|buffer| {
                    buffer.copy_to_vecs_planar::<f32>(planes);
                    buffer.spec().rate()
                })
            });
            match decoded {
                Ok(Ok(rate)) => {
                    let rate = self.checked_rate(rate)?;
                    self.n_good_packets += 1;
                    downmix(&self.planes, mono);
                    self.n_frames += mono.len() as u64;
                    let ticks = mono.len() as f64 / f64::from(rate) / self.tick_seconds;
                    // Frames that the decoder trimmed (an encoder's delay and padding) also count
                    // as elapsed time.
                    let n_trimmed = packet.trim_start.get() as f64 + packet.trim_end.get() as f64;
                    self.position = Some(packet.pts.get() as f64 + n_trimmed + ticks);
                    if !mono.is_empty() {
                        return Ok(Some(rate));
                    }
                }
                // The next packet's timestamp shows the length of the gap.
                Ok(Err(error)) => self.bad_packet(&error.to_string())?,
                Err(reason) => return self.stop(reason).map(|()| None),
            }
        }
    }

    /// The next packet of the chosen track; `None` at the end.
    fn read_packet(&mut self) -> Result<Option<Packet>> {
        let mut n_resets = 0;
        loop {
            match guarded(|| self.format.next_packet()) {
                Ok(Ok(Some(packet))) if packet.track_id == self.track_id => return Ok(Some(packet)),
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) => return self.end().map(|()| None),
                // A chained file: another track begins, perhaps at another rate.
                Ok(Err(MediaError::ResetRequired)) if n_resets < MAX_RESETS => {
                    n_resets += 1;
                    self.next_track()?;
                }
                Ok(Err(MediaError::IoError(error))) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    // A WAV file from a pipe has no length, and ends where the file ends.
                    self.truncated = !(self.info.format == "wave" && self.n_expected.is_none());
                    return self.end().map(|()| None);
                }
                Ok(Err(MediaError::IoError(source))) => {
                    return Err(Error::Read { name: self.name.clone(), seconds: self.seconds(), source });
                }
                Ok(Err(error)) => return self.stop(error.to_string()).map(|()| None),
                Err(reason) => return self.stop(reason).map(|()| None),
            }
        }
    }

    /// Frames missing between the last packet that was decoded and this one.
    fn hole_before(&mut self, packet: &Packet) -> u64 {
        let begin = packet.pts.get() as f64;
        // An encoder's delay has negative timestamps, and is trimmed.
        let ticks = begin.max(0.0) - self.position.get_or_insert(begin).max(0.0);
        let seconds = ticks * self.tick_seconds;
        let silent = self.silent_seconds;
        let longest = MAX_HOLE_SECONDS.min(MAX_HOLE_SECONDS + (self.seconds() - silent) - silent);
        // Timestamps may be rounded to a tick, and a tick may be longer than a frame.
        if ticks <= 1.5 || seconds > longest {
            return 0;
        }
        (seconds * f64::from(self.info.sample_rate)).round() as u64
    }

    /// Faults of the part of the file that was read.
    pub(crate) fn damage(&self) -> Option<Damage> {
        (self.truncated || self.n_bad_packets > 0 || self.silent_seconds > 0.0).then(|| Damage {
            truncated: self.truncated,
            seconds: self.seconds(),
            expected_seconds: self.info.seconds,
            n_bad_packets: self.n_bad_packets,
            silent_seconds: self.silent_seconds,
            stopped_by: self.stopped_by.clone(),
        })
    }

    fn seconds(&self) -> f64 {
        self.seconds_before + self.n_frames as f64 / f64::from(self.info.sample_rate)
    }

    fn checked_rate(&self, rate: u32) -> Result<u32> {
        if (MIN_SOURCE_RATE..=MAX_SOURCE_RATE).contains(&rate) {
            Ok(rate)
        } else {
            Err(Error::SampleRate { name: self.name.clone(), found: rate })
        }
    }

    fn bad_packet(&mut self, reason: &str) -> Result<()> {
        self.n_bad_packets += 1;
        if self.n_good_packets == 0 && self.n_bad_packets >= MAX_BAD_START {
            return Err(self.undecodable(reason));
        }
        Ok(())
    }

    fn undecodable(&self, reason: &str) -> Error {
        Error::Undecodable { name: self.name.clone(), n_packets: self.n_bad_packets, reason: reason.into() }
    }

    fn next_track(&mut self) -> Result<()> {
        self.seconds_before = self.seconds();
        let (track, codec) = open_track(&self.name, self.format.as_ref())?;
        (self.codec, self.track_id, self.n_expected, self.info) =
            (codec, track.id, track.n_expected, track.info);
        (self.tick_seconds, self.position, self.n_frames) = (track.tick_seconds, None, 0);
        Ok(())
    }

    /// Ends the track.
    fn end(&mut self) -> Result<()> {
        self.truncated |= self.n_expected.is_some_and(|n| self.n_frames < n);
        match (self.n_good_packets > 0 && self.seconds() > 0.0, self.n_bad_packets) {
            (true, _) => Ok(()),
            (false, 0) => Err(Error::Empty { name: self.name.clone() }),
            (false, _) => Err(self.undecodable("and then the file ends")),
        }
    }

    /// Stops, because the demuxer or the decoder cannot continue. This is no error if anything was
    /// decoded.
    fn stop(&mut self, reason: String) -> Result<()> {
        if self.n_good_packets == 0 {
            return Err(Error::Damaged { name: self.name.clone(), reason });
        }
        self.truncated = true;
        self.stopped_by = Some(reason);
        Ok(())
    }
}

/// The properties of a track that decoding needs.
struct TrackFacts {
    id: u32,
    info: SourceInfo,
    n_expected: Option<u64>,
    tick_seconds: f64,
}

fn open_track(name: &str, format: &dyn FormatReader) -> Result<(TrackFacts, Box<dyn AudioDecoder>)> {
    let container = format.format_info().short_name.to_string();
    let no_track = || Error::NoAudioTrack {
        name: name.into(),
        format: container.clone(),
        n_tracks: format.tracks().len(),
    };
    // A track with an unknown codec gives a better error message than no track.
    let track: &Track = format
        .default_track(TrackType::Audio)
        .or_else(|| format.first_track(TrackType::Audio))
        .ok_or_else(no_track)?;
    let Some(CodecParameters::Audio(parameters)) = &track.codec_params else { return Err(no_track()) };
    let codec_error = |reason: String| Error::Codec {
        name: name.into(),
        format: container.clone(),
        codec: codec_name(parameters.codec),
        reason,
    };
    let codec = guarded(|| {
        symphonia::default::get_codecs().make_audio_decoder(parameters, &AudioDecoderOptions::default())
    });
    let codec = match codec {
        Ok(Ok(codec)) => codec,
        Ok(Err(error)) => return Err(codec_error(reason_of(&error))),
        Err(reason) => return Err(codec_error(reason)),
    };
    let sample_rate = parameters.sample_rate.unwrap_or(0);
    if !(MIN_SOURCE_RATE..=MAX_SOURCE_RATE).contains(&sample_rate) {
        return Err(Error::SampleRate { name: name.into(), found: sample_rate });
    }
    // The length of an MP3 file is exact only if the encoder wrote its tag. Otherwise it is bytes
    // divided by bit rate.
    let is_estimate = container.starts_with("mp") && track.delay.is_none();
    let info = SourceInfo {
        codec: codec.codec_info().short_name.to_string(),
        sample_rate,
        n_channels: parameters.channels.as_ref().map(|c| c.count()),
        seconds: track.num_frames.map(|n| n as f64 / f64::from(sample_rate)),
        format: container,
    };
    let n_expected = track.num_frames.filter(|_| !is_estimate);
    let tick_seconds = track.time_base.map_or(1.0 / f64::from(sample_rate), |base| {
        f64::from(base.numer.get()) / f64::from(base.denom.get())
    });
    Ok((TrackFacts { id: track.id, info, n_expected, tick_seconds }, codec))
}

/// The message of a decoder's error, without the decoder's own terms.
fn reason_of(error: &MediaError) -> String {
    match error {
        MediaError::Unsupported(what) if what.starts_with("core (probe)") => {
            "it begins like no known format".into()
        }
        MediaError::Unsupported(what) if what.starts_with("core (codec)") => {
            "there is no decoder for it".into()
        }
        MediaError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            "it ends within its header".into()
        }
        other => other.to_string(),
    }
}

/// Name of a codec, known or not.
fn codec_name(id: symphonia::core::codecs::audio::AudioCodecId) -> String {
    use symphonia::core::codecs::audio::{CODEC_ID_NULL_AUDIO, well_known};
    match id {
        well_known::CODEC_ID_OPUS => "Opus".into(),
        well_known::CODEC_ID_SPEEX => "Speex".into(),
        well_known::CODEC_ID_AAC => "AAC".into(),
        well_known::CODEC_ID_ALAC => "ALAC".into(),
        CODEC_ID_NULL_AUDIO => "an unknown codec".into(),
        other => match symphonia::default::get_codecs().get_audio_decoder(other) {
            Some(known) => known.codec.info.short_name.into(),
            None => format!("codec {other}"),
        },
    }
}

/// The mean of the channels, with NaN and infinities removed.
fn downmix(planes: &[Vec<f32>], mono: &mut Vec<f32>) {
    let Some((first, others)) = planes.split_first() else { return };
    mono.extend_from_slice(first);
    for plane in others {
        for (sum, &sample) in mono.iter_mut().zip(plane) {
            *sum += sample;
        }
    }
    let n_channels = planes.len() as f32;
    for sample in mono {
        let mean = *sample / n_channels;
        *sample = if mean.is_finite() { mean.clamp(-MAX_AMPLITUDE, MAX_AMPLITUDE) } else { 0.0 };
    }
}

/// Runs a decoder on untrusted bytes. A panic becomes the reason of an error; the state of the
/// decoder must not be used again.
fn guarded<T>(work: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let said = panic
            .downcast_ref::<&str>()
            .map(|s| s.to_string())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        format!("the decoder failed: {said}")
    })
}
