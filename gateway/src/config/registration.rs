//! `[registration]`: phones that announce themselves.

use std::{net::SocketAddr, time::Duration};

use store::Verification;

use super::{
    secret::Secret,
    value::named,
    visit::{Section, Visitor, live, restart},
};

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

named!(Verification, "\"token\", \"signed\" or \"assigned\"", "token" => Verification::Token,
    "signed" => Verification::Signed, "assigned" => Verification::Assigned);

/// How phones announce themselves, and how much that is trusted.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// A listener that knows `POST /admin/register` and nothing else, for phones on the internet. Off: only the operator's
    /// own listener takes announcements.
    pub listen: Option<SocketAddr>,
    /// What a phone's call has to carry behind `?token=`; `None`: no phone may announce itself.
    pub token: Option<Secret>,
    /// New replicas, moves and other changes that phones make in a minute, all together. 60: a deployment of 64 is in after
    /// a minute, and a stolen token fills no pool before somebody looks.
    pub max_new_per_minute: u32,
    /// Replicas that announced themselves and have not yet shown that they run a model, all together. 500: eight deployments of 64
    /// are asked within half an hour, and a stolen token holds no more than a tenth of the pool.
    pub max_unproven: usize,
    /// And they are forgotten when they have not shown it for so long. 1 hour: a phone loads its model in five minutes.
    pub forget_unproven_after: Duration,
    /// Replicas that announced themselves and are known less well than that get no work. "token": whoever was given it.
    pub min_verification: Verification,
    /// How far a signed moment may lie from ours, before and after. 60 s: phones set their clocks by the network.
    pub window: Duration,
    /// Replicas that came by themselves, were not heard of and not reachable for so long are forgotten. 7 days: longer than a
    /// deployment's usual pause, and their history is worth keeping.
    pub forget_after: Duration,
    /// How often phones say that they live, if they do so at all. 5 minutes: ten times what the rate limit of their runtime
    /// allows. One that misses three is shown as silent; only probes decide about its health.
    pub heartbeat: Duration,
}

impl Default for Registration {
    fn default() -> Self {
        Self {
            listen: None,
            token: None,
            max_new_per_minute: 60,
            max_unproven: 500,
            forget_unproven_after: seconds(3_600),
            min_verification: Verification::Token,
            window: seconds(60),
            forget_after: seconds(7 * 86_400),
            heartbeat: seconds(300),
        }
    }
}

impl Section for Registration {
    fn visit<V: Visitor>(&mut self, v: &mut V) {
        v.value(restart("listen"), &mut self.listen);
        v.value(live("token"), &mut self.token);
        v.ranged(live("max_new_per_minute"), &mut self.max_new_per_minute, 1..=100_000);
        v.ranged(live("max_unproven"), &mut self.max_unproven, 1..=100_000);
        v.ranged(live("forget_unproven_after"), &mut self.forget_unproven_after, seconds(1)..=seconds(7 * 86_400));
        v.value(live("min_verification"), &mut self.min_verification);
        v.ranged(live("window"), &mut self.window, seconds(5)..=seconds(600));
        v.ranged(live("forget_after"), &mut self.forget_after, seconds(3600)..=seconds(365 * 86_400));
        v.ranged(live("heartbeat"), &mut self.heartbeat, seconds(10)..=seconds(86_400));
    }
}
