//! The keys that each query sees in training: all earlier keys of its document, those of its group in LongLoRA's
//! shifted sparse attention, or those of Landmark attention.

use ropewalk_core::settings::{self, Within};
use std::fmt;
use std::str::FromStr;

use crate::hparams::LayerAttention;
use crate::landmark::Landmarks;
use crate::model::{Error, Result};
use crate::rope::Reach;

/// Groups of a sequence in shifted sparse attention, where no other size is given.
const N_GROUPS: usize = 4;

/// The attention of training. Validation and inference use the model's own attention, except with landmarks, which
/// change the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrainAttention {
    /// The model's own.
    #[default]
    Full,
    /// Shifted sparse attention (S2-Attn) of LongLoRA, arXiv 2309.12307, as its released code for flash attention
    /// has it (`llama_attn_replace.py`, `forward_flashattn`). A sequence of `L` tokens is cut into groups of `g =
    /// L / 4`, rounded up: as that code does with the sequence padded to a multiple of 4, for no real token sees the
    /// padding after it. (Its script pads to the context, whatever a text takes of it: a quarter of the context as
    /// `group` is that.) In the first `n_head / 2` query heads, rounded down, query `i` sees the keys from `g * (i / g)` up to
    /// itself. In the others groups begin `g / 2` later, and the first `g / 2` tokens are a separate group:
    /// nothing wraps around, and no query sees a later token. (The form without flash attention rolls the sequence
    /// and lets its last tokens see across; it is not built.)
    ///
    /// Layers with a sliding window keep it, without groups.
    Shifted {
        /// Tokens of a group; `None` for a quarter of the sequence, rounded up.
        group: Option<usize>,
    },
    /// Landmark attention. Sequences get landmark tokens, whose embedding and output row are also trained.
    Landmark(Landmarks),
}

impl TrainAttention {
    /// The landmarks trained with, if any.
    pub fn landmarks(self) -> Option<Landmarks> {
        match self {
            TrainAttention::Landmark(landmarks) => Some(landmarks),
            TrainAttention::Full | TrainAttention::Shifted { .. } => None,
        }
    }

    /// Positions that a sequence of `n` tokens takes.
    pub(super) fn n_positions(self, n: usize) -> usize {
        self.landmarks().map_or(n, |landmarks| landmarks.n_positions(n))
    }

    /// The tokens of a group in a sequence of `n` tokens; `None` where there are no groups.
    pub(super) fn group(self, n: usize) -> Result<Option<usize>> {
        match self {
            TrainAttention::Full | TrainAttention::Landmark(_) => Ok(None),
            TrainAttention::Shifted { group: Some(0) } => {
                Err(Error::argument("attention: s2: group", "at least 1 token", 0))
            }
            TrainAttention::Shifted { group: Some(group) } => Ok(Some(group)),
            TrainAttention::Shifted { group: None } => Ok(Some(n.div_ceil(N_GROUPS).max(1))),
        }
    }
}

/// Prints the form that options and adapter files have: `full`, `s2`, `s2:group=256`, `landmark:block=64`.
impl fmt::Display for TrainAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrainAttention::Full => f.write_str("full"),
            TrainAttention::Shifted { group: None } => f.write_str("s2"),
            TrainAttention::Shifted { group: Some(n) } => write!(f, "s2:group={n}"),
            TrainAttention::Landmark(landmarks) => landmarks.fmt(f),
        }
    }
}

impl FromStr for TrainAttention {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if Landmarks::are_named(text) {
            let landmarks = text.parse().map_err(|e| Error::Invalid(format!("attention: {e}")))?;
            return Ok(TrainAttention::Landmark(landmarks));
        }
        if text == "full" {
            return Ok(TrainAttention::Full);
        }
        let (name, rest) = settings::named(text);
        if name != "s2" {
            let known = "full, s2, s2:group=N or landmark:block=N";
            return Err(Error::argument("attention", known, format_args!("{text:?}")));
        }
        let mut group = 0;
        let tokens = &mut Within(&mut group, 1..=i32::MAX as usize);
        settings::read("attention s2", rest, &mut [("group", tokens)]).map_err(Error::Invalid)?;
        Ok(TrainAttention::Shifted { group: Some(group).filter(|&n| n > 0) })
    }
}

/// Returns true if the halves of a layer's query heads see different keys, in a sequence that is cut into groups.
pub(super) fn is_split(grouped: bool, layer: &LayerAttention) -> bool {
    grouped && layer.window.is_none()
}

/// The keys that each query of a sequence sees: one range of positions, or one for each half of the heads.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// For each query, the first key of its document.
    documents: Vec<i32>,
    group: Option<usize>,
}

impl Seen {
    /// Mask of `n` tokens, in which documents begin at `segment_starts`.
    pub(super) fn new(segment_starts: &[u32], n: usize, group: Option<usize>) -> Seen {
        let mut documents = vec![0; n];
        for &start in segment_starts.iter().filter(|&&s| (s as usize) < n) {
            documents[start as usize..].fill(start as i32);
        }
        Seen { documents, group }
    }

    pub(super) fn is_grouped(&self) -> bool {
        self.group.is_some()
    }

    /// How many tokens of its document come before token `i`.
    pub(super) fn past(&self, i: usize) -> i32 {
        i as i32 - self.documents[i]
    }

    /// Tables of ranges that this layer takes.
    pub(super) fn n_tables(&self, layer: &LayerAttention) -> usize {
        1 + usize::from(is_split(self.is_grouped(), layer))
    }

    /// The first key that query `i` sees and the one after the last, in the heads of this table: 0, or 1 for the
    /// upper half of a layer whose heads are split.
    pub(super) fn range(&self, layer: &LayerAttention, table: usize, i: usize) -> [i32; 2] {
        let in_window = layer.window.map_or(0, |n| (i + 1).saturating_sub(n));
        let of_group = |g: usize| {
            let shift = table * (g / 2);
            i.checked_sub(shift).map_or(0, |past| shift + past / g * g)
        };
        let in_group = self.group.filter(|_| layer.window.is_none()).map_or(0, of_group);
        [self.documents[i].max(in_window.max(in_group) as i32), i as i32 + 1]
    }

    /// The same for a branch of a method's: positions are counted from the beginning of the document, as if it were all
    /// the text.
    pub(super) fn within(&self, reach: &Reach, i: usize) -> [i32; 2] {
        let (first, keys) = (self.documents[i], reach.keys(self.past(i)));
        [first + keys.start, first + keys.end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(window: Option<usize>) -> LayerAttention {
        LayerAttention { window, ..LayerAttention::new(2, 1, 4) }
    }

    fn firsts(seen: &Seen, layer: &LayerAttention, table: usize) -> Vec<i32> {
        (0..seen.documents.len()).map(|i| seen.range(layer, table, i)[0]).collect()
    }

    #[test]
    fn groups_are_those_of_the_paper() {
        let group = TrainAttention::Shifted { group: None }.group(16).unwrap();
        let (seen, full) = (Seen::new(&[], 16, group), layer(None));
        assert_eq!(firsts(&seen, &full, 0), [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12]);
        assert_eq!(firsts(&seen, &full, 1), [0, 0, 2, 2, 2, 2, 6, 6, 6, 6, 10, 10, 10, 10, 14, 14]);
        assert!((0..16).all(|i| seen.range(&full, 1, i)[1] == i as i32 + 1));
        // Documents begin at 3 and 11.
        let seen = Seen::new(&[3, 11], 16, group);
        assert_eq!(firsts(&seen, &full, 1), [0, 0, 2, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11, 11, 14, 14]);
        // A window stays as it is.
        let windowed = layer(Some(5));
        assert_eq!((seen.n_tables(&full), seen.n_tables(&windowed)), (2, 1));
        assert_eq!(firsts(&seen, &windowed, 0), [0, 0, 0, 3, 3, 3, 3, 3, 4, 5, 6, 11, 11, 11, 11, 11]);
        // One group: full attention, but for the border of the shifted half.
        let seen = Seen::new(&[], 6, TrainAttention::Shifted { group: Some(8) }.group(6).unwrap());
        assert_eq!((firsts(&seen, &full, 0), firsts(&seen, &full, 1)), (vec![0; 6], vec![0, 0, 0, 0, 4, 4]));
    }

    /// `forward_flashattn` step by step: the lengths of its groups (`cu_q_lens`) for a sequence padded to a multiple of 4,
    /// of which `n` tokens are real.
    #[test]
    fn groups_of_any_length_are_those_of_the_released_code() {
        for n in 1..70usize {
            let q_len = n.div_ceil(4) * 4;
            // int(q_len * group_size_ratio)
            let group_size = (q_len as f64 * 0.25) as usize;
            assert_eq!(q_len % group_size, 0);
            let ranges = |shift: usize| {
                let starts = (0..n).step_by(group_size).map(|s| s + shift).filter(|&s| s < n);
                let mut bounds: Vec<usize> = std::iter::once(0).chain(starts).chain([n]).collect();
                bounds.dedup();
                let mut first = vec![0; n];
                bounds.windows(2).for_each(|w| first[w[0]..w[1]].fill(w[0] as i32));
                first
            };
            let seen = Seen::new(&[], n, TrainAttention::Shifted { group: None }.group(n).unwrap());
            let full = layer(None);
            assert_eq!(firsts(&seen, &full, 0), ranges(0), "{n}");
            assert_eq!(firsts(&seen, &full, 1), ranges(group_size / 2), "{n}, shifted");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["full", "s2", "s2:group=7", "landmark:block=64,in-loss=false"] {
            assert_eq!(text.parse::<TrainAttention>().unwrap().to_string(), text);
        }
        for text in ["", "S2", "s2:", "s2:group=0", "s2:group=-1", "s2:group=x", "sparse"] {
            let e = text.parse::<TrainAttention>().unwrap_err().to_string();
            assert!(e.starts_with("attention") && e.contains("expected ") && e.contains("found "), "{e}");
        }
    }
}
