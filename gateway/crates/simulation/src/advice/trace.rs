//! From the requests that a scheduler kept to requests that can be played again, with any number of phones.
//!
//! What came is played as it came, so bursts are bursts. Two things are more than times and sizes. *What prompts share*: of the
//! fingerprints of a prompt, the beginning whose length times the number of others that have it is greatest stands for its
//! template; what lies behind is its own. *What waits for an answer*: a prompt that holds all of an earlier one, and came after its
//! answer, is the next turn of that conversation, and comes as long after the answer as it did.

use std::collections::BTreeMap;

use scheduler::{Asked, Class, Fate, Prefix, Span, TenantId, Timestamp, Usage};

use crate::{
    rng::Rng,
    workload::{Prompt, Request, Segment, Start},
};

/// Prompts that share less are strangers: tokens.
const LEAST_SHARED: u32 = 64;
/// Lengths in tokens as estimated and as counted differ by this share, the mean of all prompts put right.
const COUNTS_DIFFER: f64 = 0.05;
/// A beginning that more requests have is a template, and no conversation.
const MOST_TURNS: u32 = 40;

/// Requests of one stretch of time.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// How long it is, in seconds.
    pub(super) length_s: f64,
    /// The requests, the turns of a conversation one after the other. Times are from the start of the stretch.
    pub(super) requests: Vec<Request>,
    /// Lines of batches, to draw sizes from.
    lines: Vec<Request>,
    /// Whose they are; a request's key is a place here.
    pub(super) tenants: Vec<TenantId>,
    conversations: u64,
}

/// What is told of a request beside its fingerprints.
struct Item<'a> {
    asked: &'a Asked,
    conversation: u64,
    /// The request that it goes on from, by its place.
    follows: Option<usize>,
}

impl Trace {
    /// The requests of a model. `paced`: requests of class batch are lines of batches, which come when there is room; they are left
    /// out.
    pub(super) fn of(usage: &Usage, paced: bool) -> Self {
        let kept: Vec<&Asked> = usage.requests.iter().filter(|asked| !(paced && asked.class == Class::Batch)).collect();
        let from = usage.since;
        let mut tenants: Vec<TenantId> = usage.requests.iter().map(|asked| asked.tenant).collect();
        tenants.sort_unstable();
        tenants.dedup();
        let items = converse(kept);
        let templates = templates(&items, usage.token_ratio);
        // What came in the first minutes of a process does not come all the time.
        let length_s = usage.now.since(from).as_secs_f64().max(Span::SECONDS);
        let mut trace = Self { length_s, tenants, ..Self::default() };
        trace.conversations = items.iter().map(|item| item.conversation + 1).max().unwrap_or(0);
        // The turns of each conversation, in their order, which is that of their arrival.
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|at| items.get(*at).map(|item| item.conversation));
        for at in order {
            let Some(item) = items.get(at) else { continue };
            let template = templates.get(at).copied().unwrap_or_default();
            let before = item.follows.and_then(|before| items.get(before)).map(|item| item.asked);
            trace.requests.push(trace.request(item, template, before, from));
        }
        if paced {
            let lines =
                usage.requests.iter().filter(|asked| asked.class == Class::Batch && asked.fate == Fate::Answered);
            let items: Vec<Item<'_>> =
                lines.zip(0..).map(|(asked, conversation)| Item { asked, conversation, follows: None }).collect();
            let templates = self::templates(&items, usage.token_ratio);
            let lines = items.iter().zip(templates);
            trace.lines = lines.map(|(item, cut)| trace.request(item, cut, None, from)).collect();
        }
        trace
    }

    /// Sizes of lines of batches are known.
    pub(super) fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    fn request(
        &self,
        item: &Item<'_>,
        (content, shared): (u64, u32),
        before: Option<&Asked>,
        from: Timestamp,
    ) -> Request {
        let asked = item.asked;
        let tokens = (asked.prompt_tokens.round() as u32).max(1);
        let template = shared.min(tokens - 1);
        let history = before.map_or(0, |before| (before.prompt_tokens + before.output_tokens) as u32);
        let think = before.and_then(|before| before.ended).map(|ended| asked.arrived.since(ended).as_secs_f64());
        let key = self.tenants.binary_search(&asked.tenant).unwrap_or(0);
        Request {
            class: asked.class as usize,
            key,
            start: think.map_or(Start::At(asked.arrived.since(from).as_secs_f64()), Start::After),
            prompt: Prompt {
                template: Segment { content, tokens: template },
                own: Segment { content: item.conversation, tokens: tokens - template },
            },
            output: (asked.output_tokens.round() as u32).max(1),
            shared: template.max(history).min(tokens),
        }
    }

    /// What comes in `length_s` seconds from `from_s` on, if all that came comes again and again; `hurry` times as fast as it came.
    pub(super) fn stretch(&self, from_s: f64, length_s: f64, hurry: f64) -> Vec<Request> {
        let (from_s, until_s) = (from_s, from_s + length_s * hurry);
        let mut requests = Vec::new();
        let mut pass = (from_s / self.length_s).floor() as u64;
        while pass as f64 * self.length_s < until_s {
            let begins = pass as f64 * self.length_s;
            // The later turns of a conversation come with the first.
            let mut comes = false;
            requests.extend(self.requests.iter().filter_map(|request| {
                let mut request = *request;
                if let Start::At(time) = request.start {
                    let time = begins + time;
                    comes = (from_s..until_s).contains(&time);
                    request.start = Start::At((time - from_s) / hurry);
                }
                // Texts of their own are other texts each time, or the second pass would find the first one's in the caches.
                request.prompt.own.content += 1 + pass * self.conversations;
                comes.then_some(request)
            }));
            pass += 1;
        }
        requests
    }

    /// So many lines of batches, all at once, with sizes of those that were answered.
    pub(super) fn lines(&self, count: usize, seed: u64) -> impl Iterator<Item = Request> {
        let mut rng = Rng::new(seed, "lines");
        let own = u64::MAX / 2;
        (0..count as u64).filter_map(move |number| {
            let line = self.lines.get((rng.unit() * self.lines.len() as f64) as usize)?;
            let mut line = Request { start: Start::At(0.0), ..*line };
            line.prompt.own.content = own + number;
            Some(line)
        })
    }
}

/// Which requests are turns of which conversation.
fn converse(kept: Vec<&Asked>) -> Vec<Item<'_>> {
    let mut held: BTreeMap<u64, u32> = BTreeMap::new();
    for fingerprint in kept.iter().flat_map(|asked| asked.prefix.fingerprints()) {
        *held.entry(*fingerprint).or_default() += 1;
    }
    // Where a conversation can go on: its last turn, by the last fingerprint of its prompt.
    let mut ends: BTreeMap<u64, usize> = BTreeMap::new();
    let mut items: Vec<Item<'_>> = Vec::with_capacity(kept.len());
    let mut conversations = 0;
    for asked in kept {
        let prints = asked.prefix.fingerprints();
        let beginnings = prints.iter().rev().skip(1);
        let follows = beginnings.filter_map(|print| ends.get(print)).copied().find(|before| {
            let before = items.get(*before).map(|item| item.asked);
            before.is_some_and(|before| {
                let own = before.prefix.fingerprints().last().and_then(|last| held.get(last));
                before.tenant == asked.tenant
                    && before.class == asked.class
                    && before.fate == Fate::Answered
                    && before.ended.is_some_and(|ended| ended <= asked.arrived)
                    && before.prefix.tokens() >= LEAST_SHARED
                    && own.is_some_and(|others| *others <= MOST_TURNS)
            })
        });
        let conversation = follows.and_then(|before| items.get(before)).map(|item| item.conversation);
        let conversation = conversation.unwrap_or_else(|| {
            conversations += 1;
            conversations - 1
        });
        if let Some(before) = follows.and_then(|before| items.get(before))
            && let Some(last) = before.asked.prefix.fingerprints().last()
        {
            ends.remove(last);
        }
        if let Some(last) = prints.last() {
            ends.insert(*last, items.len());
        }
        items.push(Item { asked, conversation, follows });
    }
    items
}

/// Of each request, the beginning that it shares with others: its fingerprint, and its length in tokens; nothing where it shares
/// none.
///
/// Fingerprints say how long a beginning is from cut to cut only. How long it is in truth is what phones found cached of it.
fn templates(items: &[Item<'_>], ratio: f64) -> Vec<(u64, u32)> {
    let mut order: Vec<&Item<'_>> = items.iter().collect();
    order.sort_by_key(|item| item.conversation);
    // In how many conversations each beginning occurs, and in which one it was seen last.
    let mut held: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
    for item in order {
        for print in item.asked.prefix.fingerprints() {
            let (count, last) = held.entry(*print).or_insert((0, u64::MAX));
            if *last != item.conversation {
                (*count, *last) = (*count + 1, item.conversation);
            }
        }
    }
    let best = |item: &Item<'_>| {
        let prints = item.asked.prefix.fingerprints().iter().zip(1..);
        let worth = prints.filter_map(|(print, cut)| {
            let tokens = Prefix::cut(cut);
            let others = held.get(print).map_or(0, |(count, _)| count.saturating_sub(1));
            let worth = u64::from(tokens) * u64::from(others);
            (worth > 0).then_some((worth, *print, cut))
        });
        worth.max().map_or((0, 0), |(_, print, cut)| (print, cut))
    };
    let best: Vec<(u64, usize)> = items.iter().map(best).collect();
    let tokens = |cut: usize| (f64::from(Prefix::cut(cut)) * ratio).round() as u32;
    let mut found: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for (item, (print, cut)) in items.iter().zip(&best) {
        let cached = item.asked.cached_tokens;
        let reaches =
            (1.0 - COUNTS_DIFFER) * f64::from(tokens(*cut))..(1.0 + COUNTS_DIFFER) * f64::from(tokens(cut + 1));
        if *cut > 0 && reaches.contains(&cached) {
            found.entry(*print).or_default().push(cached.round() as u32);
        }
    }
    let middle = |cached: &mut Vec<u32>| {
        cached.sort_unstable();
        cached.get(cached.len() / 2).copied()
    };
    let found: BTreeMap<u64, u32> =
        found.into_iter().filter_map(|(print, mut cached)| Some((print, middle(&mut cached)?))).collect();
    let length = |(print, cut): (u64, usize)| (print, found.get(&print).copied().unwrap_or(tokens(cut)));
    best.into_iter().map(length).collect()
}
