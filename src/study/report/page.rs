//! Elements of a page, whatever it is written as.

use ropewalk_plot::PlotError;

/// A part of the page.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Block {
    /// A heading of level 2 or 3.
    Heading(u8, String),
    Text(String),
    /// A paragraph that must not be overlooked.
    Warning(String),
    /// Points, each with a word in front.
    List(Vec<(String, String)>),
    Table(Table),
    /// Charts that belong together.
    Charts(Vec<Chart>),
    /// Blocks that are shown on demand.
    Details(String, Vec<Block>),
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Table {
    /// Says what it shows, and which way is better.
    pub(super) caption: String,
    pub(super) head: Vec<String>,
    /// Columns at the left that hold words.
    pub(super) words: usize,
    pub(super) rows: Vec<Vec<Entry>>,
}

impl Table {
    pub(super) fn new(
        caption: impl Into<String>,
        head: &[&str],
        words: usize,
        rows: Vec<Vec<Entry>>,
    ) -> Table {
        Table { caption: caption.into(), head: head.iter().map(|&h| h.to_owned()).collect(), words, rows }
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Entry {
    pub(super) text: String,
    /// A smaller remark after the text.
    pub(super) note: String,
    pub(super) mark: Mark,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mark {
    #[default]
    None,
    /// The best of its column.
    Best,
    Failed,
    Missing,
}

impl Entry {
    pub(super) fn new(text: impl Into<String>) -> Entry {
        Entry { text: text.into(), ..Entry::default() }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chart {
    pub(super) title: String,
    /// Says what it shows, and which way is better.
    pub(super) caption: String,
    /// Inline SVG, escaped, or the reason why there is none.
    pub(super) svg: String,
    /// The same figures.
    pub(super) table: Table,
}

impl Chart {
    pub(super) fn new(title: String, caption: &str, drawn: Result<String, PlotError>, table: Table) -> Chart {
        let name = escape(&title);
        let svg = match drawn {
            Ok(svg) => svg
                .replacen("<svg ", &format!(r#"<svg role="img" aria-label="{name}" "#), 1)
                .replacen(">\n", &format!("><title>{name}</title>\n"), 1),
            Err(e) => escape(&e.to_string()),
        };
        Chart { title, caption: caption.into(), svg, table }
    }
}

/// Text for HTML, attributes included. Characters that turn the direction of text or that no page may
/// hold become escapes that can be read.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    for c in ropewalk_core::terminal::inline(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

pub(super) fn perplexity(x: f64) -> String {
    match x {
        x if x < 100.0 => format!("{x:.2}"),
        x if x < 1e5 => format!("{x:.0}"),
        x => format!("{x:.1e}"),
    }
}

/// A number of tokens, short where it is round: `8k`, `12000`.
pub(super) fn tokens(n: u64) -> String {
    match n {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{}M", n >> 20),
        n if n >= 1024 && n % 1024 == 0 => format!("{}k", n >> 10),
        n => n.to_string(),
    }
}

pub(super) fn length(length: Option<u64>) -> String {
    length.map_or_else(|| "any length".to_owned(), tokens)
}
