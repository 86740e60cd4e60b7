//! How many phones each model should have, and why.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use scheduler::{Class, ModelId};
use serde::Serialize;
use simulation::advice::{ClassAdvice, KindAdvice, Outcome};
use utoipa::ToSchema;

use super::{AppState, Shared, explain::seconds};
use crate::{
    capacity::{Looked, ModelAdvice},
    clock,
};

/// Capacity advice, by model.
#[derive(Serialize, ToSchema)]
pub(super) struct AdviceList {
    /// Always `list`.
    object: &'static str,
    /// When it was made, in seconds since 1970; null before the first look.
    at: Option<u64>,
    /// How long ago that was, in seconds; null in the live feed, which says `at`. Phones are counted when asked.
    age_s: Option<u64>,
    /// Seconds that it looks back.
    window_s: f64,
    /// In the order of the models' names.
    data: Vec<AdviceView>,
}

/// Advice on one model.
#[derive(Serialize, ToSchema)]
pub(super) struct AdviceView {
    /// The model.
    model: String,
    /// `unknown`: nothing can be said yet. `more` or `fewer` phones, or `enough`. `unattainable`: no number of these phones meets
    /// every objective; `wanted` is then for those that can be met.
    verdict: &'static str,
    /// `none`, `low` (few requests, or no phone measured) or `good`.
    confidence: &'static str,
    /// What there is.
    now: PhonesView,
    /// Phones that there should be, of the kinds that there are; null if nothing can be said. It does not follow every look: more is
    /// said at the second one, fewer after a quarter of an hour.
    wanted: Option<usize>,
    /// `wanted` less the phones that there are: above 0, add so many; null as above.
    change: Option<i64>,
    /// What the last look alone wanted; `kinds` and the shares are its own, `verdict`, `change` and the sentences speak of `wanted`.
    wanted_last_look: Option<usize>,
    /// Ways to get there; empty unless more are wanted, and while they were found for another number than `wanted`.
    kinds: Vec<KindView>,
    /// `interactive`, `standard`, `batch`.
    classes: Vec<ClassView>,
    /// Numbers of phones that were tried, and what would have been in time.
    tried: Vec<TriedView>,
    /// Why, in sentences for people.
    reasons: Vec<String>,
}

/// Phones of a model.
#[derive(Serialize, ToSchema)]
pub(super) struct PhonesView {
    /// Those that serve, or did and are away for now.
    phones: usize,
    /// Their slots.
    slots: usize,
}

/// So many phones of a kind, beside those that are there, meet every objective.
#[derive(Serialize, ToSchema)]
pub(super) struct KindView {
    /// `typical`: like the one in the middle. `fastest`: like the fastest tenth.
    kind: &'static str,
    /// How many more.
    phones: usize,
    /// Slots of each.
    slots: u16,
    /// Prompt tokens per second that each reads.
    prefill: f64,
    /// Answer tokens per second that each writes.
    decode: f64,
}

/// One class.
#[derive(Serialize, ToSchema)]
pub(super) struct ClassView {
    /// `interactive`, `standard` or `batch`.
    class: &'static str,
    /// What is promised; null for batch, whose lines are to be done by the deadlines of their batches.
    objective: Option<ObjectiveView>,
    /// Requests that came in the window.
    requests: usize,
    /// Share of them whose first token came in time, from 0 to 1; null if there are none.
    attained: Option<f64>,
    /// Requests whose first token came too late, or never.
    late: usize,
    /// Those of them that were refused.
    refused: usize,
    /// Requests per second, over the window.
    arrivals_per_s: f64,
    /// The same in its busiest five minutes.
    peak_arrivals_per_s: f64,
    /// Slot time per request, retries and waste included, in seconds.
    slot_s: Option<f64>,
    /// Phones in the middle that it keeps busy, one request at a time, shared beginnings of prompts cached.
    load_phones: f64,
    /// What would be in time with the phones that are wanted, as `attained`; of batches, lines done over lines due. Null if the last
    /// look did not try that number.
    with_wanted: Option<f64>,
    /// No number of these phones meets the objective: only this share would be in time on an idle one. Null where it can be met.
    at_best: Option<f64>,
}

/// What is promised to a class.
#[derive(Serialize, ToSchema)]
pub(super) struct ObjectiveView {
    /// Seconds to the first token.
    ttft_s: f64,
    /// For this share of the requests.
    share: f64,
}

/// What came of a number of phones when the window was played again.
#[derive(Serialize, ToSchema)]
pub(super) struct TriedView {
    /// How many.
    phones: usize,
    /// Every objective was met.
    met: bool,
    /// Share in time of the interactive requests.
    interactive: Option<f64>,
    /// Of the standard ones.
    standard: Option<f64>,
    /// Lines of batches done over lines due.
    batch: Option<f64>,
}

/// To four digits behind the point.
fn share(share: f64) -> f64 {
    (share * 1e4).round() / 1e4
}

impl ClassView {
    fn new(class: &ClassAdvice, with_wanted: Option<&Outcome>) -> Self {
        let rate = |rate: f64| (rate * 1e4).round() / 1e4;
        Self {
            class: class.class.name(),
            objective: class.objective.map(|o| ObjectiveView { ttft_s: o.ttft_s, share: o.share }),
            requests: class.requests,
            attained: class.attained.map(share),
            late: class.late,
            refused: class.refused,
            arrivals_per_s: rate(class.arrivals_per_s.0),
            peak_arrivals_per_s: rate(class.arrivals_per_s.1),
            slot_s: class.slot_s.and_then(seconds),
            load_phones: rate(class.load),
            with_wanted: with_wanted.and_then(|outcome| outcome.attained[class.class as usize]).map(share),
            at_best: class.at_best.map(share),
        }
    }
}

impl KindView {
    fn new(kind: &KindAdvice) -> Self {
        let rate = |rate: f64| (rate * 10.0).round() / 10.0;
        let KindAdvice { kind, phones, slots, rates } = *kind;
        Self { kind, phones, slots, prefill: rate(rates.0), decode: rate(rates.1) }
    }
}

impl AdviceView {
    /// As things are now, with so many phones and slots.
    fn new(stands: &ModelAdvice, (phones, slots): (usize, usize)) -> Self {
        let ModelAdvice { model, advice, wanted, .. } = stands;
        let of = |attained: &[Option<f64>; 3], class: Class| attained[class as usize].map(share);
        let tried = advice.tried.iter().map(|(phones, outcome)| TriedView {
            phones: *phones,
            met: outcome.met,
            interactive: of(&outcome.attained, Class::Interactive),
            standard: of(&outcome.attained, Class::Standard),
            batch: of(&outcome.attained, Class::Batch),
        });
        let with_wanted = wanted.and_then(|wanted| advice.outcome(wanted));
        Self {
            model: model.to_string(),
            verdict: stands.verdict(phones).name(),
            confidence: advice.confidence.name(),
            now: PhonesView { phones, slots },
            wanted: *wanted,
            change: wanted.map(|wanted| wanted as i64 - phones as i64),
            wanted_last_look: advice.wanted,
            kinds: advice.kinds_for(*wanted, phones).iter().map(KindView::new).collect(),
            classes: advice.classes.iter().map(|class| ClassView::new(class, with_wanted)).collect(),
            tried: tried.collect(),
            reasons: advice.reasons.iter().cloned().chain(advice.conclusion(*wanted, phones)).collect(),
        }
    }
}

impl AdviceList {
    fn new(looked: &Looked, there: &BTreeMap<ModelId, (usize, usize)>, now: u64) -> Self {
        let there = |model: ModelId| there.get(&model).copied().unwrap_or_default();
        Self {
            object: "list",
            at: looked.at,
            age_s: looked.at.map(|at| now.saturating_sub(at)),
            window_s: looked.window.as_secs_f64(),
            data: looked.models.iter().map(|model| AdviceView::new(model, there(model.id))).collect(),
        }
    }
}

/// How many phones each model should have, and why.
#[utoipa::path(get, path = "/admin/advice", tag = "replicas",
    responses((status = 200, description = "As of the last look", body = AdviceList)))]
pub(super) async fn show(State(shared): State<Shared>) -> Json<AdviceList> {
    Json(list(&shared.app))
}

/// The same, for the live feed: without what differs every second.
pub(super) fn fed(app: &AppState) -> AdviceList {
    AdviceList { age_s: None, ..list(app) }
}

fn list(app: &AppState) -> AdviceList {
    AdviceList::new(&app.adviser.looked(), &app.dispatcher.there(), clock::unix().as_secs())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use simulation::advice::{Advice, Confidence, Verdict};

    use super::*;

    /// A look that wanted 18 while 6 phones were there; 8 stand.
    fn looked() -> Looked {
        let kind = KindAdvice { kind: "typical", phones: 12, slots: 1, rates: (100.0, 10.0) };
        let tried = Outcome { attained: [Some(0.97), None, None], met: true };
        let advice = Advice {
            now: (6, 6),
            wanted: Some(18),
            least: Some(18),
            verdict: Verdict::More,
            confidence: Confidence::Good,
            kinds: vec![kind],
            peak: 1.0,
            classes: Vec::new(),
            tried: vec![(18, tried)],
            reasons: vec!["interactive: late.".to_owned()],
        };
        let model = ModelAdvice { id: ModelId(1), model: "small".into(), advice, wanted: Some(8) };
        Looked { at: Some(100), window: Duration::from_secs(3600), models: vec![model] }
    }

    #[test]
    fn everything_that_is_shown_speaks_of_the_number_that_stands_and_the_phones_of_now() {
        let there = |phones| BTreeMap::from([(ModelId(1), (phones, phones))]);
        let shown = |phones| AdviceList::new(&looked(), &there(phones), 160);
        let list = shown(6);
        let one = &list.data[0];
        assert_eq!((list.age_s, one.verdict, one.wanted, one.change), (Some(60), "more", Some(8), Some(2)));
        assert!(one.kinds.is_empty(), "twelve more are not what stands");
        let said = one.reasons.join(" ");
        assert!(said.contains("needed: 8; there are 6."), "{said}");
        assert!(said.contains("The last look wants 18; that stands when a second look agrees."), "{said}");
        let one = &shown(8).data[0];
        assert_eq!((one.verdict, one.now.phones, one.change), ("enough", 8, Some(0)), "two phones have come since");
    }
}
