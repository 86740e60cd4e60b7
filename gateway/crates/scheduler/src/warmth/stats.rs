//! What is known of one template beside who holds it: how often it comes, and what follows.

use super::decayed::Decayed;
use crate::{prefix::Prefix, time::Timestamp};

/// Weight of one arrival in the share of returns, once there are some.
const RETURN_WEIGHT: f64 = 0.05;
/// Weight of one measured length: all measure the same, so the mean is only against the tokenizer's edges.
const LENGTH_WEIGHT: f64 = 0.3;

#[derive(Clone, Debug, Default)]
pub(crate) struct TemplateStats {
    /// Work of the requests that came, in whatever unit it is added.
    pub arrivals: Decayed,
    /// Work of the requests that wait now, in the same unit.
    pub queued_work: f64,
    /// Share of the requests that are later turns of a conversation: as likely is it that a prompt comes back, longer.
    pub return_share: f64,
    /// Its tokens times its arrivals, and the same of all templates when it last came.
    tokens: Decayed,
    all_tokens: f64,
    seen: u32,
    length: Option<f64>,
}

impl TemplateStats {
    /// Its share, 0 to 1, of the reading of templates that recent traffic asked for. Decays while it does not come.
    pub fn heat(&self, now: Timestamp) -> f64 {
        if self.all_tokens > 0.0 { (self.tokens.sum(now) / self.all_tokens).min(1.0) } else { 0.0 }
    }

    /// A request with it came. `all` is the sum over all templates of the model; this one's share is added here.
    pub(super) fn arrive(&mut self, tokens: f64, returns: bool, all: &mut Decayed, now: Timestamp) {
        self.tokens.add(tokens, now);
        all.add(tokens, now);
        self.all_tokens = all.sum(now);
        self.seen = self.seen.saturating_add(1);
        let returned = if returns { 1.0 } else { 0.0 };
        self.return_share += (returned - self.return_share) * RETURN_WEIGHT.max(1.0 / f64::from(self.seen));
    }

    /// A replica that held nothing more of a prompt than this template found so many estimated tokens in its cache.
    pub(super) fn measured(&mut self, tokens: f64) {
        let length = self.length.get_or_insert(tokens);
        *length += (tokens - *length) * LENGTH_WEIGHT;
    }

    /// Its length if it ends after cut number `cuts` and before the next: as measured, else half-way.
    pub(super) fn length(&self, cuts: usize) -> f64 {
        let (least, most) = (f64::from(Prefix::cut(cuts)), f64::from(Prefix::cut(cuts + 1)));
        self.length.unwrap_or(f64::midpoint(least, most)).clamp(least, most)
    }
}
