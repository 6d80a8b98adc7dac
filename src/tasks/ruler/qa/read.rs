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
pub(super) fn squad(json: &[u8]) -> Result<Set, String> {
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

pub(super) fn hotpotqa(json: &[u8]) -> Result<Set, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squad_has_articles_and_hotpotqa_has_not() {
        let json = br#"{"version": "v2.0", "data": [
            {"title": "Two", "paragraphs": [
                {"context": "Water is wet.", "qas": [
                    {"question": "What is wet?", "id": "1", "is_impossible": false,
                     "answers": [{"text": "Water", "answer_start": 0}, {"text": "water", "answer_start": 0}]},
                    {"question": "What is dry?", "id": "2", "is_impossible": true, "answers": [],
                     "plausible_answers": [{"text": "Water", "answer_start": 0}]}]},
                {"context": "Sand is dry.", "qas": []}]},
            {"title": "One", "paragraphs": [
                {"context": "Water is wet.", "qas": [
                    {"question": "How is water?", "id": "3", "is_impossible": false,
                     "answers": [{"text": "wet", "answer_start": 9}]}]}]}]}"#;
        let set = squad(json).expect("SQuAD");
        assert_eq!(set.documents, ["Sand is dry.", "Water is wet."]);
        assert_eq!(set.articles, [vec![1, 0], vec![1]]);
        let found: Vec<_> =
            set.questions.iter().map(|q| (q.text.as_str(), q.documents[0], q.article)).collect();
        assert_eq!(found, [("What is wet?", 1, Some(0)), ("How is water?", 1, Some(1))]);
        assert_eq!(set.questions[0].answers, ["Water", "water"]);

        let json = br#"[{"_id": "1", "question": "Who?", "answer": "Ann", "type": "bridge", "level": "hard",
            "supporting_facts": [["B", 0]], "context": [["B", ["Ann ", "is."]], ["A", []], ["B", ["Ann is."]]]}]"#;
        let set = hotpotqa(json).expect("HotpotQA");
        assert_eq!(set.documents, ["A\n", "B\nAnn is."]);
        assert_eq!(set.questions[0].documents, [1, 0, 1]);
    }

    #[test]
    fn other_data_is_an_error() {
        for json in ["", "null", r#"{"data":[{"paragraphs":[{"context":1,"qas":[]}]}]}"#] {
            assert!(squad(json.as_bytes()).is_err(), "{json}");
            assert!(hotpotqa(json.as_bytes()).is_err(), "{json}");
        }
    }
}
