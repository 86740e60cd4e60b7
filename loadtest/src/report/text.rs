//! Numbers and foreign text as people read them.

/// A time with three significant digits: `1.23 s`, `45.6 ms`, `2 min 05 s`.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".to_owned(),
        s if s >= 100.0 => format!("{:.0} min {:02.0} s", (s / 60.0).floor(), s.rem_euclid(60.0).floor()),
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1000.0),
        s if s >= 0.01 => format!("{:.1} ms", s * 1000.0),
        s => format!("{:.2} ms", s * 1000.0),
    }
}

/// A time with two or three significant digits, for where there is little room: `45.6 s`, `12 min`, `3.4 h`.
pub(crate) fn short_time(seconds: f64) -> String {
    match seconds {
        s if s >= 6000.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 100.0 => format!("{:.0} min", s / 60.0),
        s => time(s),
    }
}

/// A time, or a dash.
pub(crate) fn time_or_dash(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "–".to_owned(), time)
}

/// A number with thin spaces between thousands and no more digits than matter.
pub(crate) fn number(value: f64) -> String {
    if value.fract() != 0.0 && value.abs() < 1000.0 {
        let digits = if value.abs() < 1.0 { 3 } else { 2 };
        return format!("{value:.digits$}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut out = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// Text from the other side, without what a terminal or an editor might obey.
pub(crate) fn plain(text: &str) -> String {
    let obeyed = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if obeyed(c) { '·' } else { c }).collect()
}

/// Text inside HTML and its quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_can_neither_write_markup_nor_move_a_cursor() {
        assert_eq!(
            escape("<script>alert('x & \"y\"')</script>"),
            "&lt;script&gt;alert(&#39;x &amp; &quot;y&quot;&#39;)&lt;/script&gt;"
        );
        assert_eq!(plain("a\u{1b}[2Jb\r\nc\u{202e}"), "a·[2Jb··c·");
    }

    #[test]
    fn times_and_numbers_are_short() {
        assert_eq!((time(0.00123), time(0.0456), time(0.5)), ("1.23 ms".into(), "45.6 ms".into(), "500 ms".into()));
        assert_eq!((short_time(1.234), short_time(125.9)), ("1.23 s".into(), "2 min".into()));
        assert_eq!((short_time(5999.0), short_time(10_800.0)), ("100 min".into(), "3.0 h".into()));
        assert_eq!((time(1.234), time(45.67), time(125.9)), ("1.23 s".into(), "45.7 s".into(), "2 min 05 s".into()));
        assert_eq!(
            (number(1_234_567.0), number(12.0), number(0.1234)),
            ("1\u{202f}234\u{202f}567".into(), "12".into(), "0.123".into())
        );
    }
}
