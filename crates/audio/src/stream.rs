//! Files, readers and bytes as blocks of 16 kHz mono samples.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Mutex;

use symphonia::core::io::MediaSource;

use crate::decode::{Damage, Decoder, SourceInfo};
use crate::error::{Error, Result};
use crate::resample::Resampler;
use crate::{SAMPLE_RATE, container};

/// Samples in each block of an [`AudioStream`] but the last: a second.
pub const BLOCK_SAMPLES: usize = SAMPLE_RATE as usize;

/// A whole recording in memory: 64 kB per second.
#[derive(Clone, Debug)]
pub struct Audio {
    /// Mono, 16 kHz, nominally -1 to 1.
    pub samples: Vec<f32>,
    /// What the header said.
    pub info: SourceInfo,
    /// What was wrong with the file, if anything.
    pub damage: Option<Damage>,
}

impl Audio {
    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(SAMPLE_RATE)
    }
}

/// A recording being decoded: an iterator over blocks of [`BLOCK_SAMPLES`] mono samples at 16 kHz.
///
/// Channels are averaged, other rates resampled (see [`Resampler`]); a file that is already mono 16
/// kHz passes through exactly, integers divided by the largest power of two of their type. The
/// blocks of a truncated file end early too, and [`damage`](Self::damage) says so afterwards. After
/// an error the iterator ends.
pub struct AudioStream {
    decoder: Decoder,
    /// The current rate in Hz and its resampler; `None` before the first packet, whose rate counts,
    /// not the header's.
    resampler: Option<(u32, Resampler)>,
    /// Whether everything was decoded, or decoding failed.
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
    /// [`Error::Open`]; [`Error::NotAudio`], [`Error::NoAudioTrack`], [`Error::Codec`] and
    /// [`Error::SampleRate`] for what the header shows.
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

    /// Reads a file that is in memory, such as an upload. `name` appears in messages.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(bytes: impl Into<Vec<u8>>, name: impl Into<String>) -> Result<Self> {
        Self::from_source(Box::new(Cursor::new(bytes.into())), name.into())
    }

    /// Reads a source that cannot seek, such as standard input. `name` appears in messages.
    ///
    /// Of an MP4 file that is longer than 512 MiB and has its index at its end, nothing can be read this way.
    ///
    /// # Errors
    /// As [`open`](Self::open).
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

    /// What the header says. In a chained file: the header of the part being read.
    pub fn info(&self) -> &SourceInfo {
        &self.decoder.info
    }

    /// What has been wrong with the file so far. Complete when the iterator has ended.
    pub fn damage(&self) -> Option<Damage> {
        self.decoder.damage()
    }

    /// Decodes all that is left.
    ///
    /// # Errors
    /// The first that the iterator returns. The samples before it are lost; iterate to keep them.
    pub fn read_all(mut self) -> Result<Audio> {
        let info = self.info().clone();
        let mut samples = Vec::new();
        for block in &mut self {
            samples.extend_from_slice(&block?);
        }
        Ok(Audio { samples, info, damage: self.damage() })
    }

    /// Decodes until a block is ready or nothing is left.
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
    /// A block of samples: [`BLOCK_SAMPLES`] of them, or fewer at the end, never none.
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
/// As [`AudioStream::open`] and [`AudioStream::read_all`].
pub fn decode(path: impl AsRef<Path>) -> Result<Audio> {
    AudioStream::open(path)?.read_all()
}

/// Decodes a file that is in memory.
///
/// # Errors
/// As [`decode`].
pub fn decode_bytes(bytes: impl Into<Vec<u8>>, name: impl Into<String>) -> Result<Audio> {
    AudioStream::from_bytes(bytes, name)?.read_all()
}

/// Decodes everything that a reader returns.
///
/// # Errors
/// As [`decode`].
pub fn decode_reader(reader: impl Read + Send + 'static, name: impl Into<String>) -> Result<Audio> {
    AudioStream::from_reader(reader, name)?.read_all()
}

/// A reader that cannot seek. The decoders require a `Sync` source; this lock is never contended.
pub(crate) struct Unseekable<R>(Mutex<R>);

impl<R> Unseekable<R> {
    pub(crate) fn new(reader: R) -> Unseekable<R> {
        Unseekable(Mutex::new(reader))
    }
}

impl<R: Read> Read for Unseekable<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self.0.get_mut() {
            Ok(reader) => reader.read(buf),
            Err(poisoned) => poisoned.into_inner().read(buf),
        }
    }
}

impl<R> Seek for Unseekable<R> {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Err(io::ErrorKind::NotSeekable.into())
    }
}

impl<R: Read + Send> MediaSource for Unseekable<R> {
    fn is_seekable(&self) -> bool {
        false
    }

    fn byte_len(&self) -> Option<u64> {
        None
    }
}
