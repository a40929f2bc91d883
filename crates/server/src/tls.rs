//! TLS: a certificate and its key from PEM files, which can be read again while the server runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read, or is not PEM of what is expected.
    #[error("{}: {error}; expected {expected} in PEM", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What should be in it.
        expected: &'static str,
        /// What is wrong.
        error: rustls::pki_types::pem::Error,
    },
    /// There is no certificate in the file.
    #[error("{} holds no certificate, expected the server's own followed by those up to its authority", .0.display())]
    NoCertificate(PathBuf),
    /// The two do not belong together, or are of a kind that cannot be used.
    #[error("{} and {}: {error}; expected a certificate and its own private key", cert.display(), key.display())]
    Pair {
        /// The certificates.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// What is wrong.
        error: rustls::Error,
    },
}

/// A server's certificate. Cheap to clone; all clones see what [`Self::reload`] reads.
#[derive(Clone, Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    pub(crate) config: RustlsConfig,
}

impl Tls {
    /// Read a chain of certificates, the server's own first, and its private key.
    ///
    /// # Errors
    /// A file cannot be read, does not hold what is expected, or the two do not belong together.
    pub fn open(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        let config = RustlsConfig::from_config(read(cert, key)?);
        Ok(Tls { cert: cert.to_owned(), key: key.to_owned(), config })
    }

    /// Read the files again; connections from now on see the new certificate.
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
