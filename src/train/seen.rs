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
