//! Documents as tokens: which are measured, and what a window of them feeds.

use rand_chacha::rand_core::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use super::super::document::pieces;
use super::super::protocol::{Bos, BosRule, Text, Window};
use super::super::{below, invalid, unsupported, Document, Lm};
use super::Params;
use crate::model::Result;
use crate::Token;

/// The documents as tokens, from which windows are cut: a text for each document, or one of all.
pub(super) struct Texts {
    pub(super) names: Vec<String>,
    pub(super) tokens: Vec<Vec<Token>>,
    pub(super) bos: Option<Token>,
    /// The names of the documents measured.
    pub(super) documents: Vec<String>,
    pub(super) n_tokens: usize,
    /// Remarks on the documents.
    pub(super) notes: Vec<String>,
}

impl Texts {
    pub(super) fn new(lm: &dyn Lm, documents: &[Document], params: &Params) -> Result<Texts> {
        let protocol = params.protocol;
        let by_rule = match protocol.bos {
            BosRule::Vocabulary => lm.bos().is_some(),
            BosRule::Flags => lm.add_bos(),
        };
        let needed = || lm.bos().ok_or_else(|| unsupported("BOS is requested, but the vocabulary has none"));
        let bos = params.bos.unwrap_or(by_rule).then(needed).transpose()?;
        let mut notes = Vec::new();
        let pieces = pieces(documents, lm.n_vocab(), lm.bos(), &mut notes)?;
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        if let Some(seed) = params.seed {
            shuffle(&mut order, seed);
        }
        let mut chosen: Vec<(usize, Vec<Token>)> = Vec::new();
        for i in order {
            if params.max_documents.is_some_and(|max| chosen.len() >= max) {
                break;
            }
            let tokens = pieces[i].tokens(|text| lm.tokenize(text, false))?;
            if tokens.len() >= params.min_tokens {
                chosen.push((i, tokens));
            }
        }
        chosen.sort_unstable_by_key(|&(i, _)| i);

        let mut texts = Texts { names: vec![], tokens: vec![], bos, documents: vec![], n_tokens: 0, notes };
        let in_stream = protocol.text == Text::Stream;
        for (i, mut tokens) in chosen {
            texts.n_tokens += tokens.len();
            texts.documents.push(pieces[i].name.clone());
            if let Some(bos) = bos.filter(|_| in_stream) {
                tokens.insert(0, bos);
            }
            match texts.tokens.last_mut().filter(|_| in_stream) {
                Some(stream) => {
                    stream.extend(tokens);
                    texts.names[0] = format!("{} documents", texts.documents.len());
                }
                None => {
                    texts.names.push(pieces[i].name.clone());
                    texts.tokens.push(tokens);
                }
            }
        }
        if texts.tokens.is_empty() {
            let (least, n) = (params.min_tokens, pieces.len());
            return Err(invalid(format!("no documents of at least {least} tokens among the {n} given")));
        }
        Ok(texts)
    }

    pub(super) fn lengths(&self) -> Vec<usize> {
        self.tokens.iter().map(Vec::len).collect()
    }

    /// Puts the tokens of a window in place of what `tokens` holds.
    pub(super) fn feed(&self, w: &Window, tokens: &mut Vec<Token>) {
        tokens.clear();
        tokens.extend(self.bos.filter(|_| w.bos == Bos::Prepended));
        tokens.extend_from_slice(&self.tokens[w.text][w.start..w.end]);
        if let (Bos::Replacing, Some(bos), Some(token)) = (w.bos, self.bos, tokens.first_mut()) {
            *token = bos;
        }
    }
}

/// Fisher and Yates' shuffle, the same on every machine.
fn shuffle(order: &mut [usize], seed: u64) {
    let mut rng = ChaCha8Rng::from_seed(Sha256::digest(format!("perplexity/{seed}")).into());
    for i in (1..order.len()).rev() {
        order.swap(i, below(rng.next_u64(), i as u64 + 1) as usize);
    }
}
