//! What comes all at once and least urgent, sent as people send it: as a file, which the gateway runs as a batch.
//!
//! Problem: the simulator gives such a class to the scheduler in one piece, and clients that play it are thousands of open
//! connections; nobody who has a gateway with a Batch API does that. Choice: upload the class's requests as lines of a
//! file before the scenario's time begins, make a batch of it when they are due, look at how many lines have results, and
//! hold the files at the end to what was sent. The figures stay comparable, because those of a class that comes all at
//! once depend on the times of its answers and not on which of them was whose.
//!
//! | question | module |
//! |---|---|
//! | the file | [`file`] |
//! | how the batch gets on | [`course`] |
//! | what must be true of it at the end | [`ledger`] |
//! | what the gateway and the phones do meanwhile | [`samples`] |
//! | the other classes, with and without it | [`beside`] |
//! | table, JSON, plots | [`figures`], [`plots`] |

mod beside;
mod course;
mod figures;
mod file;
mod ledger;
mod plots;
mod samples;

pub(super) use beside::{Beside, without_files};
pub(super) use figures::Figures;
pub(super) use file::{Upload, upload};
pub(super) use plots::plots;
pub(super) use samples::Samples;

use super::{clients::Clients, stage::Stage};
use course::Course;
use scheduler::Class as Urgency;
use simulation::scenario::Class;
use std::sync::Arc;

/// Whether a class goes to the gateway as a file.
pub(super) fn goes_as_file(class: &Class) -> bool {
    class.urgency == Urgency::Batch && class.is_closed() && !class.is_chat()
}

/// What became of one upload.
pub(super) struct Ran {
    upload: Upload,
    course: Course,
}

/// Makes a batch of each upload when it is due, and waits until all have ended, or until the play is broken off.
///
/// # Errors
/// The gateway took no batch, or gave no files.
pub(super) async fn run(clients: &Arc<Clients>, uploads: Vec<Upload>) -> anyhow::Result<Vec<Ran>> {
    let mut running = tokio::task::JoinSet::new();
    for upload in uploads {
        let clients = Arc::clone(clients);
        running.spawn(async move {
            let course = course::run(&clients, &upload).await?;
            anyhow::Ok(Ran { upload, course })
        });
    }
    let mut ran = Vec::new();
    while let Some(ended) = running.join_next().await {
        ran.push(ended??);
    }
    ran.sort_by_key(|ran| (ran.upload.class, ran.upload.key));
    Ok(ran)
}

/// Everything about the batches of a play.
///
/// # Errors
/// The gateway does not tell.
pub(super) async fn figures(
    clients: &Clients,
    stage: &Stage,
    ran: &[Ran],
    samples: Samples,
) -> anyhow::Result<Figures> {
    let admin = stage.gateway.admin().await?;
    // First, so that what still runs has come to rest.
    let left = admin.left_over().await;
    let metrics = admin.metrics().await?;
    let mut found = figures::figures(clients, stage, ran, samples, &metrics);
    found.ledger = ledger::checks(clients, stage, ran, &metrics, left);
    Ok(found)
}
