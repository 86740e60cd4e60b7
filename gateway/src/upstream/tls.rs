//! TLS towards replicas: one `ClientConfig` for all, so that sessions resume.
//!
//! The ClientHello stays small (ring's key shares only, no ALPN): the tunnel's relay must read it whole in one segment to
//! see the server name, and resets the connection otherwise.

use std::{io, path::PathBuf, sync::Arc};

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject};

/// Why no TLS client could be built.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// `pool.ca_file` can't be read, or holds no certificate.
    #[error("pool.ca_file {path}: {source}")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls_pki_types::pem::Error,
    },
    /// A certificate in `pool.ca_file` is not one.
    #[error("pool.ca_file {path}: {source}")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// Neither the system nor `pool.ca_file` has a root certificate: every handshake would fail.
    #[error("no root certificates: install the system's CA bundle, or set pool.ca_file")]
    NoRoots,
    /// The crypto provider refuses the protocol versions.
    #[error("TLS setup: {0}")]
    Setup(#[from] rustls::Error),
}

/// The system's roots, and those of `ca_file` beside them.
pub fn client_config(ca_file: Option<&PathBuf>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    let (_, unusable) = roots.add_parsable_certificates(native.certs);
    if unusable > 0 {
        tracing::warn!(unusable, "some of the system's root certificates can't be used");
    }
    if let Some(path) = ca_file {
        let named = |source| TlsError::CaFile { path: path.clone(), source };
        for certificate in CertificateDer::pem_file_iter(path).map_err(named)? {
            let certificate = certificate.map_err(named)?;
            roots.add(certificate).map_err(|source| TlsError::Certificate { path: path.clone(), source })?;
        }
    }
    if roots.is_empty() {
        return Err(TlsError::NoRoots);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The name that goes into the ClientHello and must be in the certificate.
pub fn server_name(host: &str) -> io::Result<rustls_pki_types::ServerName<'static>> {
    rustls_pki_types::ServerName::try_from(host.to_owned())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "not a name that a certificate can have"))
}
