//! Repairs of AIFF files without lengths, and of files that were cut: the samples end at the end of
//! the file.
//!
//! The decoders reject a file whose outer length or length of samples is wrong. So they get a new
//! header. Its lengths are the true ones or, for a cut file, those before the cut, so that the
//! decoders notice the loss.

use std::io::{self, Cursor, Read, SeekFrom};

use symphonia::core::io::MediaSource;

use super::{MAX_FORMAT, UNKNOWN_LENGTH};
use crate::unseekable::Unseekable;

/// Bytes of the chunk of samples before the first sample: an offset and a block size.
const N_BEFORE: u64 = 8;

/// The repaired source, after its first twelve bytes, of which the last four are `kind`. A file
/// whose samples come before the description is unchanged.
///
/// # Errors
/// The source cannot be read.
pub(super) fn prepared(mut source: Box<dyn MediaSource>, kind: &[u8]) -> io::Result<Box<dyn MediaSource>> {
    let len = source.byte_len().unwrap_or(u64::MAX);
    let (mut at, mut kept, mut described) = (12, kind.to_vec(), None);
    while let Some((id, said)) = chunk(&mut source, &mut at)? {
        let left = len.saturating_sub(at);
        match &id {
            b"SSND" => {
                let Some(frames) = described else { break };
                let length = if is_unknown(said, left) { left } else { said };
                // The lengths have 32 bits, and the outer length includes the header.
                let length = length.min(u64::from(u32::MAX) - kept.len() as u64 - 8);
                if is_unknown(said, left) {
                    count_frames(&mut kept, frames, length.saturating_sub(N_BEFORE));
                }
                kept.extend_from_slice(b"SSND");
                kept.extend_from_slice(&(length as u32).to_be_bytes());
                let whole = kept.len() as u64 + length;
                let head = [b"FORM", &(whole as u32).to_be_bytes()[..], &kept].concat();
                return Ok(Box::new(Unseekable::new(Cursor::new(head).chain(source.take(length)))));
            }
            b"COMM" | b"FVER" => {
                let place = kept.len() + 8;
                let mut body = Vec::new();
                (&mut source).take(said.min(MAX_FORMAT)).read_to_end(&mut body)?;
                kept.extend_from_slice(&id);
                kept.extend_from_slice(&(body.len() as u32).to_be_bytes());
                kept.extend_from_slice(&body);
                kept.resize(kept.len().next_multiple_of(2), 0);
                if &id == b"COMM" {
                    described = Some(place);
                }
            }
            _ => {}
        }
        at = at.saturating_add(said.next_multiple_of(2));
        source.seek(SeekFrom::Start(at.min(len)))?;
    }
    source.seek(SeekFrom::Start(0))?;
    Ok(source)
}

/// Reads the name of the next chunk and its stated length in bytes; `None` at the end of the file.
fn chunk(source: &mut dyn Read, at: &mut u64) -> io::Result<Option<([u8; 4], u64)>> {
    let mut bytes = Vec::with_capacity(8);
    source.take(8).read_to_end(&mut bytes)?;
    *at += bytes.len() as u64;
    Ok(match bytes[..] {
        [a, b, c, d, e, f, g, h] => Some(([a, b, c, d], u32::from_be_bytes([e, f, g, h]).into())),
        _ => None,
    })
}

/// True if a length of samples was never filled in. The file has `left` bytes more.
fn is_unknown(said: u64, left: u64) -> bool {
    said <= N_BEFORE && left > N_BEFORE || said >= UNKNOWN_LENGTH && said > left
}

/// Writes the number of frames in `n_bytes` into the description at `place`, if it has no number.
fn count_frames(kept: &mut [u8], place: usize, n_bytes: u64) {
    let Some(description) = kept.get_mut(place..) else { return };
    let Some(&[c, d, n0, n1, n2, n3, b, s]) = description.get(..8) else { return };
    let said = u32::from_be_bytes([n0, n1, n2, n3]);
    if said != 0 && u64::from(said) < UNKNOWN_LENGTH {
        return;
    }
    // Two of the compressed kinds have one byte a sample, even if the description states other
    // bits.
    let is_law = matches!(description.get(18..22), Some(b"ulaw" | b"ULAW" | b"alaw" | b"ALAW"));
    let n_bytes_each = if is_law { 1 } else { u64::from(u16::from_be_bytes([b, s])).div_ceil(8) };
    let n_bytes_frame = u64::from(u16::from_be_bytes([c, d])) * n_bytes_each;
    let n = u32::try_from(n_bytes.checked_div(n_bytes_frame).unwrap_or(0)).unwrap_or(u32::MAX);
    description[2..6].copy_from_slice(&n.to_be_bytes());
}
