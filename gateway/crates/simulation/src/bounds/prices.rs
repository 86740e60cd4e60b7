//! What a phone's time is worth: phones of unlike speed made comparable.
//!
//! A phone's time is priced at the requests of typical size it could serve in it. A request's price is the least it costs on
//! any phone. No assignment serves more than the sum of the phones' priced time: linear programming duality, with prices
//! that are feasible by construction, so the bound holds even where they are not the best ones.

use super::{Fleet, Typical};
use crate::workload::{PhoneSpec, Request};

pub(super) struct Prices<'a> {
    /// Typical requests per second of full speed, by phone.
    pub(super) of_phones: Vec<f64>,
    /// One phone of each kind, with its price.
    kinds: Vec<(&'a PhoneSpec, f64)>,
}

impl<'a> Prices<'a> {
    pub(super) fn new(fleet: &Fleet<'a>, typical: &Typical) -> Self {
        let whole = Typical {
            prompt: typical.prompt.floor(),
            cached: typical.cached.floor().min(typical.prompt.floor() - 1.0),
            output: typical.output.floor(),
        };
        let of_phones: Vec<f64> = fleet.phones.iter().map(|phone| 1.0 / fleet.occupancy(phone, &whole)).collect();
        // Phones of a class differ by one factor in both phases, which cancels out of a price times a time.
        let mut kinds: Vec<(&PhoneSpec, f64)> = Vec::new();
        for (phone, price) in fleet.phones.iter().zip(&of_phones) {
            if !kinds.iter().any(|(known, _)| (known.class, known.remembers) == (phone.class, phone.remembers)) {
                kinds.push((phone, *price));
            }
        }
        Self { of_phones, kinds }
    }

    /// The least that a request costs, in typical requests.
    pub(super) fn of(&self, fleet: &Fleet<'_>, request: &Request) -> f64 {
        let request = Typical::from(request);
        let costs = self.kinds.iter().map(|(phone, price)| price * fleet.occupancy(phone, &request));
        costs.fold(f64::INFINITY, f64::min)
    }
}
