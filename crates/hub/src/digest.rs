//! The sha256 of files and of data that is written.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Bytes read or written at a time.
pub(crate) const CHUNK: usize = 256 * 1024;

/// An incremental sha256.
#[derive(Default, Clone)]
pub(crate) struct Hasher(Sha256);

impl Hasher {
    /// Hashes more bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Hashes everything that `reader` still returns.
    pub(crate) fn update_from(&mut self, reader: &mut impl Read) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => self.0.update(buffer.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The hash so far, in lower-case hexadecimal.
    pub(crate) fn hex(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The sha256 of a file, in lower-case hexadecimal.
pub(crate) fn file_sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(|e| Error::io(path, "opening", e))?;
    let mut hasher = Hasher::default();
    hasher.update_from(&mut file).map_err(|e| Error::io(path, "reading", e))?;
    Ok(hasher.hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_vector() {
        let mut hasher = Hasher::default();
        hasher.update(b"a");
        hasher.update_from(&mut &b"bc"[..]).unwrap();
        // FIPS 180-2, appendix B.1.
        assert_eq!(hasher.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
