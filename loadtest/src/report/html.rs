//! The report as one page that needs nothing but itself.

use super::{
    Plot, Report, plots,
    text::{escape, number, time, time_or_dash},
};
use crate::scenario::Point;
use std::fmt::Write as _;

/// The whole page.
pub(crate) fn page(report: &Report) -> String {
    let mut body = String::new();
    header(&mut body, report);
    tiles(&mut body, report);
    expectations(&mut body, report);
    classes(&mut body, report);
    body.push_str("<section class=\"plots\">");
    for plot in plots::all(report) {
        figure(&mut body, &plot);
    }
    body.push_str("</section>");
    errors(&mut body, report);
    events(&mut body, report);
    waste(&mut body, report);
    if !report.phones.is_empty() {
        write!(
            body,
            "<section><h2>Phones</h2><p class=\"note\">A cell a phone: the number is its answers, the filling how busy its \
             slots were on average. Point at one for more.</p>{}</section>",
            plots::phones(report)
        )
        .ok();
    }
    shell(&report.scenario, &body)
}

/// A page around its contents, with the style of all pages.
pub(crate) fn shell(title: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>{} – load test</title><style>{STYLE}</style></head>\
         <body><main>{body}</main></body></html>\n",
        escape(title)
    )
}

fn header(out: &mut String, report: &Report) {
    let (class, verdict) = if report.passed { ("good", "passed") } else { ("bad", "failed") };
    write!(
        out,
        "<header><h1>{} <span class=\"verdict {class}\">{verdict}</span></h1><p>{}</p><p class=\"note\">Played {} against {} \
         on {} UTC, seed {}; work arrived for {}, the last answer came after {}.{}</p></header>",
        escape(&report.scenario),
        escape(&report.why).replace("··", "<br>").replace('·', " "),
        report.played,
        escape(&report.target),
        date(report.started_unix),
        report.seed,
        time(report.duration_s),
        time(report.elapsed_s),
        if report.warmup_s > 0.0 {
            format!(" Times leave out requests of the first {}.", time(report.warmup_s))
        } else {
            String::new()
        }
    )
    .ok();
}

/// `2026-11-30 09:15` of seconds since 1970 (Howard Hinnant's days-to-civil algorithm).
pub(crate) fn date(unix: u64) -> String {
    let (days, seconds) = (unix / 86_400 + 719_468, unix % 86_400);
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", seconds / 3600, seconds / 60 % 60)
}

fn tile(out: &mut String, value: &str, name: &str, class: &str) {
    write!(out, "<div class=\"tile {class}\"><b>{value}</b><span>{name}</span></div>").ok();
}

fn tiles(out: &mut String, report: &Report) {
    let totals = &report.totals;
    let alarm = |bad: bool| if bad { "bad" } else { "" };
    out.push_str("<section class=\"tiles\">");
    tile(out, &number((totals.requests - totals.errors) as f64), "right answers", "");
    tile(out, &number(totals.errors as f64), "errors", alarm(totals.errors > 0));
    tile(out, &number(totals.throughput_rps), "answers a second", "");
    tile(out, &number(totals.tokens_per_s), "tokens a second", "");
    tile(out, &number(totals.second_attempts as f64), "second attempts", "");
    if let Some(over) = totals.over_subscribed {
        tile(out, &number(over as f64), "over-subscribed", alarm(over > 0));
    }
    if let Some(waste) = &report.waste {
        tile(out, &format!("{:.1} %", waste.wasted_tokens_share * 100.0), "tokens wasted", "");
    }
    out.push_str("</section>");
}

fn expectations(out: &mut String, report: &Report) {
    if report.expectations.is_empty() {
        return;
    }
    out.push_str("<section><h2>Expected</h2><ul class=\"checks\">");
    for outcome in &report.expectations {
        let (class, mark) = if outcome.holds { ("good", "✓") } else { ("bad", "✗") };
        write!(
            out,
            "<li><span class=\"{class}\">{mark}</span> {} is <b>{}</b>, expected {}</li>",
            escape(&outcome.what.replace('_', " ")),
            escape(&outcome.shown()),
            escape(&outcome.wanted())
        )
        .ok();
    }
    out.push_str("</ul></section>");
}

fn classes(out: &mut String, report: &Report) {
    out.push_str(
        "<section><h2>Classes</h2><div class=\"scroll\"><table><thead><tr><th rowspan=\"2\">class<th rowspan=\"2\">requests\
         <th rowspan=\"2\">errors<th colspan=\"3\">time to first token<th colspan=\"4\">time to the whole answer<th>queue\
         <th>pause<th rowspan=\"2\">good</tr><tr><th>p50<th>p90<th>p99<th>p50<th>p90<th>p99<th>max<th>p99<th>p99</tr></thead>",
    );
    for (index, class) in report.classes.iter().enumerate() {
        write!(
            out,
            "<tr><td><i class=\"key {}\"></i>{}<td>{}<td{}>{}",
            plots::colour(index),
            escape(&class.name),
            number(class.requests as f64),
            if class.errors > 0 { " class=\"bad\"" } else { "" },
            number(class.errors as f64)
        )
        .ok();
        let times = [
            class.ttft.at(Point::P50),
            class.ttft.at(Point::P90),
            class.ttft.at(Point::P99),
            class.total.at(Point::P50),
            class.total.at(Point::P90),
            class.total.at(Point::P99),
            class.total.at(Point::Max),
            class.queue.at(Point::P99),
            class.gap.at(Point::P99),
        ];
        for value in times {
            write!(out, "<td>{}", time_or_dash(value)).ok();
        }
        write!(out, "<td>{}</tr>", class.good.map_or_else(|| "–".to_owned(), |good| format!("{:.1} %", good * 100.0)))
            .ok();
    }
    out.push_str("</table></div></section>");
}

/// A plot with its title and legend.
pub(crate) fn figure(out: &mut String, plot: &Plot) {
    write!(
        out,
        "<figure><figcaption><h2>{}</h2><p class=\"note\">{}</p></figcaption>{}<p class=\"legend\">",
        escape(&plot.title),
        plot.note,
        plot.svg
    )
    .ok();
    for (class, name) in &plot.legend {
        write!(out, "<span><i class=\"key {class}\"></i>{}</span>", escape(name)).ok();
    }
    out.push_str("</p></figure>");
}

fn errors(out: &mut String, report: &Report) {
    if report.errors.is_empty() {
        return;
    }
    out.push_str("<section><h2>Errors by kind</h2><div class=\"scroll\"><table class=\"texts\"><tr><th>kind<th>count<th>first<th>last<th>the first, in words</tr>");
    for error in &report.errors {
        write!(
            out,
            "<tr><td class=\"bad\">{}<td>{}<td>{}<td>{}<td>{}</tr>",
            escape(&error.kind),
            number(error.count as f64),
            time(error.first_at_s),
            time(error.last_at_s),
            escape(&error.example)
        )
        .ok();
    }
    out.push_str("</table></div></section>");
}

fn events(out: &mut String, report: &Report) {
    if report.events.is_empty() {
        return;
    }
    out.push_str("<section><h2>What was done to the fleet</h2><p class=\"note\">The flags in the plots.</p><table class=\"texts\">");
    for event in &report.events {
        let (class, prefix) = if event.failed { (" class=\"bad\"", "not done: ") } else { ("", "") };
        write!(out, "<tr><td>{:.1} s<td{class}>{prefix}{}</tr>", event.at_s, escape(&event.what)).ok();
    }
    out.push_str("</table></section>");
}

fn waste(out: &mut String, report: &Report) {
    let Some(waste) = &report.waste else {
        out.push_str("<section><p class=\"note\">The phones were not seen, so over-subscription and waste are unknown.</p></section>");
        return;
    };
    let share = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
    let rows = [
        ("attempts answered whole", waste.completed, waste.attempts),
        ("attempts the gateway left", waste.cancelled, waste.attempts),
        ("attempts ended by a fault", waste.failed, waste.attempts),
        ("attempts lost with their phone", waste.lost, waste.attempts),
        ("tokens written for nothing", waste.wasted_tokens, waste.written_tokens),
        ("prompt tokens read for nothing", waste.wasted_prompt_tokens, waste.prompt_tokens),
        ("prompt tokens found in a cache", waste.cached_tokens, waste.prompt_tokens),
    ];
    out.push_str("<section><h2>Work of the phones</h2><table class=\"shares\">");
    for (name, part, of) in rows {
        let percent = share(part, of);
        write!(
            out,
            "<tr><td>{name}<td>{}<td>of {}<td><div class=\"share\"><i style=\"width:{percent:.1}%\"></i></div><td>{percent:.1} %</tr>",
            number(part as f64),
            number(of as f64)
        )
        .ok();
    }
    out.push_str("</table>");
    if let Some(seconds) = waste.wasted_prefill_s.filter(|seconds| *seconds > 0.0) {
        write!(out, "<p class=\"note\">Reading for nothing took the phones about {} together.</p>", time(seconds)).ok();
    }
    out.push_str("</section>");
}

const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        client::{Failure, Reply},
        ledger::{Ledger, Sent},
        observed::{Event, Observed, PhoneCounts},
        report::{Meta, build},
        scenario::read,
    };

    fn hostile() -> Report {
        const TAG: &str = "<img src=x onerror=alert(1)>";
        let mut scenario = read(
            "name='t'\nwhy='t'\nduration='1s'\n[fleet]\n[[fleet.phones]]\nname='p'\ncount=1\nmodel='m'\nspeed='4b'\n\
             [[classes]]\nname='c'\nmodel='m'\narrivals={clients=1}\nprompt=1\nanswer=1\n[expect.classes.c]\np99={max=3}\n",
        )
        .expect("a good scenario");
        for text in [&mut scenario.name, &mut scenario.why, &mut scenario.classes[0].name] {
            *text = TAG.to_owned();
        }
        scenario.fleet.groups[0].name = TAG.to_owned();
        let ledger = Ledger::default();
        let sent = Sent { class: 0, start_s: 0.5, prompt_tokens: 1, answer_tokens: 1 };
        let reply = Reply { total_s: 0.1, ttft_s: Some(0.05), ..Reply::default() };
        ledger.enter(sent, &reply, &Ok(()));
        ledger.enter(sent, &reply, &Err(Failure::Status { status: 500, code: TAG.into(), message: TAG.into() }));
        let phone = PhoneCounts { name: TAG.into(), group: Some(0), slots: 1, ..PhoneCounts::default() };
        let events = vec![Event { at_s: 0.2, what: TAG.into(), failed: true }];
        let observed = Observed { phones: vec![phone], events, ..Observed::default() };
        let meta = Meta { played: "live", target: TAG.into(), started_unix: 0, elapsed_s: 1.0 };
        build(&scenario, &ledger.take(), observed, meta)
    }

    #[test]
    fn foreign_text_anywhere_in_a_report_stays_text_in_the_page() {
        let page = page(&hostile());
        assert!(!page.contains("<img"), "{page}");
        assert!(page.matches("&lt;img src=x").count() >= 8, "each place shows the text itself");
        assert!(page.contains("not done: "));
    }

    #[test]
    fn tags_of_the_page_are_closed() {
        let page = page(&hostile());
        for tag in ["main", "section", "figure", "svg", "table", "div", "header", "ul", "style"] {
            let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(951_782_399), "2000-02-28 23:59");
        assert_eq!(date(951_782_400), "2000-02-29 00:00");
        assert_eq!(date(1_798_761_599), "2026-12-31 23:59");
    }
}
