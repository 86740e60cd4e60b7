//! What must be true of batches when they have ended: the files, the counts and the phones tell the same story.
//!
//! That no line ran again after its result was stored is seen from both sides. A line that runs again brings another answer:
//! the gateway counts it as late. And phones see it come: after any look at a batch, no more lines may reach phones than had no
//! result by then.

use super::{
    super::{clients::Clients, stage::Stage},
    Ran,
    file::{custom_id, messages, number_of},
};
use crate::{client::check_answer, live::Metrics, observed::Left};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Something that must be true.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Check {
    /// What.
    pub(super) what: &'static str,
    /// How often it was not.
    pub(super) wrong: u64,
    /// Of what was wrong, the first.
    pub(super) example: Option<String>,
}

impl Check {
    fn new(what: &'static str) -> Self {
        Self { what, wrong: 0, example: None }
    }

    /// It was true.
    pub(super) fn holds(&self) -> bool {
        self.wrong == 0
    }

    fn wrong(&mut self, count: u64, example: impl FnOnce() -> String) {
        if count > 0 {
            self.wrong += count;
            self.example.get_or_insert_with(example);
        }
    }

    fn equal(&mut self, what: &str, one: f64, other: f64) {
        self.wrong(u64::from(one != other), || format!("{what}: {one} instead of {other}"));
    }
}

/// The lines of one batch's files by name, with how often each was there.
struct Results {
    output: HashMap<String, (usize, Value)>,
    errors: HashMap<String, (usize, Value)>,
    unreadable: u64,
}

impl Results {
    fn read(ran: &Ran) -> Self {
        let mut unreadable = 0;
        let mut lines = |file: &[u8]| {
            let mut found: HashMap<String, (usize, Value)> = HashMap::new();
            for line in file.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let line: Value = serde_json::from_slice(line).unwrap_or_default();
                match line["custom_id"].as_str().map(str::to_owned) {
                    Some(name) => found.entry(name).or_insert((0, line)).0 += 1,
                    None => unreadable += 1,
                }
            }
            found
        };
        let (output, errors) = (lines(&ran.course.output), lines(&ran.course.errors));
        Self { output, errors, unreadable }
    }

    fn times(&self, name: &str) -> usize {
        [&self.output, &self.errors].iter().filter_map(|file| file.get(name)).map(|(times, _)| times).sum()
    }
}

/// Everything that must be true. Notes what each line found in its phone's cache.
pub(super) fn checks(
    clients: &Clients,
    stage: &Stage,
    ran: &[Ran],
    metrics: &Metrics,
    left: Option<Left>,
) -> Vec<Check> {
    let results: Vec<Results> = ran.iter().map(Results::read).collect();
    let mut checks = vec![ended(ran), one_file(ran, &results), counts(ran, &results)];
    checks.push(answers(clients, ran, &results));
    checks.push(not_again(stage, ran, &results, metrics));
    let mut over = Check::new("no phone got more requests than it has slots");
    for phone in &stage.phones {
        let stats = phone.stats();
        over.wrong(stats.over_subscribed, || format!("{}: {}", phone.url(), stats.over_subscribed));
    }
    checks.push(over);
    let mut rest = Check::new("nothing runs or waits at the end");
    if let Some(left) = left {
        rest.equal("busy slots", left.busy_slots, 0.0);
        rest.equal("queued requests", left.queued, 0.0);
    }
    checks.push(rest);
    checks
}

fn ended(ran: &[Ran]) -> Check {
    let mut check = Check::new("every batch is completed");
    for Ran { upload, course } in ran {
        check.wrong(u64::from(course.status != "completed"), || format!("{}: {}", upload.name, course.status));
    }
    check
}

fn one_file(ran: &[Ran], results: &[Results]) -> Check {
    let mut check = Check::new("every line is in exactly one of the two files, once");
    for (Ran { upload, .. }, results) in ran.iter().zip(results) {
        let sent: HashSet<String> = upload.lines.iter().map(|number| custom_id(*number)).collect();
        for name in &sent {
            let times = results.times(name);
            check.wrong(u64::from(times != 1), || format!("{name}: {times} times"));
        }
        for name in results.output.keys().chain(results.errors.keys()) {
            check.wrong(u64::from(!sent.contains(name)), || format!("{name} was not sent"));
        }
        check.wrong(results.unreadable, || "a line without custom_id".to_owned());
    }
    check
}

fn counts(ran: &[Ran], results: &[Results]) -> Check {
    let mut check = Check::new("the counts are those of the files");
    for (Ran { upload, course }, results) in ran.iter().zip(results) {
        let Some(last) = course.looks.last() else {
            check.wrong(1, || format!("{} was never seen", upload.name));
            continue;
        };
        check.equal("total", last.total as f64, upload.lines.len() as f64);
        check.equal("completed", last.completed as f64, results.output.len() as f64);
        check.equal("failed", last.failed as f64, results.errors.len() as f64);
    }
    check
}

fn answers(clients: &Clients, ran: &[Ran], results: &[Results]) -> Check {
    let mut check = Check::new("every line has the answer to its own prompt, whole");
    for (Ran { upload, .. }, results) in ran.iter().zip(results) {
        for number in &upload.lines {
            let (name, Some(request)) = (custom_id(*number), clients.run.requests.get(*number)) else { continue };
            let Some((_, line)) = results.output.get(&name) else {
                let error = results.errors.get(&name).map_or(&Value::Null, |(_, line)| line);
                check.wrong(1, || format!("{name}: {error}"));
                continue;
            };
            let body = &line["response"]["body"];
            let choice = &body["choices"][0];
            let (text, finished) = (choice["message"]["content"].as_str(), choice["finish_reason"].is_string());
            let messages = messages(request, *number);
            let prompt = messages.last().map_or("", |message| message.text.as_str());
            let right = check_answer(text.unwrap_or_default(), prompt, request.output);
            check.wrong(u64::from(line["response"]["status_code"] != 200 || !finished), || format!("{name}: {line}"));
            check.wrong(u64::from(right.is_err()), || format!("{name}: {right:?}"));
            let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
            if let Some(progress) = clients.book.pages().requests.get_mut(*number) {
                progress.cached = u32::try_from(cached).unwrap_or(u32::MAX);
            }
        }
    }
    check
}

fn not_again(stage: &Stage, ran: &[Ran], results: &[Results], metrics: &Metrics) -> Check {
    let mut check = Check::new("no line ran again after its result was stored");
    let ended = |outcome| metrics.sum("huntgroup_batch_lines_ended_total", &[outcome]);
    check.equal("late results", ended("outcome=\"late\""), 0.0);
    let (output, errors): (usize, usize) =
        (results.iter().map(|one| one.output.len()).sum(), results.iter().map(|one| one.errors.len()).sum());
    let stored = ended("outcome=\"completed\"") + ended("outcome=\"failed\"");
    check.equal("results stored", stored, (output + errors) as f64);
    let begun = begun(stage);
    let by_number: HashMap<usize, usize> = ran
        .iter()
        .enumerate()
        .flat_map(|(batch, ran)| ran.upload.lines.iter().map(move |number| (*number, batch)))
        .collect();
    for (batch, Ran { upload, course }) in ran.iter().enumerate() {
        // By when each line last reached a phone.
        let mut last: Vec<f64> = begun
            .iter()
            .filter(|(number, _)| by_number.get(number) == Some(&batch))
            .map(|(_, times)| times.iter().copied().fold(0.0, f64::max))
            .collect();
        last.sort_by(f64::total_cmp);
        check.equal("lines that reached a phone", last.len() as f64, upload.lines.len() as f64);
        for look in course.looks.iter().filter(|look| look.total > 0) {
            let later = last.len() - last.partition_point(|begun| *begun <= look.unix_s);
            let open = look.total - look.completed - look.failed;
            check.wrong((later as u64).saturating_sub(open), || {
                format!("{later} lines reached phones after {:.1} s, when {open} had no result", look.at_s)
            });
        }
    }
    check
}

/// When which line reached a phone, seconds since 1970.
pub(super) fn begun(stage: &Stage) -> BTreeMap<usize, Vec<f64>> {
    let mut begun: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for seen in stage.phones.iter().flat_map(fakephone::PhoneHandle::requests).filter(|seen| seen.method == "POST") {
        if let Some(number) = number_in(&seen.body) {
            begun.entry(number).or_default().push(seen.unix_s);
        }
    }
    begun
}

/// The request that a body is of: what its user says begins with the name and the length of the answer, as in `"r17=28 `.
fn number_in(body: &str) -> Option<usize> {
    let said = body.split("\"role\":\"user\"").last()?;
    let mut names = said.split('"').filter_map(|text| number_of(text.split_once('=')?.0));
    names.next_back()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Upload,
            course::{Course, Look},
        },
        *,
    };
    use crate::words::{Message, chat_body};

    #[test]
    fn a_phone_is_told_whose_line_it_gets() {
        let message = |role, text: &str| Message { role, text: text.to_owned() };
        let body =
            chat_body("sim", &[message("system", "t7 abc"), message("user", "r4711=28 some words")], None, false);
        assert_eq!(number_in(&body), Some(4711));
        assert_eq!(number_in(r#"{"messages":[{"content":"r3=9 x","role":"user"}]}"#), None);
        assert_eq!(number_in("{}"), None);
    }

    /// A batch of the lines 3 and 4 with these files and counts.
    fn ran(output: &[usize], errors: &[usize], completed: u64) -> Ran {
        let file = |numbers: &[usize]| {
            let line = |number: &usize| format!("{{\"custom_id\":\"{}\"}}\n", custom_id(*number)).into_bytes();
            numbers.iter().flat_map(line).collect::<Vec<u8>>()
        };
        let look = Look { at_s: 1.0, unix_s: 1.0, total: 2, completed, failed: 2 - completed, running: 0 };
        let upload = Upload {
            class: 0,
            key: 0,
            name: "lines".into(),
            lines: vec![3, 4],
            due_s: 0.0,
            bytes: 0,
            accepted_s: 0.0,
            id: String::new(),
            authorization: String::new(),
        };
        let (output, errors) = (file(output), file(errors));
        Ran {
            upload,
            course: Course { looks: vec![look], status: "completed".into(), output, errors, ..Course::default() },
        }
    }

    #[test]
    fn a_line_that_is_missing_doubled_or_foreign_is_found() {
        let wrong = |output: &[usize], errors: &[usize], completed| {
            let ran = [ran(output, errors, completed)];
            let results = [Results::read(&ran[0])];
            (one_file(&ran, &results).wrong, counts(&ran, &results).wrong)
        };
        assert_eq!(wrong(&[3, 4], &[], 2), (0, 0));
        assert_eq!(wrong(&[3], &[4], 1), (0, 0));
        assert_eq!(wrong(&[3], &[], 1), (1, 1), "missing");
        assert_eq!(wrong(&[3, 4, 4], &[], 2), (1, 0), "twice in a file");
        assert_eq!(wrong(&[3, 4], &[4], 2), (1, 1), "in both files");
        assert_eq!(wrong(&[3, 4, 5], &[], 2), (1, 1), "nobody sent it");
        assert_eq!(wrong(&[3, 4], &[], 1), (0, 2), "other counts");
    }

    #[test]
    fn a_check_keeps_the_first_of_what_was_wrong() {
        let mut check = Check::new("all is well");
        check.equal("one", 1.0, 1.0);
        assert!(check.holds());
        check.equal("two", 1.0, 2.0);
        check.wrong(3, || "three".to_owned());
        assert_eq!((check.wrong, check.example.as_deref()), (4, Some("two: 1 instead of 2")));
    }
}
