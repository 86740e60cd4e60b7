//! Bars beside names: what each policy makes of a class, and where the bound is.

use crate::report::{Scale, escape, short_time, tick_time, time};
use std::fmt::Write as _;

/// One row.
pub(super) struct Bar {
    /// Its name.
    pub(super) name: String,
    /// The inner, darker bar.
    pub(super) inner: f64,
    /// The outer, lighter one.
    pub(super) outer: f64,
    /// What shows on hover.
    pub(super) hint: String,
}

const WIDTH: f64 = 560.0;
const LEFT: f64 = 172.0;
const RIGHT: f64 = 104.0;
const ROW: f64 = 19.0;
const TOP: f64 = 6.0;
const BOTTOM: f64 = 24.0;
/// From this ratio of the longest to the shortest on, lengths are by the logarithm: the shortest would be a hair.
const FAR: f64 = 25.0;

/// Whether the bars need a logarithmic axis.
fn is_far(values: impl Iterator<Item = f64>) -> bool {
    let (low, high) = values
        .filter(|value| *value > 0.0)
        .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    high > FAR * low
}

/// The drawing: a row for each bar, and a line over all at `bound`. `label` says what it shows to those who don't see it.
pub(super) fn bars(label: &str, rows: &[Bar], bound: Option<f64>) -> String {
    let values = || rows.iter().flat_map(|bar| [bar.inner, bar.outer]).chain(bound);
    let scale = if is_far(values()) { Scale::log_around(values()) } else { Scale::up_to(values().fold(0.0, f64::max)) };
    let bottom = TOP + ROW * rows.len() as f64;
    let height = bottom + BOTTOM;
    let x = |value: f64| LEFT + scale.share(value) * (WIDTH - LEFT - RIGHT);
    let mut svg =
        format!("<svg class=\"bars\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">", escape(label));
    for tick in scale.ticks() {
        let at = x(tick);
        write!(svg, "<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom}\"/>").ok();
        write!(svg, "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>", bottom + 15.0, tick_time(tick))
            .ok();
    }
    for (index, bar) in rows.iter().enumerate() {
        let top = TOP + ROW * index as f64;
        let middle = top + ROW / 2.0;
        let width = |value: f64| (x(value) - LEFT).max(0.5);
        write!(
            svg,
            "<text class=\"name\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect class=\"bar c0 outer\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
             <rect class=\"bar c0\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} · {}</text>\
             <rect class=\"hint\" x=\"0\" y=\"{top:.1}\" width=\"{WIDTH}\" height=\"{ROW}\"><title>{}</title></rect>",
            LEFT - 8.0,
            middle + 4.0,
            escape(&bar.name),
            top + 2.5,
            width(bar.outer),
            ROW - 5.0,
            top + 5.5,
            width(bar.inner),
            ROW - 11.0,
            WIDTH - 2.0,
            middle + 4.0,
            short_time(bar.inner),
            short_time(bar.outer),
            escape(&bar.hint)
        )
        .ok();
    }
    if let Some(bound) = bound {
        let at = x(bound);
        write!(svg, "<path class=\"bound\" d=\"M{at:.1} {TOP}V{bottom}\"><title>bound: {}</title></path>", time(bound))
            .ok();
    }
    svg.push_str("</svg>");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, inner: f64, outer: f64) -> Bar {
        Bar { name: name.into(), inner, outer, hint: format!("{name}: {inner}") }
    }

    #[test]
    fn every_policy_has_a_row_and_the_bound_a_line() {
        let svg = bars("times", &[bar("a", 1.0, 2.0), bar("b", 3.0, 4.0)], Some(0.5));
        assert_eq!((svg.matches("class=\"bar c0\"").count(), svg.matches("class=\"bound\"").count()), (2, 1));
        assert_eq!(svg.matches("class=\"bound\"").count(), 1);
        assert!(svg.contains("1.00 s · 2.00 s"), "{svg}");
        assert!(!bars("times", &[bar("a", 1.0, 2.0)], None).contains("class=\"bound\""));
    }

    #[test]
    fn the_axis_is_logarithmic_only_where_lengths_would_vanish() {
        assert!(!is_far([1.0, 20.0, 0.0].into_iter()));
        assert!(is_far([1.0, 30.0].into_iter()));
    }

    #[test]
    fn foreign_names_stay_text() {
        let svg = bars("<x>", &[bar("<script>", 1.0, 2.0)], None);
        assert!(!svg.contains("<script>") && !svg.contains("<x>"));
    }
}
