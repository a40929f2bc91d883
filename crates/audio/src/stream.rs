//! Files, readers and bytes as blocks of 16 kHz mono samples.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;

use symphonia::core::io::MediaSource;

use crate::decode::{Damage, Decoder, SourceInfo};
use crate::error::{Error, Result};
use crate::resample::Resampler;
use crate::unseekable::Unseekable;
use crate::{SAMPLE_RATE, container};

/// Samples in each block of an [`AudioStream`] except the last: one second.
pub const BLOCK_SAMPLES: usize = SAMPLE_RATE as usize;

/// A whole recording in memory: 64 kB per second.
#[derive(Clone, Debug)]
pub struct Audio {
    /// Mono samples at 16 kHz, nominally from -1 to 1.
    pub samples: Vec<f32>,
    /// Facts from the header.
    pub info: SourceInfo,
    /// Faults of the file, if any.
    pub damage: Option<Damage>,
}

impl Audio {
    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(SAMPLE_RATE)
    }
}

/// A recording that is being decoded: an iterator over blocks of [`BLOCK_SAMPLES`] mono samples at
/// 16 kHz.
///
/// Channels are averaged and other rates resampled (see [`Resampler`]). A file that is already mono
/// at 16 kHz passes through exactly, with integers divided by the largest power of two of their
/// type. The blocks of a truncated file end early, and [`damage`](Self::damage) reports that
/// afterwards. After an error the iterator ends.
pub struct AudioStream {
    decoder: Decoder,
    /// The current rate in Hz and its resampler; `None` before the first packet. The rate of the
    /// packets counts, not the header's.
    resampler: Option<(u32, Resampler)>,
    /// True if everything was decoded, or decoding failed.
    ended: bool,
    /// Samples of one packet at the source's rate.
    mono: Vec<f32>,
    /// Samples at 16 kHz that do not yet fill a block.
    ready: Vec<f32>,
}

impl AudioStream {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Open`], or [`Error::NotAudio`], [`Error::NoAudioTrack`], [`Error::Codec`] and
    /// [`Error::SampleRate`] for faults in the header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let name = path.as_ref().display().to_string();
        let opened = File::open(&path).and_then(|file| {
            // Linux opens a folder without error and fails at the first read.
            if file.metadata()?.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok(file) }
        });
        match opened {
            Ok(file) => Self::from_source(Box::new(file), name),
            Err(source) => Err(Error::Open { name, source }),
        }
    }

    /// Reads a file in memory, such as an upload. `name` appears in messages.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn from_bytes(bytes: impl Into<Vec<u8>>, name: impl Into<String>) -> Result<Self> {
        Self::from_source(Box::new(Cursor::new(bytes.into())), name.into())
    }

    /// Reads a source that cannot seek, such as standard input. `name` appears in messages.
    ///
    /// An MP4 file that is longer than 512 MiB and has its index at the end cannot be read this
    /// way.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn from_reader(reader: impl Read + Send + 'static, name: impl Into<String>) -> Result<Self> {
        Self::from_source(Box::new(Unseekable::new(reader)), name.into())
    }

    fn from_source(source: Box<dyn MediaSource>, name: String) -> Result<Self> {
        let source = match container::prepared(source) {
            Ok(source) => source,
            Err(source) => return Err(Error::Read { name, seconds: 0.0, source }),
        };
        let decoder = Decoder::open(source, name)?;
        Ok(Self { decoder, resampler: None, ended: false, mono: Vec::new(), ready: Vec::new() })
    }

    /// Facts from the header; in a chained file, from the header of the current part.
    pub fn info(&self) -> &SourceInfo {
        &self.decoder.info
    }

    /// Damage of the file so far. It is complete when the iterator has ended.
    pub fn damage(&self) -> Option<Damage> {
        self.decoder.damage()
    }

    /// Decodes the rest of the file.
    ///
    /// # Errors
    /// The first error of the iterator. The samples before it are lost; iterate to keep them.
    pub fn read_all(mut self) -> Result<Audio> {
        let info = self.info().clone();
        let mut samples = Vec::new();
        for block in &mut self {
            samples.extend_from_slice(&block?);
        }
        Ok(Audio { samples, info, damage: self.damage() })
    }

    /// Decodes until a block is ready or the file ends.
    fn fill(&mut self) -> Result<()> {
        while self.ready.len() < BLOCK_SAMPLES && !self.ended {
            let rate = self.decoder.next_packet(&mut self.mono)?;
            if let Some((_, old)) = self.resampler.take_if(|(present, _)| rate != Some(*present)) {
                old.finish(&mut self.ready)?;
            }
            let Some(rate) = rate else {
                self.ended = true;
                break;
            };
            let (_, resampler) = match &mut self.resampler {
                Some(present) => present,
                none => none.insert((rate, Resampler::new(rate)?)),
            };
            resampler.push(&self.mono, &mut self.ready)?;
        }
        Ok(())
    }
}

impl Iterator for AudioStream {
    /// A block of [`BLOCK_SAMPLES`] samples, or fewer at the end, but at least one.
    type Item = Result<Vec<f32>>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.fill() {
            self.ended = true;
            self.ready.clear();
            return Some(Err(error));
        }
        let n = self.ready.len().min(BLOCK_SAMPLES);
        let rest = self.ready.split_off(n);
        let block = std::mem::replace(&mut self.ready, rest);
        (!block.is_empty()).then_some(Ok(block))
    }
}

/// Decodes a file into memory. See [`AudioStream`] for files of any length.
///
/// # Errors
/// The errors of [`AudioStream::open`] and [`AudioStream::read_all`].
pub fn decode(path: impl AsRef<Path>) -> Result<Audio> {
    AudioStream::open(path)?.read_all()
}

/// Decodes a file that is in memory.
///
/// # Errors
/// The errors of [`decode`].
pub fn decode_bytes(bytes: impl Into<Vec<u8>>, name: impl Into<String>) -> Result<Audio> {
    AudioStream::from_bytes(bytes, name)?.read_all()
}

/// Decodes everything that a reader returns.
///
/// # Errors
/// The errors of [`decode`].
pub fn decode_reader(reader: impl Read + Send + 'static, name: impl Into<String>) -> Result<Audio> {
    AudioStream::from_reader(reader, name)?.read_all()
}
