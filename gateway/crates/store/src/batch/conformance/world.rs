//! A model of the store, as simple as it can be, beside a real one: every call goes to both, and must say the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    desk::{ALL, LEASE, a_batch, a_file, lines, output, page, result, text},
    invariants,
};
use crate::*;

const KEEP: Duration = Duration::from_secs(40);
const TENANTS: [&str; 2] = ["bank", "shop"];

struct File {
    key: FileKey,
    new: NewFile,
    content: Vec<u8>,
    lines: Vec<NewLine>,
    /// Who writes it.
    writer: Option<Holder>,
    gone: bool,
}

struct Line {
    holder: Option<Holder>,
    done: Option<bool>,
    tries: u32,
}

struct Batch {
    last: BatchRecord,
    input: usize,
    job: Option<Holder>,
    lines: Vec<Line>,
    gone: bool,
}

impl Batch {
    fn takes_results(&self) -> bool {
        self.last.state == BatchState::InProgress && self.last.seal.is_none()
    }
}

pub(super) struct World {
    store: BatchStore,
    now: UnixMillis,
    alive: BTreeMap<u64, UnixMillis>,
    /// Whom each of three processes believes to be.
    holders: Vec<Holder>,
    files: Vec<File>,
    batches: Vec<Batch>,
}

impl World {
    pub(super) fn new(store: BatchStore) -> Self {
        let now = UnixMillis(1_000);
        let mut world =
            Self { store, now, alive: BTreeMap::new(), holders: Vec::new(), files: Vec::new(), batches: Vec::new() };
        world.holders = (0..3).map(|_| world.register()).collect();
        world
    }

    fn end_of_lease(&self) -> UnixMillis {
        UnixMillis(self.now.0 + u64::try_from(LEASE.as_millis()).unwrap())
    }

    fn register(&mut self) -> Holder {
        let holder = self.store.register(self.now, LEASE).unwrap();
        self.take_lapsed();
        assert!(self.alive.keys().chain(self.holders.iter().map(|old| &old.0)).all(|old| *old < holder.0));
        self.alive.insert(holder.0, self.end_of_lease());
        holder
    }

    fn take_lapsed(&mut self) {
        let lapsed: Vec<u64> =
            self.alive.iter().filter(|(_, expires)| **expires <= self.now).map(|(id, _)| *id).collect();
        lapsed.into_iter().for_each(|id| self.end_holder(Holder(id)));
    }

    fn end_holder(&mut self, holder: Holder) {
        self.alive.remove(&holder.0);
        for file in self.files.iter_mut().filter(|file| file.writer == Some(holder)) {
            (file.writer, file.gone) = (None, true);
        }
        for batch in &mut self.batches {
            batch.job = batch.job.filter(|job| *job != holder);
            for line in &mut batch.lines {
                line.holder = line.holder.filter(|claim| *claim != holder);
            }
        }
    }

    fn lost(&self, holder: Holder) -> bool {
        !self.alive.contains_key(&holder.0)
    }

    pub(super) fn wait(&mut self, millis: u64) {
        self.now.0 += millis;
    }

    pub(super) fn renew(&mut self, holder: usize) {
        let me = self.holders[holder];
        let renewed = self.store.renew(me, self.now, LEASE);
        if self.alive.contains_key(&me.0) {
            assert_eq!(renewed, Ok(()), "also late, as long as nobody has noticed");
            let end = self.end_of_lease();
            self.alive.insert(me.0, end);
            self.take_lapsed();
        } else {
            assert_eq!(renewed, Err(StoreError::LostClaim));
            self.holders[holder] = self.register();
        }
    }

    pub(super) fn resign(&mut self, holder: usize) {
        self.store.resign(self.holders[holder]).unwrap();
        self.end_holder(self.holders[holder]);
        self.holders[holder] = self.register();
    }

    /// A finished file of that many lines; the second tenant's, with an end, if `flag`.
    pub(super) fn upload(&mut self, holder: usize, count: usize, flag: bool) {
        let (content, lines) = lines(u32::try_from(count).unwrap());
        let new = NewFile {
            tenant: TENANTS[usize::from(flag)].into(),
            expires: flag.then_some(UnixMillis(self.now.0 + 30_000)),
            ..a_file(&format!("file-{}", self.files.len()))
        };
        if self.begin(holder, new, content, lines) {
            self.go_on_with_file(self.files.len() - 1, true);
        }
    }

    pub(super) fn begin_file(&mut self, holder: usize, flag: bool) {
        let new = output(&format!("file-{}", self.files.len()));
        let tenant = TENANTS[usize::from(flag)].into();
        self.begin(holder, NewFile { tenant, ..new }, b"begun".to_vec(), Vec::new());
    }

    fn begin(&mut self, holder: usize, new: NewFile, content: Vec<u8>, lines: Vec<NewLine>) -> bool {
        let me = self.holders[holder];
        let begun = self.store.begin_file(me, new.clone());
        if self.lost(me) {
            assert_eq!(begun, Err(StoreError::LostClaim));
            return false;
        }
        let key = begun.unwrap();
        self.store.append_file(key, content.clone()).unwrap();
        self.files.push(File { key, new, content, lines, writer: Some(me), gone: false });
        true
    }

    pub(super) fn go_on_with_file(&mut self, pick: usize, finish: bool) {
        let Some(index) = pick.checked_rem(self.files.len()) else { return };
        let file = &mut self.files[index];
        let writable = file.writer.is_some();
        if finish {
            let finished = self.store.finish_file(file.key, None);
            assert_eq!(finished.is_ok(), writable, "{finished:?}");
            file.writer = None;
        } else {
            let appended = self.store.append_file(file.key, b" more".to_vec());
            assert_eq!(appended, if writable { Ok(()) } else { Err(StoreError::LostClaim) });
            if writable {
                file.content.extend_from_slice(b" more");
            }
        }
    }

    pub(super) fn delete_file(&mut self, pick: usize, by_another: bool) {
        let Some(index) = pick.checked_rem(self.files.len()) else { return };
        let file = &mut self.files[index];
        let tenant = if by_another { "thief" } else { &file.new.tenant };
        let deleted = self.store.delete_file(tenant, &file.new.id);
        if by_another || file.gone || file.writer.is_some() {
            assert_eq!(deleted, Err(StoreError::UnknownFile(file.new.id.clone())));
        } else {
            assert_eq!(deleted, Ok(()));
            file.gone = true;
        }
    }

    pub(super) fn create_batch(&mut self, pick: usize, amount: usize, flag: bool) {
        let Some(index) = pick.checked_rem(self.files.len()) else { return };
        let file = &self.files[index];
        let tenant = if flag && amount == 0 { "thief".into() } else { file.new.tenant.clone() };
        let new = NewBatch {
            tenant: tenant.clone(),
            created: self.now,
            expires: UnixMillis(self.now.0 + 10_000 + amount as u64 * 10_000),
            ..a_batch(&format!("batch_{}", self.batches.len()), &file.new.id)
        };
        let created = self.store.create_batch(new);
        let usable = !file.gone && file.writer.is_none() && file.new.purpose == Purpose::Batch;
        if usable && tenant == file.new.tenant {
            let last = created.unwrap();
            self.batches.push(Batch { last, input: index, job: None, lines: Vec::new(), gone: false });
        } else {
            assert_eq!(created, Err(StoreError::UnknownFile(file.new.id.clone())));
        }
    }

    /// Takes the job, if it can be had. Whether it has.
    fn job(&mut self, me: Holder, index: usize) -> bool {
        let lost = self.lost(me);
        let batch = &mut self.batches[index];
        let claimed = self.store.claim_job(me, batch.last.key);
        if lost {
            assert_eq!(claimed, Err(StoreError::LostClaim));
            return false;
        }
        let free = !batch.last.state.is_terminal() && batch.job.is_none_or(|job| job == me);
        assert_eq!(claimed, Ok(free));
        if free {
            batch.job = Some(me);
        }
        free
    }

    /// Looks at that many lines of a batch; at the end, if that are all, it is started, or failed.
    pub(super) fn look(&mut self, holder: usize, pick: usize, many: usize, fail: bool) {
        let Some(index) = pick.checked_rem(self.batches.len()) else { return };
        let me = self.holders[holder];
        let has_job = self.job(me, index);
        let (now, batch) = (self.now, &mut self.batches[index]);
        let key = batch.last.key;
        let all = &self.files[batch.input].lines;
        let validating = has_job && batch.last.state == BatchState::Validating && batch.last.seal.is_none();
        let said = if validating { Ok(()) } else { Err(StoreError::LostClaim) };
        assert_eq!(self.store.clear_lines(me, key), said);
        let some = all[..many.min(all.len())].to_vec();
        assert_eq!(self.store.add_lines(me, key, some), said);
        if many < all.len() {
            return;
        }
        let errors = serde_json::json!({"object": "list"});
        let ended = match fail {
            true => self.store.fail_batch(me, key, errors, now),
            false => self.store.start_batch(me, key, "qwen", now),
        };
        assert_eq!(ended.is_ok(), validating, "{ended:?}");
        if validating && fail {
            batch.job = None;
        } else if validating {
            batch.lines = all.iter().map(|_| Line { holder: None, done: None, tries: 0 }).collect();
        }
        self.catch_up();
    }

    pub(super) fn release_job(&mut self, holder: usize, pick: usize) {
        let Some(index) = pick.checked_rem(self.batches.len()) else { return };
        let (me, batch) = (self.holders[holder], &mut self.batches[index]);
        self.store.release_job(me, batch.last.key).unwrap();
        batch.job = batch.job.filter(|job| *job != me);
    }

    pub(super) fn claim(&mut self, holder: usize, pick: usize, limit: usize, max_bytes: usize) {
        let Some(index) = pick.checked_rem(self.batches.len()) else { return };
        let me = self.holders[holder];
        let lost = self.lost(me);
        let batch = &mut self.batches[index];
        let claimed = self.store.claim_lines(me, batch.last.key, limit, max_bytes);
        if lost {
            assert_eq!(claimed, Err(StoreError::LostClaim));
            return;
        }
        let mut waiting: Vec<&NewLine> = Vec::new();
        if batch.takes_results() {
            let waits = |line: &&NewLine| {
                let known = &batch.lines[line.number as usize - 1];
                known.holder.is_none() && known.done.is_none()
            };
            waiting = self.files[batch.input].lines.iter().filter(waits).collect();
            waiting.sort_by_key(|line| (line.affinity, line.number));
            let mut bytes = 0;
            let fits = waiting.iter().take_while(|line| {
                bytes += line.length as usize;
                bytes <= max_bytes
            });
            let fits = fits.count().max(1).min(limit);
            waiting.truncate(fits);
        }
        let claimed = claimed.unwrap();
        let expected = waiting.iter().map(|line| ClaimedLine {
            number: line.number,
            custom_id: line.custom_id.clone(),
            tries: batch.lines[line.number as usize - 1].tries,
            text: text(line.number).into_bytes(),
        });
        assert_eq!(claimed, expected.collect::<Vec<_>>());
        for line in claimed {
            batch.lines[line.number as usize - 1].holder = Some(me);
        }
    }

    /// Finishes some of the first lines of a batch, whoever has them.
    pub(super) fn finish(&mut self, holder: usize, pick: usize, many: usize, failed: bool) {
        let Some(index) = pick.checked_rem(self.batches.len()) else { return };
        let me = self.holders[holder];
        let lost = self.lost(me);
        let batch = &mut self.batches[index];
        // Its own ones first, then one that is not.
        let mut numbers: Vec<u32> = (1..=u32::try_from(batch.lines.len()).unwrap()).collect();
        numbers.sort_by_key(|number| batch.lines[*number as usize - 1].holder != Some(me));
        numbers.truncate(many + 1);
        let results = numbers.iter().map(|&number| FinishedLine { failed, ..result(&batch.last, number) });
        let kept = self.store.finish_lines(me, results.collect(), self.now);
        if lost {
            assert_eq!(kept, Err(StoreError::LostClaim));
            return;
        }
        let takes = batch.takes_results();
        let expected = numbers.iter().map(|&number| {
            let line = &mut batch.lines[number as usize - 1];
            if !takes || line.holder != Some(me) {
                return Kept::TooLate;
            }
            assert_eq!(line.done, None, "a line with a result was claimed");
            (line.holder, line.done) = (None, Some(failed));
            Kept::Stored
        });
        let expected: Vec<Kept> = expected.collect();
        assert_eq!(kept, Ok(expected));
        self.catch_up();
    }

    pub(super) fn release(&mut self, holder: usize, pick: usize, many: usize, tried: bool) {
        let Some(index) = pick.checked_rem(self.batches.len()) else { return };
        let (me, batch) = (self.holders[holder], &mut self.batches[index]);
        let numbers = 1..=u32::try_from(many.min(batch.lines.len())).unwrap();
        let released = numbers.clone().map(|number| ReleasedLine { batch: batch.last.key, number, tried });
        self.store.release_lines(me, released.collect()).unwrap();
        for number in numbers {
            let line = &mut batch.lines[number as usize - 1];
            if line.holder == Some(me) {
                line.holder = None;
                line.tries += u32::from(tried);
            }
        }
    }

    pub(super) fn cancel(&mut self, pick: usize, by_another: bool) {
        let Some(index) = pick.checked_rem(self.batches.len()) else { return };
        let batch = &self.batches[index];
        let tenant = if by_another { "thief" } else { &batch.last.tenant };
        let cancelled = self.store.cancel_batch(Some(tenant), &batch.last.id, self.now);
        let (state, seal) = (batch.last.state, batch.last.seal);
        if by_another || batch.gone {
            assert_eq!(cancelled, Err(StoreError::UnknownBatch(batch.last.id.clone())));
        } else if state.is_terminal() || state == BatchState::Finalizing {
            assert_eq!(cancelled, Err(StoreError::WrongState(state)));
        } else {
            assert_eq!(cancelled.unwrap().seal, seal.or(Some(Seal::Cancelled)));
        }
        self.catch_up();
    }

    pub(super) fn expire(&mut self) {
        self.store.expire_batches(self.now).unwrap();
        let before: Vec<(BatchState, Option<Seal>)> =
            self.batches.iter().map(|batch| (batch.last.state, batch.last.seal)).collect();
        self.catch_up();
        for (batch, (state, seal)) in self.batches.iter().zip(before) {
            let over = !state.is_terminal() && batch.last.times.expires <= self.now;
            let expected = if over { seal.or(Some(Seal::Expired)) } else { seal };
            assert_eq!((batch.last.state, batch.last.seal), (state, expected));
        }
    }

    /// Writes a batch's files and ends it, if it is sealed.
    pub(super) fn close(&mut self, holder: usize, pick: usize) {
        let Some(index) = pick.checked_rem(self.batches.len()) else { return };
        let me = self.holders[holder];
        let has_job = self.job(me, index);
        let batch = &self.batches[index].last;
        let (key, tenant, ran) = (batch.key, batch.tenant.clone(), batch.times.in_progress.is_some());
        if !has_job || batch.seal.is_none() {
            assert_eq!(self.store.close_batch(me, key, None, None, self.now), Err(StoreError::LostClaim));
            return;
        }
        let results = |which| self.store.results(key, which, 0, ALL).unwrap();
        let unfinished = self.store.unfinished(key, 0, ALL).unwrap();
        let done = |(_, record): (u32, Vec<u8>)| [record, b"\n".to_vec()].concat();
        let completed: Vec<u8> = results(Results::Completed).into_iter().flat_map(done).collect();
        let mut failed: Vec<u8> = results(Results::Failed).into_iter().flat_map(done).collect();
        for line in unfinished {
            failed.extend(format!("{{\"custom_id\":\"{}\"}}\n", line.custom_id).bytes());
        }
        let mut files = [None, None];
        for (content, file) in [completed, failed].into_iter().zip(&mut files) {
            if !content.is_empty() {
                let new = NewFile { tenant: tenant.clone(), ..output(&format!("file-{}", self.files.len())) };
                assert!(self.begin(holder, new, content, Vec::new()));
                *file = Some(self.files.len() - 1);
            }
        }
        let [output, errors] = files.map(|file| file.map(|file| self.files[file].key));
        let closed = self.store.close_batch(me, key, output, errors, self.now).unwrap();
        self.batches[index].job = None;
        for file in files.into_iter().flatten() {
            (self.files[file].writer, self.files[file].gone) = (None, !ran);
        }
        if ran {
            self.check_files(&closed, index);
        }
        self.catch_up();
    }

    /// Each custom id is in exactly one of the two files, and those with a result in the right one.
    fn check_files(&self, closed: &BatchRecord, index: usize) {
        let lines = |file: &Option<String>| -> Vec<String> {
            let Some(id) = file else { return Vec::new() };
            let file = self.store.file(&closed.tenant, id).unwrap();
            let content = String::from_utf8(self.store.read_file(file.key, 0, usize::MAX).unwrap()).unwrap();
            content.lines().map(str::to_owned).collect()
        };
        let (completed, failed) = (lines(&closed.output_file), lines(&closed.error_file));
        let counts = closed.counts;
        assert_eq!((completed.len(), failed.len()), (counts.completed as usize, counts.failed as usize));
        let record = |number: usize| format!("{{\"custom_id\":\"c{number}\"}}");
        let all: BTreeSet<String> = completed.iter().chain(&failed).cloned().collect();
        let model = &self.batches[index].lines;
        assert_eq!(all, (1..=model.len()).map(record).collect());
        assert_eq!(all.len(), completed.len() + failed.len(), "one is in both");
        for (number, line) in (1..).zip(model) {
            assert_eq!(completed.contains(&record(number)), line.done == Some(false), "line {number}");
        }
    }

    pub(super) fn sweep(&mut self) {
        while self.store.sweep(self.now, KEEP).unwrap() {}
        for file in self.files.iter_mut().filter(|file| file.writer.is_none()) {
            file.gone |= file.new.expires.is_some_and(|expires| expires <= self.now);
        }
        for batch in &mut self.batches {
            let times = batch.last.times;
            let ended = [times.completed, times.failed, times.expired, times.cancelled].into_iter().flatten().next();
            batch.gone |= ended.is_some_and(|ended| ended.0 + 40_000 <= self.now.0);
        }
    }

    /// Reads all batches anew: each has moved forward, or not at all.
    fn catch_up(&mut self) {
        for batch in &mut self.batches {
            let read = self.store.batch(Some(&batch.last.tenant), &batch.last.id);
            if batch.gone {
                assert_eq!(read, Err(StoreError::UnknownBatch(batch.last.id.clone())));
                continue;
            }
            let new = read.unwrap();
            forward(&batch.last, &new);
            if new.times.in_progress.is_some() && !new.state.is_terminal() {
                let done = |failed| batch.lines.iter().filter(|line| line.done == Some(failed)).count();
                assert_eq!((new.counts.completed as usize, new.counts.failed as usize), (done(false), done(true)));
            }
            batch.last = new;
        }
    }

    /// All promises.
    pub(super) fn check(&mut self) {
        invariants::hold(&self.store);
        self.catch_up();
        for (index, file) in self.files.iter().enumerate() {
            let visible = !file.gone && file.writer.is_none();
            let needed =
                self.batches.iter().any(|batch| batch.input == index && !batch.gone && !batch.last.state.is_terminal());
            assert_eq!(self.store.file(&file.new.tenant, &file.new.id).is_ok(), visible);
            assert_eq!(self.store.file("thief", &file.new.id), Err(StoreError::UnknownFile(file.new.id.clone())));
            match self.store.read_file(file.key, 0, usize::MAX) {
                Ok(content) => assert!((visible || needed) && content == file.content, "{}", file.new.id),
                Err(error) => assert!(!visible && !needed, "{}: {error}", file.new.id),
            }
        }
        for tenant in TENANTS {
            let listed = self.store.files(tenant, None, page(None, ALL, true)).unwrap().entries;
            let mine =
                self.files.iter().filter(|file| file.new.tenant == tenant && !file.gone && file.writer.is_none());
            assert!(listed.iter().map(|file| &file.id).eq(mine.map(|file| &file.new.id)));
            let listed = self.store.batches(Some(tenant), page(None, ALL, true)).unwrap().entries;
            let mine = self.batches.iter().filter(|batch| batch.last.tenant == tenant && !batch.gone);
            assert!(listed.iter().eq(mine.map(|batch| &batch.last)));
        }
    }

    /// Whatever has happened, every batch can be brought to its end.
    pub(super) fn bring_to_an_end(&mut self) {
        self.wait(1_000_000);
        self.renew(0);
        for batch in 0..self.batches.len() {
            self.expire();
            self.close(0, batch);
            self.check();
        }
        assert_eq!(self.store.open_batches().unwrap(), Vec::new());
    }
}

fn forward(old: &BatchRecord, new: &BatchRecord) {
    use BatchState as S;
    let may_follow: &[S] = match old.state {
        S::Validating => &[S::Failed, S::InProgress, S::Finalizing, S::Expired, S::Cancelling],
        S::InProgress => &[S::Finalizing, S::Expired, S::Cancelling],
        S::Finalizing => &[S::Completed],
        S::Cancelling => &[S::Cancelled],
        S::Failed | S::Completed | S::Expired | S::Cancelled => &[],
    };
    assert!(old.state == new.state || may_follow.contains(&new.state), "{old:?} became {new:?}");
    assert!(!old.state.is_terminal() || old == new, "{old:?} became {new:?}");
    assert!(old.seal.is_none() || old.seal == new.seal, "{old:?} became {new:?}");
    let times = |batch: &BatchRecord| {
        let BatchTimes { in_progress, finalizing, completed, failed, expired, cancelling, cancelled, .. } = batch.times;
        [in_progress, finalizing, completed, failed, expired, cancelling, cancelled]
    };
    for (old, new) in times(old).into_iter().zip(times(new)) {
        assert!(old.is_none() || old == new);
    }
    assert!(old.counts.completed <= new.counts.completed && old.counts.failed <= new.counts.failed);
    assert!(old.usage.input <= new.usage.input && old.usage.output <= new.usage.output);
}
