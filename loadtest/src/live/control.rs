//! Fake phones of another process, through its control port.

use super::fleet::Known;
use crate::{
    client::{BadUrl, Failure, Pool, call},
    observed::PhoneCounts,
    scenario,
};
use fakephone::{FaultOrder, PhoneStats};
use serde_json::Value;

/// A control port.
pub(crate) struct Control(Pool);

impl Control {
    /// The port at `url`.
    ///
    /// # Errors
    /// No address of the kind.
    pub(crate) async fn new(url: &str) -> Result<Self, BadUrl> {
        Ok(Self(Pool::new(url).await?))
    }

    async fn listed(&self) -> Result<Vec<Value>, Failure> {
        let body = call(&self.0, "GET", "/phones", None, None).await?;
        serde_json::from_slice(&body).map_err(|_| Failure::BadBody("no list of phones"))
    }

    /// The phones in their order. They belong to the scenario's groups in the same order, if they are as many.
    pub(super) async fn known(&self, fleet: &scenario::Fleet) -> Result<Vec<Known>, Failure> {
        let listed = self.listed().await?;
        let groups: Vec<_> = fleet.phones().collect();
        let same = groups.len() == listed.len();
        let known = |(number, phone): (usize, &Value)| Known {
            name: text(phone, "id"),
            url: text(phone, "url"),
            group: same.then(|| groups[number].0),
            spare: same && groups[number].1.spare,
        };
        Ok(listed.iter().enumerate().map(known).collect())
    }

    /// What each has done so far.
    pub(super) async fn counts(&self) -> Result<Vec<PhoneCounts>, Failure> {
        let counts = |phone: &Value| PhoneCounts {
            name: text(phone, "id"),
            group: None,
            slots: phone["slots"].as_u64().unwrap_or(0),
            well: phone["alive"] == true && phone["order"]["fault"] == "none",
            stats: stats(&phone["stats"]),
            mean_busy: 0.0,
        };
        Ok(self.listed().await?.iter().map(counts).collect())
    }

    /// Makes a phone fail; `None` kills its engine.
    pub(super) async fn fail(&self, phone: usize, way: Option<&FaultOrder>) -> Result<(), Failure> {
        match way.map(serde_json::to_value) {
            Some(Ok(order)) => self.post(phone, "fault", Some(&order)).await,
            Some(Err(_)) => Err(Failure::BadBody("the order has no JSON")),
            None => self.post(phone, "kill", None).await,
        }
    }

    /// Makes a phone well again.
    pub(super) async fn heal(&self, phone: usize) -> Result<(), Failure> {
        self.post(phone, "fault", Some(&serde_json::json!({ "fault": "none" }))).await?;
        self.post(phone, "revive", None).await
    }

    async fn post(&self, phone: usize, what: &str, body: Option<&Value>) -> Result<(), Failure> {
        call(&self.0, "POST", &format!("/phones/{phone}/{what}"), None, body).await?;
        Ok(())
    }
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

fn stats(json: &Value) -> PhoneStats {
    let count = |key: &str| json[key].as_u64().unwrap_or(0);
    let small = |key: &str| u32::try_from(count(key)).unwrap_or(u32::MAX);
    PhoneStats {
        started: count("started"),
        completed: count("completed"),
        cancelled: count("cancelled"),
        failed: count("failed"),
        lost: count("lost"),
        running_now: small("running_now"),
        waiting_now: small("waiting_now"),
        over_subscribed: count("over_subscribed"),
        waited: count("waited"),
        prompt_tokens: count("prompt_tokens"),
        cached_tokens: count("cached_tokens"),
        written_tokens: count("written_tokens"),
        ..PhoneStats::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_another_process_are_read_as_they_are_written() {
        let written = PhoneStats {
            started: 9,
            completed: 5,
            over_subscribed: 2,
            running_now: 1,
            written_tokens: 77,
            ..PhoneStats::default()
        };
        let read = stats(&serde_json::to_value(&written).expect("JSON"));
        assert_eq!((read.started, read.completed, read.over_subscribed), (9, 5, 2));
        assert_eq!((read.running_now, read.written_tokens), (1, 77));
    }
}
