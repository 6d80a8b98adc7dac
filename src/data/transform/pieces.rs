//! Documents of a sample cut into pieces, and a sample put together again from pieces and tokens between them.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use ropewalk_core::tokenizer::Token;

use crate::random::{below, subset};
use crate::sample::{Sample, Span, SpanKind};

/// The kinds of tokens of a new sample that the rules for its loss tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Text,
    /// A token at a side of a cut.
    Knot,
    /// A digit of a chunk's number.
    Number,
    /// Start of a label, the label, its end.
    LabelStart,
    Label,
    LabelEnd,
    /// The list of a document's labels: its start, a label in it, between two, its end.
    ListStart,
    ListLabel,
    ListNext,
    ListEnd,
}

impl Role {
    fn kind(self) -> SpanKind {
        match self {
            Role::Text => SpanKind::Text,
            Role::Knot | Role::Number => SpanKind::Knot,
            Role::Label | Role::ListLabel => SpanKind::Label,
            Role::LabelStart | Role::LabelEnd | Role::ListStart | Role::ListNext | Role::ListEnd => {
                SpanKind::Mark
            }
        }
    }
}

/// The documents of a sample: the positions of each, and whether its end is in the sample.
pub(super) fn documents(sample: &Sample) -> Vec<(Range<usize>, bool)> {
    sample.ranges().map(|(span, range)| (range, span.ends)).collect()
}

/// Where a document of `len` tokens is cut into `n` pieces: nowhere when it is shorter.
pub(super) fn cuts(len: usize, n: usize, random: bool, rng: &mut ChaCha8Rng) -> Vec<usize> {
    if n < 2 || len < n {
        return Vec::new();
    }
    if random {
        return subset(rng, len as u64 - 1, n as u64 - 1).into_iter().map(|at| at as usize + 1).collect();
    }
    (1..n).map(|k| len / n * k).collect()
}

pub(super) fn between(range: &Range<usize>, cuts: &[usize]) -> Vec<Range<usize>> {
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([range.len()]);
    starts.zip(ends).map(|(start, end)| range.start + start..range.start + end).collect()
}

/// Six letters and digits.
pub(super) fn label(rng: &mut ChaCha8Rng) -> String {
    const CHARACTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    (0..6).map(|_| CHARACTERS[below(rng, CHARACTERS.len() as u64) as usize] as char).collect()
}

pub(super) struct Builder<'a> {
    source: &'a Sample,
    tokens: Vec<Token>,
    roles: Vec<Role>,
    /// Weight of each token as a target.
    counts: Vec<f32>,
    spans: Vec<Span>,
}

impl<'a> Builder<'a> {
    /// A sample of the tokens of `source`.
    pub(super) fn new(source: &'a Sample) -> Self {
        let n = source.tokens.len();
        Builder {
            source,
            tokens: Vec::with_capacity(2 * n),
            roles: Vec::with_capacity(2 * n),
            counts: Vec::with_capacity(2 * n),
            spans: Vec::new(),
        }
    }

    /// Tokens of a document; `ends` says that the last of them is its end.
    pub(super) fn text(&mut self, document: usize, range: Range<usize>, ends: bool) {
        self.span(SpanKind::Text, document, range.start, ends);
        for i in range {
            // The first token of a sample was no target in it.
            let count = i.checked_sub(1).map_or(1.0, |before| self.source.weights[before]);
            self.push(self.source.tokens[i], Role::Text, count);
        }
    }

    /// A token that is put in, for a document.
    pub(super) fn insert(&mut self, document: usize, token: Token, role: Role) {
        let kind = role.kind();
        if self.spans.last().is_none_or(|s| (s.kind, s.document) != (kind, document as u32)) {
            self.span(kind, document, 0, false);
        }
        self.push(token, role, 1.0);
    }

    pub(super) fn insert_all(&mut self, document: usize, tokens: &[Token], role: Role) {
        tokens.iter().for_each(|&token| self.insert(document, token, role));
    }

    fn span(&mut self, kind: SpanKind, document: usize, from: usize, ends: bool) {
        let start = self.tokens.len() as u32;
        self.spans.push(Span { start, kind, document: document as u32, from: from as u32, ends });
    }

    fn push(&mut self, token: Token, role: Role, count: f32) {
        self.tokens.push(token);
        self.roles.push(role);
        self.counts.push(count);
    }

    /// The sample, cut to the length of the one that it was made of. The loss is left out where an input or its
    /// target is a knot, where an input is a label of a chunk or a mark around it, where the target begins a
    /// label or the list of labels, and where the input ends that list (`__getitem__` of the released
    /// `gpt_dataset_utk.py`).
    pub(super) fn finish(mut self) -> Sample {
        let n = self.source.tokens.len();
        let whole = self.tokens.len() <= n || self.spans.iter().any(|s| s.start as usize == n);
        self.tokens.truncate(n);
        self.spans.retain(|s| (s.start as usize) < n);
        if let Some(last) = self.spans.last_mut() {
            last.ends &= whole;
        }
        let weight = |i: usize| {
            let (input, target) = (self.roles[i], self.roles[i + 1]);
            let left_out = input == Role::Knot
                || target == Role::Knot
                || matches!(input, Role::LabelStart | Role::Label | Role::LabelEnd | Role::ListEnd)
                || matches!(target, Role::LabelStart | Role::ListStart);
            if left_out {
                0.0
            } else {
                self.counts[i + 1]
            }
        };
        let weights = (0..n.saturating_sub(1)).map(weight).collect();
        Sample {
            tokens: self.tokens,
            segment_starts: Vec::new(),
            weights,
            positions: Vec::new(),
            spans: self.spans,
        }
    }
}
