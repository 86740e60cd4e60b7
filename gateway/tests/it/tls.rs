//! Clients over TLS: HTTP/2 and 1.1, and a certificate exchanged while a stream runs.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::harness::{Fleet, Gateway, PATIENCE, chat, expected, phone, write_certificate};

/// Accepts any certificate: what is asked here is which one was shown.
#[derive(Debug)]
struct Anyone(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

pub async fn connect(gateway: &Gateway, alpn: &[&[u8]]) -> TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.dangerous().set_certificate_verifier(Arc::new(Anyone(provider)));
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let port = gateway.tls.expect("a TLS port");
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.expect("the port is open");
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.expect("a handshake")
}

fn shown(tls: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    tls.get_ref().1.peer_certificates().expect("a certificate")[0].clone()
}

fn on_disk(gateway: &Gateway) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(gateway.dir().join("cert.pem")).expect("a certificate")
}

/// An HTTP/2 connection that drives itself until it is dropped.
pub async fn http2(tls: TlsStream<TcpStream>) -> (h2::client::SendRequest<Bytes>, tokio::task::JoinSet<()>) {
    let (sender, connection) = h2::client::handshake(tls).await.expect("HTTP/2");
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(async move {
        // It ends with an error when the test drops its side; that is how it should end.
        drop(connection.await);
    });
    (sender.ready().await.expect("ready"), driver)
}

pub async fn send(
    sender: &mut h2::client::SendRequest<Bytes>,
    body: &Value,
) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
    let request = Request::post("https://localhost/v1/chat/completions").body(()).expect("a request");
    let (answer, mut stream) = sender.send_request(request, false).expect("sent");
    stream.send_data(Bytes::from(body.to_string()), true).expect("taken");
    (answer, stream)
}

pub async fn text(answer: h2::client::ResponseFuture) -> String {
    let mut body = answer.await.expect("an answer").into_body();
    let mut text = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.expect("a whole answer");
        body.flow_control().release_capacity(piece.len()).expect("room");
        text.extend_from_slice(&piece);
    }
    String::from_utf8(text).expect("text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_clients_are_answered_in_parallel_over_one_connection_and_a_reset_frees_the_slot() {
    let fleet = Fleet::of(2, &phone(1, 2.0)).await;
    let gateway = Gateway::builder("").replicas(&fleet).tls().start().await;
    gateway.wait_settled(&fleet).await;
    let (mut sender, _driver) = http2(connect(&gateway, &[b"h2"]).await).await;
    let (first, _a) = send(&mut sender, &chat("one", true, 20)).await;
    let (second, _b) = send(&mut sender, &chat("two", false, 20)).await;
    let (first, second) = tokio::join!(text(first), text(second));
    assert!(first.ends_with("data: [DONE]\n\n"), "{first}");
    let second: Value = serde_json::from_str(&second).expect("JSON");
    assert_eq!(second["choices"][0]["message"]["content"], expected("two", 20));

    let (answer, mut stream) = send(&mut sender, &chat("left", true, 2000)).await;
    let mut body = answer.await.expect("a head").into_body();
    assert!(body.data().await.expect("an event").is_ok());
    stream.send_reset(h2::Reason::CANCEL);
    gateway.wait_at_rest().await;
    let cancelled = |phone: &fakephone::PhoneHandle| phone.stats().cancelled;
    assert_eq!(fleet.phones.iter().map(cancelled).sum::<u64>(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_exchanges_the_certificate_and_leaves_a_running_stream_alone() {
    let fleet = Fleet::of(1, &phone(1, 2.0)).await;
    let gateway = Gateway::builder("").replicas(&fleet).tls().start().await;
    gateway.wait_ready(1).await;
    let tls = connect(&gateway, &[b"h2"]).await;
    let before = on_disk(&gateway);
    assert_eq!(shown(&tls), before);
    let (mut sender, _driver) = http2(tls).await;
    let (running, _stream) = send(&mut sender, &chat("across", true, 100)).await;
    fleet.phones[0].wait_until(PATIENCE, |stats| stats.running_now == 1).await.expect("running");

    std::fs::write(gateway.dir().join("key.pem"), "no key").expect("a file");
    let refused = gateway.admin("POST", "/admin/reload", Some(&serde_json::json!({}))).await;
    assert!(refused.status >= 400, "a broken key must not be taken: {}", refused.text());
    assert_eq!(shown(&connect(&gateway, &[b"http/1.1"]).await), before);

    write_certificate(gateway.dir());
    let reloaded = gateway.admin("POST", "/admin/reload", Some(&serde_json::json!({}))).await;
    assert!(reloaded.status < 300, "{}", reloaded.text());
    let after = shown(&connect(&gateway, &[b"http/1.1"]).await);
    assert_eq!(after, on_disk(&gateway));
    assert_ne!(after, before);
    assert!(text(running).await.ends_with("data: [DONE]\n\n"));
}
