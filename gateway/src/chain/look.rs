//! One look at the chain: the jobs that concern us and the phones that are assigned to them, all at one block.
//!
//! What is found is worth acting on; that something is *not* found is so only if the look saw all there is: the block is
//! fresh, both pallets are there in the layout that is known, and nothing on the way was other than expected. Otherwise a node
//! that still syncs, or a runtime with new names, would empty the pool.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    address::AccountId,
    job::{JobId, Origin},
    keys::{self, Key},
    rpc::{Block, Rpc, RpcError, Runtime},
    scale::{Misfit, Reader},
    shape::{Assignment, Registration},
};

/// Jobs of one deployer, over ones included until the chain forgets them.
const MAX_JOBS: usize = 1_000;
/// Phones of one job. The runtime allows 64.
const MAX_PHONES: usize = 1_024;
/// Storage layouts that are known: of the marketplace, and of the registrations.
const LAYOUTS: [(&str, u16); 2] = [("AcurastMarketplace", 7), ("Acurast", 5)];
/// A newest block older than this is not the newest. 10 min: fifty blocks, far more than finality ever takes when all is well.
const STALE_MS: u64 = 600_000;

/// Something that was not as expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// What was read, as the runtime calls it.
    pub item: &'static str,
    /// Whose: a job, and a phone behind `/`; empty: of the whole chain.
    pub of: String,
    /// What is wrong with it.
    pub why: String,
}

/// A job at one block.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// As it was registered; `None`: the chain has none, or one that can't be read.
    pub registration: Option<Registration>,
    /// Its phones; `None`: what the chain says about one can't be read.
    pub phones: BTreeMap<AccountId, Option<Assignment>>,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Look {
    /// The block's number.
    pub number: u64,
    /// What made it.
    pub runtime: Runtime,
    /// All jobs that concern us, but for those of deployers that are over.
    pub jobs: BTreeMap<JobId, Job>,
    /// What was not as expected.
    pub doubts: Vec<Doubt>,
    /// It saw all there is: what is not in it is not there.
    pub whole: bool,
}

/// What to look for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Jobs.
    pub jobs: BTreeSet<JobId>,
    /// Accounts whose jobs count.
    pub deployers: BTreeSet<AccountId>,
}

/// Why there was nothing to see.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The node's answer.
    #[error(transparent)]
    Rpc(#[from] RpcError),
    /// The newest block is old.
    #[error("the node's newest final block is {0} minutes old: it is still syncing, or the chain stands still")]
    Stale(u64),
}

impl LookError {
    /// The outcome in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rpc(error) => error.name(),
            Self::Stale(_) => "stale",
        }
    }
}

struct Looking<'a> {
    rpc: &'a Rpc,
    block: Block,
    now_ms: u64,
    doubts: Vec<Doubt>,
    whole: bool,
}

/// Looks once. `now_ms` is the time, in milliseconds since 1970.
///
/// # Errors
/// The node does not answer, not as it should, or is behind. Then nothing was seen.
pub async fn look(rpc: &Rpc, wanted: &Wanted, now_ms: u64) -> Result<Look, LookError> {
    let block = rpc.finalized_head().await?;
    let number = rpc.number(&block).await?;
    let runtime = rpc.runtime(&block).await?;
    let mut looking = Looking { rpc, block, now_ms, doubts: Vec::new(), whole: true };
    looking.check_ground().await?;
    let jobs = looking.jobs(wanted).await?;
    let jobs = looking.phones(jobs).await?;
    let Looking { doubts, whole, .. } = looking;
    Ok(Look { number, runtime, jobs, doubts, whole })
}

impl Looking<'_> {
    fn doubt(&mut self, item: &'static str, of: String, why: impl ToString) {
        self.doubts.push(Doubt { item, of, why: why.to_string() });
    }

    /// Something may be there that was not seen.
    fn doubt_the_whole(&mut self, item: &'static str, of: String, why: impl ToString) {
        self.whole = false;
        self.doubt(item, of, why);
    }

    async fn values(&self, keys: &[Key]) -> Result<Vec<Option<Vec<u8>>>, RpcError> {
        self.rpc.values(keys, &self.block).await
    }

    /// Whether the block is fresh, and the pallets are those that are known.
    async fn check_ground(&mut self) -> Result<(), LookError> {
        let [marketplace, acurast] = keys::versions();
        let values = self.values(&[keys::now(), marketplace, acurast]).await?;
        let mut values = values.into_iter();
        match whole(values.next().flatten().as_deref(), |reader| reader.u64("moment"), "moment") {
            Ok(Some(made)) if made.saturating_add(STALE_MS) < self.now_ms => {
                return Err(LookError::Stale((self.now_ms - made) / 60_000));
            }
            Ok(Some(_)) => {}
            Ok(None) => self.doubt_the_whole("Timestamp.Now", String::new(), "the chain has no time"),
            Err(misfit) => self.doubt_the_whole("Timestamp.Now", String::new(), misfit),
        }
        for (pallet, known) in LAYOUTS {
            match whole(values.next().flatten().as_deref(), |reader| reader.u16("layout"), "layout") {
                Ok(Some(layout)) if layout == known => {}
                Ok(Some(layout)) => {
                    let why = format!(
                        "storage layout {layout}, and {known} is the one known: what can be read is used, and what is not \
                         found is not taken for gone"
                    );
                    self.doubt_the_whole(pallet, String::new(), why);
                }
                Ok(None) => {
                    self.doubt_the_whole(pallet, String::new(), "no such pallet: is it a node of an Acurast chain?");
                }
                Err(misfit) => self.doubt_the_whole(pallet, String::new(), misfit),
            }
        }
        Ok(())
    }

    /// The jobs that concern us, with what is registered.
    async fn jobs(&mut self, wanted: &Wanted) -> Result<BTreeMap<JobId, Job>, RpcError> {
        let mut ids = wanted.jobs.clone();
        for account in &wanted.deployers {
            let origin = Origin::acurast(*account);
            let front = keys::registrations(&origin);
            for key in self.rpc.keys(&front, &self.block, MAX_JOBS).await? {
                match keys::number_of(&front, &key) {
                    Ok(number) => drop(ids.insert(JobId { origin, number })),
                    Err(misfit) => {
                        self.doubt_the_whole("Acurast.StoredJobRegistration", account.to_string(), misfit);
                    }
                }
            }
        }
        let ids: Vec<JobId> = ids.into_iter().collect();
        let asked: Vec<Key> = ids.iter().map(keys::registration).collect();
        let values = self.values(&asked).await?;
        let mut jobs = BTreeMap::new();
        for (id, value) in ids.into_iter().zip(values) {
            let registration = match value.as_deref().map(Registration::decode).transpose() {
                Ok(registration) => registration,
                Err(misfit) => {
                    self.doubt("Acurast.StoredJobRegistration", id.to_string(), misfit);
                    None
                }
            };
            let over = registration.is_some_and(|registration| registration.schedule.is_over(self.now_ms));
            if !over || wanted.jobs.contains(&id) {
                jobs.insert(id, Job { registration, phones: BTreeMap::new() });
            }
        }
        Ok(jobs)
    }

    /// The phones of each job, with what is agreed.
    async fn phones(&mut self, mut jobs: BTreeMap<JobId, Job>) -> Result<BTreeMap<JobId, Job>, RpcError> {
        for (id, job) in &mut jobs {
            let front = keys::assigned_processors(id);
            let mut processors = Vec::new();
            for key in self.rpc.keys(&front, &self.block, MAX_PHONES).await? {
                match keys::processor_of(&front, &key) {
                    Ok(processor) => processors.push(processor),
                    Err(misfit) => {
                        self.doubt_the_whole("AcurastMarketplace.AssignedProcessors", id.to_string(), misfit);
                    }
                }
            }
            let asked: Vec<Key> = processors.iter().map(|processor| keys::stored_match(processor, id)).collect();
            for (processor, value) in processors.into_iter().zip(self.values(&asked).await?) {
                let item = "AcurastMarketplace.StoredMatches";
                let assignment = match value.as_deref().map(Assignment::decode) {
                    Some(Ok(assignment)) => Some(assignment),
                    Some(Err(misfit)) => {
                        self.doubt(item, format!("{id}/{processor}"), misfit);
                        None
                    }
                    None => {
                        self.doubt(item, format!("{id}/{processor}"), "assigned, and nothing is agreed with it");
                        None
                    }
                };
                job.phones.insert(processor, assignment);
            }
        }
        Ok(jobs)
    }
}

/// A value that is one field.
fn whole<T>(
    value: Option<&[u8]>,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, Misfit>,
    field: &'static str,
) -> Result<Option<T>, Misfit> {
    let Some(bytes) = value else { return Ok(None) };
    let mut reader = Reader::new(bytes);
    let value = read(&mut reader)?;
    reader.end(field)?;
    Ok(Some(value))
}
