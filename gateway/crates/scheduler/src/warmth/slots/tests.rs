use super::{
    super::{
        index::Index,
        rig::{Text, at, below, index_of, step},
    },
    *,
};
use crate::rng::Rng;

/// Runs a whole request, and returns what should have been cached.
fn run(slots: &mut Slots, id: u64, prompt: &Prompt, answer: f64, second: u64) -> f64 {
    let believed = slots.take(AttemptId(id), prompt, at(second));
    slots.release(AttemptId(id), prompt.tokens + answer, at(second));
    believed
}

/// Runs two at once, so that each has a slot.
fn run_both(slots: &mut Slots, one: &Prompt, two: &Prompt, answer: f64) {
    slots.take(AttemptId(1), one, at(0));
    slots.take(AttemptId(2), two, at(0));
    slots.release(AttemptId(1), one.tokens + answer, at(1));
    slots.release(AttemptId(2), two.tokens + answer, at(2));
}

#[test]
fn the_slot_that_shares_most_is_taken_if_that_is_over_a_tenth() {
    let (first, second) = (Text::new(1, 2048).then(2, 1000), Text::new(1, 1024).then(3, 1000));
    let mut slots = Slots::new(3);
    run_both(&mut slots, &first.prompt(), &second.prompt(), 0.0);
    // It shares 2,048 tokens with one and 1,024 with the other.
    let next = Text::new(1, 2048).then(4, 1000).prompt();
    assert_eq!(slots.best_idle(&next), 2048.0);
    assert_eq!(run(&mut slots, 3, &next, 0.0, 3), 2048.0);
    assert_eq!(slots.best_idle(&first.prompt()), 2048.0, "the first was overwritten behind what both share");
    assert_eq!(slots.best_idle(&second.prompt()), second.prompt().tokens - 1.0, "the second was left alone");
    // A tenth of this one is more than it shares with any: it takes the slot never used.
    let long = Text::new(1, 1024).then(5, 20_000).prompt();
    assert_eq!(slots.victim(&long, at(4)), None);
    assert_eq!(run(&mut slots, 4, &long, 0.0, 4), 0.0);
    // Now all were used: the one used least recently.
    let other = Text::new(6, 1000).prompt();
    assert_eq!(slots.victim(&other, at(10)).unwrap().age, 8.0);
    run(&mut slots, 5, &other, 0.0, 10);
    assert_eq!(slots.victim(&Text::new(7, 1000).prompt(), at(10)).unwrap().age, 7.0);
}

#[test]
fn a_running_slot_is_not_free_and_counts_for_later_only() {
    let prompt = Text::new(1, 3000).prompt();
    let mut slots = Slots::new(2);
    slots.take(AttemptId(1), &prompt, at(0));
    assert_eq!((slots.best_idle(&prompt), slots.later(&prompt)), (0.0, 2999.0));
    slots.take(AttemptId(2), &prompt, at(0));
    assert_eq!(slots.victim(&prompt, at(0)), None, "no slot is free");
    slots.release(AttemptId(2), 3010.0, at(5));
    assert_eq!(slots.best_idle(&prompt), 2999.0);
}

#[test]
fn more_may_run_than_there_are_slots_and_nothing_of_it_stays() {
    let prompt = |name| Text::new(name, 1000).prompt();
    let mut slots = Slots::new(1);
    slots.take(AttemptId(1), &prompt(1), at(0));
    slots.take(AttemptId(2), &prompt(2), at(0));
    slots.release(AttemptId(1), 1000.0, at(1));
    slots.release(AttemptId(2), 1000.0, at(2));
    assert_eq!(slots.slots.len(), 1);
    assert_eq!((slots.best_idle(&prompt(1)), slots.best_idle(&prompt(2))), (0.0, 999.0), "what was used last stays");
}

#[test]
fn the_next_turn_finds_the_prompt_and_its_answer() {
    let template = Text::new(1, 1000);
    let mut index = index_of(&template, 3);
    let turn = template.then(2, 333);
    let mut slots = Slots::new(1);
    run(&mut slots, 1, &turn.arrive(&mut index, at(0)), 250.0, 0);
    let next = turn.then(3, 250).then(4, 100).arrive(&mut index, at(1));
    assert_eq!(slots.best_idle(&next), 1583.0);
    // The same again, or with another answer: the last token is read always.
    assert_eq!(slots.best_idle(&turn.prompt()), 1332.0);
    // The answer was mostly thoughts, which clients do not send back: only the prompt is found.
    let mut thinker = Slots::new(1);
    run(&mut thinker, 1, &turn.prompt(), 2500.0, 2);
    assert_eq!(thinker.best_idle(&next), 1333.0);
}

#[test]
fn an_engine_that_counts_otherwise_does_not_blur_what_a_turn_adds() {
    let turn = Text::new(1, 3000);
    let next = turn.then(2, 200).then(3, 100);
    for count in [2760.0, 3000.0, 3400.0] {
        let mut slots = Slots::new(1);
        slots.take(AttemptId(1), &turn.prompt(), at(0));
        slots.observe(AttemptId(1), 0.0, 0.0, count);
        slots.release(AttemptId(1), count + 200.0, at(1));
        assert_eq!(slots.best_idle(&next.prompt()), 3200.0, "{count} tokens by the engine");
    }
}

#[test]
fn requests_with_a_template_share_the_template_and_not_each_others_ends() {
    let template = Text::new(1, 5500);
    let mut index = index_of(&template, 3);
    let mut slots = Slots::new(1);
    // Short ends lie before the next cut, so they do not show in the fingerprints.
    for (request, own) in [40, 700, 30, 10].into_iter().enumerate() {
        let prompt = template.then(request as u64 + 10, own).arrive(&mut index, at(0));
        let believed = run(&mut slots, request as u64, &prompt, 300.0, 0);
        let expected = if request == 0 { 0.0 } else { 5500.0 };
        assert!((believed - expected).abs() <= step(5500) / 2.0, "{believed} of {expected}");
    }
}

#[test]
fn lengths_are_in_tokens_of_the_model() {
    let template = Text::new(1, 5500);
    let mut index = index_of(&template, 3);
    let mut slots = Slots::new(1);
    let mut prompt = |name| {
        let text = template.then(name, 1000);
        let found = index.arrive(&text.prefix(), at(0));
        Prompt::new(text.prefix(), 6500.0 * 1.4, 1.4, &found)
    };
    run(&mut slots, 1, &prompt(2), 100.0, 0);
    assert!((slots.best_idle(&prompt(3)) - 5500.0 * 1.4).abs() <= 1.4 * step(5500) / 2.0);
    // Cancelled in the middle of the template.
    let fourth = prompt(4);
    slots.take(AttemptId(2), &fourth, at(1));
    slots.release(AttemptId(2), 3000.0 * 1.4, at(1));
    assert!((slots.best_idle(&fourth) - 3000.0 * 1.4).abs() <= 1.4 * step(3000));
    assert_eq!(slots.victim(&Text::new(9, 9000).prompt(), at(1)).unwrap().template, None, "not all of it");
}

#[test]
fn cancelled_while_it_read_it_holds_what_it_read() {
    let text = Text::new(1, 4000);
    let mut slots = Slots::new(1);
    for (held, found) in [(0.0, 0.0), (1024.0, 1024.0), (2600.0, 2560.0), (3990.0, 3999.0)] {
        slots.take(AttemptId(1), &text.prompt(), at(0));
        slots.release(AttemptId(1), held, at(0));
        assert_eq!(slots.best_idle(&text.prompt()), found, "after {held}");
    }
    slots.take(AttemptId(1), &text.prompt(), at(0));
    slots.release(AttemptId(1), f64::NAN, at(0));
    assert_eq!(slots.best_idle(&text.prompt()), 0.0, "no number, nothing held");
}

#[test]
fn who_dies_or_restarts_holds_nothing() {
    let (one, two) = (Text::new(1, 1000).prompt(), Text::new(2, 1000).prompt());
    let mut slots = Slots::new(2);
    run(&mut slots, 1, &one, 10.0, 0);
    slots.take(AttemptId(2), &two, at(1));
    slots.lost(AttemptId(2));
    assert_eq!((slots.best_idle(&one), slots.best_idle(&two)), (999.0, 0.0));
    slots.take(AttemptId(3), &two, at(2));
    slots.forget();
    assert_eq!((slots.later(&one), slots.later(&two)), (0.0, 0.0));
    // What ran when it restarted may yet be told to have ended; its slot was taken until then.
    slots.take(AttemptId(4), &one, at(3));
    assert_eq!(slots.slots.len(), 2);
    slots.release(AttemptId(3), 1010.0, at(4));
    assert_eq!((slots.best_idle(&two), slots.later(&one)), (0.0, 999.0));
}

#[test]
fn a_new_number_of_slots_keeps_what_runs_and_then_what_is_fresh() {
    let prompt = |name| Text::new(name, 1000).prompt();
    let mut slots = Slots::new(4);
    for name in 1..=3 {
        run(&mut slots, name, &prompt(name), 0.0, name);
    }
    slots.take(AttemptId(4), &prompt(4), at(0));
    slots.resize(2);
    let held = |slots: &Slots| [1, 2, 3, 4].map(|name| slots.later(&prompt(name)) > 0.0);
    assert_eq!(held(&slots), [false, false, true, true]);
    slots.resize(3);
    assert_eq!(held(&slots), [false, false, true, true]);
    assert_eq!(slots.victim(&prompt(5), at(0)), None, "the new one was never used");
}

/// What it is worth after so many requests, if it finds that share of what it should.
fn yield_after(slots: &mut Slots, requests: u64, share: f64) -> f64 {
    let prompt = Text::new(1, 1000).prompt();
    for id in 0..requests {
        let believed = slots.take(AttemptId(id), &prompt, at(0));
        slots.observe(AttemptId(id), believed, believed * share, 1000.0);
        slots.release(AttemptId(id), 1010.0, at(0));
    }
    slots.yield_()
}

#[test]
fn the_yield_falls_where_the_cache_does_not_work_and_recovers() {
    let mut slots = Slots::new(1);
    assert_eq!(yield_after(&mut slots, 10, 1.0), 1.0);
    assert!(yield_after(&mut slots, 3, 0.0) < 0.4);
    assert!(yield_after(&mut slots, 10, 0.0) < 0.02);
    assert!(slots.best_idle(&Text::new(1, 1000).prompt()) < 20.0);
    assert!(yield_after(&mut slots, 10, 1.0) > 0.97);
    assert!((yield_after(&mut slots, 30, 0.5) - 0.5).abs() < 0.01, "half is half");
}

#[test]
fn what_teaches_nothing_changes_nothing() {
    let prompt = Text::new(1, 1000).prompt();
    let mut slots = Slots::new(1);
    slots.take(AttemptId(1), &prompt, at(0));
    slots.observe(AttemptId(1), 100.0, 0.0, 1000.0);
    assert_eq!(slots.yield_(), 1.0, "too little was believed");
    slots.observe(AttemptId(1), 900.0, 0.0, 1000.0);
    assert_eq!(slots.yield_(), 1.0, "its second word");
    slots.observe(AttemptId(7), 900.0, 0.0, 1000.0);
    assert_eq!(slots.yield_(), 1.0, "nobody's");
    slots.release(AttemptId(1), 1000.0, at(0));
    slots.take(AttemptId(2), &prompt, at(1));
    slots.observe(AttemptId(2), 999.0, f64::NAN, 1000.0);
    assert_eq!(slots.yield_(), 0.7, "no number, nothing found");
}

#[test]
fn an_empty_cache_where_it_used_to_work_empties_the_other_slots_too() {
    let prompt = |name| Text::new(name, 1000).prompt();
    let mut slots = Slots::new(3);
    run(&mut slots, 1, &prompt(1), 0.0, 1);
    run(&mut slots, 2, &prompt(2), 0.0, 2);
    run(&mut slots, 3, &prompt(3), 0.0, 3);
    let believed = slots.take(AttemptId(4), &prompt(1), at(4));
    // This one began after the restart, if there was one.
    slots.take(AttemptId(5), &prompt(2), at(5));
    slots.release(AttemptId(5), 1000.0, at(6));
    slots.observe(AttemptId(4), believed, 0.0, 1000.0);
    let worth = slots.yield_();
    let held = [1, 2, 3].map(|name| (slots.later(&prompt(name)) / worth).round());
    assert_eq!(held, [999.0, 999.0, 0.0]);
    // Where little was found before, little says nothing about a restart.
    let mut poor = Slots::new(2);
    yield_after(&mut poor, 4, 0.0);
    run(&mut poor, 10, &prompt(2), 0.0, 9);
    yield_after(&mut poor, 1, 0.0);
    assert!(poor.later(&prompt(2)) > 0.0);
}

#[test]
fn the_victim_is_what_would_be_lost() {
    let (mine, other) = (Text::new(1, 5500), Text::new(2, 3000));
    let (mut index, mut others) = (index_of(&mine, 3), index_of(&other, 3));
    let mut slots = Slots::new(2);
    let both = [3, 4].map(|name| mine.then(name, 1000).arrive(&mut index, at(0)));
    run_both(&mut slots, &both[0], &both[1], 100.0);
    let stranger = other.then(5, 1000).arrive(&mut others, at(9));
    let held = slots.victim(&stranger, at(9)).unwrap();
    assert!(held.duplicated && !held.same_conversation, "the other slot holds the template too");
    assert_eq!((held.tokens, held.age), (6600.0, 8.0));
    assert!((held.template_tokens - 5500.0).abs() <= step(5500) / 2.0);
    // Now one slot has each template.
    run(&mut slots, 3, &stranger, 100.0, 9);
    let held = slots.victim(&other.then(6, 1000).arrive(&mut others, at(10)), at(10)).unwrap();
    assert!(held.duplicated, "the new prompt begins with it as well");
    let third = slots.victim(&Text::new(7, 1000).prompt(), at(10)).unwrap();
    assert!(!third.duplicated, "the last one in the replica");
    assert_eq!(third.template, mine.then(8, 100).arrive(&mut index, at(10)).template.map(|template| template.key));
    let next = mine.then(4, 1000).then(9, 100).then(10, 50).arrive(&mut index, at(11));
    assert!(slots.victim(&next, at(11)).unwrap().same_conversation);
}

/// An engine that knows every token.
struct Engine(Vec<(Text, u64)>);

impl Engine {
    fn take(&mut self, text: &Text, second: u64) -> (usize, u32) {
        let most = self.0.iter().map(|(held, _)| held.common(text)).max().unwrap_or(0);
        let near = self.0.iter().position(|(held, _)| held.common(text) == most && most * 10 > text.tokens());
        let oldest = (0..self.0.len()).min_by_key(|at| self.0[*at].1).unwrap_or(0);
        let slot = near.unwrap_or(oldest);
        let found = self.0[slot].0.common(text).min(text.tokens() - 1);
        self.0[slot] = (text.clone(), second);
        (slot, found)
    }
}

#[test]
fn beliefs_agree_with_an_engine_that_knows_every_token() {
    let (mut close, mut all) = (0, 0);
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let mut index = Index::default();
        let count = 1 + below(&mut rng, 4);
        let mut slots = Slots::new(count as u16);
        let mut engine = Engine((0..count).map(|_| (Text::default(), 0)).collect());
        let mut conversations: Vec<Text> = Vec::new();
        for id in 1..400 {
            let talk = below(&mut rng, 2) == 0 && !conversations.is_empty();
            let text = if talk {
                let last = below(&mut rng, conversations.len() as u32) as usize;
                conversations.swap_remove(last).then(rng.next(), 20 + below(&mut rng, 300))
            } else {
                let template = 1 + u64::from(below(&mut rng, 3));
                Text::new(template, 2000 + 777 * template as u32).then(rng.next(), 1 + below(&mut rng, 1500))
            };
            let prompt = text.arrive(&mut index, at(id));
            let believed = slots.take(AttemptId(id), &prompt, at(id));
            let (slot, found) = engine.take(&text, id);
            all += 1;
            close += u32::from((believed - f64::from(found)).abs() <= step(found));
            if below(&mut rng, 10) == 0 {
                // Cancelled in the middle of reading.
                let read = found + below(&mut rng, text.tokens() - found);
                slots.release(AttemptId(id), f64::from(read), at(id));
                engine.0[slot].0 = text.first(read);
            } else {
                let answered = text.then(rng.next(), 1 + below(&mut rng, 400));
                slots.release(AttemptId(id), f64::from(answered.tokens()), at(id));
                engine.0[slot].0 = answered.clone();
                conversations.push(answered);
            }
        }
    }
    let share = f64::from(close) / f64::from(all);
    assert!(share > 0.99, "{share} of the beliefs are as exact as cuts allow");
}
