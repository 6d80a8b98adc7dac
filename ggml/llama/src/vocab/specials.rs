//! Texts of special tokens, and where a text may be cut so that the tokens of its parts are those of the whole.
//!
//! libllama cuts special tokens out of a text, and for each goes through the list of all before it: time that grows with the
//! square of their number.
#![forbid(unsafe_code)]

/// Special tokens in a part: few enough that each costs little.
const PART: usize = 1 << 8;

/// A token that libllama looks for in texts.
#[derive(Debug)]
pub(super) struct Special {
    pub text: Vec<u8>,
    /// True if it is one also where special tokens are not parsed.
    pub always: bool,
}

/// By the first byte, the longest first.
#[derive(Debug)]
pub(super) struct Specials(Vec<Vec<Special>>);

impl Specials {
    pub(super) fn new(mut all: Vec<Special>) -> Specials {
        all.sort_by_key(|special| std::cmp::Reverse(special.text.len()));
        let mut by_first: Vec<Vec<Special>> = (0..256).map(|_| Vec::new()).collect();
        for special in all {
            if let Some(&first) = special.text.first() {
                by_first[usize::from(first)].push(special);
            }
        }
        Specials(by_first)
    }

    /// Those that begin at byte `at` of a text, the longest first.
    fn at<'a>(&'a self, text: &'a [u8], at: usize, parse: bool) -> impl Iterator<Item = &'a [u8]> + 'a {
        let here = move |s: &&Special| (parse || s.always) && text[at..].starts_with(&s.text);
        self.0[usize::from(text[at])].iter().filter(here).map(|s| &s.text[..])
    }

    /// Starts of special tokens that libllama is certain to cut out, with at least `PART` from one to the next.
    ///
    /// It looks for longer texts first, and for each from left to right. So it finds one that nothing found overlaps, if
    /// those that begin within it are shorter or the same. The text after it is then searched alone.
    pub(super) fn cuts(&self, text: &str, parse: bool) -> Vec<usize> {
        let bytes = text.as_bytes();
        let (mut cuts, mut found, mut at) = (Vec::new(), 0, 0);
        while at < bytes.len() {
            let Some(special) = self.at(bytes, at, parse).next() else {
                at += 1;
                continue;
            };
            let mut end = at + special.len();
            let rival =
                |i| self.at(bytes, i, parse).any(|other| other.len() >= special.len() && other != special);
            found += 1;
            if (at + 1..end).any(rival) {
                // Not certain: go past all that overlap.
                while at < end {
                    end = end.max(at + self.at(bytes, at, parse).next().map_or(0, <[u8]>::len));
                    at += 1;
                }
            } else {
                if found > PART && text.is_char_boundary(at) {
                    cuts.push(at);
                    found = 1;
                }
                at = end;
            }
        }
        cuts
    }
}
