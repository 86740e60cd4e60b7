//! The gateway's live feed over HTTP, which comes back when it was lost.

use std::{collections::VecDeque, future::Future, pin::Pin, time::Duration};

use openai_wire::SseDecoder;
use scheduler::Timestamp;
use serde_json::Value;

use super::super::client::{AdminClient, CliError, Stream};
use crate::clock;

const PATH: &str = "/admin/watch";
/// Largest event. 64 MiB: five thousand replicas are some MB.
const MAX_EVENT: usize = 64 << 20;
/// Silence after which the connection is taken for lost: the gateway says something every 15 s.
const SILENCE: Duration = Duration::from_secs(40);
/// Between two tries to reach the gateway.
const AGAIN: Duration = Duration::from_secs(1);

/// What the feed has to say.
#[derive(Debug)]
pub enum News {
    /// An event: its name and its data.
    Event(String, Value),
    /// The connection is lost, or there is still none; it is tried again.
    Lost(String),
}

pub struct Feed {
    client: AdminClient,
    source: Source,
    decoder: SseDecoder,
    read: VecDeque<News>,
}

/// A connection, or the next try to have one.
enum Source {
    Open {
        stream: Stream,
        /// When the gateway said something last.
        heard: Timestamp,
    },
    Opening(Pin<Box<dyn Future<Output = Result<Stream, CliError>>>>),
}

impl Source {
    fn open(stream: Stream) -> Self {
        Self::Open { stream, heard: clock::now() }
    }

    fn again(client: &AdminClient) -> Self {
        let client = client.clone();
        Self::Opening(Box::pin(async move {
            tokio::time::sleep(AGAIN).await;
            client.stream(PATH).await
        }))
    }
}

impl Feed {
    /// Connects.
    ///
    /// # Errors
    /// The gateway can't be reached, or refuses.
    pub async fn open(client: AdminClient) -> Result<Self, CliError> {
        let source = Source::open(client.stream(PATH).await?);
        Ok(Self { client, source, decoder: decoder(), read: VecDeque::new() })
    }

    /// Whether something is there to be taken at once.
    pub fn has_more(&self) -> bool {
        !self.read.is_empty()
    }

    /// What comes next. Dropping the future loses nothing, not even the time that it has waited.
    pub async fn next(&mut self) -> News {
        loop {
            if let Some(news) = self.read.pop_front() {
                return news;
            }
            let why = match &mut self.source {
                Source::Opening(opening) => match opening.await {
                    Ok(stream) => {
                        (self.source, self.decoder) = (Source::open(stream), decoder());
                        continue;
                    }
                    Err(error) => error.to_string(),
                },
                Source::Open { stream, heard } => {
                    match tokio::time::timeout_at(clock::instant(*heard + SILENCE), stream.next()).await {
                        Ok(Ok(Some(piece))) => {
                            *heard = clock::now();
                            self.decoder.push(&piece);
                            match self.decode() {
                                Ok(()) => continue,
                                Err(why) => why,
                            }
                        }
                        Ok(Ok(None)) => "the gateway has ended the feed".into(),
                        Ok(Err(error)) => error.to_string(),
                        Err(_) => "the gateway says nothing any more".into(),
                    }
                }
            };
            self.source = Source::again(&self.client);
            // After what had come before it.
            self.read.push_back(News::Lost(why));
        }
    }

    fn decode(&mut self) -> Result<(), String> {
        while let Some(event) = self.decoder.next_event() {
            let event = event.map_err(|error| error.to_string())?;
            let name = String::from_utf8_lossy(event.name.unwrap_or_default()).into_owned();
            let data = serde_json::from_slice(event.data).map_err(|error| format!("{name}: {error}"))?;
            self.read.push_back(News::Event(name, data));
        }
        Ok(())
    }
}

fn decoder() -> SseDecoder {
    SseDecoder::with_limit(MAX_EVENT)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
    };

    use super::{super::super::client::AdminArgs, *};

    /// One connection: its request is read, and this is answered.
    fn answer(listener: &TcpListener, body: &str) -> TcpStream {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"GET /admin/watch HTTP/1.1"));
        stream.write_all(format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}").as_bytes()).unwrap();
        stream
    }

    fn event(news: News) -> (String, Value) {
        match news {
            News::Event(name, data) => (name, data),
            News::Lost(why) => panic!("{why}"),
        }
    }

    #[tokio::test]
    async fn a_feed_that_breaks_off_is_told_and_comes_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gateway = std::thread::spawn(move || {
            drop(answer(&listener, "event: hello\ndata: {\"instance\":\"a\"}\n\n:\n\nevent: pool\ndata: {\"repl"));
            drop(answer(&listener, "event: hello\ndata: {\"instance\":\"b\"}\n\nevent: odd\ndata: no JSON\n\n"));
        });
        let mut feed = Feed::open(AdminClient::from_args(&AdminArgs { url, token: None }).unwrap()).await.unwrap();
        assert_eq!(event(feed.next().await), ("hello".into(), serde_json::json!({"instance": "a"})));
        assert!(matches!(feed.next().await, News::Lost(_)));
        // A look that is given up every moment gets there all the same.
        let next = loop {
            if let Ok(news) = tokio::time::timeout(Duration::from_millis(5), feed.next()).await {
                break news;
            }
        };
        assert_eq!(event(next), ("hello".into(), serde_json::json!({"instance": "b"})));
        assert!(matches!(feed.next().await, News::Lost(why) if why.contains("odd")));
        gateway.join().unwrap();
    }
}
