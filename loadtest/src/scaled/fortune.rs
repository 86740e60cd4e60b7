//! What befalls the phones, at the scenario's times.
//!
//! A phone that goes down loses its network first: what runs there hangs and new connections hang with it, until the
//! tunnel notices, `detect_s` later; from then on they are refused. That is when the simulated gateway notices, too. One
//! that comes back has empty caches.

use super::time::Time;
use fakephone::{Fault, PhoneHandle};
use simulation::workload::Timeline;

/// Lets one phone have its ups and downs, until it is cancelled.
pub(super) async fn run(phone: PhoneHandle, timeline: Timeline, detect_s: f64, time: Time) {
    let mut up = true;
    for phase in timeline.phases() {
        time.sleep_until(phase.start).await;
        let was_up = std::mem::replace(&mut up, phase.is_up());
        if phase.is_up() {
            phone.set_pace(phase.factor);
            if !was_up {
                rise(&phone);
            }
        } else if was_up {
            phone.set_fault(Fault::TlsStall);
            time.sleep_until((phase.start + detect_s).min(phase.end)).await;
            if phase.start + detect_s < phase.end {
                phone.set_fault(Fault::Refuse);
            }
        }
    }
}

/// The engine starts again; who has not noticed that it was away loses the connection now.
fn rise(phone: &PhoneHandle) {
    phone.kill();
    phone.clear_fault();
    phone.revive();
}
