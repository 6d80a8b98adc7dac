//! Pseudo few-shot format guidance of "Untie the Knots" (appendix D, Table 7): before the question, three others
//! whose answers can be read off the context, so that a base model sees the form of an answer.
//!
//! The paper shows one English example: how many passages there are, the title of the last passage but one, the
//! title of the first. Its other choices are not published: the Chinese wording here is ours, and so is the
//! last passage but one as a rule (the example asks for passage 10 of 11). A title is the first line of a passage.

/// Questions with their answers, in order; none without passages.
pub fn pseudo(context: &str, chinese: bool) -> Vec<(String, String)> {
    let titles: Vec<(&str, &str)> = titles(context).collect();
    let n = titles.len();
    let (Some(first), Some(late)) = (titles.first(), titles.get(n.saturating_sub(2))) else {
        return Vec::new();
    };
    let title = |(number, title): &(&str, &str)| {
        let question = match chinese {
            true => format!("文章{number}的标题是什么？"),
            false => format!("What is the title of Passage {number}?"),
        };
        (question, (*title).to_owned())
    };
    let how_many =
        if chinese { "一共有多少篇文章？" } else { "How many passages are there in total?" };
    vec![(how_many.to_owned(), n.to_string()), title(late), title(first)]
}

/// The number and the first line of each passage that has a line.
pub fn titles(context: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut lines = context.lines().map(str::trim).filter(|line| !line.is_empty()).peekable();
    std::iter::from_fn(move || loop {
        let number = number_of(lines.next()?);
        let title = lines.peek().copied().filter(|line| number_of(line).is_none());
        if let (Some(number), Some(title)) = (number, title) {
            return Some((number, title));
        }
    })
}

/// The number in the heading of a passage: "### Passage 7", or "### 文章7".
fn number_of(line: &str) -> Option<&str> {
    let line = line.trim_start_matches('#').trim_start();
    let rest = line.strip_prefix("Passage").or_else(|| line.strip_prefix("文章"))?;
    let number = rest.trim_end_matches([':', '：']).trim();
    (!number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())).then_some(number)
}
