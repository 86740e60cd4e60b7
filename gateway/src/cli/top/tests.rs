//! Every state of a gateway on every kind of screen.

use serde_json::json;

use super::{
    frame::Line,
    page::{page, whole},
    *,
};

const STYLE: Style = Style { colour: true, unicode: true };
const SCREEN: Size = Size { columns: 100, rows: 30 };
const NOW: f64 = 10_000.0;

fn told(events: &[(&str, Value)]) -> Glance {
    let mut glance = Glance::default();
    for (name, data) in events {
        assert!(glance.take_in(name, data.clone()), "{name}");
    }
    glance
}

fn replica(id: u32, state: &str, problem: Option<&str>) -> Value {
    let takes_work = matches!(state, "ready" | "suspect" | "probation");
    json!({
        "id": id, "name": format!("phone-{id}"), "state": state, "takes_work": takes_work, "since_s": 9_000.0, "problem": problem, "slots": 2, "usable": 2,
        "busy": id % 3 % 2, "models": ["qwen3.5-4b"], "prefill": 120.0, "decode": f64::from(id), "answers": 30, "failures": 0,
        "doing": if id % 3 % 2 == 1 { json!([{"phase": "decode", "class": "standard", "tenant": "backend", "since": 9_997.0}]) } else { json!([]) },
    })
}

fn pool(states: &[(&str, Option<&str>)]) -> Glance {
    let replicas: Vec<_> = (1..).zip(states).map(|(id, (state, problem))| replica(id, state, *problem)).collect();
    let mut counts = Map::new();
    for (state, _) in states {
        let count = counts.get(*state).and_then(Value::as_u64).unwrap_or_default();
        counts.insert((*state).to_owned(), json!(count + 1));
    }
    told(&[
        ("hello", json!({"version": "0.1.0", "started_at": 2_800.0, "now": NOW, "instance": "a"})),
        ("pool", json!({ "replicas": replicas })),
        (
            "totals",
            json!({"replicas": counts, "slots": states.len() * 2, "busy": 1, "queued": 0, "relays_down": [], "store_ok": true}),
        ),
        (
            "queue",
            json!({"by_class": [{"class": "interactive", "waiting": 0, "oldest_s": null, "estimate_s": 0.0},
            {"class": "standard", "waiting": 3, "oldest_s": 14.0, "estimate_s": 21.4}],
            "by_tenant": [{"tenant": "backend", "waiting": 3, "oldest_s": 14.0}], "others": 0,
            "by_model": [{"model": "qwen3.5-4b", "waiting": 3, "estimate_s": 21.4, "ready": 2, "slots": 4}]}),
        ),
        (
            "requests",
            json!({"total": 1, "data": [{"id": "req_1", "tenant": "backend", "model": "qwen3.5-4b", "class": "standard",
            "phase": "decode", "replica": "phone-1", "since": 9_990.0, "attempts": 1, "content_events": 12}]}),
        ),
        (
            "batches",
            json!({"data": [{"id": "batch_1", "tenant": "night", "model": null, "state": "in_progress", "total": 100,
            "completed": 40, "failed": 1, "running": 3, "eta_s": 90_000, "expires_in_s": 80_000, "waits_for": null}]}),
        ),
        (
            "history",
            json!({"every_s": 10, "points": [{"at": 9_990, "requests": 41, "failed": 0, "completion_tokens": 900,
            "ttft": {"interactive": [0.04, 1.2], "standard": null, "batch": null}}]}),
        ),
        (
            "events",
            json!({"data": [{"event": "state", "at": 60.0, "name": "phone-2", "from": "ready", "to": "out", "reason": "hard_failure",
            "detail": "nobody accepts the connection"}]}),
        ),
    ])
}

fn shown(glance: &Glance, view: &mut View, size: Size, style: Style) -> Vec<String> {
    let lines = page(glance, view, size, style, NOW, "http://127.0.0.1:9091");
    assert!(lines.len() <= size.rows, "{}", lines.len());
    for line in &lines {
        assert!(line.width() <= size.columns, "{}", line.text());
    }
    lines.iter().map(Line::text).collect()
}

fn text(glance: &Glance, view: &mut View, size: Size) -> String {
    shown(glance, view, size, STYLE).join("\n")
}

#[test]
fn an_empty_gateway_says_what_to_do() {
    let glance = told(&[
        ("hello", json!({"version": "0.1.0"})),
        ("pool", json!({"replicas": []})),
        ("totals", json!({"replicas": {"ready": 0}})),
    ]);
    let text = text(&glance, &mut View::default(), SCREEN);
    assert!(text.contains("none yet: huntgroup replicas add URL") && text.contains("nobody can say"), "{text}");
}

#[test]
fn a_healthy_gateway_at_a_glance() {
    let text = text(&pool(&[("ready", None); 4]), &mut View::default(), SCREEN);
    for words in [
        "huntgroup 0.1.0  http://127.0.0.1:9091  up 2h00m",
        "4 ready",
        "1 of 8 slots busy",
        "4.1 done/s, 90 tokens/s",
        "interactive not · standard about 22s",
        "first token interactive 40ms, 95 % within 1.2s",
        "[Replicas 4]",
        "decode 3s standard backend",
        "q quit",
    ] {
        assert!(text.contains(words), "{words}\n{text}");
    }
    assert!(!text.contains("failed"), "{text}");
}

#[test]
fn what_is_wrong_stands_first_and_can_stand_alone() {
    let glance = pool(&[
        ("ready", None),
        ("out", Some("nobody accepts the connection")),
        ("ready", None),
        ("suspect", Some("slow")),
    ]);
    let mut view = View::default();
    let rows = |view: &mut View| -> Vec<String> {
        let lines = shown(&glance, view, SCREEN, STYLE);
        lines
            .iter()
            .filter_map(|line| line.split_whitespace().next())
            .filter(|word| word.starts_with("phone-"))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(rows(&mut view), ["phone-2", "phone-4", "phone-1", "phone-3"]);
    view.filter = true;
    assert_eq!(rows(&mut view), ["phone-2", "phone-4"]);
    (view.filter, view.sort) = (false, Sort::Name);
    assert_eq!(rows(&mut view), ["phone-1", "phone-2", "phone-3", "phone-4"]);
    view.sort = Sort::Speed;
    assert_eq!(rows(&mut view), ["phone-4", "phone-3", "phone-2", "phone-1"]);
}

#[test]
fn a_relay_that_is_down_a_database_that_fails_and_a_lost_connection_are_told_on_top() {
    let mut glance = pool(&[("out", Some("its relay is down")); 3]);
    assert!(glance.take_in(
        "totals",
        json!({"replicas": {"out": 3}, "slots": 0, "relays_down": ["acu.run:443"], "store_ok": false})
    ));
    let mut view = View::default();
    let before = text(&glance, &mut view, SCREEN);
    for words in ["the relay acu.run:443 is down", "the database fails", "no phone takes work: requests fail", "3 out"]
    {
        assert!(before.contains(words), "{words}\n{before}");
    }
    let trouble = |chain| json!({"replicas": {}, "chain": chain});
    for (chain, words) in [
        (json!({"why": "the node does not answer", "seen_at": 1.0}), "the chain has not been read for "),
        (
            json!({"why": "the node does not answer"}),
            "the chain was never read: the node does not answer; its new phones",
        ),
        (
            json!({"why": "slot is not understood", "partial": true, "seen_at": 1.0}),
            "the chain is read only in part: slot is not",
        ),
    ] {
        assert!(glance.take_in("totals", trouble(chain)));
        assert!(text(&glance, &mut view, SCREEN).contains(words), "{words}");
    }
    assert!(glance.take_in("totals", trouble(Value::Null)));
    assert!(!text(&glance, &mut view, SCREEN).contains("the chain"));
    view.lost = Some("connection refused".into());
    let lost = text(&glance, &mut view, SCREEN);
    assert!(lost.contains("no connection: connection refused; trying again") && lost.contains("phone-3"), "{lost}");
    view.lost = None;
    assert!(glance.take_in("hello", json!({"version": "0.1.0", "instance": "b"})));
    assert!(text(&glance, &mut view, SCREEN).contains("it was restarted"));
}

#[test]
fn phones_that_did_not_come_back_and_phones_that_are_refused_are_told_on_top() {
    let mut glance = pool(&[("ready", None), ("joining", Some("nobody accepts the connection"))]);
    assert!(!text(&glance, &mut View::default(), SCREEN).contains("come back"));
    let mut gone = replica(2, "joining", Some("nobody accepts the connection"));
    gone["missing"] = json!(true);
    assert!(glance.take_in("delta", json!({"replicas": [gone], "gone": []})));
    let words = "1 phone has not come back since the restart 2h00m ago; phone-2: nobody accepts the connection";
    assert!(text(&glance, &mut View::default(), SCREEN).contains(words));
    let refused = |last_at: f64| json!({"refused": [{"message": "the token is wrong", "peer": "10.0.0.7", "count": 3, "last_at": last_at}]});
    assert!(glance.take_in("registration", refused(NOW - 120.0)));
    let words =
        "phones that announce themselves are refused: the token is wrong (3 times, the last 2m00s ago from 10.0.0.7)";
    assert!(text(&glance, &mut View::default(), Size { columns: 140, rows: 30 }).contains(words));
    assert!(glance.take_in("registration", refused(NOW - 4_000.0)));
    assert!(!text(&glance, &mut View::default(), SCREEN).contains("refused"), "that was long ago");
}

#[test]
fn that_many_phones_are_out_and_why_is_told_on_top_but_not_what_a_relay_explains() {
    let page = Some("a web page instead of the engine (status 502)");
    let mut glance = pool(&[("ready", None), ("ready", None), ("out", page), ("out", page), ("out", Some("its key"))]);
    let words = "3 of 5 phones are out; 2: a web page instead of the engine (status 502)";
    let shown = text(&glance, &mut View::default(), SCREEN);
    assert!(shown.contains(words), "{shown}");
    // Those that a relay has taken are told with it, also after a restart.
    let behind = |id| {
        let mut one = replica(id, "out", Some("nobody accepts the connection"));
        (one["reason"], one["missing"]) = (json!("relay_down"), json!(true));
        one
    };
    assert!(glance.take_in("delta", json!({"replicas": [behind(3), behind(4), behind(5)], "gone": []})));
    let shown = text(&glance, &mut View::default(), SCREEN);
    assert!(!shown.contains("phones are out") && !shown.contains("come back"), "{shown}");
    let single = pool(&[("ready", None), ("ready", None), ("out", page)]);
    assert!(!text(&single, &mut View::default(), SCREEN).contains("are out"), "single phones come and go");
}

#[test]
fn a_new_request_that_no_phone_could_take_is_not_said_to_wait() {
    let mut glance = pool(&[("out", Some("nobody accepts the connection")); 2]);
    let none = json!({"by_class": [{"class": "interactive", "waiting": 0, "estimate_s": null}], "refused_after_s": 30.0,
        "by_model": [{"model": "qwen3.5-4b", "waiting": 0, "estimate_s": null, "ready": 0, "slots": 0}]});
    assert!(glance.take_in("queue", none) && glance.take_in("totals", json!({"replicas": {"out": 2}, "slots": 0})));
    let shown = text(&glance, &mut View::default(), SCREEN);
    assert!(shown.contains("no phone takes work: requests fail after 30s"), "{shown}");
    assert!(
        shown.contains("a new one has no phone: requests fail after 30s") && !shown.contains("would wait"),
        "{shown}"
    );
    let queue = text(&glance, &mut View { pane: Pane::Queue, ..View::default() }, SCREEN);
    assert!(queue.contains("none: refused after 30s"), "{queue}");
}

#[test]
fn what_is_assumed_of_a_speed_is_marked_and_a_phone_that_rests_is_not_called_ready() {
    let mut resting = replica(2, "ready", Some("battery 9 %"));
    resting["takes_work"] = json!(false);
    resting["limit"] = json!({"level": "paused", "reason": "battery 9 %"});
    let mut guessed = replica(1, "ready", None);
    (guessed["decode"], guessed["decode_assumed"], guessed["prefill_assumed"]) =
        (Value::Null, json!(164.2), json!(7.0));
    let mut glance = pool(&[("ready", None), ("ready", None)]);
    assert!(glance.take_in("pool", json!({"replicas": [guessed, resting]})));
    assert!(glance.take_in("totals", json!({"replicas": {"ready": 1, "paused": 1}, "slots": 2})));
    let shown = text(&glance, &mut View::default(), SCREEN);
    let row = |name: &str| shown.lines().find(|line| line.starts_with(name)).map(str::to_owned).unwrap_or_default();
    assert!(row("phone-1").contains("120") && row("phone-1").contains("~164"), "{shown}");
    assert!(row("phone-2").contains("paused") && shown.contains("1 ready, 1 paused"), "{shown}");
    let help = text(&glance, &mut View { help: true, ..View::default() }, SCREEN);
    assert!(help.contains("~: not yet"), "{help}");
}

#[test]
fn cost_and_advice_have_a_line_each_where_something_is_known() {
    let mut glance = pool(&[("ready", None)]);
    let before = text(&glance, &mut View::default(), SCREEN);
    assert!(!before.contains("ACU") && !before.contains("wanted"), "{before}");
    assert!(glance.take_in("cost", json!({"per_day": 8.0, "total": 7.9, "per_million_tokens": {"total": 0.21}})));
    let advice = json!({"data": [{"model": "a", "verdict": "fewer", "now": {"phones": 4}, "wanted": 1},
        {"model": "b", "verdict": "more", "now": {"phones": 3}, "wanted": 5}, {"model": "c", "verdict": "unknown", "now": {"phones": 1}, "wanted": null}]});
    assert!(glance.take_in("advice", advice));
    let shown = text(&glance, &mut View::default(), SCREEN);
    assert!(shown.contains("cost      8.00 ACU a day, 7.90 in the last 24 h, 0.210 per million tokens"), "{shown}");
    assert!(
        shown.contains("wanted    b 5 phones, 3 there, none serving · a 1 phone, 4 there, none serving\n"),
        "{shown}"
    );
    let serving =
        |id: u64, takes_work| json!({"id": id, "name": format!("s-{id}"), "models": ["a"], "takes_work": takes_work});
    let one = json!({"replicas": [serving(91, true), serving(92, false)]});
    assert!(glance.take_in("delta", one));
    assert!(text(&glance, &mut View::default(), SCREEN).contains("a 1 phone, 4 there, 1 serving\n"));
    let all: Vec<_> = (91..=94).map(|id| serving(id, true)).collect();
    assert!(glance.take_in("delta", json!({ "replicas": all })));
    assert!(text(&glance, &mut View::default(), SCREEN).contains("a 1 phone, 4 there\n"));
    assert!(glance.take_in("cost", json!({"per_day": null, "per_million_tokens": {}})));
    assert!(!text(&glance, &mut View::default(), SCREEN).contains("ACU"));
}

#[test]
fn a_thousand_replicas_scroll_and_the_row_stays_in_sight() {
    let glance = pool(&[("ready", None); 1000]);
    let mut view = View { sort: Sort::Name, ..View::default() };
    for place in [0, 10, 500, 999, 5000, 3] {
        view.chosen = place;
        let lines = page(&glance, &mut view, SCREEN, STYLE, NOW, "");
        let chosen: Vec<_> = lines.iter().filter(|line| line.chosen).collect();
        assert_eq!(chosen.len(), 1, "{place}");
        let name = page::chosen(&glance, &view).unwrap().name.clone();
        assert!(chosen[0].text().starts_with(&name), "{place}: {}", chosen[0].text());
    }
    assert_eq!(
        whole(&glance, 100, STYLE, NOW, "").iter().filter(|line| line.text().starts_with("phone-")).count(),
        1000
    );
}

#[test]
fn every_pane_fits_every_screen() {
    let full = pool(&[("ready", None), ("out", Some("手机 nobody accepts the connection")), ("draining", None)]);
    for glance in [Glance::default(), full] {
        for pane in Pane::ALL {
            for (columns, rows) in [(40, 12), (80, 24), (200, 60), (20, 3), (1, 1)] {
                let mut view = View { pane, ..View::default() };
                let lines = shown(&glance, &mut view, Size { columns, rows }, STYLE);
                assert!(!lines.is_empty());
                view.help = true;
                shown(&glance, &mut view, Size { columns, rows }, STYLE);
            }
        }
    }
}

#[test]
fn a_small_screen_still_shows_names_states_and_what_is_wrong() {
    let glance = pool(&[("ready", None), ("out", Some("nobody accepts the connection"))]);
    let text = text(&glance, &mut View::default(), Size { columns: 40, rows: 12 });
    assert!(text.contains("phone-2  out") && text.contains("nobody") && text.contains("phone-1  ready"), "{text}");
}

#[test]
fn a_terminal_without_unicode_gets_ascii_alone() {
    let mut glance = pool(&[("ready", None), ("out", Some("手机"))]);
    assert!(glance.take_in("point", json!({"at": 1, "requests": 3})));
    for pane in Pane::ALL {
        let lines =
            shown(&glance, &mut View { pane, ..View::default() }, SCREEN, Style { colour: false, unicode: false });
        assert!(lines.iter().all(|line| line.is_ascii()), "{lines:#?}");
    }
}

#[test]
fn what_phones_and_clients_wrote_can_not_steer_the_terminal() {
    let evil = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}A\r\n";
    let glance = told(&[
        ("hello", json!({ "version": evil })),
        ("pool", json!({"replicas": [{"id": 1, "name": evil, "state": evil, "problem": evil, "models": [evil]}]})),
        ("totals", json!({"replicas": { evil: 1 }, "relays_down": [evil]})),
        ("queue", json!({"by_class": [{"class": evil, "waiting": 1}], "by_tenant": [{"tenant": evil, "waiting": 1}]})),
        (
            "requests",
            json!({"total": 1, "data": [{"id": evil, "tenant": evil, "model": evil, "phase": evil, "replica": evil}]}),
        ),
        ("registration", json!({"refused": [{"message": evil, "peer": evil, "count": 2, "last_at": NOW}]})),
        ("advice", json!({"data": [{"model": evil, "verdict": evil, "wanted": 2}]})),
        ("batches", json!({"data": [{"id": evil, "tenant": evil, "state": evil, "waits_for": evil}]})),
        ("events", json!({"data": [{"event": evil, "name": evil, "detail": evil, "from": evil, "to": evil}]})),
    ]);
    for pane in Pane::ALL {
        let mut view = View { pane, lost: Some(evil.into()), ..View::default() };
        for line in shown(&glance, &mut view, SCREEN, STYLE) {
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
        view.question = Some(format!("Drain {evil}?"));
        assert!(!shown(&glance, &mut view, SCREEN, STYLE).join("").chars().any(char::is_control));
    }
}

fn top(glance: Glance) -> Top {
    let args = super::super::client::AdminArgs { url: "http://127.0.0.1:1".into(), token: None };
    let client = AdminClient::from_args(&args).unwrap();
    Top {
        client,
        address: String::new(),
        glance,
        view: View { sort: Sort::Name, ..View::default() },
        asked: None,
        pending: None,
    }
}

#[test]
fn keys_move_and_a_change_waits_for_a_yes() {
    let mut top = top(pool(&[("ready", None); 50]));
    let typed = |top: &mut Top, key| top.key(key, SCREEN);
    for code in [Key::Down, Key::PageDown, Key::Up, Key::Letter('?'), Key::Letter('q')] {
        assert_eq!(typed(&mut top, code), None);
    }
    assert_eq!((top.view.chosen, top.view.help), (21, false));
    let name = page::chosen(&top.glance, &top.view).unwrap().name.clone();
    for no in [Key::Letter('n'), Key::Other, Key::Down, Key::Letter('q')] {
        assert_eq!(typed(&mut top, Key::Letter('d')), None);
        assert_eq!(top.view.question.as_deref(), Some(&*format!("Drain {name}?")));
        assert_eq!(typed(&mut top, no), None);
        assert_eq!(top.view.question, None);
    }
    typed(&mut top, Key::Letter('d'));
    let id = page::chosen(&top.glance, &top.view).unwrap().id;
    // The replica that was asked about, whatever stands in that row by now.
    top.view.sort = Sort::Speed;
    assert_eq!(typed(&mut top, Key::Letter('y')), Some(Act::Change("drain", id, name)));
    typed(&mut top, Key::Tab);
    typed(&mut top, Key::Letter('u'));
    assert!(top.view.question.is_none() && top.view.remark.is_some());
    assert_eq!(typed(&mut top, Key::Letter('q')), Some(Act::Quit));
}

#[test]
fn the_environment_says_what_the_terminal_can_show() {
    let of = |stated: &[(&str, &str)]| {
        style(&|name| stated.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    };
    assert_eq!(of(&[("LANG", "en_GB.UTF-8")]), Style { colour: true, unicode: true });
    assert_eq!(of(&[("LANG", "C"), ("NO_COLOR", "1")]), Style { colour: false, unicode: false });
    assert_eq!(
        of(&[("LC_ALL", "C"), ("LANG", "en_GB.UTF-8"), ("NO_COLOR", "")]),
        Style { colour: true, unicode: false }
    );
    assert_eq!(of(&[("LANG", "C.utf8"), ("TERM", "dumb")]), Style { colour: false, unicode: false });
}
