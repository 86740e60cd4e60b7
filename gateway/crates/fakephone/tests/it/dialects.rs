//! Each dialect's routes, shapes and errors.

use crate::SOON;
use crate::client::{Answer, Client, ask, chat, frame, get, post, post_with};
use fakephone::{Continuation, Dialect, HeadTiming, PhoneConfig, PhoneHandle, answer_text, spawn};
use serde_json::{Value, json};
use simulation::phone::ModelSpeed;
use std::time::Duration;

async fn phone(dialect: Dialect) -> PhoneHandle {
    spawn(PhoneConfig::default().with_dialect(dialect)).await.expect("a phone")
}

async fn llama() -> PhoneHandle {
    phone(Dialect::Llama).await
}

fn chunks(answer: &Answer) -> Vec<Value> {
    answer.chunks()
}

#[tokio::test]
async fn llama_server_tells_its_health_models_props_and_slots() {
    let phone = spawn(PhoneConfig::default().with_slots(3).with_context(2048)).await.expect("a phone");
    assert_eq!(ask(&phone, get("/health")).await.expect("an answer").json(), json!({"status": "ok"}));
    let models = ask(&phone, get("/v1/models")).await.expect("an answer").json();
    assert_eq!(models["data"][0]["id"], json!(phone.config().model));
    assert_eq!(models["data"][0]["meta"]["n_ctx"], 2048);
    let props = ask(&phone, get("/props")).await.expect("an answer").json();
    assert_eq!((&props["total_slots"], &props["default_generation_settings"]["n_ctx"]), (&json!(3), &json!(2048)));
    assert_eq!(props["build_info"], json!(phone.config().build));
    assert_eq!(ask(&phone, get("/slots")).await.expect("an answer").json().as_array().map(Vec::len), Some(3));
    for path in ["/v1/models/x", "/v1/chat/completions", "/nonsense"] {
        let missing = ask(&phone, get(path)).await.expect("an answer");
        assert_eq!((missing.status, &missing.json()["error"]["type"]), (404, &json!("not_found_error")));
    }
}

#[tokio::test]
async fn llama_server_demands_its_key_everywhere_but_for_health_and_not_while_loading() {
    let config = PhoneConfig::default().with_api_key("sk-a");
    let phone = spawn(config.clone()).await.expect("a phone");
    assert_eq!(ask(&phone, get("/health")).await.expect("an answer").status, 200);
    let refused = ask(&phone, get("/v1/models")).await.expect("an answer");
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (401, &json!("authentication_error")));
    for header in [("authorization", "Bearer sk-a"), ("x-api-key", "sk-a")] {
        let body = json!({"messages": [], "max_tokens": 1});
        let answer = ask(&phone, post_with("/v1/chat/completions", &body, &[header])).await.expect("an answer");
        assert_eq!(answer.status, 200);
    }
    let loading = spawn(config.with_load_time(Duration::from_secs(600))).await.expect("a phone");
    let answer = ask(&loading, get("/v1/models")).await.expect("an answer");
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (503, &json!("unavailable_error")));
}

#[tokio::test]
async fn a_llama_stream_has_role_text_finish_usage_and_done_in_this_order_and_then_closes() {
    let phone = llama().await;
    let mut client = Client::to(&phone).await;
    let body = json!({"stream": true, "max_tokens": 3, "stream_options": {"include_usage": true}});
    let answer = client.ask(chat("x", body)).await.expect("an answer");
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let chunks = chunks(&answer);
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
    assert_eq!(chunks.len(), 1 + 3 + 1 + 1);
    assert_eq!(chunks[4]["choices"][0], json!({"finish_reason": "length", "index": 0, "delta": {}}));
    assert_eq!((&chunks[5]["choices"], &chunks[5]["usage"]["completion_tokens"]), (&json!([]), &json!(3)));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk["object"] == "chat.completion.chunk"));
    assert!(answer.is_done());
    assert!(client.ask(get("/health")).await.is_err(), "llama-server closes after a stream");

    let plain = ask(&phone, chat("x", json!({"stream": true, "max_tokens": 3}))).await.expect("an answer");
    assert!(!plain.text().contains("\"usage\""), "usage comes only when asked for");
}

#[tokio::test]
async fn llama_server_reports_its_progress_through_a_long_prompt() {
    let phone = spawn(PhoneConfig::default().with_model_speed(ModelSpeed::QWEN_0_8B, 100.0)).await.expect("a phone");
    let long = "word ".repeat(1000);
    let body = json!({"stream": true, "max_tokens": 1, "return_progress": true});
    let answer = ask(&phone, chat(&long, body)).await.expect("an answer");
    let reports: Vec<Value> =
        chunks(&answer).into_iter().map(|chunk| chunk["prompt_progress"].clone()).filter(|it| !it.is_null()).collect();
    assert_eq!(reports.len(), 1 + 1002_usize.div_ceil(128));
    assert_eq!((&reports[0]["processed"], &reports[0]["total"]), (&json!(0), &json!(1002)));
    assert_eq!(reports[reports.len() - 1]["processed"], 1002);
}

#[tokio::test]
async fn a_prompt_that_fills_the_context_is_refused_with_the_numbers_on_every_route() {
    let phone = spawn(PhoneConfig::default().with_context(100)).await.expect("a phone");
    let long = "word ".repeat(120);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": long}], "stream": true})),
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/responses", json!({"input": long})),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": long}], "max_tokens": 5})),
        ("/v1/embeddings", json!({"input": long})),
    ] {
        let answer = ask(&phone, post(path, &body)).await.expect("an answer");
        let error = answer.json()["error"].clone();
        assert_eq!((answer.status, &error["type"]), (400, &json!("exceed_context_size_error")), "{path}");
        assert_eq!(error["n_ctx"], 100);
        assert!(error["n_prompt_tokens"].as_u64() >= Some(120));
    }
    let fits = "word ".repeat(97);
    let body = json!({"messages": [{"role": "user", "content": fits}]});
    let answer = ask(&phone, post("/v1/chat/completions", &body)).await.expect("an answer").json();
    assert_eq!(answer["usage"]["completion_tokens"], 1, "one token of room");
}

#[tokio::test]
async fn llama_server_refuses_what_it_cannot_read() {
    let phone = llama().await;
    let user = json!([{"role": "user", "content": "x"}]);
    for (body, status, words) in [
        (json!([]), 400, "object"),
        (json!({}), 400, "'messages' is required"),
        (json!({"messages": user, "temperature": "hot"}), 400, "Field 'temperature'"),
        (json!({"messages": user, "n": 9}), 400, "number of slots"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), 500, "image input"),
        (
            json!({"messages": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]}),
            400,
            "2 or more",
        ),
    ] {
        let answer = ask(&phone, post("/v1/chat/completions", &body)).await.expect("an answer");
        assert_eq!(answer.status, status);
        assert!(answer.text().contains(words), "{}", answer.text());
    }
    assert_eq!(phone.stats().failed, 6);
}

#[tokio::test]
async fn json_mode_and_schemas_give_valid_json_streamed_or_not() {
    let phone = llama().await;
    let schema = json!({"type": "json_schema", "json_schema": {"schema": {"type": "object",
        "properties": {"risk": {"type": "integer"}, "why": {"type": "string"}}}}});
    for format in [schema, json!({"type": "json_object"})] {
        let body = json!({"response_format": format});
        let answer = ask(&phone, chat("x", body.clone())).await.expect("an answer").json();
        let text = answer["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
        assert!(serde_json::from_str::<Value>(&text).expect("JSON").is_object());
        let mut body = body;
        body["stream"] = json!(true);
        assert_eq!(ask(&phone, chat("x", body)).await.expect("an answer").spoken().0, text);
    }
}

#[tokio::test]
async fn a_demanded_tool_is_called_with_arguments_of_its_schema() {
    let phone = llama().await;
    let body = json!({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "now",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}}]});
    let choice = ask(&phone, chat("x", body)).await.expect("an answer").json()["choices"][0].clone();
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &json!("")));
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "now");
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().expect("text")).expect("JSON");
    assert!(arguments["zone"].is_string());
}

#[tokio::test]
async fn several_choices_thoughts_and_logprobs_have_their_places() {
    let config = PhoneConfig { thinking_tokens: 3, ..PhoneConfig::default().with_slots(2) };
    let phone = spawn(config).await.expect("a phone");
    let answer = ask(&phone, chat("x", json!({"n": 2, "logprobs": true, "max_tokens": 8}))).await.expect("an answer");
    let choices = answer.json()["choices"].clone();
    assert_eq!(choices.as_array().map(Vec::len), Some(2));
    assert_eq!(choices[1]["message"]["reasoning_content"].as_str().map(|text| text.split(' ').count()), Some(3));
    assert_eq!(choices[0]["logprobs"]["content"].as_array().map(Vec::len), Some(5));
}

#[tokio::test]
async fn partial_answers_are_carried_on_as_the_engine_is_known_to() {
    let whole = answer_text(&PhoneConfig::default().model, "a b c d", 12);
    let partial = &whole[..30];
    let messages = json!([{"role": "user", "content": "a b c d"}, {"role": "assistant", "content": partial}]);
    let flags = json!({"messages": messages, "add_generation_prompt": false, "continue_final_message": true,
        "stream": true, "max_tokens": 20});
    let bare = json!({"messages": messages, "stream": true, "max_tokens": 20});
    for (continuation, body, expected) in [
        (Continuation::Exact, &flags, Some(String::new())),
        (Continuation::Exact, &bare, Some(String::new())),
        (Continuation::Echo, &flags, Some(String::new())),
        (Continuation::Echo, &bare, Some(partial.to_owned())),
        (Continuation::Restart, &bare, None),
    ] {
        let config = PhoneConfig { continuation, ..PhoneConfig::default() };
        let phone = spawn(config).await.expect("a phone");
        let (text, _) = ask(&phone, post("/v1/chat/completions", body)).await.expect("an answer").spoken();
        match expected {
            Some(repeated) => {
                let more = text.strip_prefix(&repeated).expect("the partial text first");
                assert!(format!("{partial}{more}").starts_with(&whole), "{continuation:?}");
            }
            None => assert!(text.starts_with(&partial[..20]), "from the start"),
        }
    }
    let config = PhoneConfig { continuation: Continuation::Refuse, ..PhoneConfig::default() };
    let phone = spawn(config).await.expect("a phone");
    assert_eq!(ask(&phone, post("/v1/chat/completions", &flags)).await.expect("an answer").status, 400);
}

#[tokio::test]
async fn the_other_text_routes_speak_their_own_shapes() {
    let phone = llama().await;
    let model = phone.config().model.clone();
    let text = answer_text(&model, "hello you", 4);

    let body = json!({"prompt": "hello you", "max_tokens": 4});
    let answer = ask(&phone, post("/v1/completions", &body)).await.expect("an answer").json();
    assert_eq!((&answer["object"], &answer["choices"][0]["text"]), (&json!("text_completion"), &json!(text)));

    let body = json!({"prompt": "hello you", "n_predict": 4, "stream": true});
    let answer = ask(&phone, post("/completion", &body)).await.expect("an answer");
    let events = chunks(&answer);
    assert!(!answer.is_done() && events.last().is_some_and(|last| last["stop"] == json!(true)));

    let body = json!({"input": "hello you", "max_output_tokens": 4, "stream": true});
    let answer = ask(&phone, post("/v1/responses", &body)).await.expect("an answer");
    let events = chunks(&answer);
    assert_eq!(events[0]["type"], "response.created");
    let last = events.last().expect("an event");
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], json!(text));
    assert!(!answer.is_done());

    let body = json!({"messages": [{"role": "user", "content": "hello you"}], "max_tokens": 4, "stream": true});
    let answer = ask(&phone, post("/v1/messages", &body)).await.expect("an answer");
    let kinds: Vec<Value> = chunks(&answer).into_iter().map(|event| event["type"].clone()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&json!("message_start")), Some(&json!("message_stop"))));
    let said: String =
        chunks(&answer).iter().filter_map(|event| event["delta"]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(said, text);
}

#[tokio::test]
async fn embeddings_ranking_and_token_counts_are_given_without_text() {
    let phone = llama().await;
    let body = json!({"input": ["a b", "c"]});
    let answer = ask(&phone, post("/v1/embeddings", &body)).await.expect("an answer").json();
    assert_eq!((answer["data"].as_array().map(Vec::len), &answer["usage"]["prompt_tokens"]), (Some(2), &json!(3)));
    let body = json!({"query": "red fox", "documents": ["a blue whale", "the red fox", "red"], "top_n": 2});
    let answer = ask(&phone, post("/v1/rerank", &body)).await.expect("an answer").json();
    let order: Vec<&Value> = answer["results"].as_array().into_iter().flatten().map(|one| &one["index"]).collect();
    assert_eq!(order, [&json!(1), &json!(2)]);
    let body = json!({"messages": [{"role": "user", "content": "a b c"}]});
    let answer = ask(&phone, post("/v1/chat/completions/input_tokens", &body)).await.expect("an answer").json();
    assert_eq!(answer["input_tokens"], 5);
    let off = ask(&phone, post("/v1/systemone", &json!({}))).await.expect("an answer");
    assert_eq!(off.status, 501);
    assert_eq!(phone.stats().completed, 2);
}

#[tokio::test]
async fn qvac_streams_unless_told_not_to_and_names_all_its_models() {
    let phone = phone(Dialect::Qvac).await;
    assert!(ask(&phone, chat("x", json!({}))).await.expect("an answer").is_done());
    assert!(ask(&phone, chat("x", json!({"stream": null}))).await.expect("an answer").is_done());
    let whole = ask(&phone, chat("x", json!({"stream": false}))).await.expect("an answer");
    assert_eq!(whole.json()["object"], "chat.completion");
    let models = ask(&phone, get("/v1/models")).await.expect("an answer").json();
    let current = models["data"].as_array().into_iter().flatten().filter(|model| model["current"] == json!(true));
    assert_eq!(current.count(), 1);
    assert_eq!(ask(&phone, get("/health")).await.expect("an answer").json()["status"], "ok");
}

#[tokio::test]
async fn mnncli_ignores_limits_and_gives_constants_for_usage_and_an_empty_finish_reason() {
    let phone = phone(Dialect::Mnn).await;
    let models = ask(&phone, get("/v1/models")).await.expect("an answer").json();
    assert_eq!(models["data"][0]["id"], "ModelScope/MNN/Qwen2.5-0.5B-Instruct");
    let answer = ask(&phone, chat("x", json!({"max_tokens": 2}))).await.expect("an answer").json();
    assert_eq!(answer["usage"], json!({"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}));
    assert_eq!(answer["model"], "undefined-model");
    let text = answer["choices"][0]["message"]["content"].as_str().expect("text");
    assert_eq!(text.split(' ').count(), 32);
    let stream = ask(&phone, chat("x", json!({"stream": true, "model": "m"}))).await.expect("an answer");
    let chunks = chunks(&stream);
    assert_eq!((&chunks[0]["choices"][0]["finish_reason"], &chunks[0]["model"]), (&json!(""), &json!("m")));
    assert!(stream.is_done() && !stream.text().contains("\"role\""));
    let broken = ask(&phone, post("/v1/chat/completions", &json!("x"))).await.expect("an answer");
    assert_eq!((broken.status, broken.body.len()), (200, 0), "no messages: 200 with nothing");
    assert_eq!(ask(&phone, get("/health")).await.expect("an answer").status, 404);
}

#[tokio::test]
async fn mnncli_sends_the_head_of_a_stream_before_it_has_a_slot() {
    let config = PhoneConfig::default().with_dialect(Dialect::Mnn).with_model_speed(ModelSpeed::QWEN_9B, 1.0);
    let phone = spawn(config).await.expect("a phone");
    let mut first = Client::to(&phone).await;
    let running = first.start(chat("x", json!({"stream": true}))).await.expect("a head");
    let mut second = Client::to(&phone).await;
    let waiting = second.start(chat("x", json!({"stream": true}))).await.expect("a head");
    assert_eq!(waiting.status(), 200);
    let stats = phone.wait_until(SOON, |stats| stats.waiting_now == 1).await.expect("it waits");
    assert_eq!((stats.running_now, stats.over_subscribed), (1, 1));
    drop((running, waiting));
}

#[tokio::test]
async fn the_mnn_app_ends_lines_with_crlf_and_gives_usage_unasked() {
    let config = PhoneConfig::default().with_dialect(Dialect::MnnApp).with_api_key("k");
    let phone = spawn(config).await.expect("a phone");
    let refused = ask(&phone, chat("x", json!({"stream": true}))).await.expect("an answer");
    assert_eq!((refused.status, refused.body.len()), (401, 0));
    assert_eq!(ask(&phone, get("/v1/models")).await.expect("open").status, 200);
    let body = json!({"messages": [{"role": "user", "content": "x"}], "stream": true});
    let stream = ask(&phone, post_with("/v1/chat/completions", &body, &[("authorization", "Bearer k")])).await;
    let stream = stream.expect("an answer");
    assert!(stream.text().contains("}\r\n\r\n") && stream.is_done());
    let chunks = chunks(&stream);
    assert!(chunks[0]["choices"][0].get("index").is_none());
    assert!(chunks.last().is_some_and(|last| last["usage"]["completion_tokens"] == json!(32)));
}

#[tokio::test]
async fn laya_decides_and_refuses_a_second_case_while_it_does() {
    let config = PhoneConfig::default().with_dialect(Dialect::Laya).with_model_speed(ModelSpeed::QWEN_9B, 1.0);
    let phone = spawn(config).await.expect("a phone");
    assert_eq!(ask(&phone, get("/health")).await.expect("an answer").json()["status"], "ok");
    let questions = json!({"q": {"type": "choice", "criteria": {"yes": null, "no": null}}});
    let short = json!({"state": "a", "questions": questions});
    let answer = ask(&phone, post("/v1/systemone", &short)).await.expect("an answer").json();
    assert_eq!(answer["answers"]["q"]["type"], "choice");
    let long = json!({"state": "word ".repeat(5000), "questions": questions});
    let mut client = Client::to(&phone).await;
    let mut running = tokio::task::JoinSet::new();
    running.spawn(async move { client.ask(post("/v1/systemone", &long)).await });
    phone.wait_until(SOON, |stats| stats.running_now == 1).await.expect("it works");
    let busy = ask(&phone, post("/v1/systemone", &short)).await.expect("an answer");
    assert_eq!((busy.status, busy.headers["retry-after"].to_str().ok()), (503, Some("1")));
    assert!(busy.json()["detail"].is_string());
    running.shutdown().await;
    let bad = ask(&phone, post("/v1/chat/completions", &short)).await.expect("an answer");
    assert_eq!((bad.status, bad.json()), (404, json!({"detail": "Not Found"})));
}

#[tokio::test]
async fn mnncli_opens_its_port_only_when_the_model_has_loaded() {
    let config = PhoneConfig::default().with_dialect(Dialect::Mnn).with_load_time(Duration::from_millis(200));
    let phone = spawn(config).await.expect("a phone");
    let opens = async {
        let mut refused = 0;
        while tokio::net::TcpStream::connect(phone.address()).await.is_err() {
            refused += 1;
            tokio::task::yield_now().await;
        }
        refused
    };
    let refused = tokio::time::timeout(SOON, opens).await.expect("it opens");
    assert!(refused > 0, "it was closed at first");
    assert_eq!(ask(&phone, chat("x", json!({}))).await.expect("an answer").status, 200);
}

#[tokio::test]
async fn a_stream_whose_head_has_left_gets_a_comment_in_every_long_silence() {
    for (dialect, head, comment) in [
        (Dialect::MnnApp, HeadTiming::AtOnce, ":keep-alive\r\n\r\n"),
        (Dialect::Llama, HeadTiming::WhenSlotTaken, ":\n\n"),
    ] {
        let mut config = PhoneConfig::default().with_dialect(dialect).with_model_speed(ModelSpeed::QWEN_9B, 1.0);
        config.ping_interval = Duration::from_millis(20);
        config.head = head;
        let phone = spawn(config).await.expect("a phone");
        let mut client = Client::to(&phone).await;
        let long = "word ".repeat(500);
        let mut body = client.start(chat(&long, json!({"stream": true}))).await.expect("a head").into_body();
        let first = frame(&mut body).await.expect("a piece").expect("no error");
        assert_eq!(String::from_utf8_lossy(&first), comment);
        assert_eq!(phone.stats().written_tokens, 0, "the prompt is still being read");
    }
}
