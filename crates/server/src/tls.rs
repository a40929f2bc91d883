//! TLS with a certificate and key from PEM files, which can be reloaded while the server runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Errors of a certificate.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM of the expected kind.
    #[error("{}: {error}; expected {expected} in PEM", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The expected content.
        expected: &'static str,
        /// The error of the file.
        error: rustls::pki_types::pem::Error,
    },
    /// The file has no certificate.
    #[error("{} holds no certificate, expected the server's own followed by those up to its authority", .0.display())]
    NoCertificate(PathBuf),
    /// Certificate and key do not match, or are of an unsupported kind.
    #[error("{} and {}: {error}; expected a certificate and its own private key", cert.display(), key.display())]
    Pair {
        /// File of the certificates.
        cert: PathBuf,
        /// File of the key.
        key: PathBuf,
        /// The reason.
        error: rustls::Error,
    },
}

/// A server's certificate. Cheap to clone; [`Self::reload`] updates all clones.
#[derive(Clone, Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    pub(crate) config: RustlsConfig,
}

impl Tls {
    /// Reads a chain of certificates, the server's own first, and its private key.
    ///
    /// # Errors
    /// A file cannot be read or has other content, or the two do not match.
    pub fn open(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        let config = RustlsConfig::from_config(read(cert, key)?);
        Ok(Tls { cert: cert.to_owned(), key: key.to_owned(), config })
    }

    /// Reads the files again. Later connections use the new certificate.
    ///
    /// # Errors
    /// As [`Self::open`]; the old certificate stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.config.reload_from_config(read(&self.cert, &self.key)?);
        Ok(())
    }
}

fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let wrong = |path: &Path, expected| {
        let path = path.to_owned();
        move |error| TlsError::File { path, expected, error }
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(wrong(cert, "certificates"))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(cert.to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(wrong(key, "a private key"))?;
    let pair = |error| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), error };
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(pair)?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
