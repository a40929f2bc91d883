//! ed25519 signatures over the canonical header without its `sig`, followed by the SHA-256 of the
//! weights.
//!
//! Keys are files of 32 bytes, as BaseRT's `keygen` writes them: `NAME.secret` and `NAME.pub`.

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};

use super::{MAGIC, VERSION, canonical, weights_start};
use weights::{Access, Error, Result};

/// Bytes of a secret or public key.
const KEY_BYTES: usize = 32;

/// A signing key. It is wiped from memory when dropped, and its `Debug` output hides it.
#[derive(Clone)]
pub struct SecretKey(SigningKey);

impl SecretKey {
    /// Generates a key from the operating system's randomness.
    ///
    /// # Errors
    /// The operating system has no source of randomness.
    pub fn generate() -> std::io::Result<SecretKey> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(SecretKey::from_bytes(&bytes))
    }

    /// The key with these bytes.
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> SecretKey {
        SecretKey(SigningKey::from_bytes(bytes))
    }

    /// The key's bytes, for a file that only its owner can read.
    pub fn to_bytes(&self) -> [u8; KEY_BYTES] {
        self.0.to_bytes()
    }

    /// Reads a file of 32 bytes.
    ///
    /// # Errors
    /// The file cannot be read, or has another length.
    pub fn read(path: &Path) -> Result<SecretKey> {
        Ok(SecretKey::from_bytes(&read_key(path)?))
    }

    /// The public key that verifies this key's signatures.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey of {:?}", self.public())
    }
}

/// A key that verifies signatures.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(VerifyingKey);

impl PublicKey {
    /// The key with these bytes; `None` if they are not a point of the curve.
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Option<PublicKey> {
        VerifyingKey::from_bytes(bytes).ok().map(PublicKey)
    }

    /// The key's bytes.
    pub fn to_bytes(&self) -> [u8; KEY_BYTES] {
        self.0.to_bytes()
    }

    /// Reads a file of 32 bytes.
    ///
    /// # Errors
    /// The file cannot be read, has another length, or is not a key.
    pub fn read(path: &Path) -> Result<PublicKey> {
        PublicKey::from_bytes(&read_key(path)?).ok_or_else(|| {
            Error::malformed(path, "key", "32 bytes that are not a key", "an ed25519 public key")
        })
    }

    /// True if `signature`, in base64, is this key's over `message`. Keys and signatures of small
    /// order, which would match other messages too, are rejected.
    pub(super) fn verify(&self, message: &[u8], signature: &str) -> bool {
        let bytes = STANDARD.decode(signature).ok().and_then(|bytes| <[u8; 64]>::try_from(bytes).ok());
        bytes.is_some_and(|bytes| self.0.verify_strict(message, &Signature::from_bytes(&bytes)).is_ok())
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", STANDARD.encode(self.to_bytes()))
    }
}

fn read_key(path: &Path) -> Result<[u8; KEY_BYTES]> {
    let bytes = std::fs::read(path).map_err(|source| Error::Io { file: path.to_owned(), source })?;
    <[u8; KEY_BYTES]>::try_from(bytes.as_slice())
        .map_err(|_| Error::malformed(path, "key", format_args!("{} bytes", bytes.len()), "32"))
}

/// Writes `output`: `input` with a new signature, which replaces an old one. `key_id` names the key
/// for people.
///
/// # Errors
/// `input` is not a valid `.base` file, `output` is the same file, or writing fails.
pub fn sign_file(input: &Path, output: &Path, key: &SecretKey, key_id: &str) -> Result<()> {
    let io = |source| Error::Io { file: output.to_owned(), source };
    // Writing over a mapped file would change it while it is read.
    if let (Ok(a), Ok(b)) = (input.canonicalize(), output.canonicalize())
        && a == b
    {
        return Err(Error::malformed(output, "output", "the input itself", "another file"));
    }
    let base = super::read(input, Access::Map)?;
    let mut header = base.unsigned_header()?;
    let message = [canonical::sorted(&header), base.weights_sha256().to_vec()].concat();
    let signature = STANDARD.encode(key.0.sign(&message).to_bytes());
    if let Some(object) = header.as_object_mut() {
        let sig = serde_json::json!({ "alg": "ed25519", "key_id": key_id, "signature": signature });
        object.insert("sig".to_owned(), sig);
    }
    let mut out = BufWriter::new(File::create(output).map_err(io)?);
    write_head(&mut out, &canonical::sorted(&header)).map_err(io)?;
    out.write_all(base.weights_to_end()).map_err(io)?;
    out.flush().map_err(io)
}

/// Writes everything before the weights.
pub(super) fn write_head(out: &mut impl Write, header: &[u8]) -> std::io::Result<()> {
    out.write_all(&MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header)?;
    let start = weights_start(header.len()).ok_or(std::io::ErrorKind::InvalidInput)?;
    let padding = start - super::PREFIX_BYTES - header.len();
    out.write_all(&vec![0; padding])
}
