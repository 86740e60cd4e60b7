//! Which phones there are.

use crate::{
    rng::Rng,
    scenario::{PhoneClass, Phones},
};

/// One phone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PhoneSpec {
    /// Index of its class in the scenario.
    pub class: usize,
    /// Reading speed as a share of the reference phone's.
    pub prefill_factor: f64,
    /// Writing speed as a share of the reference phone's.
    pub decode_factor: f64,
    /// Requests it takes at once.
    pub slots: usize,
    /// Its prompt cache works.
    pub remembers: bool,
}

/// The phones in a random order (who comes first in a tie must not be the fastest), each with its own speed.
pub(super) fn draw(phones: &Phones, seed: u64) -> Vec<PhoneSpec> {
    let of_class = |(index, class): (usize, &'_ PhoneClass)| std::iter::repeat_n(index, class.count);
    let mut order: Vec<usize> = phones.classes.iter().enumerate().flat_map(of_class).collect();
    Rng::new(seed, "order").shuffle(&mut order);
    let numbered = order.into_iter().enumerate();
    numbered.filter_map(|(number, class)| Some(one(phones, number, class, phones.classes.get(class)?, seed))).collect()
}

fn one(phones: &Phones, number: usize, class: usize, kind: &PhoneClass, seed: u64) -> PhoneSpec {
    let mut rng = Rng::new(seed, &format!("phone:{number}:speed"));
    // The same for both phases: a phone with a slower chip reads and writes slower.
    let luck = (phones.jitter * rng.normal()).exp();
    PhoneSpec {
        class,
        prefill_factor: kind.prefill_factor * luck,
        decode_factor: kind.decode_factor * luck,
        slots: kind.slots,
        remembers: rng.chance(phones.cache_works),
    }
}
