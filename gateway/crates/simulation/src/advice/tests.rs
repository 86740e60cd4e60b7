//! What is advised, on workloads that are drawn: small enough to be played with every change.

use scheduler::Class;

use super::*;
use crate::{
    scenario::{Arrivals, Churn, Length, Scenario, SlowPhase},
    workload::Timeline,
};

/// Guards on phones that are alike, and stay.
const GUARDS: &str = include_str!("../../tests/guards.json");

fn guards(change: impl FnOnce(&mut Scenario)) -> Scenario {
    let mut scenario = Scenario::from_json(GUARDS).expect("a scenario");
    change(&mut scenario);
    scenario
}

/// Reviews with a shared beginning, on phones with two slots.
fn reviews() -> Scenario {
    guards(|scenario| {
        let class = &mut scenario.classes[0];
        class.urgency = Class::Standard;
        class.arrivals = Arrivals::Poisson { rate: 0.25 };
        class.templates[0].tokens = 2000;
        class.suffix = Length::Uniform { min: 300.0, max: 900.0 };
        class.output = Length::Uniform { min: 60.0, max: 200.0 };
        scenario.phones.classes[0].slots = 2;
        scenario.horizon_s = 900.0;
    })
}

const EFFORT: Effort = Effort { requests: 400, plays: 14 };

/// What is advised after all of the scenario, with so many phones.
fn advised(scenario: &Scenario, phones: usize) -> (Advice, Trial) {
    let trial = Trial::new(scenario, 0, Objectives::default()).with_phones(0, phones);
    let (horizon_s, warmup_s) = trial.times_s();
    let (mut advised, rest) = trial.advise(horizon_s, horizon_s - warmup_s, EFFORT);
    (advised.remove(0).advice, rest)
}

/// How far the worst class is from its objective.
fn shortfall(outcome: &Outcome) -> f64 {
    let objectives = Objectives::default();
    let wanted = Class::ALL.map(|class| objectives.of(class).map_or(1.0, |objective| objective.share));
    outcome.attained.iter().zip(wanted).filter_map(|(share, wanted)| Some(wanted - (*share)?)).fold(0.0, f64::max)
}

/// The number that is advised meets every objective but for chance, and two fewer do not.
fn is_right(scenario: &Scenario, measured_with: usize) -> Advice {
    let (advice, rest) = advised(scenario, measured_with);
    let wanted = advice.wanted.unwrap_or_else(|| panic!("nothing: {advice:?}"));
    let outcome = rest.with_phones(0, wanted).outcome(0);
    assert!(shortfall(&outcome) <= 0.02, "{measured_with} phones, {wanted} wanted: {outcome:?}, {:?}", advice.reasons);
    if wanted > 2 {
        let fewer = rest.with_phones(0, wanted - 2).outcome(0);
        assert!(!fewer.met, "{measured_with} phones, {wanted} wanted, {} do: {fewer:?}", wanted - 2);
    }
    advice
}

#[test]
fn an_overloaded_pool_of_guards_needs_more_and_an_idle_one_fewer() {
    let scenario = guards(|_| {});
    let few = is_right(&scenario, 1);
    assert_eq!(few.verdict, Verdict::More);
    assert!(few.classes[0].attained.is_some_and(|attained| attained < 0.9) && few.classes[0].late > 0, "{few:?}");
    let many = is_right(&scenario, 8);
    assert_eq!(many.verdict, Verdict::Fewer);
    let (few, many) = (few.wanted.unwrap_or(0), many.wanted.unwrap_or(0));
    assert!(few.abs_diff(many) <= 1, "the same work needs {few} or {many}, by who looks");
}

#[test]
fn reviews_need_phones_that_hold_their_beginning() {
    let advice = is_right(&reviews(), 1);
    assert!(advice.verdict == Verdict::More && advice.reasons.len() >= 2, "{advice:?}");
    // A prompt of 2,600 tokens that is read whole, and 130 that are written.
    let cold = advice.classes[1].arrivals_per_s.0 * (2600.0 / 500.0 + 130.0 / 40.0);
    assert!(advice.classes[1].load < cold, "what is shared is not read again: {} of {cold}", advice.classes[1].load);
}

#[test]
fn phones_that_come_and_go_are_worth_less() {
    let steady = is_right(&guards(|_| {}), 4);
    let (advice, _) = advised(
        &guards(|scenario| {
            scenario.churn = Some(Churn { mean_up_s: 120.0, mean_down_s: 120.0 });
            scenario.horizon_s = 800.0;
        }),
        6,
    );
    assert!(advice.wanted > steady.wanted, "{:?} against {:?}: {:?}", advice.wanted, steady.wanted, advice.reasons);
    assert!(advice.reasons.iter().any(|reason| reason.starts_with("Phones were away ")), "{:?}", advice.reasons);
}

#[test]
fn advice_is_not_sure_before_it_is_known_how_often_phones_are_away() {
    let measured = |churn: Option<Churn>, horizon_s: f64| {
        let scenario = guards(|scenario| {
            (scenario.churn, scenario.horizon_s) = (churn, horizon_s);
            scenario.classes[0].arrivals = Arrivals::Poisson { rate: 1.0 };
        });
        advised(&scenario, 6).0
    };
    let often = Some(Churn { mean_up_s: 300.0, mean_down_s: 60.0 });
    for (churn, horizon_s, sure) in
        [(often, 600.0, false), (often, 8000.0, true), (None, 3000.0, false), (None, 4500.0, true)]
    {
        let advice = measured(churn, horizon_s);
        let good = advice.confidence == Confidence::Good;
        let said = advice.reasons.iter().any(|reason| reason.starts_with("How often phones are away is not known"));
        assert_eq!((good, said), (sure, !sure), "{churn:?} for {horizon_s} s: {advice:?}");
    }
}

#[test]
fn a_batch_gets_the_phones_that_its_deadline_takes() {
    let batch = |lines, deadline_s: f64| {
        guards(|scenario| {
            let class = &mut scenario.classes[0];
            class.urgency = Class::Batch;
            class.arrivals = Arrivals::Closed { n: lines, at: 0.0 };
            class.output = Length::Uniform { min: 60.0, max: 100.0 };
            class.objective_s = deadline_s;
            scenario.horizon_s = 100.0;
        })
    };
    let soon = is_right(&batch(300, 400.0), 2);
    let late = is_right(&batch(300, 1400.0), 2);
    assert!(soon.wanted > late.wanted, "{:?} and {:?}", soon.wanted, late.wanted);
    assert!(soon.reasons.iter().any(|reason| reason.contains("the next deadline is in 5 min")), "{:?}", soon.reasons);
}

#[test]
fn what_no_number_of_phones_meets_is_said() {
    let (advice, _) = advised(&guards(|scenario| scenario.model.prefill_tokens_per_second = 60.0), 3);
    assert_eq!((advice.verdict, advice.wanted), (Verdict::Unattainable, None));
    assert!(advice.classes[0].at_best.is_some_and(|share| share < 0.95));
    let said = advice.reasons.join(" ");
    assert!(
        said.contains("no number of these phones meets the objective") && said.contains("a smaller model"),
        "{said}"
    );
}

#[test]
fn too_little_traffic_says_so() {
    let (advice, _) = advised(&guards(|scenario| scenario.classes[0].arrivals = Arrivals::Poisson { rate: 0.01 }), 3);
    assert_eq!((advice.verdict, advice.confidence, advice.wanted), (Verdict::Unknown, Confidence::None, None));
    assert!(advice.reasons[0].starts_with("Too little traffic yet: "), "{:?}", advice.reasons);
    assert!(advice.reasons[0].ends_with("advice needs 20."), "{:?}", advice.reasons);
}

#[test]
fn advice_is_a_function_of_what_was_measured() {
    let scenario = guards(|_| {});
    assert_eq!(advised(&scenario, 2).0, advised(&scenario, 2).0);
}

#[test]
fn two_models_are_advised_on_each_for_itself() {
    let mut scenario = guards(|scenario| scenario.horizon_s = 400.0);
    let mut class = scenario.classes[0].clone();
    (class.name, class.model, class.arrivals) = ("other".to_owned(), 1, Arrivals::Poisson { rate: 0.2 });
    scenario.classes.push(class);
    let mut kind = scenario.phones.classes[0].clone();
    (kind.name, kind.model, kind.count) = ("other".to_owned(), 1, 6);
    scenario.phones.classes.push(kind);
    scenario.phones.classes[0].count = 1;
    let trial = Trial::new(&scenario, 0, Objectives::default());
    let (advised, _) = trial.advise(400.0, 340.0, EFFORT);
    let verdicts: Vec<_> = advised.iter().map(|advised| (advised.model, advised.advice.verdict)).collect();
    assert_eq!(verdicts, [(0, Verdict::More), (1, Verdict::Fewer)]);
    assert_eq!(advised.iter().map(|advised| advised.advice.now.0).collect::<Vec<_>>(), [1, 6]);
}

#[test]
fn a_peak_before_what_is_played_counts_and_one_within_it_does_not() {
    let scenario = guards(|scenario| scenario.horizon_s = 2400.0);
    let run = crate::play::Run::new(&scenario, 0);
    let (mut usage, _) = run.measure(2400.0, 2400.0);
    let usage = &mut usage[0];
    assert_eq!(hurry(usage, 600.0), 1.0, "what is steady has no peak");
    usage.spans[1].arrivals[0] *= 3;
    assert!((2.0..3.5).contains(&hurry(usage, 600.0)), "{}", hurry(usage, 600.0));
    assert_eq!(hurry(usage, 2400.0), 1.0, "it is played");
}

#[test]
fn what_came_in_the_first_seconds_is_not_taken_for_what_comes_all_day() {
    let scenario = guards(|scenario| (scenario.warmup_s, scenario.horizon_s) = (0.0, 20.0));
    let advice = advised(&scenario, 3).0;
    assert!(advice.classes[0].requests >= FEWEST_REQUESTS, "{advice:?}");
    assert!(advice.classes[0].load < 0.2, "thirty requests in five minutes: {advice:?}");
}

#[test]
fn the_sentences_speak_of_the_number_that_stands() {
    let (advice, _) = advised(&guards(|scenario| scenario.classes[0].arrivals = Arrivals::Poisson { rate: 3.0 }), 1);
    let last = advice.wanted.unwrap_or_else(|| panic!("nothing: {advice:?}"));
    assert!(last > 2, "{advice:?}");
    let said = |stands, now| advice.conclusion(stands, now).join(" ");
    let agreed = said(Some(last), 1);
    assert!(agreed.starts_with(&format!("Phones like these that are needed: {last}; there are 1.")), "{agreed}");
    assert!(!agreed.contains("The last look"), "{agreed}");
    assert!(!agreed.contains("So far every objective was met"), "{agreed}");
    let mut spared = advice.clone();
    spared.classes.iter_mut().for_each(|class| class.attained = class.attained.map(|_| 1.0));
    assert!(spared.conclusion(Some(last), 1).join(" ").contains("So far every objective was met"), "{spared:?}");
    assert!(!spared.conclusion(Some(last), last).join(" ").contains("So far"), "nothing more is wanted");
    let behind = said(Some(last - 1), last - 1);
    assert!(behind.starts_with(&format!("The {} phones that are there are what it takes", last - 1)), "{behind}");
    assert!(
        behind.contains(&format!("The last look wants {last}; that stands when a second look agrees.")),
        "{behind}"
    );
    let above = said(Some(last + 3), last + 1);
    assert!(above.contains(&format!("needed: {}; there are {}", last + 3, last + 1)), "{above}");
    assert!(above.contains(&format!("The last look wants {last}; fewer stand when all looks")), "{above}");
    assert_eq!(advice.kinds_for(Some(last), 1), advice.kinds);
    assert!(!advice.kinds.is_empty() && advice.kinds_for(Some(last - 1), 1).is_empty(), "{advice:?}");
    assert!(advice.kinds_for(Some(last), 2).is_empty(), "a phone has come: so many more are no longer missing");
}

#[test]
fn a_shared_beginning_is_as_long_as_phones_found_it_not_as_the_fingerprints_cut_it() {
    let run = guards(|scenario| scenario.horizon_s = 200.0);
    let (usage, _) = crate::play::Run::new(&run, 0).measure(200.0, 140.0);
    let trace = trace::Trace::of(&usage[0], false);
    let lengths: std::collections::BTreeSet<u32> =
        trace.requests.iter().map(|request| request.prompt.template.tokens).collect();
    assert_eq!(lengths, [120].into(), "cuts lie at 96 and 128");
}

#[test]
fn phones_are_away_in_plays_as_often_as_they_were() {
    let scenario = guards(|scenario| {
        scenario.churn = Some(Churn { mean_up_s: 300.0, mean_down_s: 100.0 });
        scenario.horizon_s = 2000.0;
        scenario.phones.classes[0].count = 12;
    });
    let (usage, _) = crate::play::Run::new(&scenario, 0).measure(2000.0, 1000.0);
    let objectives = Objectives::default();
    let rehearsal = Rehearsal::new(&usage[0], &objectives, &[], (500.0, 40.0), 400);
    let (mut up_s, plays, length_s) = (0.0, 5, 500.0);
    for phone in 0..8 {
        up_s += (0..plays)
            .map(|play| Timeline::overlaid(&[rehearsal.absences(phone, length_s, play)]).full_seconds(length_s))
            .sum::<f64>();
    }
    let share = up_s / (8.0 * plays as f64 * length_s);
    assert!((share - up(&usage[0])).abs() < 0.05, "{share} and {}", up(&usage[0]));
}

#[test]
fn absences_in_plays_lie_apart_and_some_are_long() {
    let scenario = guards(|scenario| {
        scenario.churn = Some(Churn { mean_up_s: 100.0, mean_down_s: 100.0 });
        scenario.horizon_s = 2000.0;
    });
    let (usage, _) = crate::play::Run::new(&scenario, 0).measure(2000.0, 1000.0);
    let objectives = Objectives::default();
    let rehearsal = Rehearsal::new(&usage[0], &objectives, &[], (500.0, 40.0), 400);
    let mean_s = churn(&usage[0]).map_or(0.0, |churn| churn.mean_down_s);
    let mut longest = 0.0_f64;
    for (phone, play) in (0..8).flat_map(|phone| (0..5).map(move |play| (phone, play))) {
        let changes = rehearsal.absences(phone, 2000.0, play);
        assert!(changes.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 != pair[1].1), "{changes:?}");
        assert!(changes.first().is_none_or(|(at, factor)| *at >= 0.0 && *factor == 0.0), "{changes:?}");
        longest = changes.chunks(2).map(|absence| absence[1].0 - absence[0].0).fold(longest, f64::max);
    }
    assert!((2.5 * mean_s..20.0 * mean_s).contains(&longest), "{longest} of {mean_s} in the mean");
}

#[test]
fn phones_are_hot_in_plays_when_they_were() {
    let scenario = guards(|scenario| {
        scenario.slow_phases = vec![SlowPhase { mean_normal_s: 900.0, mean_slow_s: 900.0, factor: 0.4 }];
        scenario.horizon_s = 7000.0;
    });
    let run = crate::play::Run::new(&scenario, 0);
    let (usage, _) = run.measure(7000.0, 6000.0);
    let objectives = Objectives::default();
    let rehearsal = Rehearsal::new(&usage[0], &objectives, &[], (500.0, 40.0), 400);
    let phones = there(&usage[0]);
    let played = rehearsal.timelines(&phones, (0.0, 1.0), 6000.0, 0);
    let factor = |timeline: &Timeline, at: f64| {
        timeline.phases().iter().find(|phase| (phase.start..phase.end).contains(&at)).map_or(0.0, |phase| phase.factor)
    };
    let since = usage[0].since.since(scheduler::Timestamp::ZERO).as_secs_f64();
    let (mut alike, mut all) = (0, 0);
    for (phone, played) in phones.iter().zip(&played) {
        let was = &run.workload.timelines[phone.replica.0 as usize];
        for at in (0..).map(|span| 60.0 + 120.0 * f64::from(span)).take_while(|at| since + at < 7000.0) {
            // Hot, or cool: half of the time each.
            alike += u32::from((factor(was, since + at) < 0.7) == (factor(played, at) < 0.9));
            all += 1;
        }
    }
    assert!(f64::from(alike) > 0.85 * f64::from(all), "{alike} of {all} moments");
}
