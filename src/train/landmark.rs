//! Texts as the trainer computes them: inputs, targets, and their weights, with landmarks if they are trained.

use super::settings::Sequence;
use crate::landmark::Landmarks;
use crate::Token;

/// The tokens of a sequence that are inputs, and what follows each.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Text {
    pub(super) inputs: Vec<Token>,
    pub(super) targets: Vec<Token>,
    pub(super) weights: Vec<f32>,
    /// Positions at which attention starts again.
    pub(super) segment_starts: Vec<u32>,
}

impl Text {
    /// A sequence and the weights of its targets as they are.
    pub(super) fn plain(sequence: &Sequence<'_>, weights: Vec<f32>) -> Text {
        let n = weights.len();
        Text {
            inputs: sequence.tokens[..n].to_vec(),
            targets: sequence.tokens[1..=n].to_vec(),
            weights,
            segment_starts: sequence.segment_starts.to_vec(),
        }
    }

    /// The same with landmark tokens, `token`. As a target, a landmark has the weight of the token after it, or 0.
    pub(super) fn with_landmarks(self, landmarks: Landmarks, token: Token) -> Text {
        let mut text = Text::default();
        for (i, ((input, target), weight)) in
            self.inputs.into_iter().zip(self.targets).zip(self.weights).enumerate()
        {
            text.inputs.push(input);
            if landmarks.follows(i + 1) {
                text.targets.push(token);
                text.weights.push(if landmarks.in_loss { weight } else { 0.0 });
                text.inputs.push(token);
            }
            text.targets.push(target);
            text.weights.push(weight);
        }
        // Later ones have no effect.
        let n = text.inputs.len();
        let starts = self.segment_starts.into_iter().filter(|&s| (s as usize) < n);
        text.segment_starts = starts.map(|s| landmarks.n_positions(s as usize) as u32).collect();
        text
    }
}
