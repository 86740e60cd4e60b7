//! A connection from its arrival to its end, and one request on it.

use crate::breach::{Moment, Way};
use crate::dialect;
use crate::door;
use crate::fault::Fault;
use crate::http::{Conn, Gone, NoRequest, Reply, Request};
use crate::link::{Ending, Tunnel};
use crate::phone::{Arrival, Phone};
use crate::stats::{Attempt, SeenRequest};
use crate::wire::{ResetOnDrop, Socket, Wire};
use crate::{clock, digest};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a connection that ended stays to take in what the client still sends, so that it sees an end of file and
/// not a reset.
const DRAIN: Duration = Duration::from_secs(1);

/// What becomes of the connection after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    Keep,
    Close,
    EndOfFile,
    Reset,
}

/// One request being answered.
pub(crate) struct Visit<'a> {
    pub(crate) phone: &'a Arc<Phone>,
    pub(crate) conn: &'a mut Conn,
    pub(crate) request: &'a Request,
    pub(crate) fault: Fault,
    /// Present on requests that make the model work.
    pub(crate) attempt: Option<Attempt>,
}

impl Visit<'_> {
    /// Answers with an error, or with anything else that is not what was asked for.
    pub(crate) async fn refuse(&mut self, reply: &Reply) -> Result<Flow, Gone> {
        if let Some(attempt) = &mut self.attempt {
            attempt.fail();
        }
        self.conn.reply(reply).await?;
        Ok(Flow::Keep)
    }

    /// Answers with what was asked for, as far as the fault lets it through.
    pub(crate) async fn reply(&mut self, reply: &Reply) -> Result<Flow, Gone> {
        let Some(attempt) = &mut self.attempt else { return self.send(reply).await };
        let breach = self.fault.breach().filter(|breach| matches!(breach.at, Moment::Tokens(_)));
        let Some(breach) = breach else {
            attempt.complete();
            return self.send(reply).await;
        };
        attempt.fail();
        match breach.how {
            Way::Error(code) => {
                let error = dialect::error(self.phone.config.dialect, code, "server_error", door::TOLD_TO_FAIL);
                self.send(&error).await
            }
            Way::Reset => self.send_half(reply, Flow::Reset).await,
            Way::Hang => {
                self.send_half(reply, Flow::Keep).await?;
                self.conn.gone().await;
                Err(Gone)
            }
            _ => self.send_half(reply, Flow::EndOfFile).await,
        }
    }

    async fn send(&mut self, reply: &Reply) -> Result<Flow, Gone> {
        if self.request.method == "HEAD" {
            self.conn.send_head(&reply.clone().with("Content-Length", &reply.body.len().to_string())).await?;
        } else {
            self.conn.reply(reply).await?;
        }
        Ok(Flow::Keep)
    }

    /// Sends a head that promises the whole body, and half of it.
    async fn send_half(&mut self, reply: &Reply, flow: Flow) -> Result<Flow, Gone> {
        let head = reply.clone().with("Content-Length", &reply.body.len().to_string());
        self.conn.send_head(&head).await?;
        self.conn.send(&reply.body[..reply.body.len() / 2]).await?;
        Ok(flow)
    }
}

struct Open<'a>(&'a Phone);

impl<'a> Open<'a> {
    fn count(phone: &'a Phone) -> Self {
        phone.book.update(|stats| {
            stats.connections += 1;
            stats.connections_open += 1;
        });
        Self(phone)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.book.update(|stats| stats.connections_open -= 1);
    }
}

/// Serves one connection until it ends or the wire does. `born` is the count of cuts when it was accepted.
pub(crate) async fn receive(phone: Arc<Phone>, stream: TcpStream, born: u64) {
    let _open = Open::count(&phone);
    // A socket without the option works, only later.
    stream.set_nodelay(true).ok();
    let reset = ResetOnDrop::default();
    let mut link = phone.link.subscribe();
    let mut life = std::pin::pin!(live(phone.clone(), Socket::new(stream, reset.clone()), reset.clone()));
    loop {
        let now = *link.borrow_and_update();
        if now.cuts > born {
            if now.ending == Ending::Reset {
                reset.arm();
            }
            return;
        }
        let changed = async { link.changed().await.is_ok() };
        match now.silent {
            None => tokio::select! {
                () = &mut life => return,
                alive = changed => if !alive { return },
            },
            Some(limit) => tokio::select! {
                () = hang(limit) => return,
                alive = changed => if !alive { return },
            },
        }
    }
}

async fn hang(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

async fn live(phone: Arc<Phone>, socket: Socket, reset: ResetOnDrop) {
    let acceptor = match (phone.arrival(), &phone.certificates) {
        (Arrival::Reset, _) => return reset.arm(),
        (Arrival::Hang(limit), _) => return hang(limit).await,
        (Arrival::CloseAfterHandshake, None) => return end_of_file(Wire::Plain(socket)).await,
        (Arrival::CloseAfterHandshake, Some(certificates)) => {
            if let Ok(stream) = certificates.good().accept(socket).await {
                end_of_file(Wire::Tls(Box::new(stream))).await;
            }
            return;
        }
        (_, None) => None,
        (Arrival::ServeWith(kind), Some(certificates)) => certificates.wrong(kind).ok(),
        (Arrival::Serve, Some(certificates)) => Some(certificates.good()),
    };
    let wire = match acceptor {
        None => Wire::Plain(socket),
        Some(acceptor) => match acceptor.accept(socket).await {
            Ok(stream) => Wire::Tls(Box::new(stream)),
            Err(_) => return,
        },
    };
    serve(&phone, wire, &reset).await;
}

async fn serve(phone: &Arc<Phone>, wire: Wire, reset: &ResetOnDrop) {
    let greeting = dialect::greeting(phone.config.dialect);
    let mut conn = Conn::new(wire, phone.next_connection(), greeting).through(Tunnel::new(&phone.link));
    loop {
        let (idle, most) = phone.patience();
        let request = match conn.read_request(idle).await {
            Ok(request) => request,
            Err(NoRequest::Ended) => return conn.close().await,
            Err(NoRequest::Refused(status)) => {
                conn.says_close = true;
                conn.reply(&Reply::new(status, "", "")).await.ok();
                return conn.close().await;
            }
        };
        conn.says_close = conn.served >= most || request.closes;
        match answer(phone, &mut conn, &request).await {
            Ok(Flow::Keep) if !conn.says_close => {}
            Ok(Flow::Keep | Flow::Close) => return conn.close().await,
            Ok(Flow::EndOfFile) => return end_of_file(conn.into_wire()).await,
            Ok(Flow::Reset) => return reset.arm(),
            Err(Gone) => return,
        }
    }
}

async fn answer(phone: &Arc<Phone>, conn: &mut Conn, request: &Request) -> Result<Flow, Gone> {
    let is_work = dialect::is_work(phone.config.dialect, request);
    file(phone, conn, request);
    let attempt = if is_work {
        Some(Attempt::start(&phone.book))
    } else {
        phone.book.update(|stats| stats.probes += 1);
        None
    };
    let fault = phone.take_fault(is_work);
    conn.manners = door::manners(&fault);
    let mut visit = Visit { phone, conn, request, fault, attempt };
    match door::stop(&mut visit).await? {
        Some(flow) => Ok(flow),
        None => dialect::answer(&mut visit).await,
    }
}

fn file(phone: &Phone, conn: &Conn, request: &Request) {
    let kept = request.body.len().min(phone.config.kept_body_bytes);
    let seen = SeenRequest {
        unix_s: clock::unix_seconds(),
        connection: conn.number,
        earlier_on_connection: conn.served - 1,
        method: request.method.clone(),
        target: request.target.clone(),
        headers: request.headers.clone(),
        body_bytes: request.body.len(),
        body_sha256: digest::sha256_hex(&request.body, 32),
        body: String::from_utf8_lossy(&request.body[..kept]).into_owned(),
    };
    phone.book.file_request(seen, phone.config.kept_requests);
}

/// Ends a connection as a dying process or a tunnel does: an end of file and nothing else, not even TLS's goodbye.
async fn end_of_file(wire: Wire) {
    let mut socket = wire.into_socket();
    if socket.shutdown().await.is_err() {
        return;
    }
    let drain = async {
        let mut sink = [0; 4096];
        while socket.read(&mut sink).await.is_ok_and(|count| count > 0) {}
    };
    // A client that goes on sending is cut off.
    tokio::time::timeout(DRAIN, drain).await.ok();
}
