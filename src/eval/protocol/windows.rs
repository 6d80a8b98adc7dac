//! The windows of a protocol, counted and found by index.

use super::{Protocol, Sweep, Window, WindowGeometry};

/// The windows of all texts, in order. It uses memory per text, not per window.
#[derive(Debug, Clone)]
pub struct WindowPlan {
    sweeps: Vec<Sweep>,
    /// Windows before each sweep, and at the end their number.
    before: Vec<usize>,
    /// Texts shorter than one window, or than the length in pieces.
    pub n_short: usize,
}

/// The reason why a text cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// Index of the text.
    pub text: usize,
    /// The problem, in words.
    pub reason: String,
}

impl WindowPlan {
    /// Plans texts of these lengths, in tokens. `stride` applies only to protocols that have one.
    ///
    /// # Errors
    /// Returns an error if `n_ctx` is below 2, if the stride is 0 or so large that tokens would be skipped, or if a
    /// text is too short to score.
    pub fn new(
        protocol: &Protocol,
        texts: &[usize],
        n_ctx: usize,
        stride: usize,
        bos: bool,
    ) -> std::result::Result<WindowPlan, PlanError> {
        let mut plan = WindowPlan { sweeps: Vec::with_capacity(texts.len()), before: vec![0], n_short: 0 };
        for (text, &n_tokens) in texts.iter().enumerate() {
            let fail = |reason| PlanError { text, reason };
            if n_ctx < 2 {
                return Err(fail(format!("ctx {n_ctx} is too small: a token and its predecessor take 2")));
            }
            if protocol.stride.is_some() && stride == 0 {
                return Err(fail("stride 0 never advances".into()));
            }
            let sweep = (protocol.sweep)(&WindowGeometry { n_tokens, n_ctx, stride, bos }).map_err(fail)?;
            if sweep.count == 0 || sweep.window(text, 0).n_scored() == 0 {
                return Err(fail(format!("{n_tokens} tokens are too few: nothing to score")));
            }
            plan.n_short += usize::from(n_tokens < sweep.width);
            plan.before.push(plan.len() + sweep.count);
            plan.sweeps.push(sweep);
        }
        Ok(plan)
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.before.last().copied().unwrap_or(0)
    }

    /// Returns true if there are no windows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Window `i`, if there is one.
    pub fn get(&self, i: usize) -> Option<Window> {
        let text = self.before.partition_point(|&n| n <= i).checked_sub(1)?;
        let sweep = self.sweeps.get(text)?;
        Some(sweep.window(text, i - self.before[text]))
    }

    /// Up to `max` windows, spread evenly over the plan: the first, and then one every `len / max`.
    pub fn sample(&self, max: Option<usize>) -> impl ExactSizeIterator<Item = Window> + '_ {
        let total = self.len();
        let n = max.map_or(total, |max| max.min(total));
        (0..n).map(move |k| {
            let i = (k as u128 * total as u128 / n as u128) as usize;
            // `i < total`, for which every index has a window.
            self.get(i).unwrap_or_else(|| unreachable!("window {i} of {total}"))
        })
    }
}
