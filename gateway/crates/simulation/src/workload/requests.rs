//! The requests: what they ask, and when they come.

use super::{
    arrivals,
    prompt::{Prompt, Segment},
};
use crate::{
    rng::Rng,
    scenario::{Class, Scenario, Template},
};

/// Contents of templates are numbered by class, a thousand each; contents of one request or conversation start here.
const OWN_CONTENTS: u64 = 1_000_000_000;
const TEMPLATES_PER_CLASS: usize = 1000;

/// When a request comes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// At this time, seconds.
    At(f64),
    /// This long after the answer to the request before it in the list, seconds: the next turn of a conversation.
    After(f64),
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Index of its class in the scenario.
    pub class: usize,
    /// Index of its key in the class.
    pub key: usize,
    /// When it comes.
    pub start: Start,
    /// What it asks.
    pub prompt: Prompt,
    /// Tokens of the answer.
    pub output: u32,
    /// Prompt tokens that a perfect cache would hold.
    pub shared: u32,
}

impl Request {
    /// When it comes, if that does not depend on the service; seconds.
    pub const fn arrival(&self) -> Option<f64> {
        match self.start {
            Start::At(time) => Some(time),
            Start::After(_) => None,
        }
    }

    /// Prompt tokens that a perfect cache spares: the last one is always read.
    pub fn spared(&self) -> u32 {
        self.shared.min(self.prompt.tokens().saturating_sub(1))
    }
}

pub(super) fn draw(scenario: &Scenario, seed: u64) -> Vec<Request> {
    let mut requests = Vec::new();
    let mut content = OWN_CONTENTS;
    for (index, class) in scenario.classes.iter().enumerate() {
        let mut rng = Rng::new(seed, &format!("class:{}:body", class.name));
        for time in arrivals::draw(&class.arrivals, &class.name, scenario.horizon_s, seed) {
            content += 1;
            let mut author = Author { class, index, content, rng: &mut rng };
            author.write(time, &mut requests);
        }
    }
    requests
}

/// Writes the requests of one arrival.
struct Author<'a> {
    class: &'a Class,
    index: usize,
    content: u64,
    rng: &'a mut Rng,
}

impl Author<'_> {
    fn write(&mut self, time: f64, requests: &mut Vec<Request>) {
        let key = self.rng.weighted(self.class.keys.iter().map(|key| key.weight));
        let template = self.rng.weighted(self.class.templates.iter().map(|template| template.weight));
        if self.class.is_chat() {
            self.converse(time, key, template, requests);
        } else {
            let (suffix, output) = (self.class.suffix.draw(self.rng), self.class.output.draw(self.rng));
            requests.push(self.request(Start::At(time), key, template, (0, suffix), output));
        }
    }

    /// The turns of a conversation. Each prompt holds the whole history; it ends when that gets too long.
    fn converse(&mut self, time: f64, key: usize, template: usize, requests: &mut Vec<Request>) {
        let goes_on: f64 = 1.0 - 1.0 / self.class.turns_mean;
        let turns = 1 + ((1.0 - self.rng.unit()).ln() / goes_on.ln()).floor() as usize;
        let (mut history, mut start) = (0, Start::At(time));
        for turn in 0..turns {
            let (user, output) = (self.class.suffix.draw(self.rng), self.class.output.draw(self.rng));
            let think_s = self.rng.exponential(self.class.think_s);
            if turn > 0 {
                start = Start::After(think_s);
            }
            let request = self.request(start, key, template, (history, user), output);
            if turn > 0 && request.prompt.tokens() > self.class.max_prompt {
                return;
            }
            requests.push(request);
            history += user + output;
        }
    }

    fn request(&self, start: Start, key: usize, template: usize, (history, new): (u32, u32), output: u32) -> Request {
        let tokens = self.class.templates.get(template).map_or(0, |template: &Template| template.tokens);
        let prompt = Prompt {
            template: Segment { content: (self.index * TEMPLATES_PER_CLASS + template + 1) as u64, tokens },
            own: Segment { content: self.content, tokens: history + new },
        };
        Request { class: self.index, key, start, prompt, output, shared: tokens + history }
    }
}
