//! Perplexity protocols by name. A protocol sets which tokens each window feeds, which of them it scores, and how
//! scores are averaged.
//!
//! "Perplexity at 8k, stride 256" means at least five different things in the literature. Each [`Protocol`] is one of
//! them, taken from the code that produced the published numbers. Planning needs only token counts.
//!
//! This project's own figures use `window`: one window from the start of a text, in which every token except the
//! first is scored. On one document, `yarn-trunc` differs only by BOS. YaRN's script adds BOS if the vocabulary has
//! one, whether or not the model was trained with it.

mod windows;

use crate::model::Result;

use super::invalid;

pub use windows::{PlanError, WindowPlan};

/// One published way to measure perplexity.
#[derive(Debug)]
pub struct Protocol {
    /// Name, as typed and as shown in reports.
    pub name: &'static str,
    /// The published file that defines it.
    pub source: &'static str,
    /// One line for help texts.
    pub about: &'static str,
    /// The text that windows are cut from.
    pub text: Text,
    /// The rule for BOS at the start.
    pub bos: BosRule,
    /// The default stride; `None` if the protocol has no stride.
    pub stride: Option<usize>,
    /// The average that gives the main figure.
    pub average: Average,
    /// True if windows score the same tokens more than once, which makes standard errors too small.
    pub overlaps: bool,
    /// True if a length is a length of text, which is read in fresh contexts of `stride` tokens, one after another.
    /// Positions then count from the start of the text.
    pub restarts: bool,
    /// Size, in tokens, of the parts that a window is fed in. Each part has a fresh context; positions count from the
    /// start of the window.
    pub part: Option<usize>,
    sweep: fn(&WindowGeometry) -> std::result::Result<Sweep, String>,
}

/// The text that windows are cut from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    /// Each document separately, with BOS at the start of every window.
    Documents,
    /// All documents as one token stream, with BOS at the start of every document.
    Stream,
}

/// The rule for BOS at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BosRule {
    /// Always, if the vocabulary has BOS, regardless of the model's flags.
    Vocabulary,
    /// If the model's flags ask for it.
    Flags,
}

/// The average that gives the main figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Average {
    /// exp of the mean over all scored tokens.
    Tokens,
    /// `base` to the mean, over windows, of each window's mean. A short window weighs as much as a full one.
    Windows {
        /// e, or the value that the source uses for it.
        base: f64,
    },
}

/// The text and the lengths that windows are planned for.
#[derive(Debug, Clone, Copy)]
pub struct WindowGeometry {
    /// Tokens of the document or stream.
    pub n_tokens: usize,
    /// Maximum tokens that a window feeds, including BOS; for protocols that restart, of all windows of a text.
    pub n_ctx: usize,
    /// Tokens between the starts of windows, for protocols that have a stride.
    pub stride: usize,
    /// True if BOS is used.
    pub bos: bool,
}

/// BOS at the start of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bos {
    /// No BOS: only tokens of the text.
    None,
    /// BOS as an additional token.
    Prepended,
    /// BOS in place of the window's first token.
    Replacing,
}

/// A window: tokens that go through the model in one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Index of the document; 0 for a stream.
    pub text: usize,
    /// First token of the text.
    pub start: usize,
    /// One past the last token of the text.
    pub end: usize,
    /// BOS at the start.
    pub bos: Bos,
    /// Index of the first scored token among the tokens fed, at least 1. All later tokens are scored as well.
    pub from: usize,
    /// Position of the first token fed, used to sort scores into buckets. It is 0 unless the protocol
    /// [`restarts`](Protocol::restarts) or has [parts](Protocol::part).
    pub position: usize,
}

impl Protocol {
    /// Context size, in tokens, needed to compute the windows of a length.
    pub fn context(&self, n_ctx: usize, stride: usize) -> usize {
        let most = self.part.unwrap_or(usize::MAX);
        n_ctx.min(if self.restarts { stride } else { most })
    }
}

impl Window {
    /// Number of tokens fed, including BOS.
    pub fn n_fed(&self) -> usize {
        self.end - self.start + usize::from(self.bos == Bos::Prepended)
    }
    /// Number of tokens scored.
    pub fn n_scored(&self) -> usize {
        self.n_fed().saturating_sub(self.from)
    }
}

#[derive(Debug, Clone, Copy)]
enum Scored {
    /// Tokens that no window before has held.
    Unseen,
    /// Fed tokens from this index on.
    From(usize),
}

/// The windows of one text: `[i*step, i*step + width)`, cut at the text's end, each in parts.
#[derive(Debug, Clone, Copy)]
struct Sweep {
    /// Tokens of a part; as many as the window has where it is one.
    part: usize,
    n_tokens: usize,
    /// A text of fewer tokens is reported as short.
    width: usize,
    step: usize,
    count: usize,
    bos: Bos,
    scored: Scored,
}

impl Sweep {
    /// The same with its windows in parts of so many tokens. Nothing predicts a token that is a part by itself, without BOS.
    fn in_parts(self, part: usize) -> Sweep {
        let sweep = Sweep { part: part.min(self.width), ..self };
        let last = self.n_tokens.saturating_sub((self.count - 1) * self.step).min(self.width);
        Sweep { count: (self.count - 1) * sweep.n_parts(self.width) + sweep.n_parts(last), ..sweep }
    }

    /// Parts of a window of so many tokens.
    fn n_parts(&self, n: usize) -> usize {
        let part = self.part.max(1);
        (n / part + usize::from(n % part > usize::from(self.bos != Bos::Prepended))).max(1)
    }

    fn window(&self, text: usize, i: usize) -> Window {
        let n_parts = self.n_parts(self.width);
        let (first, position) = (i / n_parts * self.step, i % n_parts * self.part);
        let start = first + position;
        let end = self.n_tokens.min(first.saturating_add(self.width)).min(start.saturating_add(self.part));
        let prepended = usize::from(self.bos == Bos::Prepended);
        let from = match self.scored {
            Scored::From(from) => from,
            Scored::Unseen if i == 0 => prepended,
            // Every planner has step <= width.
            Scored::Unseen => self.width - self.step + prepended,
        };
        // Nothing predicts the first token fed.
        Window { text, start, end, bos: self.bos, from: from.max(1), position }
    }
}

/// The protocol `window`; the others are given by what differs.
const WINDOW: Protocol = Protocol {
    name: "window",
    source: "no published one: the document's first tokens, each predicted from all before it",
    about: "one window of ctx tokens from the start of each document, every token scored, \
        token-weighted; BOS only if the model's flags ask",
    text: Text::Documents,
    bos: BosRule::Flags,
    stride: None,
    average: Average::Tokens,
    overlaps: false,
    restarts: false,
    part: None,
    sweep: one_window,
};

/// LongLoRA's protocol, of which `lceg-landmark` is a variant.
const LONGLORA: Protocol = Protocol {
    name: "longlora",
    source: "dvlab-research/LongLoRA eval.py",
    about: "one stream, a window every S tokens, every token of every window scored, mean over windows, \
        2.71828^mean; the last start is dropped (LongLoRA, LCEG)",
    text: Text::Stream,
    stride: Some(256),
    // Not e: the source raises this very constant to the mean.
    #[allow(clippy::approx_constant)]
    average: Average::Windows { base: 2.71828 },
    overlaps: true,
    sweep: longlora,
    ..WINDOW
};

/// All protocols. The first is the default.
pub static PROTOCOLS: &[Protocol] = &[
    WINDOW,
    Protocol {
        name: "yarn",
        source: "jquesnelle/yarn eval/perplexity.py",
        about: "per document, windows every S tokens, tokens not seen before are scored, unweighted mean \
            over windows; BOS before every window, ctx counts it",
        bos: BosRule::Vocabulary,
        stride: Some(256),
        average: Average::Windows { base: std::f64::consts::E },
        sweep: |g| sliding(g, per_document(g)),
        ..WINDOW
    },
    Protocol {
        name: "yarn-trunc",
        source: "jquesnelle/yarn eval/perplexity.py --truncate",
        about: "documents cut to one window, mean over documents of the document's mean; one BOS, ctx \
            counts it (YaRN's long Proof-pile curves)",
        bos: BosRule::Vocabulary,
        average: Average::Windows { base: std::f64::consts::E },
        ..WINDOW
    },
    LONGLORA,
    Protocol {
        name: "stride",
        source: "ggml-org/llama.cpp tools/perplexity --ppl-stride (perplexity_v2)",
        about: "one stream, a window of ctx tokens every S, its last S tokens scored (of the first window \
            too), token-weighted",
        text: Text::Stream,
        stride: Some(256),
        sweep: llama_cpp_stride,
        ..WINDOW
    },
    Protocol {
        name: "press",
        source: "Press et al. 2021 (ALiBi), appendix B; fairseq lm_context_window_dataset.py",
        about: "one stream, windows every S tokens, every token scored once (all of the first window, the \
            last S of the others), token-weighted",
        text: Text::Stream,
        stride: Some(256),
        sweep: |g| sliding(g, (g.n_ctx, Bos::None)),
        ..WINDOW
    },
    Protocol {
        name: "llama-cpp",
        source: "ggml-org/llama.cpp tools/perplexity (perplexity)",
        about: "one stream in disjoint chunks of ctx tokens, second half of each scored, token-weighted; \
            BOS takes the place of each chunk's first token if the flags ask",
        text: Text::Stream,
        sweep: llama_cpp,
        ..WINDOW
    },
    Protocol {
        name: "restart",
        source: "arXiv 2409.12181 (LCEG), Figure 3, whose code is not published",
        about:
            "the first ctx tokens of each document in pieces of S tokens, each from a fresh context of S, \
            every token scored, token-weighted; positions count from the document's start",
        stride: Some(4096),
        restarts: true,
        sweep: restart,
        ..WINDOW
    },
    Protocol {
        name: "lceg-landmark",
        source: "arXiv 2409.12181 (LCEG), Landmark attention's perplexity: dvlab-research/LongLoRA eval.py, of which the \
            model is given 512 tokens at a time",
        about: "as longlora, each window in parts of 512 tokens, each from a fresh context, every token scored, mean over \
            parts: what LCEG reports of Landmark attention, at whatever ctx",
        part: Some(LCEG_PART),
        sweep: |g| longlora(g).map(|sweep| sweep.in_parts(LCEG_PART)),
        ..LONGLORA
    },
];

/// Tokens that LCEG's Landmark attention reads at a time, without a cache between them. Its script puts a landmark
/// after every 63 tokens, and 512 is not a multiple of that. Here, landmarks are at the same places as in training.
const LCEG_PART: usize = 512;

/// Finds a protocol by name.
///
/// # Errors
/// Returns an error if the name is unknown; the message lists the known names.
pub fn protocol(name: &str) -> Result<&'static Protocol> {
    PROTOCOLS.iter().find(|p| p.name == name).ok_or_else(|| {
        let known: Vec<_> = PROTOCOLS.iter().map(|p| p.name).collect();
        invalid(format!("unknown protocol {name:?}: known are {}", known.join(", ")))
    })
}

/// The default protocol: `stride` if a stride is given, as in llama.cpp's tool, and `window` otherwise.
pub fn default_protocol(stride: Option<usize>) -> &'static Protocol {
    PROTOCOLS.iter().find(|p| p.name == "stride" && stride.is_some()).unwrap_or(&PROTOCOLS[0])
}

/// Text tokens that a window takes, and whether BOS stands before them: BOS, when used, counts toward
/// `n_ctx`.
fn per_document(g: &WindowGeometry) -> (usize, Bos) {
    if g.bos {
        (g.n_ctx - 1, Bos::Prepended)
    } else {
        (g.n_ctx, Bos::None)
    }
}

impl WindowGeometry {
    /// One window of a width without BOS, of which each token but the first is scored.
    fn window(&self, width: usize) -> Sweep {
        let (n_tokens, bos, scored) = (self.n_tokens, Bos::None, Scored::From(1));
        Sweep { part: width, n_tokens, width, step: width, count: 1, bos, scored }
    }
}

fn one_window(g: &WindowGeometry) -> std::result::Result<Sweep, String> {
    let (width, bos) = per_document(g);
    Ok(Sweep { bos, ..g.window(width) })
}

/// The tokens that `one_window` feeds, in pieces with BOS before each, which the stride counts.
fn restart(g: &WindowGeometry) -> std::result::Result<Sweep, String> {
    if g.stride < 2 {
        return Err(format!("stride {} is too small: a token and its predecessor take 2", g.stride));
    }
    let (piece, _) = per_document(&WindowGeometry { n_ctx: g.n_ctx.min(g.stride), ..*g });
    one_window(g).map(|sweep| sweep.in_parts(piece))
}

/// `yarn` and `press`: windows until one reaches the end of the text. In fairseq the first tokens come in
/// blocks of S with all that precedes as context, which scores them as one first window of `width` does.
fn sliding(g: &WindowGeometry, (width, bos): (usize, Bos)) -> std::result::Result<Sweep, String> {
    no_gaps(g.stride, width)?;
    let count = 1 + g.n_tokens.saturating_sub(width).div_ceil(g.stride);
    let mut sweep = Sweep { step: g.stride, count, bos, scored: Scored::Unseen, ..g.window(width) };
    // A tail of one token that shares nothing with the window before has nothing to predict it.
    if sweep.window(0, count - 1).n_scored() == 0 {
        sweep.count -= 1;
    }
    Ok(sweep)
}

fn longlora(g: &WindowGeometry) -> std::result::Result<Sweep, String> {
    no_gaps(g.stride, g.n_ctx)?;
    let starts = g.n_tokens.saturating_sub(g.n_ctx).div_ceil(g.stride);
    if starts < 2 {
        let need = g.n_ctx.saturating_add(g.stride).saturating_add(1);
        return Err(format!(
            "{} tokens are too few: ctx {} and stride {} need {need}",
            g.n_tokens, g.n_ctx, g.stride
        ));
    }
    Ok(Sweep { step: g.stride, count: starts - 1, ..g.window(g.n_ctx) })
}

/// llama.cpp's tool grows its window by S/2 (and, for small ones, to its batch): here it is exactly `n_ctx`,
/// what that tool logs as "Calculation chunk". It writes BOS over a chunk's first token only after the chunk
/// was decoded, so no chunk but the first sees one. It refuses texts below two windows; one whole window and
/// a token do here.
fn llama_cpp_stride(g: &WindowGeometry) -> std::result::Result<Sweep, String> {
    if g.stride >= g.n_ctx {
        return Err(format!("stride {} must be below ctx {}", g.stride, g.n_ctx));
    }
    if g.n_tokens <= g.n_ctx {
        return Err(format!("{} tokens are too few: ctx {} needs one more than that", g.n_tokens, g.n_ctx));
    }
    let count = (g.n_tokens - g.n_ctx).div_ceil(g.stride);
    let scored = Scored::From(g.n_ctx - g.stride);
    Ok(Sweep { step: g.stride, count, scored, ..g.window(g.n_ctx) })
}

/// Refuses only what holds no whole chunk; llama.cpp's tool wants two.
fn llama_cpp(g: &WindowGeometry) -> std::result::Result<Sweep, String> {
    if g.n_ctx < 3 {
        return Err(format!(
            "ctx {} is too small: half a chunk less one token is scored, which takes 3",
            g.n_ctx
        ));
    }
    let count = g.n_tokens / g.n_ctx;
    if count == 0 {
        return Err(format!("{} tokens are too few: ctx {} needs that many", g.n_tokens, g.n_ctx));
    }
    let bos = if g.bos { Bos::Replacing } else { Bos::None };
    Ok(Sweep { count, bos, scored: Scored::From(g.n_ctx / 2 + 1), ..g.window(g.n_ctx) })
}

fn no_gaps(stride: usize, width: usize) -> std::result::Result<(), String> {
    if stride > width {
        return Err(format!(
            "stride {stride} is larger than the {width} text tokens of a window: tokens \
            between windows would never be scored"
        ));
    }
    Ok(())
}
