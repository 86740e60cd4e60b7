//! Bytes of a terminal as keys.

/// A key that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Letter(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Tab,
    BackTab,
    /// Ctrl-C.
    Interrupt,
    /// Any other.
    Other,
}

const ESCAPE: u8 = 0x1b;
/// Longest sequence of one key.
const LONGEST: usize = 16;

/// What was typed so far of a key that comes in pieces: a slow line may cut a sequence anywhere.
#[derive(Debug, Default)]
pub struct Keyboard {
    begun: Vec<u8>,
}

impl Keyboard {
    /// The keys that these bytes make whole.
    pub fn typed(&mut self, bytes: &[u8]) -> Vec<Key> {
        bytes.iter().filter_map(|byte| self.take(*byte)).collect()
    }

    fn take(&mut self, byte: u8) -> Option<Key> {
        match (&*self.begun, byte) {
            (_, ESCAPE) => {
                self.begun = vec![ESCAPE];
                return None;
            }
            ([ESCAPE], b'[' | b'O') => {
                self.begun.push(byte);
                return None;
            }
            ([ESCAPE, ..], b'0'..=b'9' | b';') if self.begun.len() > 1 && self.begun.len() < LONGEST => {
                self.begun.push(byte);
                return None;
            }
            _ => {}
        }
        let begun = std::mem::take(&mut self.begun);
        Some(match begun.get(2..) {
            Some(parameters) => of_sequence(parameters, byte),
            None => of_byte(byte),
        })
    }
}

fn of_byte(byte: u8) -> Key {
    match byte {
        0x03 => Key::Interrupt,
        b'\t' => Key::Tab,
        b' '..=b'~' => Key::Letter(char::from(byte)),
        _ => Key::Other,
    }
}

fn of_sequence(parameters: &[u8], last: u8) -> Key {
    match (last, parameters.split(|byte| *byte == b';').next().unwrap_or_default()) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'Z', _) => Key::BackTab,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_however_their_bytes_are_cut() {
        let typed = b"q\x1b[A\x1bOB\x1b[5~\x1b[6;2~\x1b[H\x1b[4~\t\x1b[Z\x03\x1bx\x1b\x1b[F\xc5\x99";
        let keys = [
            Key::Letter('q'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Tab,
            Key::BackTab,
            Key::Interrupt,
            Key::Letter('x'),
            Key::End,
            Key::Other,
            Key::Other,
        ];
        for piece in 1..typed.len() {
            let mut keyboard = Keyboard::default();
            let read: Vec<_> = typed.chunks(piece).flat_map(|bytes| keyboard.typed(bytes)).collect();
            assert_eq!(read, keys, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_never_ends_is_not_kept() {
        let mut keyboard = Keyboard::default();
        keyboard.typed(b"\x1b[");
        for _ in 0..10_000 {
            keyboard.typed(b"1");
        }
        assert!(keyboard.begun.len() <= LONGEST);
        assert_eq!(keyboard.typed(b"\x1b[A"), [Key::Up]);
    }
}
