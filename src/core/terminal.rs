//! Text for terminals: characters that a terminal obeys, or that show a line as another one, become escapes.

use std::borrow::Cow;

/// Returns true if a terminal can obey a character, or show its neighbors in another order or on another line. Line
/// ends and tabs do not count.
fn acts(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        // Ends of lines to some programs; marks that turn the direction of text.
        '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    }
}

/// A text of several lines, with escapes such as `\u{1b}` in place of characters that a terminal may obey.
pub fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, acts, |c| c.escape_default().to_string())
}

/// Escapes like [`shown`], in one line: line ends and tabs are escaped too.
pub fn inline(text: &str) -> Cow<'_, str> {
    escaped(text, |c| acts(c) || c.is_control(), |c| c.escape_default().to_string())
}

/// An error in one line: those of parsers repeat names of the file as they are.
pub fn one_line(error: impl std::fmt::Display) -> String {
    inline(&error.to_string()).into_owned()
}

fn escaped(text: &str, acts: impl Fn(char) -> bool, escape: impl Fn(char) -> String) -> Cow<'_, str> {
    if !text.contains(&acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            // The end of a line as other systems write it.
            '\r' if rest.peek() == Some(&'\n') && !acts('\n') => {}
            c if acts(c) => out += &escape(c),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Escapes like [`shown`], for a text that comes in pieces.
#[derive(Debug, Default)]
pub struct Pieces {
    /// True while a carriage return waits for what follows it.
    held: bool,
}

impl Pieces {
    /// The next piece, without a carriage return at its end, and with the one before it.
    pub fn push(&mut self, piece: &str) -> String {
        if piece.is_empty() {
            return String::new();
        }
        let before = self.end_raw();
        let kept = piece.strip_suffix('\r').unwrap_or(piece);
        self.held = kept.len() < piece.len();
        shown(&format!("{before}{kept}")).into_owned()
    }

    /// The characters still held back at the end of the text.
    pub fn end(&mut self) -> String {
        shown(self.end_raw()).into_owned()
    }

    fn end_raw(&mut self) -> &'static str {
        if std::mem::take(&mut self.held) {
            "\r"
        } else {
            ""
        }
    }
}

/// JSON in which DEL and later characters that [`shown`] replaces are also escaped; serde escapes the others.
pub fn plain_json(json: String) -> String {
    escaped(&json, acts, |c| format!("\\u{:04x}", u32::from(c))).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown() {
        let bad = "a\u{1b}]0;x\u{7}b\u{7f}c\u{9b}d\u{202e}e\u{2066}f\u{2028}g\rh\0";
        let good = "a\\u{1b}]0;x\\u{7}b\\u{7f}c\\u{9b}d\\u{202e}e\\u{2066}f\\u{2028}g\\rh\\u{0}";
        assert_eq!((shown(bad), inline(bad)), (good.into(), good.into()));
        // Letters of every script, signs that are joined, and what makes up lines stay.
        let text = "é\tשלום\u{200f} 👩\u{200d}🚀 \u{a0}\u{ad}\n";
        assert!(matches!(shown(text), Cow::Borrowed(t) if t == text));
        assert_eq!(inline("a\tb\r\nc"), "a\\tb\\r\\nc");
        assert_eq!(shown("a\r\nb\r"), "a\nb\\r");
        assert_eq!(one_line("unknown field `a\n`"), "unknown field `a\\n`");
    }

    #[test]
    fn pieces_are_shown_as_their_text_would_be() {
        let text = "a\r\nb\rc\r\r\nd\u{1b}e\r";
        for n in 1..=text.len() {
            let mut pieces = Pieces::default();
            let chunks = text.as_bytes().chunks(n).map(|piece| std::str::from_utf8(piece).unwrap());
            let got: String = chunks.map(|piece| pieces.push(piece)).collect();
            assert_eq!(got + &pieces.end(), shown(text), "{n}");
        }
    }

    #[test]
    fn json_holds_the_same_text() {
        let text = "a\u{1b}\u{7f}\u{85}\u{9b}\u{202e}\u{2029}\r\n\té";
        let json = plain_json(serde_json::to_string(text).unwrap());
        assert!(!json.contains(char::is_control) && !json.contains(acts), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
