//! Repairs of a file before the decoders read it.
//!
//! A recorder that writes to a pipe, or is killed, leaves a WAV header without lengths. Files write
//! "unknown" in many ways. Examples are zeros, the largest number of 31 or 32 bits with or without
//! the header's bytes, or a file length that contradicts the number of samples. In all cases the
//! samples end at the end of the file. So the header is read here, and the decoders get a header
//! with the true length. AIFF files have the same fault, and OGG files may be cut; their repairs
//! are in submodules.
//!
//! An MP4 or AIFF file from a pipe is held in memory. Most MP4 files have their index at the end,
//! and the decoders need every length of an AIFF file.

mod aiff;
mod ogg;

use std::io::{self, Cursor, Read, SeekFrom};

use symphonia::core::io::MediaSource;

use crate::unseekable::Unseekable;

/// Maximum number of bytes of an MP4 or AIFF file that cannot seek: half a day of speech in MP4.
const MAX_HELD: u64 = 1 << 29;
/// Maximum number of bytes of a format description that are read.
const MAX_FORMAT: u64 = 4096;
/// Least length that means "unknown" if the file is shorter. Recorders write 2^31, or just below.
const UNKNOWN_LENGTH: u64 = 0x7FFF_F000;
/// Maximum number of chunks after the samples that are checked.
const MAX_CHUNKS_BEHIND: usize = 64;

const INTEGERS: u16 = 1;
const FLOATS: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const EXTENSIBLE: u16 = 0xFFFE;

/// The repaired source.
///
/// # Errors
/// The source cannot be read.
pub(crate) fn prepared(mut source: Box<dyn MediaSource>) -> io::Result<Box<dyn MediaSource>> {
    let mut head = Vec::new();
    (&mut source).take(12).read_to_end(&mut head)?;
    let part = |range: std::ops::Range<usize>| head.get(range).unwrap_or_default();
    if matches!(part(0..4), b"RIFF" | b"RF64" | b"BW64") && part(8..12) == b"WAVE" {
        return wave(source);
    }
    let is_aiff = part(0..4) == b"FORM" && matches!(part(8..12), b"AIFF" | b"AIFC");
    if source.is_seekable() {
        if is_aiff {
            return aiff::prepared(source, part(8..12));
        }
        if part(0..4) == b"OggS" {
            return ogg::prepared(source);
        }
        source.seek(SeekFrom::Start(0))?;
        return Ok(source);
    }
    let is_mp4 = part(4..8) == b"ftyp";
    let kind = part(8..12).to_owned();
    let whole = Cursor::new(head).chain(source);
    if !is_mp4 && !is_aiff {
        return Ok(Box::new(Unseekable::new(whole)));
    }
    let mut held = Vec::new();
    whole.take(MAX_HELD).read_to_end(&mut held)?;
    let mut held = Cursor::new(held);
    if is_aiff {
        held.set_position(kind.len() as u64 + 8);
        return aiff::prepared(Box::new(held), &kind);
    }
    Ok(Box::new(held))
}

/// Repairs a WAV file, after its first twelve bytes.
fn wave(mut source: Box<dyn MediaSource>) -> io::Result<Box<dyn MediaSource>> {
    let mut header = b"RIFF\xFF\xFF\xFF\xFFWAVE".to_vec();
    let (mut at, mut is_odd) = (12, false);
    // Length of a file of 4 GiB or more, which does not fit in the other lengths.
    let mut long_length = None;
    while let Some(chunk) = Chunk::read(&mut source, &mut at, is_odd)? {
        if &chunk.id == b"data" {
            let length = data_length(&mut source, at, chunk.length, long_length)?;
            let short = length.and_then(|length| u32::try_from(length).ok()).unwrap_or(u32::MAX);
            header.extend_from_slice(b"data");
            header.extend_from_slice(&short.to_le_bytes());
            let rest = source.take(length.unwrap_or(u64::MAX));
            return Ok(Box::new(Unseekable::new(Cursor::new(header).chain(rest))));
        }
        let mut body = (&mut source).take(chunk.length.into());
        let mut kept = Vec::new();
        if matches!(&chunk.id, b"fmt " | b"ds64") {
            (&mut body).take(MAX_FORMAT).read_to_end(&mut kept)?;
        }
        at += kept.len() as u64 + io::copy(&mut body, &mut io::sink())?;
        is_odd = chunk.length % 2 == 1;
        match &chunk.id {
            b"fmt " => {
                let format = plain_format(kept);
                header.extend_from_slice(b"fmt ");
                header.extend_from_slice(&(format.len() as u32).to_le_bytes());
                header.extend_from_slice(&format);
                header.resize(header.len().next_multiple_of(2), 0);
            }
            b"ds64" => {
                long_length = kept.get(8..16).and_then(|n| Some(u64::from_le_bytes(n.try_into().ok()?)))
            }
            _ => {}
        }
    }
    // Without samples, the decoders report what is missing.
    Ok(Box::new(Cursor::new(header)))
}

/// The header of a chunk.
struct Chunk {
    id: [u8; 4],
    /// Length of the chunk's body, in bytes.
    length: u32,
}

impl Chunk {
    /// Reads the next header; `None` at the end of the file. A chunk of an odd length is followed
    /// by a byte of padding, which some writers leave out.
    fn read(source: &mut dyn Read, at: &mut u64, is_odd: bool) -> io::Result<Option<Chunk>> {
        let mut bytes = Vec::with_capacity(9);
        source.take(8).read_to_end(&mut bytes)?;
        let is_known = |id: Option<&[u8]>| {
            matches!(id, Some(b"fmt " | b"data" | b"fact" | b"LIST" | b"ds64" | b"bext" | b"JUNK" | b"cue "))
        };
        if is_odd && (is_known(bytes.get(1..5)) || !bytes.get(..4).is_some_and(is_id)) {
            source.take(1).read_to_end(&mut bytes)?;
            let n_padding = bytes.len().min(1);
            bytes.drain(..n_padding);
            *at += n_padding as u64;
        }
        *at += bytes.len() as u64;
        Ok(match bytes[..] {
            [a, b, c, d, e, f, g, h] => {
                Some(Chunk { id: [a, b, c, d], length: u32::from_le_bytes([e, f, g, h]) })
            }
            _ => None,
        })
    }
}

/// True if these bytes can be a chunk's name.
fn is_id(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Bytes of the samples, which begin at byte `at`. The header states `length` and, in long files,
/// `long`. `None` means the end of a source whose length is unknown.
fn data_length(
    source: &mut Box<dyn MediaSource>,
    at: u64,
    length: u32,
    long: Option<u64>,
) -> io::Result<Option<u64>> {
    let left = if source.is_seekable() { source.byte_len().map(|len| len.saturating_sub(at)) } else { None };
    let said = match (length, long) {
        (u32::MAX, Some(long)) => long,
        (length, _) => length.into(),
    };
    let is_unknown = match (said, left) {
        (0, Some(left)) => left > 0 && !are_chunks(source, at, left)?,
        (0, None) => true,
        (said, left) => {
            said == u32::MAX.into() || said >= UNKNOWN_LENGTH && left.is_none_or(|left| said > left)
        }
    };
    Ok(if is_unknown { left } else { Some(said) })
}

/// True if the `left` bytes from `at` are complete chunks. A length of 0 then means that there are
/// no samples.
fn are_chunks(source: &mut Box<dyn MediaSource>, at: u64, left: u64) -> io::Result<bool> {
    let (mut place, end, mut is_odd) = (at, at + left, false);
    let mut are_whole = false;
    for _ in 0..MAX_CHUNKS_BEHIND {
        let chunk = Chunk::read(source, &mut place, is_odd)?.filter(|chunk| is_id(&chunk.id));
        let Some(chunk) = chunk.filter(|chunk| place + u64::from(chunk.length) <= end) else { break };
        place += u64::from(chunk.length);
        is_odd = chunk.length % 2 == 1;
        // The last byte of padding may be missing.
        if place + u64::from(is_odd) >= end {
            are_whole = true;
            break;
        }
        source.seek(SeekFrom::Start(place))?;
    }
    source.seek(SeekFrom::Start(at))?;
    Ok(are_whole)
}

/// The format description in the one form that the decoders accept. Writers differ in the bytes
/// after the first sixteen, and in the bits of samples that do not fill their bytes.
fn plain_format(mut format: Vec<u8>) -> Vec<u8> {
    let number = |format: &[u8], at: usize| match format.get(at..at + 2) {
        Some(&[low, high]) => u16::from_le_bytes([low, high]),
        _ => 0,
    };
    if format.len() < 16 {
        return format;
    }
    let (tag, n_channels) = (number(&format, 0), number(&format, 2));
    // Bits of a sample in the file.
    let bits = match n_channels {
        0 => 0,
        n => (number(&format, 12) / n).saturating_mul(8),
    };
    let set = |format: &mut [u8], at: usize, value: u16| {
        if let Some(place) = format.get_mut(at..at + 2) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    };
    match tag {
        INTEGERS | FLOATS => {
            format.truncate(16);
            if number(&format, 14) % 8 != 0 && bits > number(&format, 14) {
                set(&mut format, 14, bits);
            }
        }
        A_LAW | MU_LAW => {
            format.truncate(16);
            format.extend_from_slice(&[0; 2]);
        }
        EXTENSIBLE if format.len() >= 40 && matches!(number(&format, 24), A_LAW | MU_LAW) => {
            let tag = number(&format, 24);
            format.truncate(16);
            set(&mut format, 0, tag);
            format.extend_from_slice(&[0; 2]);
        }
        EXTENSIBLE if format.len() >= 40 => {
            format.truncate(40);
            set(&mut format, 16, 22);
            if number(&format, 14) % 8 != 0 && bits > number(&format, 14) {
                set(&mut format, 14, bits);
            }
            let (of_file, used) = (number(&format, 14), number(&format, 18));
            if used == 0 || used > of_file || number(&format, 24) == FLOATS {
                set(&mut format, 18, of_file);
            }
        }
        _ => {}
    }
    format
}
