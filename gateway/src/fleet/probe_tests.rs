//! Probes against canned engines: a socket that gives each path one answer.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{super::carry, *};
use crate::config::Pool;

const LLAMA_LIST: &str = r#"{"models":[],"object":"list","data":[{"id":"/m/Tiny.gguf","aliases":[],"object":"model","owned_by":"llamacpp","meta":{"n_ctx":2048}}]}"#;
const LLAMA_PROPS: &str = r#"{"default_generation_settings":{"n_ctx":4096},"total_slots":3,"build_info":"b11549-abc"}"#;
const LOADING: &str = r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;
const UNSUPPORTED: &str = r#"{"error":{"code":501,"message":"off","type":"not_supported_error"}}"#;
const NO_INPUT: &str = r#"{"error":{"code":400,"message":"'input' is required","type":"invalid_request_error"}}"#;
const NO_KEY: &str = r#"{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}"#;
const NOT_FOUND: (u16, &str) = (404, r#"{"error":{"message":"File Not Found","type":"not_found_error","code":404}}"#);
const PAGE: (u16, &str) = (404, "<!DOCTYPE html><title>Tunnel offline</title>");

type Answers = HashMap<&'static str, (u16, &'static str)>;

/// An engine that gives each path one answer, and the rest 404.
struct Engine {
    endpoint: Endpoint,
    asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Engine {
    async fn start(answers: &[(&'static str, (u16, &'static str))]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::new(false, "127.0.0.1", listener.local_addr().unwrap().port());
        let (answers, asked): (Answers, _) = (answers.iter().copied().collect(), Arc::new(Mutex::new(Vec::new())));
        let mut tasks = JoinSet::new();
        let heard = Arc::clone(&asked);
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                answer(stream, &answers, &heard).await;
            }
        });
        Self { endpoint, asked, _tasks: tasks }
    }

    fn question(&self) -> Question<'_> {
        Question {
            endpoint: &self.endpoint,
            key: Some("k"),
            dialect: None,
            dialect_stated: false,
            models_stated: false,
            full: true,
            slots_from: Timestamp::ZERO,
            limit: Duration::from_secs(5),
        }
    }

    async fn probe(&self) -> Probed {
        probe(&upstream(), self.question()).await
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// One connection, one answer.
async fn answer(mut stream: TcpStream, answers: &Answers, heard: &Mutex<Vec<String>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    let length =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    if stream.read_exact(&mut body).await.is_err() {
        return;
    }
    let path = head.split(' ').nth(1).unwrap();
    heard.lock().unwrap().push(format!("{} {path}", head.split(' ').next().unwrap()));
    let (status, body) = answers.get(path).copied().unwrap_or(NOT_FOUND);
    let kind = if body.starts_with('<') { "text/html" } else { "application/json" };
    let text = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    // A prober that has heard enough hangs up.
    if stream.write_all(text.as_bytes()).await.is_ok() && stream.shutdown().await.is_err() {}
}

fn upstream() -> Upstream {
    Upstream::new(&Pool { allow_private: true, allow_http: true, ..Pool::default() }).unwrap()
}

fn llama() -> Vec<(&'static str, (u16, &'static str))> {
    vec![
        ("/health", (200, r#"{"status":"ok"}"#)),
        ("/v1/models", (200, LLAMA_LIST)),
        ("/props", (200, LLAMA_PROPS)),
        ("/v1/embeddings", (501, UNSUPPORTED)),
        ("/v1/responses", (400, NO_INPUT)),
        ("/v1/messages", (400, NO_INPUT)),
        ("/v1/rerank", (501, UNSUPPORTED)),
        ("/v1/systemone", (501, UNSUPPORTED)),
    ]
}

fn with(
    mut answers: Vec<(&'static str, (u16, &'static str))>,
    path: &'static str,
    answer: (u16, &'static str),
) -> Vec<(&'static str, (u16, &'static str))> {
    answers.retain(|(known, _)| *known != path);
    answers.push((path, answer));
    answers
}

#[tokio::test]
async fn a_llama_server_tells_models_slots_context_build_and_routes() {
    let engine = Engine::start(&llama()).await;
    let probed = engine.probe().await;
    assert_eq!((&probed.finding, probed.dialect), (&Finding::Ready, Some(Dialect::LlamaServer)));
    let learned = probed.learned.unwrap();
    assert_eq!(learned.models, [Reported { id: "/m/Tiny.gguf".into(), aliases: vec![] }]);
    assert_eq!((learned.slots, learned.context_tokens), (Some(3), Some(4096)));
    assert_eq!(learned.build.as_deref(), Some("b11549-abc"));
    let expected = [Route::ChatCompletions, Route::Completions, Route::Responses, Route::Messages];
    assert_eq!(learned.routes, routes(&expected));
}

#[tokio::test]
async fn a_light_probe_asks_for_health_alone() {
    let engine = Engine::start(&llama()).await;
    let question = Question { full: false, dialect: Some(Dialect::LlamaServer), ..engine.question() };
    assert_eq!(probe(&upstream(), question).await.finding, Finding::Ready);
    assert_eq!(engine.asked(), ["GET /health"]);
}

const SLOTS: &str = r#"[{"id":0,"is_processing":true},{"id":1,"is_processing":false},{"id":2,"is_processing":false}]"#;
const IDLE: &str = r#"[{"id":0,"is_processing":false}]"#;
const ANSWER: &str = "data: {\"choices\":[{\"finish_reason\":\"length\",\"index\":0,\"delta\":{\"content\":\" three,\"}}]}\n\ndata: [DONE]\n\n";
const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_list_of_slots_says_what_works_and_that_cancels_can_be_seen() {
    let probed = Engine::start(&with(llama(), "/slots", (200, SLOTS))).await.probe().await;
    assert_eq!(probed.seen.map(|seen| seen.busy), Some(1));
    assert!(probed.learned.unwrap().lists_slots);
    let without = Engine::start(&with(llama(), "/slots", (501, UNSUPPORTED))).await.probe().await;
    assert_eq!((without.finding, without.seen), (Finding::Ready, None));
    assert!(!without.learned.unwrap().lists_slots);
}

/// Asks the engine to carry on, as a trial does.
async fn carries_on(engine: &Engine) -> Option<bool> {
    carry::ask(&upstream(), &engine.endpoint, Some("k"), "tiny", Duration::from_secs(5)).await
}

#[tokio::test]
async fn an_engine_that_would_begin_anew_does_not_carry_on_though_it_answers() {
    let anew = (200, r#"{"prompt":"user: Count\nassistant: one, two,\nassistant:"}"#);
    let engine = Engine::start(&with(with(llama(), "/apply-template", anew), CHAT, (200, ANSWER))).await;
    assert_eq!(carries_on(&engine).await, Some(false));
    assert_eq!(engine.asked(), ["POST /apply-template"], "what costs it nothing has told");
}

#[tokio::test]
async fn an_engine_that_refuses_to_carry_on_does_not_and_one_that_says_nothing_is_not_known() {
    for (answer, expected) in
        [((200, ANSWER), Some(true)), ((400, NO_INPUT), Some(false)), ((503, LOADING), None), ((200, "{}"), None)]
    {
        let engine = Engine::start(&with(llama(), CHAT, answer)).await;
        assert_eq!(carries_on(&engine).await, expected, "{answer:?}");
    }
}

#[tokio::test]
async fn no_probe_asks_for_anything_that_takes_a_slot() {
    let engine = Engine::start(&with(with(llama(), "/slots", (200, IDLE)), CHAT, (200, ANSWER))).await;
    assert_eq!(engine.probe().await.learned.unwrap().carries_on, None);
    assert!(!engine.asked().iter().any(|asked| asked.ends_with(CHAT)), "{:?}", engine.asked());
}

#[tokio::test]
async fn without_properties_the_list_of_slots_is_counted() {
    let answers = with(with(llama(), "/props", (501, UNSUPPORTED)), "/slots", (200, "[{\"id\":0},{\"id\":1}]"));
    let learned = Engine::start(&answers).await.probe().await.learned.unwrap();
    assert_eq!((learned.slots, learned.context_tokens), (Some(2), Some(2048)));
}

#[tokio::test]
async fn a_phone_that_claims_thousands_of_slots_is_not_believed() {
    for (claim, believed) in [("1000000", Some(MAX_SLOTS)), ("65535", Some(MAX_SLOTS)), ("0", None), ("-1", None)] {
        let props: &'static str = LLAMA_PROPS.replace(":3,", &format!(":{claim},")).leak();
        let engine = Engine::start(&with(llama(), "/props", (200, props))).await;
        assert_eq!(engine.probe().await.learned.unwrap().slots, believed, "{claim}");
    }
}

#[tokio::test]
async fn a_loading_engine_is_loading_and_a_wrong_key_is_an_operators_business() {
    let loading = Engine::start(&[("/health", (503, LOADING))]).await.probe().await;
    assert_eq!((loading.finding, loading.dialect), (Finding::Loading { percent: None }, Some(Dialect::LlamaServer)));
    let wrong_key = Engine::start(&with(llama(), "/v1/models", (401, NO_KEY))).await.probe().await;
    assert_eq!(wrong_key.finding, Finding::WrongKey { status: 401 });
}

#[tokio::test]
async fn a_tunnels_page_is_nobody_whatever_its_status() {
    for status in [200, 404, 502, 530] {
        let page = (status, PAGE.1);
        let probed = Engine::start(&[("/health", page), ("/v1/models", page)]).await.probe().await;
        assert_eq!(probed.finding, Finding::WebPage { status });
        let engine = Engine::start(&[("/health", page)]).await;
        let known = Question { dialect: Some(Dialect::LlamaServer), ..engine.question() };
        assert_eq!(probe(&upstream(), known).await.finding, Finding::WebPage { status });
    }
}

#[tokio::test]
async fn qvac_says_in_its_body_how_it_is() {
    let list = (200, r#"{"data":[{"id":"a","current":false},{"id":"b","current":true}]}"#);
    let health = |body| [("/health", (200, body)), ("/v1/models", list)];
    let ready = Engine::start(&health(r#"{"status":"ok","model":"b","switching":false}"#)).await.probe().await;
    assert_eq!(ready.dialect, Some(Dialect::Qvac));
    assert_eq!(ready.learned.unwrap().models, [Reported { id: "b".into(), aliases: vec![] }]);
    let error = Engine::start(&health(r#"{"status":"error","model":null,"switching":false}"#)).await.probe().await;
    assert_eq!(error.finding, Finding::SaysError);
    let switching = Engine::start(&health(r#"{"status":"error","model":"b","switching":true}"#)).await.probe().await;
    assert_eq!(switching.finding, Finding::Loading { percent: None });
}

#[tokio::test]
async fn laya_shows_its_progress_and_its_key_is_tried() {
    let loading = (200, r#"{"status":"loading","progress":{"phase":"download","percent":42}}"#);
    let probed = Engine::start(&[("/health", loading)]).await.probe().await;
    assert_eq!((probed.finding, probed.dialect), (Finding::Loading { percent: Some(42) }, Some(Dialect::Laya)));
    let ok = (200, r#"{"status":"ok","progress":{"phase":"ready","percent":100}}"#);
    let ready = Engine::start(&[("/health", ok), ("/v1/systemone", (422, r#"{"detail":"no"}"#))]).await.probe().await;
    assert_eq!(ready.finding, Finding::Ready);
    assert_eq!(ready.learned.unwrap().routes, routes(&[Route::SystemOne]));
    let refused = Engine::start(&[("/health", ok), ("/v1/systemone", (401, r#"{"detail":"no"}"#))]).await.probe().await;
    assert_eq!(refused.finding, Finding::WrongKey { status: 401 });
}

#[tokio::test]
async fn the_two_servers_of_mnn_are_told_apart() {
    let constant =
        r#"{"object":"list","data":[{"id":"ModelScope/MNN/Qwen2.5-0.5B-Instruct","object":"model","owned_by":"mnn"}]}"#;
    let tool = Engine::start(&[("/v1/models", (200, constant))]).await.probe().await;
    assert_eq!((tool.finding, tool.dialect), (Finding::Ready, Some(Dialect::Mnn)));
    let named = r#"{"data":[{"id":"qwen","permission":[{"id":"modelperm-qwen"}]}]}"#;
    let app = Engine::start(&[("/v1/models", (200, named))]).await.probe().await;
    assert_eq!(app.dialect, Some(Dialect::MnnApp));
    let idle = Engine::start(&[("/v1/models", (500, r#"{"error":"No current model available"}"#))]).await.probe().await;
    assert_eq!((idle.finding, idle.dialect), (Finding::Loading { percent: None }, Some(Dialect::MnnApp)));
}

#[tokio::test]
async fn another_openai_server_needs_no_more_than_an_answer_when_its_models_are_stated() {
    let listed =
        Engine::start(&[("/v1/models", (200, r#"{"data":[{"id":"gpt","owned_by":"x"}]}"#))]).await.probe().await;
    assert_eq!((listed.finding, listed.dialect), (Finding::Ready, Some(Dialect::OpenAi)));
    let engine = Engine::start(&[]).await;
    assert_eq!(engine.probe().await.finding, Finding::NoModels);
    let stated = Question { models_stated: true, ..engine.question() };
    assert_eq!(probe(&upstream(), stated).await.finding, Finding::Ready);
}

#[tokio::test]
async fn another_engine_under_the_same_address_is_found_out() {
    let engine = Engine::start(&llama()).await;
    let as_qvac = Question { dialect: Some(Dialect::Laya), ..engine.question() };
    assert_eq!(probe(&upstream(), as_qvac).await.dialect, Some(Dialect::LlamaServer));
}

#[tokio::test]
async fn nobody_at_the_port_is_unreachable_and_a_forbidden_address_is_an_operators_business() {
    let engine = Engine::start(&[]).await;
    let strict = Upstream::new(&Pool::default()).unwrap();
    assert!(matches!(probe(&strict, engine.question()).await.finding, Finding::Forbidden(_)));
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let endpoint = Endpoint::new(false, "127.0.0.1", free);
    let question = Question { endpoint: &endpoint, ..engine.question() };
    assert!(matches!(probe(&upstream(), question).await.finding, Finding::Unreachable(_)));
}

#[tokio::test]
async fn silence_is_no_evidence() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::new(false, "127.0.0.1", listener.local_addr().unwrap().port());
    let engine = Engine::start(&[]).await;
    let question = Question { endpoint: &endpoint, limit: Duration::from_millis(50), ..engine.question() };
    assert_eq!(probe(&upstream(), question).await.finding, Finding::TimedOut);
}
