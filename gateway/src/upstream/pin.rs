//! TLS towards a replica that is known by its key.
//!
//! The certificate must carry exactly the pinned key, and the handshake must be signed with it: that proves the peer, and
//! nothing else is asked. Not the name: such a phone's certificate has none of a host. Not the dates: a phone's clock may be
//! wrong, and the key is valid as long as whoever stated it says so. Not the signer: it signs for itself. Rejected: the
//! certificate's own hash (it is made anew at every start of the app), and checking the key after a handshake that anybody
//! passes (a resumed session or a forgotten check would let anybody in).

use std::{fmt, str::FromStr, sync::Arc};

use ring::digest::{SHA256, digest};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::CryptoProvider,
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::TlsConnector;

use super::failure::Failure;

/// Sessions kept to resume. A phone hands out two for each connection.
const SESSIONS: usize = 8;

/// The SHA-256 of a SubjectPublicKeyInfo. Written as 64 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin([u8; 32]);

/// A text that is no pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a pin: 64 hex digits, the SHA-256 of the certificate's SubjectPublicKeyInfo")]
pub struct PinError;

impl Pin {
    /// The pin that no key has.
    pub const NOBODY: Self = Self([0; 32]);

    /// Of a SubjectPublicKeyInfo, DER.
    pub fn of(info: &[u8]) -> Self {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, info).as_ref());
        Self(hash)
    }
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let mut hash = [0; 32];
        hex::decode_to_slice(text, &mut hash).map_err(|_| PinError)?;
        Ok(Self(hash))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A pin, and the client that accepts nothing else. Its sessions are its own: one that was resumed was verified here.
pub(super) struct Pinned {
    pin: Pin,
    connector: Result<TlsConnector, rustls::Error>,
}

impl Pinned {
    pub(super) fn new(pin: Pin) -> Self {
        Self { pin, connector: connector(pin) }
    }

    pub(super) fn pin(&self) -> Pin {
        self.pin
    }

    pub(super) fn connector(&self) -> Result<&TlsConnector, Failure> {
        let unusable = |error: &rustls::Error| std::io::Error::new(std::io::ErrorKind::InvalidInput, error.clone());
        self.connector.as_ref().map_err(|error| Failure::Tls(unusable(error)))
    }
}

fn connector(pin: Pin) -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(KeyVerifier { pin, provider: Arc::clone(&provider) });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Accepts one key.
#[derive(Debug)]
struct KeyVerifier {
    pin: Pin,
    provider: Arc<CryptoProvider>,
}

/// The certificate has another key than the pinned one.
#[derive(Debug, thiserror::Error)]
#[error("its certificate carries another key")]
struct AnotherKey;

/// Whether a handshake failed for that.
pub(super) fn is_another_key(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(other)))) if other.is::<AnotherKey>())
}

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let info = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        if Pin::of(&info) == self.pin {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::Other(OtherError(Arc::new(AnotherKey))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PublicKeyData as _};
    use rustls::{ServerConfig, ServerConnection, crypto::ring::sign::any_supported_type, version};
    use rustls_pki_types::PrivateKeyDer;
    use tokio_rustls::TlsAcceptor;

    use super::{super::failure::Breach, *};
    use crate::{
        config,
        fleet::Finding,
        upstream::{Endpoint, Upstream},
    };

    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

    fn pin(key: &KeyPair) -> Pin {
        Pin::of(&key.subject_public_key_info())
    }

    /// As a phone's tunnel makes its own: for a name that is no host's.
    fn self_signed(key: &KeyPair) -> CertificateDer<'static> {
        CertificateParams::new(vec!["agent".into()]).unwrap().self_signed(key).unwrap().der().clone()
    }

    /// A server with a certificate, and the key that it signs handshakes with.
    fn server(certificate: CertificateDer<'static>, key: &KeyPair) -> ServerConfig {
        struct Fixed(Arc<rustls::sign::CertifiedKey>);
        impl fmt::Debug for Fixed {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("Fixed")
            }
        }
        impl rustls::server::ResolvesServerCert for Fixed {
            fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
                Some(Arc::clone(&self.0))
            }
        }
        // Not through `CertifiedKey::from_der`: it would notice a certificate of another key, which a liar does not.
        let signing = any_supported_type(&PrivateKeyDer::Pkcs8(key.serialize_der().into())).unwrap();
        let certified = rustls::sign::CertifiedKey::new(vec![certificate], signing);
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Fixed(Arc::new(certified))))
    }

    /// Answers requests, each on a connection of its own, until the test ends; resumes sessions.
    async fn serve(config: ServerConfig) -> u16 {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let tasks = crate::shutdown::Tasks::default();
        let accept = async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let Ok(mut tls) = acceptor.accept(tcp).await else { continue };
                let resumed = was_resumed(tls.get_ref().1);
                let mut request = [0; 4_096];
                if tls.read(&mut request).await.is_ok() {
                    let body = if resumed { "again" } else { "fresh" };
                    let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\n{body}");
                    drop(tls.write_all(answer.as_bytes()).await);
                    drop(tls.shutdown().await);
                }
            }
        };
        tasks.spawn("server", accept).await;
        std::mem::forget(tasks);
        port
    }

    fn was_resumed(connection: &ServerConnection) -> bool {
        connection.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    fn upstream(ca: Option<&std::path::Path>) -> Upstream {
        let ca_file = ca.map(std::path::Path::to_owned);
        Upstream::new(&config::Pool { allow_private: true, ca_file, ..config::Pool::default() }).unwrap()
    }

    async fn ask(upstream: &Upstream, endpoint: &Endpoint) -> Result<String, Failure> {
        let fetched = upstream.get(endpoint, "/", None, PATIENCE).await?;
        Ok(String::from_utf8_lossy(&fetched.body).into_owned())
    }

    fn endpoint(port: u16, pin: Pin) -> Endpoint {
        Endpoint::new(true, "0123456789abcdef.localhost", port).pinned(pin)
    }

    /// An authority, what it signed for a host's name, and that certificate's key.
    struct Signed {
        folder: tempfile::TempDir,
        certificate: CertificateDer<'static>,
        key: KeyPair,
    }

    fn signed() -> Signed {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["0123456789abcdef.localhost".into()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap().der().clone();
        Signed { folder, certificate, key }
    }

    fn refused_for_its_key(error: Failure) {
        assert!(matches!(error, Failure::OtherKey), "{error:?}");
        assert_eq!(error.hard(), Some(scheduler::HardFailure::Certificate));
        let shown = Finding::from(error).to_string();
        assert!(shown.contains("another key than the chain says"), "{shown}");
    }

    #[tokio::test]
    async fn the_pinned_key_is_accepted_under_any_name_and_its_session_is_resumed() {
        let key = KeyPair::generate().unwrap();
        let port = serve(server(self_signed(&key), &key)).await;
        let (upstream, endpoint) = (upstream(None), endpoint(port, pin(&key)));
        assert_eq!(ask(&upstream, &endpoint).await.unwrap(), "fresh");
        assert_eq!(ask(&upstream, &endpoint).await.unwrap(), "again");
    }

    #[tokio::test]
    async fn another_key_is_refused_and_the_reason_is_told() {
        let key = KeyPair::generate().unwrap();
        let port = serve(server(self_signed(&key), &key)).await;
        let pinned = endpoint(port, pin(&KeyPair::generate().unwrap()));
        refused_for_its_key(ask(&upstream(None), &pinned).await.unwrap_err());
    }

    #[tokio::test]
    async fn a_trusted_certificate_of_the_same_name_does_not_replace_the_key() {
        let Signed { folder, certificate, key } = signed();
        let port = serve(server(certificate, &key)).await;
        let upstream = upstream(Some(&folder.path().join("ca.pem")));
        let name = "0123456789abcdef.localhost";
        // Without a pin it is fine, which opens a session that must not let it in where there is one.
        let open = Endpoint::new(true, name, port);
        assert_eq!(ask(&upstream, &open).await.unwrap(), "fresh");
        let pinned = endpoint(port, pin(&KeyPair::generate().unwrap()));
        refused_for_its_key(ask(&upstream, &pinned).await.unwrap_err());
        // And a replica without a pin is verified as ever.
        let own = KeyPair::generate().unwrap();
        let port = serve(server(self_signed(&own), &own)).await;
        let unpinned = Endpoint::new(true, name, port);
        let refused = ask(&upstream, &unpinned).await;
        assert!(matches!(refused, Err(Failure::Certificate(_))), "{refused:?}");
    }

    /// Certificates are public: showing one is nothing, signing with its key is.
    #[tokio::test]
    async fn whoever_shows_the_certificate_without_having_its_key_is_refused() {
        let key = KeyPair::generate().unwrap();
        let port = serve(server(self_signed(&key), &KeyPair::generate().unwrap())).await;
        let refused = ask(&upstream(None), &endpoint(port, pin(&key))).await;
        assert!(matches!(refused, Err(Failure::Certificate(Breach::Form))), "{refused:?}");
    }

    #[tokio::test]
    async fn a_pinned_replica_is_not_asked_without_tls() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let key = KeyPair::generate().unwrap();
        let plain = Endpoint::new(false, "127.0.0.1", port).pinned(pin(&key));
        assert!(matches!(ask(&upstream(None), &plain).await, Err(Failure::OtherKey)));
    }

    #[test]
    fn a_pin_is_read_as_it_is_written() {
        let pin = pin(&KeyPair::generate().unwrap());
        assert_eq!(pin.to_string().parse(), Ok(pin));
        for odd in ["", "00", &"g".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
            assert_eq!(odd.parse::<Pin>(), Err(PinError), "{odd}");
        }
    }
}
