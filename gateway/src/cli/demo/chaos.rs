//! Phones that die and come back.

use std::{sync::Arc, time::Duration};

use fakephone::Fault;

use super::{Dice, phones::Phones, say};
use crate::shutdown::Stop;

/// Shortest pause between two events, and how much longer it may be.
const PAUSE_MS: (usize, usize) = (3_000, 6_000);

/// Kills and revives until `stop`.
pub(super) async fn run(phones: Arc<Phones>, mut stop: Stop) {
    let mut dice = Dice::new();
    loop {
        let pause = Duration::from_millis((PAUSE_MS.0 + dice.roll(PAUSE_MS.1)) as u64);
        tokio::select! {
            () = stop.wait() => return,
            () = tokio::time::sleep(pause) => act(&phones, &mut dice),
        }
    }
}

/// A third of the phones may be gone at once: what a bad day looks like.
fn act(phones: &Phones, dice: &mut Dice) {
    let phone = &phones.handles[dice.roll(phones.count())];
    let gone = phones.handles.iter().filter(|phone| !phone.is_alive() || phone.order().fault != Fault::None).count();
    if !phone.is_alive() {
        phone.revive();
        say(&format!("chaos: {} starts again", phone.id()));
    } else if phone.order().fault != Fault::None {
        phone.clear_fault();
        say(&format!("chaos: {} has its network back", phone.id()));
    } else if gone * 3 >= phones.count() {
        // Somebody who is gone comes back first.
        let back = phones.handles.iter().find(|phone| !phone.is_alive() || phone.order().fault != Fault::None);
        if let Some(back) = back {
            back.clear_fault();
            back.revive();
            say(&format!("chaos: {} is back", back.id()));
        }
    } else if dice.roll(2) == 0 {
        phone.kill();
        say(&format!("chaos: {} dies", phone.id()));
    } else {
        phone.set_fault(Fault::TlsStall);
        say(&format!("chaos: {} loses its network", phone.id()));
    }
}
