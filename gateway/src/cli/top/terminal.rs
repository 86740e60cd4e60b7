//! The terminal: taken with a guard, given back on every way out.

use std::{
    io::{self, Read as _, Stdout, Write},
    sync::{Mutex, PoisonError},
};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use super::{
    frame::{Line, Style, Tone},
    page::Size,
};

/// Pieces of typing on their way. 64: more than anybody types between two looks.
const TYPED: usize = 64;

/// The screen beside the usual one, which is kept meanwhile; no cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";
const CLEAR: &str = "\x1b[2J";
const CLEAR_LINE: &str = "\x1b[K";

/// How the terminal was before it was ours, while it is: whoever gives it back first takes this.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal in our hands: keys come at once and unseen, the screen before is kept. Given back when dropped.
pub struct Terminal {
    out: Stdout,
    style: Style,
    drawn: Vec<Line>,
    size: Size,
}

impl Terminal {
    /// Takes it.
    ///
    /// # Errors
    /// There is none.
    pub fn take(style: Style) -> io::Result<Self> {
        give_back_on_panic();
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        // From here on it is given back, whatever fails.
        let mut terminal = Self { out: io::stdout(), style, drawn: Vec::new(), size: measure() };
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        write!(terminal.out, "{ENTER}")?;
        Ok(terminal)
    }

    pub const fn size(&self) -> Size {
        self.size
    }

    pub const fn style(&self) -> Style {
        self.style
    }

    /// The window has another size: everything is drawn anew.
    pub fn resized(&mut self) {
        self.size = measure();
        self.drawn.clear();
    }

    /// Shows lines; those that are there already are left alone.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, lines: Vec<Line>) -> io::Result<()> {
        if self.drawn.is_empty() {
            write!(self.out, "{CLEAR}")?;
        }
        for row in 0..lines.len().max(self.drawn.len()).min(self.size.rows) {
            if lines.get(row) == self.drawn.get(row) {
                continue;
            }
            write!(self.out, "\x1b[{};1H", row + 1)?;
            if let Some(line) = lines.get(row) {
                paint(&mut self.out, line, self.style)?;
            }
            write!(self.out, "{CLEAR_LINE}")?;
        }
        self.drawn = lines;
        self.out.flush()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

fn measure() -> Size {
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or(Size { columns: 80, rows: 24 }, |size| Size { columns: size.ws_col.into(), rows: size.ws_row.into() })
}

/// Without a terminal there is nobody left to tell that it can't be given back.
fn give_back() {
    let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let mut out = io::stdout();
    drop(write!(out, "{LEAVE}").and_then(|()| out.flush()));
    tcsetattr(io::stdin(), OptionalActions::Flush, &before).unwrap_or_default();
}

/// A panic's message must not land on a screen that is about to go away.
fn give_back_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        give_back();
        before(panic);
    }));
}

/// Writes a line. What it says has nothing in it that a terminal could take for a command ([`Line::push`]).
///
/// # Errors
/// It can't be written.
pub fn paint(out: &mut impl Write, line: &Line, style: Style) -> io::Result<()> {
    let reverse = if line.chosen { "7;" } else { "" };
    for (tone, text) in line.pieces() {
        let meant = match (tone, style.colour) {
            (Tone::Good, true) => "32",
            (Tone::Warn, true) => "33",
            (Tone::Bad, true) => "31",
            (Tone::Dim, true) => "2",
            (Tone::Bold, _) | (Tone::Bad, false) => "1",
            _ => "",
        };
        write!(out, "\x1b[0;{reverse}{meant}m{text}")?;
    }
    write!(out, "\x1b[0m")
}

/// What is typed, read by a thread that ends with the process: nothing wakes a thread that waits for a key.
pub fn typed() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, typed) = mpsc::channel(TYPED);
    std::thread::spawn(move || {
        let mut piece = [0; 256];
        loop {
            let read = match io::stdin().read(&mut piece) {
                Ok(0) => return,
                Ok(length) => Ok(piece[..length].to_vec()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let is_over = read.is_err();
            if sender.blocking_send(read).is_err() || is_over {
                return;
            }
        }
    });
    typed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn painted(style: Style) -> String {
        let mut line = Line::default();
        for (tone, text) in
            [(Tone::Good, "ready"), (Tone::Bad, "out"), (Tone::Dim, "for 3s"), (Tone::Plain, "\u{1b}[2J")]
        {
            line.push(tone, text);
        }
        line.chosen = true;
        let mut out = Vec::new();
        paint(&mut out, &line, style).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn without_colour_there_is_none() {
        let colours = |text: &str| text.matches("\u{1b}[0;7;3").count();
        let plain = painted(Style { colour: false, unicode: true });
        assert_eq!(colours(&plain), 0, "{plain:?}");
        assert!(plain.contains("ready") && plain.contains("\\u{1b}[2J") && !plain.contains("\u{1b}[2J"), "{plain:?}");
        assert_eq!(colours(&painted(Style { colour: true, unicode: true })), 2);
    }
}
