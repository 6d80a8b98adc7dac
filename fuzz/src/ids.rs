//! Streams of token ids, of two or four bytes each, as texts to train on.

use ropewalk::control::Control;
use ropewalk::data::{Corpus, Result, Separator, Sources, TextOptions};

use crate::{accepted, base, file};

fn read(bytes: &[u8]) -> Result<()> {
    // The length says how wide ids are.
    let token_bytes = if bytes.len() % 8 == 4 { 2 } else { 4 };
    let options = TextOptions::default().token_bytes(token_bytes);
    let sources = Sources::find(&[file("in.bin", bytes)], &options)?;
    let cache = crate::scratch(&format!("{:?}-ids.tokens", std::thread::current().id()));
    let _ = std::fs::remove_file(&cache);
    let vocab = base().0.vocab();
    let corpus = Corpus::open(&cache, vocab, &sources, &Separator::Auto, &Control::default())?;
    // What is kept is what was there.
    let mut tokens = Vec::new();
    corpus.read(0..corpus.n_tokens(), &mut tokens);
    assert_eq!(tokens.len() * token_bytes, bytes.len());
    for (token, id) in tokens.iter().zip(bytes.chunks(token_bytes)) {
        assert!(token.to_le_bytes().starts_with(id) && *token >= 0 && (*token as usize) < vocab.n_tokens());
    }
    let ranges: Vec<_> = (0..corpus.n_documents()).map(|d| corpus.range(d)).collect();
    assert!(ranges.iter().all(|r| !r.is_empty()) && ranges.windows(2).all(|w| w[0].end == w[1].start));
    Ok(())
}

/// Reads the ids and compares what is kept of them.
pub fn run(bytes: &[u8]) -> bool {
    accepted(read(bytes))
}

/// Ids of both widths, with ends of documents among them.
pub fn seeds() -> Vec<Vec<u8>> {
    let eos = base().0.vocab().eos().unwrap_or(0);
    let ids: Vec<i32> = (0..32).map(|i| if i % 9 == 8 { eos } else { i * 7 % 250 }).collect();
    let of = |n: usize, width: usize| {
        ids[..n].iter().flat_map(|id| id.to_le_bytes()[..width].to_vec()).collect::<Vec<u8>>()
    };
    vec![of(30, 2), of(32, 4)]
}
