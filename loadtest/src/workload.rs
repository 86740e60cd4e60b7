//! Which requests a scenario makes, and when: decided before the first one is sent.
//!
//! Problem: two plays of a scenario must be the same work, or their figures can't be compared, and a request must not
//! depend on how fast an earlier one was answered. Choice: everything is drawn beforehand from named streams, one for a
//! class's arrivals, one for its contents, one for each client of a closed loop (whose *times* do depend on the answers,
//! but whose contents don't). Rejected: drawing while playing, from one stream: any late answer shifts all draws.

use crate::scenario::{Arrivals, Class, Scenario};
use simulation::rng::Rng;

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Turn {
    /// Pause after the answer before, seconds.
    pub(crate) think_s: f64,
    /// Tokens that the client adds.
    pub(crate) own_tokens: u32,
    /// Tokens it wants back.
    pub(crate) answer_tokens: u32,
    /// Whether it asks for a stream.
    pub(crate) stream: bool,
}

/// One conversation; most have one turn.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Session {
    /// Index of its class.
    pub(crate) class: usize,
    /// Different for every session of a play.
    pub(crate) number: u64,
    /// Index of its shared beginning.
    pub(crate) template: Option<usize>,
    /// When it starts, seconds; of no meaning in a closed loop.
    pub(crate) start_s: f64,
    /// Its turns, at least one.
    pub(crate) turns: Vec<Turn>,
}

/// Where the sessions of clients are numbered from, so that they never meet those of the open arrivals.
const CLIENTS_FROM: u64 = 1 << 40;
/// Numbers set aside for one client.
const PER_CLIENT: u64 = 1 << 20;

/// All sessions that come whether or not others were answered, by time.
pub(crate) fn open_sessions(scenario: &Scenario) -> Vec<Session> {
    let mut sessions = Vec::new();
    for (index, class) in scenario.classes.iter().enumerate() {
        let mut contents = Rng::new(scenario.seed, &format!("class:{}:body", class.name));
        for start_s in arrival_times(class, scenario) {
            let number = sessions.len() as u64;
            sessions.push(draw_session(class, index, number, start_s, &mut contents));
        }
    }
    sessions.sort_by(|a, b| a.start_s.total_cmp(&b.start_s).then(a.number.cmp(&b.number)));
    sessions
}

/// What one client of a closed loop asks, one session after the other, without end.
pub(crate) struct Client<'s> {
    class: &'s Class,
    index: usize,
    next: u64,
    contents: Rng,
}

impl<'s> Client<'s> {
    /// Client number `client` of class `index`.
    pub(crate) fn new(scenario: &'s Scenario, index: usize, client: usize) -> Self {
        let class = &scenario.classes[index];
        Self {
            class,
            index,
            next: CLIENTS_FROM + ((index as u64) << 34) + client as u64 * PER_CLIENT,
            contents: Rng::new(scenario.seed, &format!("class:{}:client:{client}", class.name)),
        }
    }
}

impl Iterator for Client<'_> {
    type Item = Session;

    fn next(&mut self) -> Option<Session> {
        let number = self.next;
        self.next += 1;
        Some(draw_session(self.class, self.index, number, 0.0, &mut self.contents))
    }
}

fn draw_session(class: &Class, index: usize, number: u64, start_s: f64, chance: &mut Rng) -> Session {
    let weights = class.templates.iter().map(|template| template.weight);
    let template = (!class.templates.is_empty()).then(|| chance.weighted(weights));
    let shared = template.map_or(0, |template| class.templates[template].tokens);
    let wanted = draw_turns(class, chance);
    let mut turns: Vec<Turn> = Vec::with_capacity(wanted);
    let mut history = shared;
    for turn in 0..wanted {
        let own_tokens = class.prompt.draw(chance);
        let answer_tokens = class.answer.draw(chance);
        let think_s = if class.think_s > 0.0 { chance.exponential(class.think_s) } else { 0.0 };
        let stream = chance.unit() < class.stream;
        if turn > 0 && history + own_tokens > class.longest_prompt {
            break;
        }
        history += own_tokens + answer_tokens;
        turns.push(Turn { think_s: if turn == 0 { 0.0 } else { think_s }, own_tokens, answer_tokens, stream });
    }
    Session { class: index, number, template, start_s, turns }
}

/// Geometrically distributed with the class's mean.
fn draw_turns(class: &Class, chance: &mut Rng) -> usize {
    if class.turns <= 1.0 {
        return 1;
    }
    1 + ((1.0 - chance.unit()).ln() / (1.0 - 1.0 / class.turns).ln()).floor() as usize
}

fn arrival_times(class: &Class, scenario: &Scenario) -> Vec<f64> {
    let mut chance = Rng::new(scenario.seed, &format!("class:{}:arrivals", class.name));
    match class.arrivals {
        Arrivals::Clients { .. } => Vec::new(),
        Arrivals::Batch { count, at_s } => vec![at_s; count as usize],
        Arrivals::Poisson { rate } => {
            let mut now = 0.0;
            std::iter::repeat_with(|| {
                now += chance.exponential(1.0 / rate);
                now
            })
            .take_while(|at| *at < scenario.duration_s)
            .collect()
        }
        Arrivals::OnOff { high, low, high_s, low_s } => {
            let mut states = Rng::new(scenario.seed, &format!("class:{}:state", class.name));
            let (mut times, mut now, mut busy) = (Vec::new(), 0.0, false);
            let mut until = states.exponential(low_s);
            while now < scenario.duration_s {
                let rate = if busy { high } else { low };
                let next = if rate > 0.0 { now + chance.exponential(1.0 / rate) } else { f64::INFINITY };
                if next >= until {
                    now = until;
                    busy = !busy;
                    until = now + states.exponential(if busy { high_s } else { low_s });
                } else {
                    now = next;
                    times.extend((now < scenario.duration_s).then_some(now));
                }
            }
            times
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Length, Template, read};

    fn scenario(arrivals: Arrivals) -> Scenario {
        let text = "name='t'\nwhy='t'\nduration='100s'\n[fleet]\n[[fleet.phones]]\nname='p'\ncount=1\nmodel='m'\nspeed='instant'\n\
            [[classes]]\nname='c'\nmodel='m'\narrivals={clients=1}\nprompt=[10,20]\nanswer=[5,9]\nstream=0.5\n";
        let mut scenario = read(text).expect("a good scenario");
        scenario.classes[0].arrivals = arrivals;
        scenario
    }

    #[test]
    fn the_same_seed_gives_the_same_work_and_another_seed_another() {
        let mut scenario = scenario(Arrivals::Poisson { rate: 10.0 });
        let first = open_sessions(&scenario);
        assert_eq!(first, open_sessions(&scenario));
        scenario.seed += 1;
        assert_ne!(first, open_sessions(&scenario));
    }

    #[test]
    fn another_class_does_not_change_the_draws_of_this_one() {
        let mut scenario = scenario(Arrivals::Poisson { rate: 10.0 });
        let alone = open_sessions(&scenario);
        let mut other = scenario.classes[0].clone();
        other.name = "other".into();
        scenario.classes.push(other);
        let strip = |mut session: Session| {
            session.number = 0;
            session
        };
        let among: Vec<_> = open_sessions(&scenario).into_iter().filter(|one| one.class == 0).map(strip).collect();
        assert_eq!(alone.into_iter().map(strip).collect::<Vec<_>>(), among);
    }

    #[test]
    fn arrivals_come_at_the_rate_that_was_asked_for() {
        let count = open_sessions(&scenario(Arrivals::Poisson { rate: 50.0 })).len();
        assert!((4700..5300).contains(&count), "{count}");
        let on_off = Arrivals::OnOff { high: 100.0, low: 0.0, high_s: 1.0, low_s: 1.0 };
        let sessions = open_sessions(&scenario(on_off));
        assert!((3500..6500).contains(&sessions.len()), "{}", sessions.len());
        assert!(sessions.iter().all(|session| session.start_s < 100.0));
        let batch = open_sessions(&scenario(Arrivals::Batch { count: 7, at_s: 3.0 }));
        assert_eq!((batch.len(), batch[6].start_s), (7, 3.0));
    }

    #[test]
    fn sizes_stay_within_their_limits_and_a_conversation_within_the_context() {
        let mut scenario = scenario(Arrivals::Poisson { rate: 10.0 });
        let class = &mut scenario.classes[0];
        class.templates = vec![Template { tokens: 100, weight: 1.0 }];
        class.answer = Length::LogNormal { mean: 30.0, sigma: 1.0, min: 5.0, max: 60.0 };
        (class.turns, class.longest_prompt, class.think_s) = (4.0, 250, 2.0);
        let sessions = open_sessions(&scenario);
        assert!(sessions.iter().any(|session| session.turns.len() > 1));
        for session in &sessions {
            let mut history = 100;
            for turn in &session.turns {
                assert!((10..=20).contains(&turn.own_tokens) && (5..=60).contains(&turn.answer_tokens));
                assert!(history + turn.own_tokens <= 250);
                history += turn.own_tokens + turn.answer_tokens;
            }
            assert_eq!(session.turns[0].think_s, 0.0);
        }
    }

    #[test]
    fn clients_ask_different_things_but_the_same_in_every_play() {
        let scenario = scenario(Arrivals::Clients { count: 2 });
        let ask = |client| Client::new(&scenario, 0, client).take(5).collect::<Vec<_>>();
        assert_eq!(ask(0), ask(0));
        assert_ne!(ask(0), ask(1));
        assert!(open_sessions(&scenario).is_empty());
    }
}
