//! The first thing that is seen: addresses, key, and examples that work when pasted.

use std::{net::SocketAddr, time::Duration};

use super::{Stage, bracketed, endpoint, phones::Phones, say};

/// Between two looks at the starting gateway.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// For one look.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// The welcome does not wait longer for phones. 15 s: a few times what loading takes.
const PATIENCE: Duration = Duration::from_secs(15);

/// Waits until the phones take work.
pub(super) async fn wait_for_gateway(stage: &Stage, phones: usize) {
    let admin = endpoint(stage.admin);
    let all_ready = async {
        while ready(stage, &admin).await < phones {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    if tokio::time::timeout(PATIENCE, all_ready).await.is_err() {
        say("Not all phones are ready yet; the others come as they load.");
    }
}

async fn ready(stage: &Stage, admin: &crate::upstream::Endpoint) -> usize {
    let Ok(answer) = stage.client.get(admin, "/admin/replicas", stage.token.as_deref(), LOOK_LIMIT).await else {
        return 0;
    };
    let list: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let data = list["data"].as_array().map_or(&[][..], Vec::as_slice);
    data.iter().filter(|replica| replica["state"] == "ready").count()
}

/// Shows how to use it.
pub(super) fn show(stage: &Stage, phones: &Phones) {
    let models = phones.models();
    say(&text(stage.public, stage.admin, &stage.key, stage.token.as_deref(), phones.count(), &models, &program()));
}

/// How to call this program again from where it was called: with cargo it is not on the PATH.
fn program() -> String {
    std::env::args().next().filter(|name| !name.contains(char::is_whitespace)).unwrap_or_else(|| "huntgroup".into())
}

/// How a client on this machine writes an address.
fn shown(address: SocketAddr) -> String {
    let host = if address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { bracketed(address) };
    format!("{host}:{}", address.port())
}

fn text(
    public: SocketAddr,
    admin: SocketAddr,
    key: &str,
    token: Option<&str>,
    phones: usize,
    models: &[&str],
    program: &str,
) -> String {
    let (public, admin) = (shown(public), shown(admin));
    let model = models.first().copied().unwrap_or_default();
    let all = models.join(", ");
    let environment = token.map(|token| format!("HUNTGROUP_ADMIN_TOKEN={token} ")).unwrap_or_default();
    let plural = if phones == 1 { "phone" } else { "phones" };
    format!(
        r#"
{phones} simulated {plural} behind one address. Models: {all}

  base URL   http://{public}/v1
  API key    {key}
  admin      http://{admin}  (metrics at /metrics)

curl:

  curl -N http://{public}/v1/chat/completions -H "Authorization: Bearer {key}" -H "Content-Type: application/json" \
    -d '{{"model":"{model}","stream":true,"messages":[{{"role":"user","content":"What is a hunt group?"}}]}}'

Python (pip install openai):

from openai import OpenAI
client = OpenAI(base_url="http://{public}/v1", api_key="{key}")
answer = client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "What is a hunt group?"}}])
print(answer.choices[0].message.content)

The phones, from another terminal:

  {environment}{program} replicas list --admin http://{admin}
  {environment}{program} replicas drain phone-01 --wait --admin http://{admin}

Ctrl-C ends it."#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_hold_the_address_the_key_and_a_model() {
        let public = "0.0.0.0:8080".parse().unwrap();
        let admin = "[::1]:9091".parse().unwrap();
        let text = text(public, admin, "hg-key", None, 1, &["tiny", "big"], "target/release/huntgroup");
        for part in [
            "1 simulated phone behind",
            "Models: tiny, big",
            "http://127.0.0.1:8080/v1/chat/completions",
            "Bearer hg-key",
            r#"{"model":"tiny","stream":true,"messages":[{"role":"user","content":"What is a hunt group?"}]}"#,
            r#"api_key="hg-key""#,
            "  target/release/huntgroup replicas list --admin http://[::1]:9091",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
