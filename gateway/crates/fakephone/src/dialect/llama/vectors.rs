//! The routes that read and write no text: embeddings, ranking, decisions.

use super::Answered;
use super::generate::demand;
use crate::ask::Refusal;
use crate::decide;
use crate::dialect::model_name;
use crate::digest::fnv;
use crate::http::{Gone, Reply};
use crate::prompt::text_tokens;
use crate::visit::Visit;
use crate::work;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Gone>;

/// `/v1/embeddings`.
pub(super) async fn embeddings(visit: &mut Visit<'_>, body: &Value) -> Result<std::result::Result<Answered, Refusal>> {
    let config = visit.phone.config.clone();
    let off = "This server does not support embeddings. Start it with `--embeddings`";
    let texts = match demand(config.features.embeddings, off).and_then(|()| inputs(&body["input"])) {
        Ok(texts) => texts,
        Err(no) => return Ok(Err(no)),
    };
    let tokens: Vec<u32> = texts.iter().flat_map(|text| text_tokens(text)).collect();
    if tokens.len() >= config.context_tokens as usize {
        return Ok(Err(Refusal::too_long(tokens.len(), config.context_tokens)));
    }
    let count = tokens.len();
    work::read_only(visit, tokens).await?;
    let as_base64 = body["encoding_format"] == "base64";
    let data: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let vector = embedding(text, config.embedding_dimensions);
            let value = if as_base64 { json!(base64(&vector)) } else { json!(vector) };
            json!({"object": "embedding", "index": index, "embedding": value})
        })
        .collect();
    let reply = json!({"model": model_name(visit), "object": "list", "data": data,
        "usage": {"prompt_tokens": count, "total_tokens": count}});
    Ok(Ok(Answered::Reply(Reply::json(200, &reply))))
}

fn inputs(input: &Value) -> std::result::Result<Vec<String>, Refusal> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match input {
        Value::String(one) => Ok(vec![one.clone()]),
        // One array of token ids is one input.
        Value::Array(ids) if ids.iter().all(Value::is_number) && !ids.is_empty() => {
            Ok(vec![ids.iter().map(text).collect::<Vec<_>>().join(" ")])
        }
        Value::Array(many) if !many.is_empty() => Ok(many.iter().map(text).collect()),
        _ => Err(Refusal::bad("\"input\" or \"content\" must be provided")),
    }
}

/// A vector of length one that depends on the text alone.
fn embedding(text: &str, dimensions: usize) -> Vec<f32> {
    let mut chance = simulation::rng::Rng::from_seed(fnv(text.as_bytes()));
    let raw: Vec<f64> = (0..dimensions).map(|_| chance.unit() * 2.0 - 1.0).collect();
    let length = raw.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    raw.iter().map(|x| (x / length) as f32).collect()
}

fn base64(vector: &[f32]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0u32, |bits, byte| (bits << 8) | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            if place <= group.len() {
                text.push(char::from(ALPHABET[((bits >> (18 - 6 * place)) & 63) as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

/// `/v1/rerank`: a document scores by the words it shares with the query.
pub(super) async fn rerank(visit: &mut Visit<'_>, body: &Value) -> Result<std::result::Result<Answered, Refusal>> {
    let off = "This server does not support reranking. Start it with `--reranking`";
    if let Err(no) = demand(visit.phone.config.features.rerank, off) {
        return Ok(Err(no));
    }
    let (Some(query), Some(documents)) = (body["query"].as_str(), body["documents"].as_array()) else {
        return Ok(Err(Refusal::bad("\"query\" and \"documents\" must be provided")));
    };
    let wanted = text_tokens(query);
    let mut tokens = wanted.clone();
    let mut scores: Vec<(usize, f64)> = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let words = text_tokens(document.as_str().or(document["text"].as_str()).unwrap_or_default());
        let shared = wanted.iter().filter(|word| words.contains(word)).count();
        scores.push((index, shared as f64 / wanted.len().max(1) as f64));
        tokens.extend(words);
    }
    let count = tokens.len();
    work::read_only(visit, tokens).await?;
    scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    scores.truncate(body["top_n"].as_u64().map_or(usize::MAX, |most| most as usize));
    let results: Vec<Value> =
        scores.iter().map(|(index, score)| json!({"index": index, "relevance_score": score})).collect();
    let reply = json!({"model": model_name(visit), "object": "list", "results": results,
        "usage": {"prompt_tokens": count, "total_tokens": count}});
    Ok(Ok(Answered::Reply(Reply::json(200, &reply))))
}

/// `/v1/systemone` on a llama-server with a decision model.
pub(super) async fn decide(visit: &mut Visit<'_>, body: &Value) -> Result<std::result::Result<Answered, Refusal>> {
    if let Err(no) = demand(visit.phone.config.features.decisions, "This model is not a decision model") {
        return Ok(Err(no));
    }
    match decide::read(body) {
        Ok(case) => {
            let context = visit.phone.config.context_tokens;
            if case.tokens.len() >= context as usize {
                return Ok(Err(Refusal::too_long(case.tokens.len(), context)));
            }
            work::read_only(visit, case.tokens.clone()).await?;
            let reply = Reply::json(200, &case.answer(&model_name(visit)));
            Ok(Ok(Answered::Reply(reply)))
        }
        Err(message) => Ok(Err(Refusal::bad(message.to_string()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_pads_as_the_standard_says() {
        assert_eq!(base64(&[]), "");
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.5]), "AACAPwAAIMA=");
        assert_eq!(base64(&[0.0, 0.0, 0.0]), "AAAAAAAAAAAAAAAA");
    }

    #[test]
    fn an_embedding_has_length_one_and_depends_on_the_text() {
        let one = embedding("a b", 32);
        assert!((one.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
        assert_eq!(one, embedding("a b", 32));
        assert_ne!(one, embedding("a c", 32));
    }
}
