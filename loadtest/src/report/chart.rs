//! A small drawing board for charts: SVG written by hand, coloured by the page's style.
//!
//! A report must open from a mail, on a machine without a network, in ten years: no script, no font, no library. Marks
//! carry classes (`c0`, `c1`, … for series, `bad` for errors), and the page's style gives them colours for light and dark.

use super::text::escape;
use std::fmt::Write as _;

/// How values become positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    /// Evenly, from the first to the second.
    Linear(f64, f64),
    /// By the logarithm; both above 0.
    Log(f64, f64),
}

impl Scale {
    /// From 0 to a little above `max`.
    pub(crate) fn up_to(max: f64) -> Self {
        let step = step_for(max.max(1e-9), 5.0);
        Self::Linear(0.0, (max.max(1e-9) / step).ceil() * step)
    }

    /// Whole steps of 1, 2, 5 around all of `values` above 0.
    pub(crate) fn log_around(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = values
            .filter(|value| *value > 0.0)
            .fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            return Self::Log(0.1, 10.0);
        }
        let down = log_steps(low / 10.0, low).last().copied().unwrap_or(low);
        let up = log_steps(high, high * 10.0).first().copied().unwrap_or(high);
        if up > down { Self::Log(down, up) } else { Self::Log(down / 2.0, up * 2.0) }
    }

    /// Where a value lies, from 0 to 1.
    pub(crate) fn share(self, value: f64) -> f64 {
        let share = match self {
            Self::Linear(low, high) => (value - low) / (high - low),
            Self::Log(low, high) => (value.max(low) / low).ln() / (high / low).ln(),
        };
        share.clamp(0.0, 1.0)
    }

    /// Round values to mark.
    pub(crate) fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear(low, high) => {
                let step = step_for(high - low, 5.0);
                (0..=((high - low) / step + 0.5) as usize).map(|n| low + n as f64 * step).collect()
            }
            Self::Log(low, high) => {
                let all = log_steps(low, high);
                let decades: Vec<f64> = all.iter().copied().filter(|tick| is_decade(*tick)).collect();
                if all.len() > 9 && decades.len() > 2 { decades } else { all }
            }
        }
    }
}

fn is_decade(value: f64) -> bool {
    let exponent = value.log10();
    (exponent - exponent.round()).abs() < 1e-6
}

/// 1, 2 and 5 times powers of ten within the limits, which may be off by rounding.
fn log_steps(low: f64, high: f64) -> Vec<f64> {
    let first = low.log10().floor() as i32;
    let last = high.log10().ceil() as i32;
    let within = |value: &f64| *value >= low * 0.999_999 && *value <= high * 1.000_001;
    (first..=last).flat_map(|decade| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(decade))).filter(within).collect()
}

/// The round step that cuts `span` into about `parts`, rather a few more than a few less.
fn step_for(span: f64, parts: f64) -> f64 {
    let raw = span / parts;
    let decade = 10_f64.powf(raw.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * decade >= raw * 0.7);
    round.unwrap_or(10.0) * decade
}

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 38.0;

/// A chart being drawn.
pub(crate) struct Chart {
    svg: String,
    x: Scale,
    y: Scale,
}

impl Chart {
    /// Axes with a grid. `label` says what the chart shows, for those who don't see it; `x_name` stands under the axis;
    /// `mark` writes the ticks of each axis.
    pub(crate) fn new(label: &str, x: Scale, y: Scale, x_name: &str, mark: [fn(f64) -> String; 2]) -> Self {
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">", escape(label));
        let mut chart = Self { svg: String::new(), x, y };
        for tick in y.ticks() {
            let at = chart.y_of(tick);
            let text = mark[1](tick);
            write!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - RIGHT).ok();
            write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                escape(&text)
            )
            .ok();
        }
        for tick in x.ticks() {
            let at = chart.x_of(tick);
            let text = mark[0](tick);
            write!(svg, "<path class=\"grid\" d=\"M{at:.1} {TOP}V{:.1}\"/>", HEIGHT - BOTTOM).ok();
            write!(
                svg,
                "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                HEIGHT - BOTTOM + 15.0,
                escape(&text)
            )
            .ok();
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        write!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>", HEIGHT - 5.0, escape(x_name))
            .ok();
        chart.svg = svg;
        chart
    }

    fn x_of(&self, value: f64) -> f64 {
        LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y_of(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM)
    }

    fn path(&self, points: impl Iterator<Item = (f64, f64)>) -> String {
        let mut path = String::new();
        for (x, y) in points {
            let start = if path.is_empty() { 'M' } else { 'L' };
            write!(path, "{start}{:.1} {:.1}", self.x_of(x), self.y_of(y)).ok();
        }
        path
    }

    /// A line through points.
    pub(crate) fn line(&mut self, class: &str, points: &[(f64, f64)]) {
        let path = self.path(points.iter().copied());
        write!(self.svg, "<path class=\"line {class}\" d=\"{path}\"/>").ok();
    }

    /// A line through points that says its name on hover.
    pub(crate) fn named_line(&mut self, class: &str, name: &str, points: &[(f64, f64)]) {
        let path = self.path(points.iter().copied());
        write!(self.svg, "<path class=\"line {class}\" d=\"{path}\"><title>{}</title></path>", escape(name)).ok();
    }

    /// The area between two curves over the same places.
    pub(crate) fn area(&mut self, class: &str, low: &[(f64, f64)], high: &[(f64, f64)]) {
        let path = self.path(high.iter().copied().chain(low.iter().rev().copied()));
        write!(self.svg, "<path class=\"area {class}\" d=\"{path}Z\"/>").ok();
    }

    /// A bar from `low` to `high` over the places `from..to`.
    pub(crate) fn bar(&mut self, class: &str, from: f64, to: f64, low: f64, high: f64) {
        let (left, right) = (self.x_of(from), self.x_of(to));
        let (top, bottom) = (self.y_of(high), self.y_of(low));
        let gap = if right - left > 4.0 { 0.8 } else { 0.0 };
        let (width, height) = ((right - left - gap).max(0.5), bottom - top);
        write!(
            self.svg,
            "<rect class=\"bar {class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        )
        .ok();
    }

    /// A dot, or a cross for what went wrong.
    pub(crate) fn dot(&mut self, class: &str, x: f64, y: f64, cross: bool) {
        let (x, y) = (self.x_of(x), self.y_of(y));
        if cross {
            write!(self.svg, "<path class=\"cross\" d=\"M{:.1} {:.1}l6 6m0-6l-6 6\"/>", x - 3.0, y - 3.0).ok();
        } else {
            write!(self.svg, "<circle class=\"dot {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.7\"/>").ok();
        }
    }

    /// A mark over the whole height at a place, with a text that shows on hover.
    pub(crate) fn event(&mut self, at: f64, text: &str) {
        let x = self.x_of(at);
        let bottom = HEIGHT - BOTTOM;
        write!(
            self.svg,
            "<g class=\"event\"><title>{}</title><path d=\"M{x:.1} {TOP}V{bottom}\"/><path class=\"flag\" d=\"M{x:.1} {TOP}l7 3.5l-7 3.5Z\"/></g>",
            escape(text)
        )
        .ok();
    }

    /// A text that shows on hover over the places `from..to`.
    pub(crate) fn hint(&mut self, from: f64, to: f64, text: &str) {
        let (left, right) = (self.x_of(from), self.x_of(to));
        let height = HEIGHT - BOTTOM - TOP;
        write!(
            self.svg,
            "<rect class=\"hint\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{height}\"><title>{}</title></rect>",
            (right - left).max(0.5),
            escape(text)
        )
        .ok();
    }

    /// The finished SVG.
    pub(crate) fn finish(mut self) -> String {
        self.svg.push_str("</svg>");
        self.svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_end_on_round_numbers_around_their_values() {
        assert_eq!(Scale::up_to(87.0), Scale::Linear(0.0, 100.0));
        assert_eq!(Scale::up_to(0.0).share(0.0), 0.0);
        assert_eq!(Scale::log_around([0.03, 4.0].into_iter()), Scale::Log(0.02, 5.0));
        assert_eq!(Scale::log_around(std::iter::empty()), Scale::Log(0.1, 10.0));
        let Scale::Log(low, high) = Scale::log_around([1.0, 1.0].into_iter()) else { panic!("not logarithmic") };
        assert!(low < 1.0 && high > 1.0);
    }

    #[test]
    fn values_outside_a_scale_stay_inside_the_chart() {
        assert_eq!(Scale::Log(0.1, 10.0).share(0.0), 0.0);
        assert_eq!(Scale::Linear(0.0, 1.0).share(7.0), 1.0);
        assert!((Scale::Log(0.1, 10.0).share(1.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(Scale::Linear(0.0, 100.0).ticks(), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert!(Scale::Log(0.001, 100.0).ticks().iter().all(|tick| is_decade(*tick)));
        assert_eq!(Scale::Log(0.02, 0.2).ticks().len(), 4);
    }

    #[test]
    fn foreign_text_in_a_chart_is_escaped() {
        let mark: [fn(f64) -> String; 2] = [|_| "<i>".into(), |_| String::new()];
        let mut chart = Chart::new("a\"b", Scale::up_to(1.0), Scale::up_to(1.0), "<x>", mark);
        chart.event(0.5, "<script>");
        chart.hint(0.0, 1.0, "</title>");
        let svg = chart.finish();
        assert!(!svg.contains("<script>") && !svg.contains("<i>") && !svg.contains("<x>") && svg.contains("a&quot;b"));
        assert_eq!(svg.matches("</title>").count(), 2);
    }
}
