//! Repairs of OGG files that were cut within a page. The decoders search for the last page first,
//! and reject a file whose last page is incomplete. They read a source that cannot seek up to its
//! end.

use std::io::{self, Read, SeekFrom};

use symphonia::core::io::MediaSource;

use crate::unseekable::Unseekable;

/// Bytes of a page before its segment table, and the largest page.
const HEAD: usize = 27;
const MAX_PAGE: u64 = HEAD as u64 + 255 + 255 * 255;

/// The repaired source, which can seek.
///
/// # Errors
/// The source cannot be read.
pub(super) fn prepared(mut source: Box<dyn MediaSource>) -> io::Result<Box<dyn MediaSource>> {
    let len = source.byte_len().unwrap_or(0);
    source.seek(SeekFrom::Start(len.saturating_sub(MAX_PAGE)))?;
    let mut tail = Vec::new();
    (&mut source).take(MAX_PAGE).read_to_end(&mut tail)?;
    source.seek(SeekFrom::Start(0))?;
    Ok(if ends_within_page(&tail) { Box::new(Unseekable::new(source)) } else { source })
}

/// True if the last page is incomplete, judged by the last bytes of a file.
fn ends_within_page(tail: &[u8]) -> bool {
    let Some(begin) = tail.windows(4).rposition(|bytes| bytes == b"OggS") else { return false };
    let page = &tail[begin..];
    let n_segments = page.get(HEAD - 1).map(|n| usize::from(*n));
    let segments = n_segments.and_then(|n| page.get(HEAD..HEAD + n));
    segments.is_none_or(|segments| {
        let n_bytes: usize = segments.iter().map(|n| usize::from(*n)).sum();
        page.len() < HEAD + segments.len() + n_bytes
    })
}
