//! Certificates: an own authority for a process's phones, good ones and bad ones.

use crate::fault::WrongCertificate;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The certificate or its key was refused by the generator.
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// The certificate was refused by the TLS library.
    #[error("cannot use a certificate: {0}")]
    Use(#[from] rustls::Error),
}

/// A certificate authority that lives as long as the process.
#[derive(Debug)]
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(crate) fn new() -> Result<Self, CertificateError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "fakephone authority");
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// The authority's certificate.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// A TLS acceptor for `host`; with `expired`, its certificate ended years ago.
    fn acceptor(&self, host: &str, expired: bool) -> Result<TlsAcceptor, CertificateError> {
        let mut params = CertificateParams::new(vec![host.to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, host);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        if expired {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let private = PrivateKeyDer::try_from(key.serialize_der()).map_err(|_| rcgen::Error::CouldNotParseKeyPair)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        // No ALPN: the tunnel's phones offer none.
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// How a phone terminates TLS.
#[derive(Clone)]
pub(crate) struct Certificates {
    authority: Arc<Authority>,
    host: String,
    good: TlsAcceptor,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Certificates").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Certificates {
    pub(crate) fn new(authority: Arc<Authority>, host: String) -> Result<Self, CertificateError> {
        let good = authority.acceptor(&host, false)?;
        Ok(Self { authority, host, good })
    }

    /// The acceptor that presents the right certificate.
    pub(crate) fn good(&self) -> TlsAcceptor {
        self.good.clone()
    }

    /// An acceptor that presents a wrong one.
    pub(crate) fn wrong(&self, kind: WrongCertificate) -> Result<TlsAcceptor, CertificateError> {
        match kind {
            WrongCertificate::Expired => self.authority.acceptor(&self.host, true),
            WrongCertificate::OtherName => self.authority.acceptor("somebody.else.example", false),
            WrongCertificate::Untrusted => Authority::new()?.acceptor(&self.host, false),
        }
    }
}
