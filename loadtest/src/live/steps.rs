//! What happens to the phones while a scenario is played.

use super::{
    admin::{Admin, AdminError},
    fleet::{FleetError, Known},
    play::Play,
};
use crate::scenario::{Pick, Step, StepAt};
use fakephone::{Fault, FaultOrder};
use serde_json::json;
use simulation::rng::Rng;
use std::{collections::BTreeSet, sync::Arc};

/// A step that could not be made.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Fleet(#[from] FleetError),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("the gateway's admin API is not known: give --admin, or --self")]
    NoAdmin,
}

/// Something to do at a time.
enum Due {
    /// A step of the scenario.
    Step(Step),
    /// The end of a failure with a length.
    Heal(Vec<usize>),
}

/// The phones as the steps so far have left them.
struct Stage {
    play: Arc<Play>,
    phones: Vec<Known>,
    /// Added to the pool, or part of it from the start.
    joined: Vec<bool>,
    failed: BTreeSet<usize>,
    drained: BTreeSet<usize>,
    chance: Rng,
}

/// Makes the scenario's steps until the last or the end.
pub(super) async fn run(play: Arc<Play>) {
    let phones = play.setting.fleet.known(&play.scenario.fleet).await;
    let mut stage = Stage {
        joined: phones.iter().map(|phone| !phone.spare).collect(),
        phones,
        failed: BTreeSet::new(),
        drained: BTreeSet::new(),
        chance: Rng::new(play.scenario.seed, "steps"),
        play: play.clone(),
    };
    let step = |StepAt { at_s, step }: &StepAt| (*at_s, Due::Step(step.clone()));
    let mut due: Vec<(f64, Due)> = play.scenario.steps.iter().map(step).collect();
    while !due.is_empty() {
        let (at_s, next) = due.remove(0);
        if !play.wait_until(play.instant(at_s)).await {
            break;
        }
        let healing = match next {
            Due::Step(step) => stage.make(step).await,
            Due::Heal(phones) => stage.heal(phones).await.map(|()| None),
        };
        match healing {
            Ok(None) => {}
            Ok(Some((after_s, phones))) => {
                let at_s = at_s + after_s;
                let place = due.partition_point(|(other, _)| *other <= at_s);
                due.insert(place, (at_s, Due::Heal(phones)));
            }
            Err(error) => play.notes.not_done(play.seconds(), error.to_string()),
        }
    }
    // Phones of another process outlive this one: they are left as they were found.
    if !stage.failed.is_empty() {
        let all = stage.failed.iter().copied().collect();
        stage.heal(all).await.ok();
    }
}

impl Stage {
    fn note(&self, what: String) {
        self.play.notes.event(self.play.seconds(), what);
    }

    fn admin(&self) -> Result<&Admin, StepError> {
        self.play.setting.admin.as_ref().ok_or(StepError::NoAdmin)
    }

    /// Random phones, of those that are eligible.
    fn pick(&mut self, pick: &Pick, eligible: impl Fn(&Self, usize) -> bool) -> Vec<usize> {
        let groups = &self.play.scenario.fleet.groups;
        let group = pick.group.as_ref().map(|name| groups.iter().position(|group| group.name == *name));
        let member = |number: &usize| group.is_none_or(|group| self.phones[*number].group == group);
        let members: Vec<usize> = (0..self.phones.len()).filter(member).collect();
        let mut candidates: Vec<usize> = members.into_iter().filter(|number| eligible(self, *number)).collect();
        let wanted = pick.amount.of(candidates.len());
        self.chance.shuffle(&mut candidates);
        candidates.truncate(wanted);
        candidates
    }

    /// Makes a step; says what is to be healed how much later.
    async fn make(&mut self, step: Step) -> Result<Option<(f64, Vec<usize>)>, StepError> {
        match step {
            Step::Fail { phones, ways, for_s } => {
                let chosen = self.pick(&phones, |stage, phone| stage.joined[phone] && !stage.failed.contains(&phone));
                self.fail(&chosen, &ways).await?;
                return Ok(for_s.map(|for_s| (for_s, chosen)));
            }
            Step::Heal => {
                let all = self.failed.iter().copied().collect();
                self.heal(all).await?;
            }
            Step::RelayDown { for_s } => {
                // To the gateway a relay that is away and phones that all reset the handshake at once are the same.
                let well: Vec<usize> = (0..self.phones.len()).filter(|phone| !self.failed.contains(phone)).collect();
                self.fail(&well, &[Some(FaultOrder::from(Fault::Refuse))]).await?;
                self.note(format!("the relay is down for {for_s} s"));
                return Ok(Some((for_s, well)));
            }
            Step::Drain(pick) => {
                let chosen = self.pick(&pick, |stage, phone| stage.joined[phone] && !stage.drained.contains(&phone));
                for phone in &chosen {
                    self.admin()?.drain(&self.phones[*phone].url).await?;
                    self.drained.insert(*phone);
                }
                self.note(format!("operator drains {}", phones(chosen.len())));
            }
            Step::Undrain => {
                let all = std::mem::take(&mut self.drained);
                for phone in &all {
                    self.admin()?.undrain(&self.phones[*phone].url).await?;
                }
                self.note(format!("operator undrains {}", phones(all.len())));
            }
            Step::Add(pick) => self.add(&pick).await?,
            Step::Remove(pick) => {
                let chosen = self.pick(&pick, |stage, phone| stage.joined[phone]);
                for phone in &chosen {
                    self.admin()?.remove(&self.phones[*phone].url).await?;
                    self.joined[*phone] = false;
                    self.drained.remove(phone);
                }
                self.note(format!("operator removes {}", phones(chosen.len())));
            }
        }
        Ok(None)
    }

    async fn add(&mut self, pick: &Pick) -> Result<(), StepError> {
        let chosen = self.pick(pick, |stage, phone| !stage.joined[phone]);
        for phone in &chosen {
            let known = &self.phones[*phone];
            self.admin()?.add(&json!({ "url": known.url, "name": known.name })).await?;
            self.joined[*phone] = true;
        }
        self.note(format!("operator adds {}", phones(chosen.len())));
        Ok(())
    }

    async fn fail(&mut self, chosen: &[usize], ways: &[Option<FaultOrder>]) -> Result<(), StepError> {
        let mut names = BTreeSet::new();
        for (phone, way) in chosen.iter().zip(ways.iter().cycle()) {
            self.play.setting.fleet.fail(*phone, way.as_ref()).await?;
            self.failed.insert(*phone);
            names.insert(way.as_ref().map_or_else(|| "killed".to_owned(), name_of));
        }
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        self.note(format!("{} fail: {names}", phones(chosen.len())));
        Ok(())
    }

    async fn heal(&mut self, chosen: Vec<usize>) -> Result<(), StepError> {
        let mut healed = 0;
        for phone in chosen {
            if self.failed.remove(&phone) {
                self.play.setting.fleet.heal(phone).await?;
                healed += 1;
            }
        }
        self.note(format!("{} well again", phones(healed)));
        Ok(())
    }
}

fn phones(count: usize) -> String {
    if count == 1 { "1 phone".to_owned() } else { format!("{count} phones") }
}

fn name_of(order: &FaultOrder) -> String {
    serde_json::to_value(order).ok().and_then(|json| json["fault"].as_str().map(str::to_owned)).unwrap_or_default()
}
