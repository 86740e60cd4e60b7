//! What the pool has cost, and what for.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Shared, answer::AdminError, form::Asked, view::ErrorView};
use crate::{
    clock,
    telemetry::{Account, Split, Statement, Telemetry, Window},
};

/// Which time.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CostQuery {
    window: Option<String>,
}

/// What the pool has cost in a time, by stated prices. An amount is null where nothing of it has a price: what is not known is
/// not 0.
#[derive(Serialize, ToSchema)]
pub(super) struct CostView {
    /// Always `cost`.
    object: &'static str,
    /// `1h`, `24h` or `all`.
    window: &'static str,
    /// Seconds since 1970 where it begins: up to 5 minutes before the window, and not before the process did.
    from: f64,
    /// Seconds since 1970 where it ends: now.
    to: f64,
    /// Seconds since 1970 when this process began to count; nothing is known of earlier ones.
    counted_since: f64,
    /// What the amounts are in: `ACU`.
    unit: &'static str,
    /// Whose price is known now.
    replicas: PricedView,
    /// What the pool costs now, in ACU a day.
    per_day: Option<f64>,
    /// What it has cost, and what came of it.
    #[serde(flatten)]
    all: AmountsView,
    /// The part of the idle cost that is of replicas which were given no work: out, draining, loading.
    idle_away: Option<f64>,
    /// Wasted cost by how the attempts ended; reasons as in `huntgroup_wasted_slot_seconds_total`.
    wasted_by_reason: BTreeMap<&'static str, f64>,
    /// By model, by name. A replica of several models counts for each in equal parts.
    models: Vec<NamedView>,
    /// By tenant, by name; at most 100, and `other`. Tenants keep no replicas: they have no total and nothing idle.
    tenants: Vec<NamedView>,
    /// By deployment, where replicas are said to belong to one; at most 100, and `other`.
    deployments: Vec<NamedView>,
}

/// How many replicas state a price.
#[derive(Serialize, ToSchema)]
pub(super) struct PricedView {
    /// They do.
    priced: u32,
    /// They do not: what they cost is in no amount.
    unpriced: u32,
}

/// Amounts in ACU: used, wasted and idle add up to the total.
#[derive(Serialize, ToSchema)]
pub(super) struct AmountsView {
    /// Of replicas in the pool, whatever they did.
    total: Option<f64>,
    /// Of slots, for whole answers and for those that are being written.
    used: Option<f64>,
    /// Of slots, for attempts that brought no whole answer.
    wasted: Option<f64>,
    /// What slots did not take.
    idle: Option<f64>,
    /// Seconds of slots on replicas with a price.
    slot_seconds: f64,
    /// Seconds of slots on replicas without: no amount has them.
    unpriced_slot_seconds: f64,
    /// Whole answers.
    requests: u64,
    /// Their prompt tokens.
    prompt_tokens: u64,
    /// Their answers' tokens.
    completion_tokens: u64,
    /// What one whole answer costs.
    per_request: RatesView,
    /// What a million tokens cost.
    per_million_tokens: TokenRatesView,
}

/// One of many.
#[derive(Serialize, ToSchema)]
pub(super) struct NamedView {
    /// Its name.
    name: String,
    #[serde(flatten)]
    amounts: AmountsView,
}

/// ACU for one.
#[derive(Serialize, ToSchema)]
pub(super) struct RatesView {
    /// Of slots, what was wasted included.
    slots: Option<f64>,
    /// Of all that the pool cost, idle replicas included.
    total: Option<f64>,
}

/// ACU for a million.
#[derive(Serialize, ToSchema)]
pub(super) struct TokenRatesView {
    /// Prompt tokens: of slots while they read. Of answers that one attempt gave.
    prompt: Option<f64>,
    /// Answer tokens: of slots while they wrote. The same answers.
    completion: Option<f64>,
    /// Tokens of either kind: of slots, what was wasted included.
    slots: Option<f64>,
    /// The same: of all that the pool cost.
    total: Option<f64>,
}

/// What the pool has cost in a time, by model, tenant and deployment, and what of it was used.
#[utoipa::path(get, path = "/admin/cost", tag = "process",
    params(("window" = Option<String>, Query, description = "`1h`, `24h` (if left out) or `all`: since the process began")),
    responses((status = 200, description = "Amounts in ACU", body = CostView), (status = 400, body = ErrorView)))]
pub(super) async fn cost(
    State(shared): State<Shared>,
    Asked(query): Asked<CostQuery>,
) -> Result<Json<CostView>, AdminError> {
    let (name, window) = match query.window.as_deref() {
        Some("1h") => ("1h", Window::Hour),
        None | Some("24h") => ("24h", Window::Day),
        Some("all") => ("all", Window::All),
        Some(_) => return Err(AdminError::invalid("window", "must be 1h, 24h or all")),
    };
    Ok(Json(CostView::new(name, &shared.app.telemetry.cost(window))))
}

impl CostView {
    /// What the last 24 hours have cost.
    pub(super) fn of_a_day(telemetry: &Telemetry) -> Self {
        Self::new("24h", &telemetry.cost(Window::Day))
    }

    /// What a statement says.
    pub(super) fn new(window: &'static str, statement: &Statement) -> Self {
        let Statement { length, counted, sheet, now, .. } = statement;
        let to = clock::unix();
        let named = |accounts: &BTreeMap<Arc<str>, Account>| {
            accounts.iter().map(|(name, account)| NamedView::new(name, account)).collect()
        };
        Self {
            object: "cost",
            window,
            from: to.saturating_sub(*length).as_secs_f64(),
            to: to.as_secs_f64(),
            counted_since: to.saturating_sub(*counted).as_secs_f64(),
            unit: "ACU",
            replicas: PricedView { priced: now.priced, unpriced: now.unpriced },
            per_day: (now.priced > 0).then_some(now.acu_per_day),
            all: AmountsView::new(&sheet.all),
            idle_away: (sheet.all.priced_s > 0.0).then_some(sheet.all.away),
            wasted_by_reason: sheet.wasted.clone(),
            models: named(&sheet.models),
            tenants: named(&sheet.tenants),
            deployments: named(&sheet.deployments),
        }
    }
}

impl NamedView {
    fn new(name: &str, account: &Account) -> Self {
        Self { name: name.to_owned(), amounts: AmountsView::new(account) }
    }
}

impl AmountsView {
    fn new(account: &Account) -> Self {
        let Account { pool, slots, wasted, answers, prompt_tokens, completion_tokens, split, .. } = *account;
        let total = (account.priced_s > 0.0).then_some(pool);
        let worked = account.has_price().then_some(slots);
        let million = (prompt_tokens + completion_tokens) as f64 / MILLION;
        let Split { reading, writing, .. } = split;
        Self {
            total,
            // What is kept of an answer and given up later is wasted then, which may be in a later window.
            used: worked.map(|slots| (slots - wasted).max(0.0)),
            wasted: worked.map(|_| wasted),
            idle: total.map(|total| (total - slots).max(0.0)),
            slot_seconds: account.priced_slot_s,
            unpriced_slot_seconds: account.unpriced_slot_s,
            requests: answers,
            prompt_tokens,
            completion_tokens,
            per_request: RatesView { slots: per(worked, answers as f64), total: per(total, answers as f64) },
            per_million_tokens: TokenRatesView {
                prompt: per(Some(reading), split.prompt_tokens as f64 / MILLION),
                completion: per(Some(writing), split.completion_tokens as f64 / MILLION),
                slots: per(worked, million),
                total: per(total, million),
            },
        }
    }
}

const MILLION: f64 = 1e6;

fn per(cost: Option<f64>, count: f64) -> Option<f64> {
    cost.filter(|_| count > 0.0).map(|cost| cost / count)
}
