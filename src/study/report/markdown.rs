//! The page as Markdown, in the dialect that has tables.

use std::fmt::Write as _;

use super::page::{Block, Mark, Table};
use crate::folder::MARK;

pub(super) fn page(title: &str, blocks: &[Block]) -> String {
    let mut out = format!("{MARK}# {}\n", text(title));
    write_blocks(&mut out, blocks, 3);
    out
}

/// Text that stays text: no markup, no HTML, one line.
fn text(raw: &str) -> String {
    let shown = ropewalk_core::terminal::inline(raw);
    let mut out = String::with_capacity(shown.len() + 8);
    let mut before = ' ';
    let mut rest = shown.chars().peekable();
    while let Some(c) = rest.next() {
        let in_word = before.is_alphanumeric() && rest.peek().is_some_and(|c| c.is_alphanumeric());
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '_' if in_word => out.push('_'),
            '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '#' | '~' => out.extend(['\\', c]),
            c => out.push(c),
        }
        before = c;
    }
    out
}

fn write_blocks(out: &mut String, blocks: &[Block], level: u8) {
    for block in blocks {
        out.push('\n');
        match block {
            Block::Heading(level, heading) => {
                let _ = writeln!(out, "{} {}", "#".repeat(usize::from(*level)), text(heading));
            }
            Block::Text(words) => {
                let _ = writeln!(out, "{}", text(words));
            }
            Block::Warning(words) => {
                let _ = writeln!(out, "**{}**", text(words));
            }
            Block::List(points) => {
                for (name, words) in points {
                    let _ = writeln!(out, "- **{}**: {}", text(name), text(words));
                }
            }
            Block::Table(table) => write_table(out, table),
            Block::Charts(charts) => {
                for (i, chart) in charts.iter().enumerate() {
                    let gap = if i == 0 { "" } else { "\n" };
                    let _ = writeln!(out, "{gap}**{}.** {}\n", text(&chart.title), text(&chart.caption));
                    write_table(out, &chart.table);
                }
            }
            Block::Details(summary, inside) => {
                let _ = writeln!(out, "{} {}", "#".repeat(usize::from(level)), text(summary));
                write_blocks(out, inside, level + 1);
            }
        }
    }
}

fn write_table(out: &mut String, table: &Table) {
    if !table.caption.is_empty() {
        let _ = writeln!(out, "{}\n", text(&table.caption));
    }
    let cells = |row: Vec<String>| format!("| {} |\n", row.join(" | "));
    *out += &cells(table.head.iter().map(|h| text(h)).collect());
    *out +=
        &cells((0..table.head.len()).map(|i| if i < table.words { "---" } else { "---:" }.into()).collect());
    for row in &table.rows {
        let entry = |e: &super::page::Entry| {
            let (words, note) = (text(&e.text), text(&e.note));
            let words = match e.mark {
                Mark::Best => format!("**{words}**"),
                Mark::Failed => format!("*{words}*"),
                Mark::Missing | Mark::None => words,
            };
            if note.is_empty() {
                words
            } else {
                format!("{words} ({note})")
            }
        };
        *out += &cells(row.iter().map(entry).collect());
    }
}
