//! Signatures and keys.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ed25519_dalek::Signer as _;
use formats::base::{self, Base, PublicKey, SecretKey};
use serde_json::json;
use sha2::{Digest, Sha256};
use weights::Access;

use super::{assemble, header_of, noise, parse, published, small};

fn folder() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (plain, signed) = (dir.path().join("plain.base"), dir.path().join("signed.base"));
    std::fs::write(&plain, small()).unwrap();
    (dir, plain, signed)
}

#[test]
fn a_signature_covers_header_and_weights() {
    let (dir, plain, signed) = folder();
    let key = SecretKey::generate().unwrap();
    assert_ne!(key.to_bytes(), SecretKey::generate().unwrap().to_bytes());
    assert!(!format!("{key:?}").contains(&STANDARD.encode(key.to_bytes())));
    base::sign_file(&plain, &signed, &key, "release \"1\"").unwrap();
    let read = base::read(&signed, Access::Map).unwrap();
    assert_eq!(read.signed_by(), Some("release \"1\""));
    assert_eq!(read.verify_signature(&key.public()).unwrap(), "release \"1\"");
    assert_eq!(read.verify_checksums().unwrap(), 3);
    let before = base::open(&plain, Access::Map).unwrap();
    for (a, b) in before.tensors.iter().zip(&read.checkpoint().tensors) {
        assert_eq!((&a.name, &a.data[..]), (&b.name, &b.data[..]));
    }

    let other = SecretKey::generate().unwrap().public();
    let refused = |base: &Base, key: &PublicKey, part: &str| {
        let message = base.verify_signature(key).unwrap_err().to_string();
        assert!(message.contains("signature") && message.contains(part), "{message}");
    };
    refused(&read, &other, "not by the key");
    refused(&base::read(&plain, Access::Map).unwrap(), &key.public(), "none");

    // Three damages: one bit of a weight, one letter of a name, the signature of another file.
    let bytes = std::fs::read(&signed).unwrap();
    let (header, weights) = header_of(&bytes);
    let mut changed = bytes.clone();
    changed[weights] ^= 1;
    refused(&parse(&changed).unwrap(), &key.public(), "not by the key");
    let mut renamed = header.clone();
    renamed["arch"] = json!("mamba");
    refused(
        &parse(&assemble(renamed.to_string().as_bytes(), &bytes[weights..])).unwrap(),
        &key.public(),
        "not by",
    );
    for signature in ["", "!", "AAAA", &STANDARD.encode([0; 64])] {
        let mut broken = header.clone();
        broken["sig"]["signature"] = json!(signature);
        refused(
            &parse(&assemble(broken.to_string().as_bytes(), &bytes[weights..])).unwrap(),
            &key.public(),
            "not by",
        );
    }
    let mut algorithm = header;
    algorithm["sig"]["alg"] = json!("none");
    refused(
        &parse(&assemble(algorithm.to_string().as_bytes(), &bytes[weights..])).unwrap(),
        &key.public(),
        "none",
    );

    // Signing again replaces the signature; signing in place is refused.
    let again = dir.path().join("again.base");
    let second = SecretKey::from_bytes(&[7; 32]);
    base::sign_file(&signed, &again, &second, "2").unwrap();
    assert_eq!(base::read(&again, Access::Map).unwrap().verify_signature(&second.public()).unwrap(), "2");
    assert!(base::sign_file(&signed, &signed, &key, "1").unwrap_err().to_string().contains("input itself"));
    assert_eq!(std::fs::read(&signed).unwrap(), bytes);
}

/// The published signer keeps the header's key order.
#[test]
fn a_signature_of_the_published_signer_is_valid() {
    let mut header =
        published(json!([{"name": "w", "dtype": "f32", "shape": [2], "offset": 0, "length": 8}]));
    let weights = noise(8, 3);
    let key = ed25519_dalek::SigningKey::from_bytes(&[9; 32]);
    let message = [header.to_string().as_bytes(), &Sha256::digest(&weights)[..]].concat();
    let signature = STANDARD.encode(key.sign(&message).to_bytes());
    header["sig"] = json!({"alg": "ed25519", "key_id": "k", "signature": signature});
    let base = parse(&assemble(header.to_string().as_bytes(), &weights)).unwrap();
    let public = SecretKey::from_bytes(&[9; 32]).public();
    assert_eq!(base.verify_signature(&public).unwrap(), "k");
}

#[test]
fn keys_are_files_of_32_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let key = SecretKey::from_bytes(&[3; 32]);
    std::fs::write(&path, key.to_bytes()).unwrap();
    assert_eq!(SecretKey::read(&path).unwrap().public(), key.public());
    std::fs::write(&path, key.public().to_bytes()).unwrap();
    assert_eq!(PublicKey::read(&path).unwrap(), key.public());
    std::fs::write(&path, [0; 31]).unwrap();
    assert!(PublicKey::read(&path).unwrap_err().to_string().contains("31 bytes"));
    // No point of the curve has this y.
    let mut no_point = [0; 32];
    no_point[0] = 2;
    std::fs::write(&path, no_point).unwrap();
    assert!(PublicKey::read(&path).unwrap_err().to_string().contains("not a key"));
    assert!(SecretKey::read(&dir.path().join("absent")).is_err());
}
