//! Whatever three holders do, in whatever order: the store does what a simple model of it does, and its promises hold after
//! every step.

use proptest::prelude::*;

use super::world::World;
use crate::BatchStore;

/// One thing that a holder does. What the numbers choose depends on what there is.
#[derive(Clone, Copy, Debug)]
struct Step {
    what: What,
    holder: usize,
    pick: usize,
    amount: usize,
    flag: bool,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Wait,
    Renew,
    Resign,
    Upload,
    BeginFile,
    GoOnWithFile,
    DeleteFile,
    CreateBatch,
    BeginLook,
    Look,
    ReleaseJob,
    Claim,
    Finish,
    Release,
    Cancel,
    Expire,
    Close,
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    use What::*;
    let what = prop_oneof![
        4 => Just(Wait), 4 => Just(Renew), 1 => Just(Resign), 3 => Just(Upload), 2 => Just(BeginFile),
        2 => Just(GoOnWithFile), 2 => Just(DeleteFile), 3 => Just(CreateBatch), 1 => Just(BeginLook), 5 => Just(Look),
        1 => Just(ReleaseJob), 8 => Just(Claim), 10 => Just(Finish), 3 => Just(Release), 1 => Just(Cancel),
        1 => Just(Expire), 4 => Just(Close), 2 => Just(Sweep),
    ];
    (what, 0..3_usize, 0..8_usize, 0..8_usize, any::<bool>()).prop_map(|(what, holder, pick, amount, flag)| Step {
        what,
        holder,
        pick,
        amount,
        flag,
    })
}

fn take(world: &mut World, step: Step) {
    let Step { holder, pick, amount, flag, .. } = step;
    match step.what {
        What::Wait => world.wait(amount as u64 * 1_500),
        What::Renew => world.renew(holder),
        What::Resign => world.resign(holder),
        What::Upload => world.upload(holder, amount, flag),
        What::BeginFile => world.begin_file(holder, flag),
        What::GoOnWithFile => world.go_on_with_file(pick, flag),
        What::DeleteFile => world.delete_file(pick, amount == 0),
        What::CreateBatch => world.create_batch(pick, amount, flag),
        What::BeginLook => world.look(holder, pick, amount, false),
        What::Look => world.look(holder, pick, usize::MAX, flag && amount == 0),
        What::ReleaseJob => world.release_job(holder, pick),
        What::Claim => world.claim(holder, pick, amount, if flag { usize::MAX } else { amount * 20 }),
        What::Finish => world.finish(holder, pick, amount, flag),
        What::Release => world.release(holder, pick, amount, flag),
        What::Cancel => world.cancel(pick, amount == 0),
        What::Expire => world.expire(),
        What::Close => world.close(holder, pick),
        What::Sweep => world.sweep(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_keeps_its_promises_in_any_order_of_calls(steps in prop::collection::vec(step(), 1..140)) {
        let mut world = World::new(BatchStore::in_memory().unwrap());
        for step in steps {
            take(&mut world, step);
            world.check();
        }
        world.bring_to_an_end();
    }
}
