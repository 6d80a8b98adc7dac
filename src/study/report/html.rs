//! The page as HTML.

use std::fmt::Write as _;

use super::page::{escape, Block, Chart, Mark, Table};
use crate::folder::MARK;

const CSS: &str = include_str!("page.css");

pub(super) fn page(title: &str, blocks: &[Block]) -> String {
    let title = escape(title);
    let mut out = format!(
        "<!DOCTYPE html>\n{MARK}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{CSS}</style>\n\
         </head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    write_blocks(&mut out, blocks);
    out += "</main>\n</body>\n</html>\n";
    out
}

fn write_blocks(out: &mut String, blocks: &[Block]) {
    for block in blocks {
        match block {
            Block::Heading(level, text) => {
                let _ = writeln!(out, "<h{level}>{}</h{level}>", escape(text));
            }
            Block::Text(text) => {
                let _ = writeln!(out, "<p>{}</p>", escape(text));
            }
            Block::Warning(text) => {
                let _ = writeln!(out, "<p class=\"warning\" role=\"note\">{}</p>", escape(text));
            }
            Block::List(points) => {
                *out += "<dl>\n";
                for (name, text) in points {
                    let _ = writeln!(out, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(text));
                }
                *out += "</dl>\n";
            }
            Block::Table(table) => write_table(out, table),
            Block::Charts(charts) => write_charts(out, charts),
            Block::Details(summary, inside) => {
                let _ = writeln!(out, "<details><summary>{}</summary>", escape(summary));
                write_blocks(out, inside);
                *out += "</details>\n";
            }
        }
    }
}

fn write_table(out: &mut String, table: &Table) {
    *out += "<figure>";
    if !table.caption.is_empty() {
        let _ = write!(out, "<figcaption>{}</figcaption>", escape(&table.caption));
    }
    // The keyboard must also reach a box that scrolls.
    *out += "<div class=\"box\" tabindex=\"0\"><table>\n<thead><tr>";
    for (i, head) in table.head.iter().enumerate() {
        let class = if i < table.words { " class=\"w\"" } else { "" };
        let _ = write!(out, "<th scope=\"col\"{class}>{}</th>", escape(head));
    }
    *out += "</tr></thead>\n<tbody>\n";
    for row in &table.rows {
        *out += "<tr>";
        for (i, entry) in row.iter().enumerate() {
            let text = escape(&entry.text);
            let text = if entry.mark == Mark::Best { format!("<strong>{text}</strong>") } else { text };
            let note = match &*entry.note {
                "" => String::new(),
                note => format!(" <small>{}</small>", escape(note)),
            };
            let class = match (entry.mark, i < table.words) {
                (Mark::Failed, _) => " class=\"failed\"",
                (Mark::Missing, _) => " class=\"missing\"",
                (_, true) => " class=\"w\"",
                _ => "",
            };
            if i == 0 {
                let _ = write!(out, "<th scope=\"row\" class=\"w\">{text}{note}</th>");
            } else {
                let _ = write!(out, "<td{class}>{text}{note}</td>");
            }
        }
        *out += "</tr>\n";
    }
    *out += "</tbody></table></div></figure>\n";
}

fn write_charts(out: &mut String, charts: &[Chart]) {
    *out += "<div class=\"charts\">\n";
    for chart in charts {
        // The title is in the drawing.
        let caption = match &*chart.caption {
            "" => String::new(),
            caption => format!("<figcaption>{}</figcaption>", escape(caption)),
        };
        let _ = write!(out, "<figure>{caption}{}<details><summary>Figures</summary>", chart.svg);
        write_table(out, &chart.table);
        *out += "</details></figure>\n";
    }
    *out += "</div>\n";
}
