//! The certificate that clients see, exchangeable while connections run.

use std::{fmt, path::Path, sync::Arc};

use arc_swap::ArcSwap;
use rustls::{
    crypto::ring::sign::any_supported_type,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// Why a certificate can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file can't be read, or holds no PEM of that kind.
    #[error("{file}: {source}")]
    File {
        /// Which.
        file: String,
        /// Why.
        source: rustls_pki_types::pem::Error,
    },
    /// The certificate file is empty.
    #[error("{0}: no certificate in it")]
    Empty(String),
    /// The key is of no supported kind, or does not belong to the certificate.
    #[error("{file}: {source}")]
    Key {
        /// Which.
        file: String,
        /// Why.
        source: rustls::Error,
    },
}

/// Hands out the current certificate.
pub struct Certificate(ArcSwap<CertifiedKey>);

impl Certificate {
    /// Reads and checks both files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        Ok(Self(ArcSwap::from_pointee(read(certificate, key)?)))
    }

    /// Reads them again; on an error the current certificate stays.
    pub fn reload(&self, certificate: &Path, key: &Path) -> Result<(), CertificateError> {
        self.0.store(Arc::new(read(certificate, key)?));
        Ok(())
    }
}

fn read(certificate: &Path, key: &Path) -> Result<CertifiedKey, CertificateError> {
    let named = |path: &Path| {
        let file = path.display().to_string();
        move |source| CertificateError::File { file, source }
    };
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect).map_err(named(certificate))?;
    if chain.is_empty() {
        return Err(CertificateError::Empty(certificate.display().to_string()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(named(key))?;
    let unusable = |source| CertificateError::Key { file: key.display().to_string(), source };
    let certified = CertifiedKey::new(chain, any_supported_type(&private).map_err(unusable)?);
    match certified.keys_match() {
        // Some keys can't tell; the handshake will.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(certified),
        Err(source) => Err(unusable(source)),
    }
}

/// What rustls asks; shares the certificate with whoever reloads it.
#[derive(Clone)]
pub struct Resolver(pub Arc<Certificate>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.0.load_full())
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}
