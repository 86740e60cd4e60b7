//! Which phones can be seen and made to fail.
//!
//! A load test against real phones sees only the gateway. Against fake ones it also sees what reached each phone, and
//! can make it fail: phones of this process through their handles, phones of another through its control port.

use super::control::Control;
use crate::{client::Failure, observed::PhoneCounts, scenario};
use fakephone::{Fault, FaultOrder, PhoneHandle};

/// The phones of a play, as far as they can be reached.
pub(crate) enum Fleet {
    /// They live in this process, numbered as in the scenario.
    Own(Vec<OwnPhone>),
    /// They live in another process that can be asked.
    Remote(Control),
    /// Nothing is known of them.
    Unseen,
}

/// A phone of this process.
pub(crate) struct OwnPhone {
    /// What the gateway calls it.
    pub(crate) name: String,
    /// Index of its group.
    pub(crate) group: usize,
    /// Not part of the pool at the start.
    pub(crate) spare: bool,
    /// The phone.
    pub(crate) handle: PhoneHandle,
}

/// A step that can't be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FleetError {
    /// Nothing is known of the phones.
    #[error("the phones can't be reached: give --control, or --self")]
    Unseen,
    /// The other process refused.
    #[error("the control port: {0}")]
    Control(#[from] Failure),
}

/// A phone as a step needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    /// Its name.
    pub(crate) name: String,
    /// Its address, as the gateway knows it.
    pub(crate) url: String,
    /// Index of its group, if that is known.
    pub(crate) group: Option<usize>,
    /// Not part of the pool at the start.
    pub(crate) spare: bool,
}

impl Fleet {
    /// The phones by number; empty when they can't be seen.
    pub(crate) async fn known(&self, fleet: &scenario::Fleet) -> Vec<Known> {
        match self {
            Self::Unseen => Vec::new(),
            Self::Own(phones) => phones.iter().map(OwnPhone::known).collect(),
            Self::Remote(control) => control.known(fleet).await.unwrap_or_default(),
        }
    }

    /// What each has done so far, and whether it is well.
    pub(crate) async fn phones(&self) -> Vec<PhoneCounts> {
        match self {
            Self::Unseen => Vec::new(),
            Self::Own(phones) => phones.iter().map(OwnPhone::counts).collect(),
            Self::Remote(control) => control.counts().await.unwrap_or_default(),
        }
    }

    /// Makes a phone fail; `None` kills its engine.
    ///
    /// # Errors
    /// It can't be reached.
    pub(crate) async fn fail(&self, phone: usize, way: Option<&FaultOrder>) -> Result<(), FleetError> {
        match self {
            Self::Unseen => return Err(FleetError::Unseen),
            Self::Remote(control) => control.fail(phone, way).await?,
            Self::Own(phones) => {
                if let Some(phone) = phones.get(phone) {
                    match way {
                        Some(order) => phone.handle.obey(order.clone()),
                        None => phone.handle.kill(),
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes a phone well again.
    ///
    /// # Errors
    /// It can't be reached.
    pub(crate) async fn heal(&self, phone: usize) -> Result<(), FleetError> {
        match self {
            Self::Unseen => return Err(FleetError::Unseen),
            Self::Remote(control) => control.heal(phone).await?,
            Self::Own(phones) => {
                if let Some(phone) = phones.get(phone) {
                    phone.handle.clear_fault();
                    phone.handle.revive();
                }
            }
        }
        Ok(())
    }
}

impl OwnPhone {
    fn known(&self) -> Known {
        Known { name: self.name.clone(), url: self.handle.url().to_owned(), group: Some(self.group), spare: self.spare }
    }

    fn counts(&self) -> PhoneCounts {
        PhoneCounts {
            name: self.name.clone(),
            group: Some(self.group),
            slots: u64::from(self.handle.config().slots),
            well: self.handle.is_alive() && self.handle.order().fault == Fault::None,
            stats: self.handle.stats(),
            mean_busy: 0.0,
        }
    }
}
