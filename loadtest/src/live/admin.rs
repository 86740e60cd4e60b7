//! What an operator asks of the gateway.

use super::play::{REST_LIMIT, settle};
use crate::{
    client::{BadUrl, Failure, Pool, call},
    observed::Left,
};
use serde_json::Value;
use std::fmt::Write as _;

/// A gateway's admin API.
pub(crate) struct Admin {
    pool: Pool,
    authorization: Option<String>,
}

/// A call of an operator that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    /// The address.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// The call.
    #[error("the admin API: {0}")]
    Call(#[from] Failure),
}

impl Admin {
    /// The API at `url`.
    ///
    /// # Errors
    /// No address of the kind.
    pub(crate) async fn new(url: &str, token: Option<&str>) -> Result<Self, AdminError> {
        Ok(Self { pool: Pool::new(url).await?, authorization: token.map(|token| format!("Bearer {token}")) })
    }

    async fn json(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let answer = call(&self.pool, method, path, self.authorization.as_deref(), body).await?;
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer).map_err(|_| Failure::BadBody("not JSON"))
    }

    /// How many replicas are ready, of how many.
    pub(crate) async fn ready(&self) -> Result<(usize, usize), AdminError> {
        let listed = self.json("GET", "/admin/replicas", None).await?;
        let replicas = listed["data"].as_array().ok_or(Failure::BadBody("no list of replicas"))?;
        Ok((replicas.iter().filter(|replica| replica["state"] == "ready").count(), replicas.len()))
    }

    /// Adds a phone.
    pub(crate) async fn add(&self, replica: &Value) -> Result<(), AdminError> {
        self.json("POST", "/admin/replicas", Some(replica)).await?;
        Ok(())
    }

    /// Starts to drain a phone.
    pub(crate) async fn drain(&self, url: &str) -> Result<(), AdminError> {
        self.json("POST", &format!("{}/drain", path_of(url)), None).await?;
        Ok(())
    }

    /// Puts a drained phone back.
    pub(crate) async fn undrain(&self, url: &str) -> Result<(), AdminError> {
        self.json("POST", &format!("{}/undrain", path_of(url)), None).await?;
        Ok(())
    }

    /// Removes a phone once it is empty.
    pub(crate) async fn remove(&self, url: &str) -> Result<(), AdminError> {
        self.json("DELETE", &path_of(url), None).await?;
        Ok(())
    }

    /// The gateway's metrics.
    pub(crate) async fn metrics(&self) -> Result<Metrics, AdminError> {
        let body = call(&self.pool, "GET", "/metrics", self.authorization.as_deref(), None).await?;
        Ok(Metrics(String::from_utf8_lossy(&body).into_owned()))
    }

    /// What the gateway counts as running, once that is nothing or has had time to be nothing.
    pub(crate) async fn left_over(&self) -> Option<Left> {
        settle(REST_LIMIT, async || {
            let left = self.metrics().await.ok().map(|metrics| Left {
                busy_slots: metrics.sum("huntgroup_replica_slots", &["state=\"busy\""]),
                queued: metrics.sum("huntgroup_queue_depth", &[]),
            });
            (left, left.is_none_or(|left| left.busy_slots + left.queued == 0.0))
        })
        .await
    }
}

/// What a gateway counts, as Prometheus reads it.
pub(crate) struct Metrics(String);

impl Metrics {
    /// The sum of all series of that name that carry these labels, each as `name="value"`.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'));
        let lines = self.0.lines().filter(of_name).filter(|line| labels.iter().all(|label| line.contains(label)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

/// Path of the replica at `url`.
fn path_of(url: &str) -> String {
    let mut path = "/admin/replicas/".to_owned();
    for byte in url.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            path.push(char::from(byte));
        } else {
            write!(path, "%{byte:02X}").ok();
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_named_by_its_encoded_url() {
        assert_eq!(path_of("https://a-1.localhost:7"), "/admin/replicas/https%3A%2F%2Fa-1.localhost%3A7");
    }

    #[test]
    fn gauges_are_summed_over_their_labels() {
        let text = "# TYPE huntgroup_replica_slots gauge\nhuntgroup_replica_slots{replica=\"a\",state=\"busy\"} 2\n\
            huntgroup_replica_slots{replica=\"b\",state=\"busy\"} 1\nhuntgroup_replica_slots{replica=\"b\",state=\"free\"} 7\n";
        let metrics = Metrics(text.to_owned());
        assert_eq!(metrics.sum("huntgroup_replica_slots", &["state=\"busy\""]), 3.0);
        assert_eq!(metrics.sum("huntgroup_replica_slots", &["state=\"busy\"", "replica=\"b\""]), 1.0);
        assert_eq!(metrics.sum("huntgroup_replica", &[]), 0.0);
    }
}
