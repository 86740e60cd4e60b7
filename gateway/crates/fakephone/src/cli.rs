//! The command line of `fakephone`.

use clap::Parser;
use fakephone::{Continuation, Dialect, PhoneConfig, PhoneSpec};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  One phone at life's speed, on a port of its own:
    fakephone --speed 0.8b --slots 4

  A hundred phones of all classes behind one relay, twenty times faster than life:
    fakephone --phones 100 --speed 0.8b --mix --time-scale 20 \\
        --relay 127.0.0.1:8443 --control 127.0.0.1:8444 --ca-out ca.pem

  Break one of them once, in the middle of its next answer, and look what it has seen:
    curl -d '{\"fault\":\"cut_after\",\"chunks\":3,\"next\":1}' 127.0.0.1:8444/phones/0/fault
    curl 127.0.0.1:8444/phones/0/requests

  Let it die in the middle of a word and come back after a second, and lose the others' connections:
    curl -d '{\"fault\":\"break\",\"at\":{\"text\":5},\"inside\":\"word\",\"how\":{\"die\":{\"down_s\":1}},\"next\":1}' \
        127.0.0.1:8444/phones/0/fault
    curl -X POST 127.0.0.1:8444/phones/all/cut

  Take one away, and all of them for half a minute; bring the first back:
    curl -X POST 127.0.0.1:8444/phones/0/kill
    curl -d '{\"seconds\":30}' 127.0.0.1:8444/phones/all/kill
    curl -X POST 127.0.0.1:8444/phones/0/revive

A message may ask for the kind of its answer: [fake think=6 tokens=20 calls=2] stands for so many tokens of thinking
and of text and so many tool calls.";

/// Phones that are not there: an LLM on a phone behind a real socket, as slow and as unreliable as told.
///
/// Prints one line of JSON with all addresses when everything is up, and runs until interrupted.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// How many phones.
    #[arg(long, default_value_t = 1)]
    pub(crate) phones: u32,

    /// What they speak: llama, qvac, mnn, mnn-app, laya. Several, separated by commas, are dealt out in turn.
    #[arg(long, value_delimiter = ',', default_value = "llama")]
    pub(crate) dialect: Vec<Dialect>,

    /// The model they report: a path, an alias or a name.
    #[arg(long)]
    pub(crate) model: Option<String>,

    /// Requests that each serves at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) slots: u16,

    /// 9b, 4b, 0.8b or instant, with an optional factor as in 4b*0.5.
    #[arg(long, default_value = "instant")]
    pub(crate) speed: String,

    /// How many times faster than life reading, writing and loading are.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) time_scale: f64,

    /// Deal out the market's classes: fast phones with one slot to slow ones with several.
    #[arg(long)]
    pub(crate) mix: bool,

    /// Context of one slot, tokens.
    #[arg(long, default_value_t = 8192)]
    pub(crate) context: u32,

    /// The key they demand.
    #[arg(long, env = "FAKEPHONE_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,

    /// Seconds the model loads after a start, in life's time.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) load_time: f64,

    /// Length of an answer that ends by itself, tokens; by default as long as the request allows.
    #[arg(long)]
    pub(crate) answer_tokens: Option<u32>,

    /// Tokens of thinking before each chat answer.
    #[arg(long, default_value_t = 0)]
    pub(crate) thinking_tokens: u32,

    /// The build of the engine; phones of one build answer word for word alike, others do not. Several, separated by
    /// commas, are dealt out in turn.
    #[arg(long, value_delimiter = ',')]
    pub(crate) build: Vec<String>,

    /// What they do with a partial answer: exact, echo, restart or refuse; by default as their dialect.
    #[arg(long)]
    pub(crate) continuation: Option<Continuation>,

    /// Keep the streams of requests with an X-Conversation-Id for clients that lose their connection.
    #[arg(long)]
    pub(crate) keeps_streams: bool,

    /// Tokens read between two reports of progress, and between two looks at the connection.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: u32,

    /// What they tell of the model's file: its size in bytes.
    #[arg(long)]
    pub(crate) model_size: Option<u64>,

    /// What they tell of the model's file: how many weights it has.
    #[arg(long)]
    pub(crate) model_params: Option<u64>,

    /// What they tell of the model's file: how its weights are stored, as in Q4_0.
    #[arg(long)]
    pub(crate) quantization: Option<String>,

    /// Put all phones behind one TLS port, at https://<id>.localhost:PORT.
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["base_port", "listen"])]
    pub(crate) relay: Option<SocketAddr>,

    /// The address of phones on ports of their own.
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub(crate) listen: IpAddr,

    /// The port of the first phone; the others follow. By default any free ports.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub(crate) base_port: u16,

    /// Open a control port.
    #[arg(long, value_name = "ADDR")]
    pub(crate) control: Option<SocketAddr>,

    /// Write the certificate of the relay's authority here.
    #[arg(long, value_name = "FILE", requires = "relay")]
    pub(crate) ca_out: Option<PathBuf>,

    /// Write the phones' URLs here, one a line.
    #[arg(long, value_name = "FILE")]
    pub(crate) urls_out: Option<PathBuf>,

    /// Announce every phone to this http:// URL, as the example apps do.
    #[arg(long, value_name = "URL")]
    pub(crate) register: Option<String>,

    /// Source of everything random, the ids included.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Threads to serve them with.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: u16,
}

impl Cli {
    /// The phone that all phones are variations of.
    pub(crate) fn template(&self) -> Result<PhoneConfig, fakephone::BadSpec> {
        let spec = PhoneSpec {
            model: self.model.clone(),
            slots: Some(self.slots),
            speed: Some(self.speed.clone()),
            time_scale: Some(self.time_scale),
            context_tokens: Some(self.context),
            api_key: self.api_key.clone(),
            load_time_s: Some(self.load_time),
            answer_tokens: self.answer_tokens,
            thinking_tokens: Some(self.thinking_tokens),
            keeps_streams: Some(self.keeps_streams),
            batch_tokens: Some(self.batch),
            model_size: self.model_size,
            model_params: self.model_params,
            quantization: self.quantization.clone(),
            seed: Some(self.seed),
            ..PhoneSpec::default()
        };
        spec.apply(&PhoneConfig::default())
    }

    /// The phone at a place in the order.
    pub(crate) fn phone(&self, template: &PhoneConfig, place: usize) -> PhoneConfig {
        let dialect = self.dialect.get(place % self.dialect.len().max(1)).copied().unwrap_or(Dialect::Llama);
        let mut phone = template.clone().at_place(self.seed, place as u64).with_dialect(dialect);
        phone.continuation = self.continuation.unwrap_or(phone.continuation);
        if let Some(build) = self.build.get(place % self.build.len().max(1)) {
            phone.build.clone_from(build);
        }
        if self.mix { fakephone::as_in_the_market(phone) } else { phone }
    }
}
