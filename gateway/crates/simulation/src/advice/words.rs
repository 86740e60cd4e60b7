//! Why, in sentences.

use std::cmp::Ordering;

use scheduler::Class;

use super::{Advice, Backlog, FEWEST_REQUESTS, Question, Rehearsal, Verdict, absences, is_absence_known, up};

pub(super) fn too_little(seen: usize, backlog: &[Backlog], has_lines: bool) -> String {
    if seen < FEWEST_REQUESTS {
        format!("Too little traffic yet: {seen} requests in the window, and advice needs {FEWEST_REQUESTS}.")
    } else if !backlog.is_empty() && !has_lines {
        "No line of a batch has been answered yet: what they need is not known.".to_owned()
    } else {
        "Nothing came that has an objective: only requests of class batch, and no batch waits.".to_owned()
    }
}

pub(super) fn reasons(
    question: &Question<'_>,
    advice: &Advice,
    rehearsal: &Rehearsal<'_>,
    reference: (f64, f64),
) -> Vec<String> {
    let mut said = Vec::new();
    attained(advice, &mut said);
    bounds(advice, rehearsal, reference, &mut said);
    batches(question.backlog, advice, rehearsal, &mut said);
    loads(question, advice, &mut said);
    said
}

fn attained(advice: &Advice, said: &mut Vec<String>) {
    for class in &advice.classes {
        let (Some(objective), Some(attained)) = (class.objective, class.attained) else { continue };
        let refused = if class.refused > 0 { format!(" ({} were refused)", class.refused) } else { String::new() };
        said.push(format!(
            "{}: of {} requests {} had their first token within {}{refused}; {} should.",
            class.class.name(),
            class.requests,
            percent(attained),
            seconds(objective.ttft_s),
            percent(objective.share),
        ));
    }
}

/// Objectives that no number of phones meets.
fn bounds(advice: &Advice, rehearsal: &Rehearsal<'_>, reference: (f64, f64), said: &mut Vec<String>) {
    for class in &advice.classes {
        let (Some(at_best), Some(objective)) = (class.at_best, class.objective) else { continue };
        let of_class = rehearsal.trace.requests.iter().filter(|request| request.class == class.class as usize);
        let mut reads: Vec<(f64, u32, u32)> = of_class
            .map(|request| {
                (
                    rehearsal.alone(request, reference).0,
                    request.prompt.tokens(),
                    request.prompt.tokens() - request.spared(),
                )
            })
            .collect();
        reads.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some((read_s, tokens, fresh)) = reads.get(reads.len() / 2) else { continue };
        let warm = if fresh < tokens { format!(", {fresh} of them not cached,") } else { String::new() };
        said.push(format!(
            "{}: no number of these phones meets the objective. Even idle, the fastest of them have the first token within {} for \
             only {} of the requests: reading {tokens} tokens{warm} takes {} on a typical one. Faster phones, a smaller model, \
             shorter prompts or another objective would help; more phones would not.",
            class.class.name(),
            seconds(objective.ttft_s),
            percent(at_best),
            seconds(*read_s),
        ));
    }
}

fn batches(backlog: &[Backlog], advice: &Advice, rehearsal: &Rehearsal<'_>, said: &mut Vec<String>) {
    let late: u64 = backlog.iter().filter(|batch| batch.left_s <= 0.0).map(|batch| batch.lines).sum();
    if late > 0 {
        said.push(format!("batch: {late} lines are past their deadline; no phone brings that back."));
    }
    if !rehearsal.counts[Class::Batch as usize] {
        return;
    }
    let open = || backlog.iter().filter(|batch| batch.lines > 0 && batch.left_s > 0.0);
    let lines: u64 = open().map(|batch| batch.lines).sum();
    let soonest = open().map(|batch| batch.left_s).fold(f64::INFINITY, f64::min);
    said.push(format!(
        "batch: {lines} lines wait, {} to be done per second, each {} of a typical phone; the next deadline is in {}.",
        rounded(rehearsal.lines_per_s()),
        seconds(rehearsal.line_s()),
        seconds(soonest),
    ));
    if advice.now.0 == 0 {
        said.push("batch: nothing is done while no phone is there.".to_owned());
    }
}

fn loads(question: &Question<'_>, advice: &Advice, said: &mut Vec<String>) {
    let parts: Vec<String> = advice
        .classes
        .iter()
        .filter(|class| class.load > 0.0)
        .map(|class| format!("{} {}", class.class.name(), rounded(class.load)))
        .collect();
    let load: f64 = advice.classes.iter().map(|class| class.load).sum();
    said.push(format!(
        "The work takes the time of {} typical phones ({}), each with one request at a time and its prompt's shared part cached.",
        rounded(load),
        parts.join(", "),
    ));
    let lives = &question.usage.lives;
    let away = lives.down_s / (lives.up_s + lives.down_s).max(1.0);
    if away > 0.005 && lives.deaths > 0.0 {
        said.push(format!(
            "Phones were away {} of the time, {} at a stretch; {} is in the number, as {:.0} times may say too little.",
            percent(away),
            seconds(lives.down_s / absences(lives)),
            percent(1.0 - up(question.usage)),
            lives.deaths,
        ));
    }
    if !is_absence_known(question.usage) {
        said.push(
            "How often phones are away is not known well yet: the number may change when more of that was seen."
                .to_owned(),
        );
    }
    if advice.peak > 1.05 {
        said.push(format!(
            "Earlier in the window {} times as much came in five minutes: fewer phones than that needs are not advised.",
            rounded(advice.peak),
        ));
    }
    if !question.usage.replicas.iter().any(|phone| phone.measured) {
        said.push(
            "No phone's speed is measured yet; they are taken to be as fast as stated, or as is typical.".to_owned(),
        );
    }
    let shared = question.usage.replicas.iter().filter(|phone| phone.models > 1).count();
    if shared > 0 {
        said.push(format!(
            "{shared} of the phones serve other models too: the time that those take is not in the number."
        ));
    }
}

/// What follows, if `stands` is the number that is advised and `now` phones are there.
pub(super) fn conclusion(advice: &Advice, stands: Option<usize>, now: usize) -> Vec<String> {
    let mut said = Vec::new();
    let would = |phones: usize| {
        let outcome = advice.outcome(phones)?;
        let shares = advice.classes.iter().zip(outcome.attained);
        let shares: Vec<String> =
            shares.filter_map(|(class, share)| Some(format!("{} {}", class.class.name(), percent(share?)))).collect();
        Some(shares.join(", "))
    };
    if advice.wanted.is_none() && advice.verdict == Verdict::Unattainable && !advice.tried.is_empty() {
        let most = advice.tried.iter().map(|(phones, _)| *phones).max().unwrap_or(now);
        said.push(format!("Played again with up to {most} such phones, not every objective was met."));
    }
    let Some(wanted) = stands else { return said };
    let mut text = match wanted.cmp(&now) {
        Ordering::Equal => format!("The {now} phones that are there are what it takes"),
        Ordering::Less => format!("Phones like these that would do: {wanted}; there are {now}"),
        Ordering::Greater => format!("Phones like these that are needed: {wanted}; there are {now}"),
    };
    if let Some(shares) = would(wanted) {
        text.push_str(&format!(". Played again with {wanted}, in time: {shares}"));
    }
    let fails = advice
        .tried
        .iter()
        .filter(|(phones, outcome)| *phones < wanted && !outcome.met)
        .map(|(phones, _)| *phones)
        .max();
    if let Some((fails, shares)) = fails.and_then(|fails| Some((fails, would(fails)?))) {
        text.push_str(&format!("; with {fails}: {shares}"));
    }
    said.push(text + ".");
    if wanted > now && was_in_time(advice) {
        said.push(
            "So far every objective was met: in the plays phones are also away, as often as they are, when most comes, and this window \
             was spared that."
                .to_owned(),
        );
    }
    match advice.wanted {
        Some(last) if last > wanted => {
            said.push(format!("The last look wants {last}; that stands when a second look agrees."));
        }
        Some(last) if last < wanted => said.push(format!(
            "The last look wants {last}; fewer stand when all looks of a quarter of an hour want fewer, by more than one phone and a \
             twentieth."
        )),
        Some(_) => {}
        None => said.push(format!("The last look could not say; {wanted} is of an earlier one.")),
    }
    for kind in advice.kinds_for(stands, now).iter().filter(|kind| kind.kind == "fastest") {
        said.push(format!(
            "Or {} more like the fastest there are ({} tokens/s read, {} written).",
            kind.phones,
            rounded(kind.rates.0),
            rounded(kind.rates.1),
        ));
    }
    said
}

/// Every objective was met with the phones that there were.
fn was_in_time(advice: &Advice) -> bool {
    let promised = advice.classes.iter().filter_map(|class| Some(class.attained? >= class.objective?.share));
    promised.reduce(|all, met| all && met).unwrap_or(false)
}

fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 99.0 && percent < 99.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// A length of time as people say it.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{} s", rounded(s)),
        s if s < 180.0 => format!("{s:.0} s"),
        s if s < 2.0 * 3600.0 => format!("{:.0} min", s / 60.0),
        s => format!("{} h", rounded(s / 3600.0)),
    }
}

/// To two digits, or whole.
fn rounded(value: f64) -> String {
    match value {
        v if v >= 10.0 => format!("{v:.0}"),
        v if v >= 0.995 => trimmed(format!("{v:.1}")),
        v => trimmed(format!("{v:.2}")),
    }
}

fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
