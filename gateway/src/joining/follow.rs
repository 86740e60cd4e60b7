//! A client that reads an answer which is written elsewhere: from its beginning, as fast as it can, and then as it comes.

use std::{pin::pin, sync::Arc};

use openai_wire::Route;

use super::tape::{End, Failure, Reader, Step};
use crate::{
    auth::Tenant,
    error::{ApiError, shown},
    gateway::Gateway,
    listener::{Exchange, Interrupted},
    relay, request,
    telemetry::{RequestOutcome, RequestRecord},
};

/// Why a client did not get the whole answer.
enum Unread {
    /// It left.
    Gone,
    /// There is none.
    Failed(Arc<Failure>),
    /// It may not have it.
    Refused(ApiError),
    /// It has a head already that does not go with it.
    Misfit,
}

impl From<Interrupted> for Unread {
    fn from(_: Interrupted) -> Self {
        Self::Gone
    }
}

impl Gateway {
    /// Copies the answer to a client. `record` accounts for one that joined; the first one's is with the task that writes.
    pub(super) async fn follow(
        &self,
        exchange: &mut Exchange,
        reader: Reader,
        tenant: &Tenant,
        route: Route,
        mut record: Option<RequestRecord>,
    ) {
        if record.is_some() {
            exchange.joined(Arc::clone(reader.first()));
        }
        let unread = self.copy(exchange, reader, tenant, record.as_mut()).await;
        let mut account = |error| {
            if let Some(record) = &mut record {
                self.account(record, error);
            }
        };
        match unread {
            Ok(()) => {
                if let Some(record) = &mut record {
                    record.status(200);
                    record.outcome(RequestOutcome::Joined);
                }
            }
            Err(Unread::Gone) => {}
            Err(Unread::Refused(error)) => {
                account(&error);
                self.refuse(exchange, Some(route), &error, None).await;
            }
            Err(Unread::Failed(failure)) => {
                account(&failure.error);
                if exchange.head_sent() {
                    exchange.abort_with(failure.event.clone()).await;
                } else {
                    self.refuse(exchange, Some(route), &failure.error, None).await;
                }
            }
            // Broken off without a word: whoever tries again is given the answer that is kept.
            Err(Unread::Misfit) => account(&ApiError::Lost("not_a_stream")),
        }
    }

    async fn copy(
        &self,
        exchange: &mut Exchange,
        mut reader: Reader,
        tenant: &Tenant,
        mut record: Option<&mut RequestRecord>,
    ) -> Result<(), Unread> {
        let wants_progress = request::wants_progress(&exchange.head().headers).map_err(Unread::Refused)?;
        let mut stream = false;
        loop {
            // All that is there is written before anything is waited for: waiting writes comments, which must not stand
            // in the middle of an event.
            while let Some(step) = reader.next() {
                match step {
                    Step::Opened(mut opening) => {
                        if !tenant.may_use(&opening.model) {
                            let model = shown(&opening.model);
                            return Err(Unread::Refused(ApiError::ModelNotAllowed { model }));
                        }
                        if let Some(record) = &mut record {
                            record.identify(Arc::clone(&tenant.name), Arc::clone(&opening.model), opening.class);
                        }
                        stream = opening.stream;
                        if let Some(head) = &mut opening.head {
                            relay::head::readdress(head, exchange.id());
                        }
                        exchange.wait_as(opening, wants_progress);
                    }
                    Step::Head(mut head) => {
                        if stream && exchange.head_sent() && !relay::head::is_stream(&head) {
                            return Err(Unread::Misfit);
                        }
                        relay::head::readdress(&mut head, exchange.id());
                        exchange.begin(head).await?;
                        if !stream {
                            exchange.stop_warming();
                        }
                    }
                    Step::Piece(piece) => exchange.write(piece).await?,
                    Step::Ended(End::Whole) => return Ok(exchange.end().await?),
                    Step::Ended(End::Failed(failure)) => return Err(Unread::Failed(failure)),
                }
            }
            exchange.drive(pin!(reader.written())).await?;
        }
    }
}
