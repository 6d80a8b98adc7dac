//! Reading Rust as far as tidy has to: without comments and literals, the literals alone, and the first names of paths.

use std::ops::Range;
use std::sync::OnceLock;

use super::{read_sources, Source};

/// Every Rust file of the project, read once for all tests.
pub(super) fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(read_sources)
}

/// Where comments and string and character literals are.
fn opaque(text: &str) -> Vec<Range<usize>> {
    let b = text.as_bytes();
    let mut out = Vec::new();
    let mut i = 0;
    while i < b.len() {
        let rest = &b[i..];
        let in_name = i > 0 && (b[i - 1].is_ascii_alphanumeric() || b[i - 1] == b'_');
        let hashes = rest.iter().skip(1).take_while(|c| **c == b'#').count();
        let end = if rest.starts_with(b"//") {
            i + rest.iter().position(|c| *c == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            let (mut depth, mut j) = (1, i + 2);
            while depth > 0 && j < b.len() {
                match &b[j..] {
                    [b'/', b'*', ..] => (depth, j) = (depth + 1, j + 2),
                    [b'*', b'/', ..] => (depth, j) = (depth - 1, j + 2),
                    _ => j += 1,
                }
            }
            j
        } else if rest[0] == b'r' && rest.get(1 + hashes) == Some(&b'"') && (!in_name || b[i - 1] == b'b') {
            let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
            let from = i + 2 + hashes;
            (from..b.len()).find(|&j| b[j..].starts_with(&close)).map_or(b.len(), |j| j + close.len())
        } else if rest[0] == b'"' {
            let mut j = i + 1;
            while j < b.len() && b[j] != b'"' {
                j += if b[j] == b'\\' { 2 } else { 1 };
            }
            j + 1
        } else if rest.starts_with(b"'\\") {
            i + 3 + rest[3..].iter().position(|c| *c == b'\'').unwrap_or(0) + 1
        } else if rest[0] == b'\'' {
            // A character, unless it is a lifetime: then no quote follows the next character.
            match text[i + 1..].chars().next() {
                Some(c) if b.get(i + 1 + c.len_utf8()) == Some(&b'\'') => i + 2 + c.len_utf8(),
                _ => i,
            }
        } else {
            i
        };
        let end = end.min(b.len());
        if end > i {
            out.push(i..end);
        }
        i = end.max(i + 1);
    }
    out
}

/// The string and character literals, with the places where they begin.
pub(super) fn literals(text: &str) -> Vec<(usize, &str)> {
    let all = opaque(text).into_iter().map(|span| (span.start, &text[span]));
    all.filter(|(_, part)| !part.starts_with('/')).collect()
}

/// Blanks comments and string and character literals with spaces.
pub(super) fn blank(text: &str) -> String {
    let mut out = text.as_bytes().to_vec();
    for span in opaque(text) {
        out[span].iter_mut().filter(|c| **c != b'\n').for_each(|c| *c = b' ');
    }
    // Only whole characters were replaced, byte by byte.
    String::from_utf8(out).unwrap()
}

/// The first names of the paths that begin here, with a group taken apart: `{a::b, c}` gives `a` and `c`.
pub(super) fn first_names(code: &str, at: usize) -> Vec<String> {
    let rest = &code[at..];
    let name = |s: &str| -> String { s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    if !rest.starts_with('{') {
        return vec![name(rest)];
    }
    let (mut depth, mut out, mut expect) = (0, Vec::new(), false);
    for (i, c) in rest.char_indices() {
        match c {
            '{' => (depth, expect) = (depth + 1, depth == 0),
            '}' => depth -= 1,
            ',' => expect = depth == 1,
            c if expect && !c.is_whitespace() => {
                out.push(name(&rest[i..]));
                expect = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    out
}

#[test]
fn blanking_hides_comments_and_literals_and_nothing_else() {
    let text = "a/*x/*y*/z*/b // c\n\"d\\\"e\" 'f' '\\'' '\\u{1}' &'g h r#\"i\"j\"# for br\"k\\\" l\n\"m\"";
    assert_eq!(blank(text).split_whitespace().collect::<Vec<_>>(), ["a", "b", "&'g", "h", "for", "b", "l"]);
    assert_eq!(blank(text).len(), text.len());
    let found: Vec<&str> = literals(text).into_iter().map(|(_, part)| part).collect();
    assert_eq!(found[..3], ["\"d\\\"e\"", "'f'", "'\\''"]);
    assert_eq!(first_names("crate::{a::{b, c}, d, e::F} g", 7), ["a", "d", "e"]);
    assert_eq!(first_names("crate::kv::KvCache", 7), ["kv"]);
}
