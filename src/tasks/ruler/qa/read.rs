//! The formats of SQuAD and HotpotQA.

use serde::Deserialize;

use super::{Question, Set};

#[derive(Deserialize)]
struct Squad {
    data: Vec<Article>,
}

#[derive(Deserialize)]
struct Article {
    paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
struct Paragraph {
    context: String,
    qas: Vec<Asked>,
}

#[derive(Deserialize)]
struct Asked {
    question: String,
    is_impossible: bool,
    answers: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
}

#[derive(Deserialize)]
struct Hotpot {
    question: String,
    answer: String,
    /// Title and sentences of each document.
    context: Vec<(String, Vec<String>)>,
}

/// The answerable questions of SQuAD 2.0.
pub fn squad(json: &[u8]) -> Result<Set, String> {
    let squad: Squad = serde_json::from_slice(json).map_err(|e| format!("expected SQuAD 2.0: {e}"))?;
    let mut contexts = Vec::new();
    let mut questions = Vec::new();
    let mut articles = Vec::new();
    for article in squad.data {
        let first = contexts.len();
        for paragraph in article.paragraphs {
            for asked in paragraph.qas.into_iter().filter(|asked| !asked.is_impossible) {
                questions.push(Question {
                    text: asked.question,
                    answers: asked.answers.into_iter().map(|answer| answer.text).collect(),
                    documents: vec![contexts.len()],
                    article: Some(articles.len()),
                });
            }
            contexts.push(paragraph.context);
        }
        articles.push((first..contexts.len()).collect());
    }
    Ok(set(contexts, questions, articles))
}

pub fn hotpotqa(json: &[u8]) -> Result<Set, String> {
    let asked: Vec<Hotpot> = serde_json::from_slice(json).map_err(|e| format!("expected HotpotQA: {e}"))?;
    let mut contexts = Vec::new();
    let mut questions = Vec::new();
    for asked in asked {
        let first = contexts.len();
        contexts.extend(asked.context.into_iter().map(|(title, text)| format!("{title}\n{}", text.concat())));
        questions.push(Question {
            text: asked.question,
            answers: vec![asked.answer],
            documents: (first..contexts.len()).collect(),
            article: None,
        });
    }
    Ok(set(contexts, questions, Vec::new()))
}

/// Sorts the documents, drops the same ones, and renumbers what names them.
fn set(mut all: Vec<String>, mut questions: Vec<Question>, mut articles: Vec<Vec<usize>>) -> Set {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_unstable_by(|&a, &b| all[a].cmp(&all[b]));
    let mut documents: Vec<String> = Vec::new();
    let mut numbers = vec![0; all.len()];
    for document in order {
        let text = std::mem::take(&mut all[document]);
        if documents.last() != Some(&text) {
            documents.push(text);
        }
        numbers[document] = documents.len() - 1;
    }
    let named = questions.iter_mut().map(|question| &mut question.documents).chain(&mut articles);
    for document in named.flatten() {
        *document = numbers[*document];
    }
    Set { documents, questions, articles }
}
