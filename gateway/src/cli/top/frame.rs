//! Lines of text with a tone, cut to a width. Everything that is shown goes through [`Line::push`], the one place where what phones
//! and clients wrote loses whatever a terminal could take for a command.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::super::table::{Align, printable};

/// How a piece of text is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Dim,
    Bold,
    Good,
    Warn,
    Bad,
}

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    pub colour: bool,
    pub unicode: bool,
}

/// A line on its way to the terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pieces: Vec<(Tone, String)>,
    /// The operator is on it.
    pub chosen: bool,
}

impl Line {
    pub fn push(&mut self, tone: Tone, text: &str) {
        if !text.is_empty() {
            self.pieces.push((tone, printable(text)));
        }
    }

    pub fn with(mut self, tone: Tone, text: &str) -> Self {
        self.push(tone, text);
        self
    }

    pub fn pieces(&self) -> impl Iterator<Item = (Tone, &str)> {
        self.pieces.iter().map(|(tone, text)| (*tone, &**text))
    }

    pub fn text(&self) -> String {
        self.pieces.iter().map(|(_, text)| text.as_str()).collect()
    }

    pub fn width(&self) -> usize {
        self.pieces.iter().map(|(_, text)| text.width()).sum()
    }

    /// At most so many columns, with a mark where something is missing; without letters that the terminal can't show.
    pub fn cut(mut self, columns: usize, style: Style) -> Self {
        if !style.unicode {
            for (_, text) in &mut self.pieces {
                *text = text.chars().map(plain).collect();
            }
        }
        if self.width() <= columns {
            return self;
        }
        let mut room = columns.saturating_sub(1);
        for (_, text) in &mut self.pieces {
            let fits = fitted(text, room);
            // Nothing stands behind what is cut, though it may be narrow enough.
            room = if fits.len() < text.len() { 0 } else { room - fits.width() };
            *text = fits.to_owned();
        }
        self.pieces.retain(|(_, text)| !text.is_empty());
        if columns > 0 {
            self.push(Tone::Dim, if style.unicode { "…" } else { "~" });
        }
        self
    }
}

/// The letter for a terminal that knows ASCII alone.
fn plain(letter: char) -> char {
    match letter {
        '·' => '|',
        '…' => '~',
        '─' => '-',
        letter if letter.is_ascii() => letter,
        _ => '?',
    }
}

/// As much of the text as fits.
fn fitted(text: &str, columns: usize) -> &str {
    let mut width = 0;
    for (at, letter) in text.char_indices() {
        width += letter.width().unwrap_or_default();
        if width > columns {
            return &text[..at];
        }
    }
    text
}

/// The text in exactly so many columns.
fn padded(text: &str, columns: usize, align: Align) -> String {
    let text = fitted(text, columns);
    let room = " ".repeat(columns - text.width());
    match align {
        Align::Left => text.to_owned() + &room,
        Align::Right => room + text,
    }
}

/// A column: its heading, and when a narrow terminal does without it (the largest number first; 0: never).
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub heading: &'static str,
    pub align: Align,
    pub spared: u8,
}

/// Widest of all columns but the last: a name of 200 letters must not push out the rest.
const WIDEST: usize = 32;

/// Rows of cells as lines, the heading first. The last column has what is left of the width.
pub fn grid(columns: &[Column], rows: &[Vec<(Tone, String)>], width: usize) -> Vec<Line> {
    let rows: Vec<Vec<(Tone, String)>> =
        rows.iter().map(|row| row.iter().map(|(tone, text)| (*tone, printable(text))).collect()).collect();
    let widest = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|(_, text)| text.width());
        cells.max().unwrap_or_default().max(columns[column].heading.width()).min(WIDEST)
    };
    let mut shown: Vec<(usize, usize)> = (0..columns.len()).map(|column| (column, widest(column))).collect();
    // The last one may be cut; what is before it may not.
    let least = |shown: &[(usize, usize)]| {
        let last = shown.last().map_or(0, |(_, width)| (*width).min(8));
        shown.iter().rev().skip(1).map(|(_, width)| width + 2).sum::<usize>() + last
    };
    while least(&shown) > width {
        let spared = shown.iter().map(|(column, _)| columns[*column].spared).max().filter(|most| *most > 0);
        let Some(spared) = spared else { break };
        shown.retain(|(column, _)| columns[*column].spared != spared);
    }
    let line = |cell: &dyn Fn(usize) -> (Tone, String)| {
        let mut line = Line::default();
        for (place, (column, width)) in shown.iter().enumerate() {
            let (tone, text) = cell(*column);
            if place + 1 == shown.len() {
                // An address in a note must not be cut at `WIDEST`: the screen cuts the line.
                line.push(tone, &text);
            } else {
                line.push(tone, &padded(&text, *width, columns[*column].align));
                line.push(Tone::Plain, "  ");
            }
        }
        line
    };
    let heading = line(&|column| (Tone::Bold, columns[column].heading.to_owned()));
    let body = rows.iter().map(|row| line(&|column| row.get(column).cloned().unwrap_or_default()));
    std::iter::once(heading).chain(body).collect()
}

/// A bar of so many columns. It is full only when all is.
pub fn bar(share: f64, columns: usize, style: Style) -> String {
    let (full, open) = if style.unicode { ("▇", "▁") } else { ("#", "-") };
    let filled = ((share.clamp(0.0, 1.0) * columns as f64) as usize).min(columns);
    full.repeat(filled) + &open.repeat(columns - filled)
}

/// A curve of so many columns, of the last values.
pub fn curve(values: &[f64], columns: usize, style: Style) -> String {
    const HIGH: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    const PLAIN: [char; 8] = ['.', ':', '-', '=', '+', '*', '%', '#'];
    let steps = if style.unicode { HIGH } else { PLAIN };
    let group = values.len().div_ceil(columns.max(1)).max(1);
    let means: Vec<f64> = values.rchunks(group).rev().map(|few| few.iter().sum::<f64>() / few.len() as f64).collect();
    let most = means.iter().copied().fold(0.0, f64::max);
    let step = |value: &f64| if most > 0.0 { ((value / most * 7.0).ceil() as usize).min(7) } else { 0 };
    means.iter().map(|value| steps[step(value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STYLE: Style = Style { colour: true, unicode: true };
    const ASCII: Style = Style { colour: false, unicode: false };

    #[test]
    fn nothing_that_could_steer_a_terminal_gets_into_a_line() {
        let evil = "a\u{1b}[2J\u{9b}31m\r\n\u{7}\u{202e}b\u{1b}]0;title\u{7}";
        let lines = grid(
            &[
                Column { heading: "A", align: Align::Left, spared: 0 },
                Column { heading: "B", align: Align::Left, spared: 0 },
            ],
            &[vec![(Tone::Plain, evil.into()), (Tone::Bad, evil.into())]],
            200,
        );
        let line = Line::default().with(Tone::Plain, evil);
        for text in lines.iter().map(Line::text).chain([line.text(), line.cut(9, ASCII).text()]) {
            assert!(!text.chars().any(|letter| letter.is_control() || letter == '\u{202e}'), "{text:?}");
        }
    }

    #[test]
    fn a_line_is_cut_by_columns_and_not_by_letters() {
        let line = Line::default().with(Tone::Bold, "手机手机").with(Tone::Plain, "phone");
        assert_eq!((line.width(), line.clone().cut(13, STYLE).text().as_str()), (13, "手机手机phone"));
        assert_eq!(line.clone().cut(6, STYLE).text(), "手机…");
        assert_eq!(line.clone().cut(11, ASCII).text(), "????phone");
        for columns in 0..15 {
            assert!(line.clone().cut(columns, STYLE).width() <= columns);
        }
    }

    #[test]
    fn a_narrow_grid_does_without_what_it_can() {
        let columns = [("NAME", 0), ("STATE", 1), ("MODEL", 2), ("NOTE", 0)].map(|(heading, spared)| Column {
            heading,
            align: Align::Left,
            spared,
        });
        let rows =
            vec![["phone-1", "ready", "qwen3.5-4b", "it is fine"].map(|text| (Tone::Plain, text.into())).to_vec()];
        let written = |width| grid(&columns, &rows, width).iter().map(Line::text).collect::<Vec<_>>();
        assert_eq!(written(80)[1], "phone-1  ready  qwen3.5-4b  it is fine");
        assert_eq!(written(30), ["NAME     STATE  NOTE", "phone-1  ready  it is fine"]);
        assert_eq!(written(18)[1], "phone-1  it is fine");
    }

    #[test]
    fn a_curve_shows_the_last_values_and_a_bar_is_full_only_when_all_is() {
        assert_eq!(curve(&[0.0, 1.0, 7.0], 10, STYLE), "▁▂█");
        assert_eq!(curve(&[0.0, 0.0], 10, ASCII), "..");
        assert_eq!(curve(&[1.0; 100], 10, STYLE).chars().count(), 10);
        assert_eq!(
            (bar(0.99, 4, ASCII), bar(1.0, 4, ASCII), bar(f64::NAN, 2, ASCII)),
            ("###-".into(), "####".into(), "--".into())
        );
    }
}
