//! Reading bodies, and plain calls that are read whole.

use super::{
    Failure,
    pool::{Held, Pool},
};
use bytes::Bytes;
use http_body::Body as _;
use hyper::{Response, body::Incoming};
use std::{pin::Pin, time::Duration};

/// Largest answer read whole: the results of a batch of 50,000 lines are some tens of MB.
const LARGEST_ANSWER: usize = 512 * 1024 * 1024;
/// For a call that makes no model work.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The next piece of a body; `None` at its end.
pub(super) async fn next_data(body: &mut Incoming) -> Option<Result<Bytes, Failure>> {
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        match frame {
            Err(_) => return Some(Err(Failure::EofInBody)),
            Ok(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Some(Ok(data));
                }
            }
        }
    }
}

/// A whole body; the connection is free for another request afterwards.
pub(super) async fn read_whole(response: Response<Incoming>, held: Held<'_>) -> Result<Vec<u8>, Failure> {
    let mut body = response.into_body();
    let mut whole = Vec::new();
    while let Some(data) = next_data(&mut body).await {
        whole.extend_from_slice(&data?);
        if whole.len() > LARGEST_ANSWER {
            return Err(Failure::BadBody("an answer without end"));
        }
    }
    held.give_back();
    Ok(whole)
}

/// Makes a call that is no work for a model: its body, if the status is 2xx.
pub(crate) async fn call(
    pool: &Pool,
    method: &str,
    path: &str,
    authorization: Option<&str>,
    body: Option<&serde_json::Value>,
) -> Result<Vec<u8>, Failure> {
    let bytes = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
    let kind = body.map(|_| "application/json");
    transfer(pool, method, path, authorization, kind, bytes, CALL_TIMEOUT).await
}

/// The same for a body of any kind, and of any length: it may take as long as `limit`.
pub(crate) async fn transfer(
    pool: &Pool,
    method: &str,
    path: &str,
    authorization: Option<&str>,
    kind: Option<&str>,
    body: Bytes,
    limit: Duration,
) -> Result<Vec<u8>, Failure> {
    let mut request = pool.request(method, path);
    let headers = [("authorization", authorization), ("content-type", kind)];
    for (name, value) in headers.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        request = request.header(name, value);
    }
    let request = request.body(body.into()).map_err(|_| Failure::BadBody("the request has no form"))?;
    let calling = async {
        let (response, held) = pool.send(request).await?;
        let status = response.status().as_u16();
        let body = read_whole(response, held).await?;
        if (200..300).contains(&status) { Ok(body) } else { Err(Failure::of_status(status, false, &body)) }
    };
    tokio::time::timeout(limit, calling).await.unwrap_or(Err(Failure::TimeoutHead))
}
