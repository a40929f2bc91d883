//! Reading a `.base` file.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh64::xxh64;

use super::header::{Entry, Header, Signature};
use super::sign::PublicKey;
use super::{HEADER_PREFIX, MAGIC, MAX_HEADER_BYTES, PREFIX_BYTES, VERSION, canonical, weights_start};
use crate::cursor::Cursor;
use crate::safetensors::flatten;
use weights::keys::{FILES_PREFIX, TOKENIZER_KEY};
use weights::{Bytes, Checkpoint, Error, Map, Metadata, Naming, Result, Value};

/// Flag of a slot that readers must understand.
const SLOT_REQUIRED: u16 = 1;

/// An open file.
#[derive(Clone)]
pub struct Base {
    checkpoint: Checkpoint,
    path: PathBuf,
    map: Arc<Map>,
    /// Range of the JSON in the file.
    header: Range<usize>,
    /// Range of the tensors' bytes in the file.
    weights: Range<usize>,
    /// Entries of all tensors, those of a vision tower or draft model included.
    entries: Vec<Entry>,
    signature: Option<Signature>,
    slots: Vec<Slot>,
}

/// An extension slot: bytes after the weights, of a kind listed in the specification. Ingle uses
/// none of them.
#[derive(Clone, Debug)]
pub struct Slot {
    /// The kind: 1 LoRA weights, 2 a compute graph, 3 warm-up tokens, 4 a reference trace, 5 RoPE
    /// tables, 6 calibration data, 255 vendor-specific.
    pub kind: u16,
    /// The stored bytes.
    pub payload: Bytes,
    /// Checksum of the payload; 0 if the slot has none.
    checksum: u64,
}

/// Parses the bytes of a file; `path` only names it in errors.
///
/// # Errors
/// Bytes that break the format, or content that is not supported (see the module's table).
pub fn parse(map: Arc<Map>, path: &Path) -> Result<Base> {
    let mut cursor = Cursor::new(&map, path);
    let magic = cursor.take(4, format_args!("magic"))?;
    if magic != MAGIC {
        return Err(cursor.error(
            format_args!("magic"),
            format_args!("\"{}\"", magic.escape_ascii()),
            "\"BASE\"",
        ));
    }
    let version = cursor.u32(format_args!("version"))?;
    if version != VERSION {
        return Err(Error::unsupported(path, "version", version, format_args!("version {VERSION}")));
    }
    let at = format_args!("header length");
    let length = cursor.u64(at)?;
    if length > MAX_HEADER_BYTES {
        return Err(cursor.error(at, length, format_args!("at most {MAX_HEADER_BYTES}")));
    }
    let length = cursor.room_for(length, 1, at)?;
    let text = cursor.take(length, at)?;
    let text = cursor.text(text, format_args!("header"))?;
    let header: Header = serde_json::from_str(text)
        .map_err(|e| Error::malformed(path, "header", e, "the JSON that the format describes"))?;
    if header.schema != 1 {
        return Err(Error::unsupported(path, "header, key \"schema\"", header.schema, "1"));
    }
    // At most twice the file's length.
    let weights = weights_start(length).unwrap_or(usize::MAX);

    let mut names = HashSet::new();
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for entry in &header.tensors {
        if !names.insert(&entry.name) {
            let at = format!("tensor {:?}", entry.name);
            return Err(Error::malformed(path, at, "the name a second time", "every name once"));
        }
        tensors.push(entry.tensor(&map, weights, path)?);
    }
    let metadata = metadata(&header, path)?;
    let naming = naming(&header, path)?;

    let bundles = [header.mmproj, header.speculator].into_iter().flatten();
    let entries: Vec<Entry> = header.tensors.into_iter().chain(bundles.flat_map(|b| b.tensors)).collect();
    let weights = weights..end_of_weights(&entries, weights, &map, path)?;
    let slots = read_slots(&map, weights.end, path)?;
    let quantised = tensors.iter().any(|t| t.block.has_planes());
    Ok(Base {
        checkpoint: Checkpoint {
            naming,
            metadata,
            tensors,
            left_out: Vec::new(),
            format: format!(".base v{version}{}", if quantised { ", quantised" } else { "" }),
            file_bytes: map.len() as u64,
        },
        path: path.to_owned(),
        header: PREFIX_BYTES..PREFIX_BYTES + length,
        weights,
        entries,
        signature: header.sig,
        slots,
        map,
    })
}

impl Base {
    /// The tensors and metadata.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The tensors and metadata, by value.
    pub fn into_checkpoint(self) -> Checkpoint {
        self.checkpoint
    }

    /// The header's JSON as stored.
    pub fn header(&self) -> &[u8] {
        &self.map[self.header.clone()]
    }

    /// The extension slots.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The id of the signing key, as the file states it. Nothing is verified.
    pub fn signed_by(&self) -> Option<&str> {
        self.signature.as_ref().map(|signature| signature.key_id.as_str())
    }

    /// Checks the checksum of every tensor and slot that has one, and returns their number. This
    /// reads the whole file.
    ///
    /// # Errors
    /// Names the first tensor or slot with another checksum.
    pub fn verify_checksums(&self) -> Result<usize> {
        let mut n = 0;
        let mut check = |at: String, bytes: &[u8], expected: u64| {
            n += 1;
            match xxh64(bytes, 0) {
                found if found == expected => Ok(()),
                found => Err(Error::malformed(
                    &self.path,
                    at,
                    format_args!("xxh64 {found:016x}"),
                    format_args!("{expected:016x}: the file is damaged"),
                )),
            }
        };
        for entry in &self.entries {
            if let Some(expected) = entry.checksum_xxh64 {
                check(format!("tensor {:?}", entry.name), self.entry_bytes(entry)?, expected)?;
            }
        }
        for (i, slot) in self.slots.iter().enumerate().filter(|(_, slot)| slot.checksum != 0) {
            check(format!("slot {i} of kind {}", slot.kind), &slot.payload, slot.checksum)?;
        }
        Ok(n)
    }

    fn entry_bytes(&self, entry: &Entry) -> Result<&[u8]> {
        let range = entry.range().and_then(|range| {
            Some(range.start.checked_add(self.weights.start)?..range.end.checked_add(self.weights.start)?)
        });
        range.and_then(|range| self.map.get(range)).ok_or_else(|| {
            let at = format!("tensor {:?}", entry.name);
            Error::malformed(&self.path, at, "bytes past the end", "a range within the file")
        })
    }

    /// Checks the ed25519 signature with this key, and returns the key's id as the signer named it.
    /// This reads the whole file. The signature does not cover slots.
    ///
    /// # Errors
    /// The file has no signature, or the signature does not match this key and these bytes.
    pub fn verify_signature(&self, key: &PublicKey) -> Result<String> {
        let error = |found: &str, expected: &str| Error::malformed(&self.path, "signature", found, expected);
        let Some(signature) = &self.signature else {
            return Err(error("none", "a signature by the given key"));
        };
        if signature.alg != "ed25519" {
            let found = format!("algorithm {:?}", signature.alg);
            return Err(Error::unsupported(&self.path, "signature", found, "ed25519"));
        }
        let unsigned = self.unsigned_header()?;
        let weights = self.weights_sha256();
        let signed = [canonical::sorted(&unsigned), canonical::as_stored(&unsigned)];
        let valid =
            signed.iter().any(|header| key.verify(&[header, &weights[..]].concat(), &signature.signature));
        if !valid {
            return Err(error(
                "a signature that is not by the key, or not over these bytes",
                "a valid signature; the file was changed, or another key signed it",
            ));
        }
        Ok(signature.key_id.clone())
    }

    /// The header without its signature.
    pub(super) fn unsigned_header(&self) -> Result<Json> {
        let mut header: Json = serde_json::from_slice(self.header())
            .map_err(|e| Error::malformed(&self.path, "header", e, "a JSON object"))?;
        if let Some(object) = header.as_object_mut() {
            object.shift_remove("sig");
        }
        Ok(header)
    }

    pub(super) fn weights_sha256(&self) -> [u8; 32] {
        Sha256::digest(self.map.get(self.weights.clone()).unwrap_or_default()).into()
    }

    /// The weights and everything after them.
    pub(super) fn weights_to_end(&self) -> &[u8] {
        self.map.get(self.weights.start..).unwrap_or_default()
    }
}

fn naming(header: &Header, path: &Path) -> Result<Naming> {
    let name = header.ingle.as_ref().and_then(|ingle| ingle.naming.as_deref());
    Ok(match name {
        None | Some("base") => Naming::Base,
        Some("gguf") => Naming::Gguf,
        Some("hugging_face") => Naming::HuggingFace,
        Some("ctranslate2") => Naming::CTranslate2,
        Some("whisper_cpp") => Naming::WhisperCpp,
        Some(other) => {
            return Err(Error::unsupported(
                path,
                "header, key \"ingle.naming\"",
                format_args!("{other:?}"),
                "base, gguf, hugging_face, ctranslate2, whisper_cpp",
            ));
        }
    })
}

/// The metadata: Ingle's own keys, config.json's, the tokenizer's, and the header's fields.
fn metadata(header: &Header, path: &Path) -> Result<Metadata> {
    let mut metadata = Metadata::default();
    if let Some(own) = &header.metadata {
        flatten(own, "", path, &mut metadata)?;
    }
    if let Some(config) = &header.config {
        let mut more = Metadata::default();
        flatten(config, "", path, &mut more)?;
        // A key in both places keeps the first value, which has types.
        more.iter().for_each(|(key, value)| _ = metadata.insert(key.to_owned(), value.clone()));
    }
    if let Some(raw) = header.tokenizer.filter(|raw| raw.get() != "{}") {
        // BaseRT stores a GGUF file's tokenizer as its keys.
        if raw.get().contains("\"tokenizer.ggml.") {
            let json: Json = serde_json::from_str(raw.get())
                .map_err(|e| Error::malformed(path, "header, key \"tokenizer\"", e, "a JSON object"))?;
            let mut more = Metadata::default();
            flatten(&json, "", path, &mut more)?;
            more.iter().for_each(|(key, value)| _ = metadata.insert(key.to_owned(), value.clone()));
        } else {
            metadata.insert(TOKENIZER_KEY.to_owned(), Value::Str(raw.get().to_owned()));
        }
    }
    let files = header.ingle.as_ref().and_then(|ingle| ingle.files.as_ref());
    for (name, text) in files.into_iter().flatten() {
        let Some(text) = text.as_str() else {
            let at = format!("header, key \"ingle.files.{name}\"");
            return Err(Error::malformed(path, at, "something else", "a text"));
        };
        metadata.insert(format!("{FILES_PREFIX}{name}"), Value::Str(text.to_owned()));
    }
    let mut say = |key: &str, value: Option<&str>| {
        if let Some(value) = value {
            metadata.insert(format!("{HEADER_PREFIX}{key}"), Value::Str(value.to_owned()));
        }
    };
    say("arch", Some(&header.arch));
    say("quant_scheme", header.quant_scheme.as_deref());
    say("target_backend", header.target_backend.as_deref());
    say("quant_profile", header.quant_profile.as_deref());
    say("mmproj.arch", header.mmproj.as_ref().map(|bundle| bundle.arch.as_str()));
    say("speculator.arch", header.speculator.as_ref().map(|bundle| bundle.arch.as_str()));
    for key in ["format", "filename", "sha256"] {
        let value = header.source.as_ref().and_then(|source| source.get(key)?.as_str());
        say(&format!("source.{key}"), value);
    }
    Ok(metadata)
}

/// The end of the last tensor. Two tensors may share all of their bytes, but not a part of them.
fn end_of_weights(entries: &[Entry], weights: usize, map: &Map, path: &Path) -> Result<usize> {
    let outside = |entry: &Entry| {
        Error::malformed(
            path,
            format_args!("tensor {:?}", entry.name),
            "bytes past the end",
            format_args!("a range within the {} bytes of the weights", map.len().saturating_sub(weights)),
        )
    };
    let mut by_start: Vec<(Range<usize>, &Entry)> = Vec::with_capacity(entries.len());
    let mut end = weights;
    for entry in entries {
        by_start.push((entry.range().ok_or_else(|| outside(entry))?, entry));
        let own = entry.end().and_then(|end| end.checked_add(weights)).filter(|&end| end <= map.len());
        end = end.max(own.ok_or_else(|| outside(entry))?);
    }
    by_start.sort_by_key(|(range, _)| (range.start, range.end));
    for ((a, entry_a), (b, entry_b)) in by_start.iter().zip(by_start.iter().skip(1)) {
        if a != b && b.start < a.end {
            return Err(Error::malformed(
                path,
                format_args!("tensor {:?}", entry_b.name),
                format_args!("bytes {b:?}"),
                format_args!("a range after tensor {:?}, bytes {a:?}", entry_a.name),
            ));
        }
    }
    // A file without tensors may end with its header.
    Ok(end.min(map.len()).max(weights.min(map.len())))
}

fn read_slots(map: &Arc<Map>, weights_end: usize, path: &Path) -> Result<Vec<Slot>> {
    let mut cursor = Cursor::new(map, path);
    cursor.at = weights_end.next_multiple_of(8).min(map.len());
    if cursor.remaining() == 0 {
        return Ok(Vec::new());
    }
    let at = format_args!("number of slots");
    let n = cursor.u32(at)?;
    let n = cursor.room_for(n.into(), 2 + 2 + 8 + 8, at)?;
    let mut slots = Vec::new();
    for i in 0..n {
        let at = format_args!("slot {i}");
        let kind = u16::from_le_bytes(cursor.array(at)?);
        let flags = u16::from_le_bytes(cursor.array(at)?);
        let length = cursor.u64(at)?;
        let checksum = cursor.u64(at)?;
        let length = cursor.room_for(length, 1, at)?;
        let start = cursor.at;
        cursor.take(length, at)?;
        let payload = cursor.bytes(start..cursor.at, at)?;
        cursor.take(length.next_multiple_of(8) - length, at)?;
        if flags & SLOT_REQUIRED != 0 {
            let found = format!("a required slot of kind {kind}");
            return Err(Error::unsupported(path, at, found, "only optional slots"));
        }
        slots.push(Slot { kind, payload, checksum });
    }
    Ok(slots)
}
