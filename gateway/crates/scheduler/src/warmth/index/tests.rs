use super::{
    super::{
        rig::{Text, at, below, index_of, step},
        sightings::MOST_SEEN,
    },
    *,
};
use crate::{id::AttemptId, rng::Rng};

fn template_tokens(prompt: &Prompt) -> f64 {
    prompt.template.map_or(0.0, |template| template.tokens)
}

#[test]
fn a_template_is_found_with_its_third_request() {
    for length in [120, 450, 5500, 20_000] {
        let mut index = Index::default();
        let template = Text::new(1, length);
        let found: Vec<f64> =
            (10..16).map(|own| template_tokens(&template.then(own, 600).arrive(&mut index, at(own)))).collect();
        assert_eq!(found[..2], [0.0, 0.0]);
        assert!(found[2..].iter().all(|found| (found - f64::from(length)).abs() <= step(length) / 2.0), "{found:?}");
    }
}

#[test]
fn unrelated_prompts_have_no_template() {
    let mut index = Index::default();
    for name in 0..500 {
        let found = index.arrive(&Text::new(name, 3000).prefix(), at(0));
        assert_eq!(found, Found::default());
    }
    assert_eq!(index.arrive(&Prefix::default(), at(0)), Found::default(), "nothing is known of it");
}

#[test]
fn turns_of_a_conversation_are_no_template_and_return() {
    let template = Text::new(1, 800);
    let mut index = index_of(&template, 3);
    let first = template.then(2, 200).arrive(&mut index, at(1)).template.unwrap();
    let mut text = template.then(2, 200);
    for turn in 3..30 {
        let before = text.tokens();
        text = text.then(turn, 300);
        let found = index.arrive(&text.prefix(), at(turn));
        assert_eq!(found.template, Some(first), "turn {turn}");
        assert!(f64::from(before) - found.shared < step(before), "{} of {before}", found.shared);
    }
    let returned = index.stats(first.key).unwrap().return_share();
    assert!((0.7..1.0).contains(&returned), "27 of 31 arrivals: {returned}");
}

#[test]
fn requests_alone_do_not_return() {
    let mut index = index_of(&Text::new(1, 5500), 100);
    let key = Text::new(1, 5500).then(2, 100).arrive(&mut index, at(1)).template.unwrap().key;
    assert_eq!(index.stats(key).unwrap().return_share(), 0.0);
}

#[test]
fn the_longest_template_counts_unless_it_is_hardly_longer() {
    let mut index = Index::default();
    let house = Text::new(1, 1000);
    for own in 0..300 {
        house.then(10 + own % 3, 4000).then(100 + own, 500).arrive(&mut index, at(own));
    }
    let task = house.then(10, 4000);
    let found = task.then(1000, 500).arrive(&mut index, at(300));
    assert!((template_tokens(&found) - 5000.0).abs() <= step(5000) / 2.0);
    // A question that is often asked does not make a template of its own.
    for _ in 0..10 {
        let often = task.then(1001, 300).arrive(&mut index, at(300));
        assert_eq!(often.template, found.template);
    }
    // A new task shares the house rules.
    let other = house.then(20, 4000).then(1002, 500).arrive(&mut index, at(300));
    assert!((template_tokens(&other) - 1000.0).abs() <= step(1000) / 2.0);
}

#[test]
fn what_does_not_come_is_forgotten_and_what_comes_is_not() {
    let (often, once) = (Text::new(1, 1000), Text::new(2, 1000));
    let mut index = index_of(&often, 3);
    for own in 0..3 {
        once.then(10 + own, 100).arrive(&mut index, at(0));
    }
    for minute in 1..=30 {
        assert!(often.then(100 + minute, 100).arrive(&mut index, at(60 * minute)).template.is_some());
    }
    assert_eq!(index.arrive(&once.then(1000, 100).prefix(), at(1800)), Found::default());
}

#[test]
fn a_flood_of_long_prompts_takes_bounded_memory_and_drives_out_no_template_in_use() {
    let template = Text::new(1, 5500);
    let mut index = index_of(&template, 3);
    let mut rng = Rng::new(1);
    for flood in 0..2000 {
        let long = Prefix::new((0..Prefix::MAX_CUTS).map(|_| rng.next()));
        index.arrive(&long, at(0));
        if flood % 100 == 0 {
            assert!(template.then(rng.next(), 500).arrive(&mut index, at(0)).template.is_some(), "after {flood}");
        }
        assert!(index.sightings.len() <= 2 * MOST_SEEN);
    }
    // Every three of these are a template.
    for name in 0..30_000 {
        Text::new(name / 3, 40).arrive(&mut index, at(0));
        assert!(index.stats.len() <= 2 * MOST_TEMPLATES);
    }
}

#[test]
fn heat_is_the_share_of_what_was_lately_to_be_read() {
    let (large, small, cold) = (Text::new(1, 6000), Text::new(2, 2000), Text::new(3, 6000));
    let mut index = index_of(&cold, 10);
    let mut last = [None; 3];
    for second in (0..3600).step_by(6) {
        for (at_last, template) in last.iter_mut().zip([&large, &small]) {
            *at_last = template.then(1000 + second, 300).arrive(&mut index, at(second)).template;
        }
    }
    last[2] = cold.then(9, 300).arrive(&mut index, at(3600)).template;
    let heat = last.map(|template| template.map_or(0.0, |template| index.heat(template.key, at(3600))));
    assert!((heat[0] - 0.75).abs() < 0.01 && (heat[1] - 0.25).abs() < 0.01, "{heat:?}");
    assert!(heat[2] < 0.01, "it was hot an hour ago: {heat:?}");
    assert_eq!(index.heat(TemplateKey(1), at(3600)), 0.0, "never heard of");
}

#[test]
fn figures_follow_what_is_added() {
    let mut index = Index::default();
    let key = TemplateKey(7);
    assert!(index.stats(key).is_none());
    for second in 0..1200 {
        index.stats_mut(key).add(30.0, if second < 600 { 10.0 } else { 1.0 }, at(second));
    }
    let stats = index.stats(key).unwrap();
    assert!((stats.rate(at(1200), 1200.0) - 30.0).abs() < 0.5);
    assert!((stats.weight() - 1.0).abs() < 0.01, "what came lately counts");
}

#[test]
fn holders_follow_the_slots() {
    let template = Text::new(1, 5500);
    let mut index = index_of(&template, 3);
    let mut prompt = |name| template.then(name, 1000).arrive(&mut index, at(0));
    let (one, two) = (prompt(10), prompt(11));
    let key = one.template.unwrap().key;
    let mut slots = Slots::new(2);
    slots.take(AttemptId(1), &one, at(0));
    slots.take(AttemptId(2), &two, at(0));
    index.follow(ReplicaId(4), &slots);
    index.follow(ReplicaId(2), &slots);
    assert!(index.holders(key).eq([ReplicaId(2), ReplicaId(4)]));
    slots.lost(AttemptId(1));
    index.follow(ReplicaId(4), &slots);
    assert!(index.holders(key).eq([ReplicaId(2), ReplicaId(4)]), "its other slot holds it too");
    slots.forget();
    index.follow(ReplicaId(4), &slots);
    assert!(index.holders(key).eq([ReplicaId(2)]));
    index.forget(ReplicaId(2));
    index.forget(ReplicaId(4));
    index.forget(ReplicaId(9));
    assert_eq!(index.holders.len(), 0);
}

#[test]
fn a_conversation_is_found_where_its_last_turns_ran() {
    let template = Text::new(1, 1000);
    let mut index = index_of(&template, 3);
    let (first, second) = (template.then(2, 300), template.then(2, 300).then(3, 400));
    let mut hold = |text: &Text, replica, slots: u16| {
        let prompt = text.arrive(&mut index, at(0));
        let mut held = Slots::new(slots);
        held.take(AttemptId(1), &prompt, at(0));
        held.release(AttemptId(1), prompt.tokens + 50.0, at(1));
        index.follow(ReplicaId(replica), &held);
    };
    hold(&first, 7, 1);
    hold(&second, 3, 2);
    hold(&template.then(9, 500), 5, 1);
    let next = second.then(4, 200).arrive(&mut index, at(2));
    assert!(index.conversation_holders(&next).eq([ReplicaId(3), ReplicaId(7)]), "the longest first");
    let other = template.then(8, 500).arrive(&mut index, at(2));
    assert_eq!(index.conversation_holders(&other).next(), None, "only the template is shared");
}

#[test]
fn whatever_happens_holders_are_those_whose_slots_hold() {
    let mut rng = Rng::new(3);
    let templates: Vec<Text> = (1..5).map(|name| Text::new(name, 700 * name as u32)).collect();
    let mut index = Index::default();
    let mut replicas = vec![Slots::new(2); 5];
    for id in 0..4000 {
        let own = below(&mut rng, 500);
        let text = templates[below(&mut rng, 4) as usize].then(u64::from(own) + 10, 1 + own);
        let prompt = text.arrive(&mut index, at(id));
        let at_replica = below(&mut rng, 5) as usize;
        let slots = &mut replicas[at_replica];
        let (attempt, earlier) = (AttemptId(id), AttemptId(id.saturating_sub(u64::from(below(&mut rng, 9)))));
        match below(&mut rng, 6) {
            0 => slots.release(earlier, f64::from(below(&mut rng, 4000)), at(id)),
            1 => slots.lost(earlier),
            2 => slots.observe(earlier, 1000.0, f64::from(below(&mut rng, 1000)), 1000.0),
            3 if below(&mut rng, 9) == 0 => slots.forget(),
            3 => slots.resize(1 + below(&mut rng, 4) as u16),
            _ => assert!(slots.take(attempt, &prompt, at(id)) < prompt.tokens),
        }
        index.follow(ReplicaId(at_replica as u32), slots);
        let Some(template) = prompt.template else { continue };
        let holds = |slots: &Slots| slots.marks().any(|mark| mark.template == Some(template.key));
        let all = (0..).zip(&replicas).filter(|(_, slots)| holds(slots)).map(|(id, _)| ReplicaId(id));
        assert!(index.holders(template.key).eq(all));
    }
    (0..5).for_each(|id| index.forget(ReplicaId(id)));
    assert_eq!(index.holders.len(), 0);
}

#[test]
fn equal_calls_give_equal_answers() {
    let run = || {
        let (mut rng, mut index, mut slots) = (Rng::new(5), Index::default(), Slots::new(3));
        let mut answers = Vec::new();
        for id in 0..2000 {
            let text = Text::new(u64::from(below(&mut rng, 9)), 2000).then(u64::from(below(&mut rng, 50)), 700);
            let prompt = text.arrive(&mut index, at(id));
            let believed = slots.take(AttemptId(id), &prompt, at(id));
            slots.release(AttemptId(id), 2700.0 + rng.unit() * 100.0, at(id));
            index.follow(ReplicaId(0), &slots);
            let held = slots.victim(&prompt, at(id)).map(|held| (held.template, held.tokens));
            answers.push((believed.to_bits(), template_tokens(&prompt).to_bits(), held.map(|held| held.0)));
        }
        answers
    };
    assert_eq!(run(), run());
}
