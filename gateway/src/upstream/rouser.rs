//! A waker that keeps inside what two halves of one future tell each other.
//!
//! Problem: hyper's connection wakes whoever waits for a piece of the body when it has one, and the body wakes the connection
//! when the piece is taken. Where one future polls both, each piece wakes the task that is just handling it: it is put into
//! the queue again, another thread may be woken to take it over, and all of the request's stages are polled once more, to find nothing.
//!
//! Choice: the halves get this waker instead of the task's. What wakes it while they are polled is answered by polling them
//! again; only what comes in between reaches the task.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// Nobody polls: the task has to be woken.
const AT_REST: u8 = 0;
/// The halves are being polled, and nothing has come.
const POLLED: u8 = 1;
/// They are being polled, and something has come that they may not have seen.
const ROUSED: u8 = 2;
/// Most polls in a turn of the task. The second sees what the first has stirred up; a half that wakes itself again wants the
/// others to have their turn.
const ROUNDS: usize = 2;

/// See the module's text. Of one future; its polls must not overlap.
#[derive(Debug)]
pub(super) struct Rouser {
    state: AtomicU8,
    /// Of the task that polled last.
    task: Mutex<Waker>,
}

impl Default for Rouser {
    fn default() -> Self {
        Self { state: AtomicU8::new(AT_REST), task: Mutex::new(Waker::noop().clone()) }
    }
}

impl Rouser {
    /// Polls `halves` with this waker until they have nothing to tell each other, or are done. When they are done they are not
    /// woken for what came meanwhile: whoever goes on with one of them polls both first.
    pub fn poll<T>(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        mut halves: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner).clone_from(cx.waker());
        let waker = Waker::from(Arc::clone(self));
        for _ in 0..ROUNDS {
            self.state.store(POLLED, Ordering::SeqCst);
            if let Poll::Ready(done) = halves(&mut Context::from_waker(&waker)) {
                self.state.store(AT_REST, Ordering::SeqCst);
                return Poll::Ready(done);
            }
            if self.state.compare_exchange(POLLED, AT_REST, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Poll::Pending;
            }
        }
        self.state.store(AT_REST, Ordering::SeqCst);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for Rouser {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let polled =
            self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| (state != AT_REST).then_some(ROUSED));
        if polled.is_err() {
            let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
            task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// A task that counts how often it is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls once with halves that wake themselves in the first `rousing` polls and are done in the poll `done`, counted
    /// from 1; whether they are, how often they were polled, how often the task was woken.
    fn polled(rousing: usize, done: usize) -> (bool, usize, usize) {
        let (rouser, task) = (Arc::<Rouser>::default(), Arc::<Task>::default());
        let mut polls = 0;
        let waker = Waker::from(Arc::clone(&task));
        let result = rouser.poll(&mut Context::from_waker(&waker), |cx| {
            polls += 1;
            if polls <= rousing {
                cx.waker().wake_by_ref();
            }
            if polls == done { Poll::Ready(()) } else { Poll::Pending }
        });
        (result.is_ready(), polls, task.0.load(Ordering::SeqCst))
    }

    #[test]
    fn what_the_halves_tell_each_other_wakes_nobody() {
        assert_eq!(polled(0, 9), (false, 1, 0));
        assert_eq!(polled(1, 1), (true, 1, 0));
        assert_eq!(polled(1, 9), (false, 2, 0), "what came is looked at again, here");
        assert_eq!(polled(1, 2), (true, 2, 0));
    }

    #[test]
    fn halves_that_never_rest_give_the_others_their_turn() {
        assert_eq!(polled(9, 9), (false, ROUNDS, 1));
    }

    #[test]
    fn what_comes_between_two_polls_wakes_the_task_that_polled_last() {
        let rouser = Arc::<Rouser>::default();
        let tasks = [Arc::<Task>::default(), Arc::default()];
        let mut kept = None;
        for task in &tasks {
            let waker = Waker::from(Arc::clone(task));
            let polled = rouser.poll(&mut Context::from_waker(&waker), |cx| {
                kept = Some(cx.waker().clone());
                Poll::<()>::Pending
            });
            assert!(polled.is_pending());
        }
        kept.expect("it was polled").wake();
        let woken = tasks.map(|task| task.0.load(Ordering::SeqCst));
        assert_eq!(woken, [0, 1]);
    }

    #[test]
    fn a_wake_from_another_thread_is_never_lost() {
        // Each round one half says "done" from another thread, at any moment of the poll; it must be seen by a poll or wake.
        for _ in 0..2000 {
            let (rouser, task) = (Arc::<Rouser>::default(), Arc::<Task>::default());
            let told = Arc::new(AtomicUsize::new(0));
            let waker = Waker::from(Arc::clone(&task));
            let mut teller = None;
            let result = rouser.poll(&mut Context::from_waker(&waker), |cx| {
                if told.load(Ordering::SeqCst) == 1 {
                    return Poll::Ready(());
                }
                let (own, told) = (cx.waker().clone(), Arc::clone(&told));
                teller.get_or_insert_with(|| {
                    std::thread::spawn(move || {
                        told.store(1, Ordering::SeqCst);
                        own.wake();
                    })
                });
                Poll::Pending
            });
            teller.expect("it was polled").join().expect("it ends");
            assert!(result.is_ready() || task.0.load(Ordering::SeqCst) > 0);
        }
    }
}
