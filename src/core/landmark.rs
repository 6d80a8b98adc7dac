//! Landmark attention (Mohtashami and Jaggi 2023, arXiv 2305.16300): where landmark tokens stand, and how the setting is
//! written in options and adapter files.

use crate::settings::{self, Within};

use std::fmt;
use std::str::FromStr;

/// Most positions of a block: our kernel computes whole blocks at a time.
pub const MAX_BLOCK: usize = 256;

const NAME: &str = "landmark";

/// Landmark attention: after every `block - 1` tokens of a text stands a landmark token, which has a position of its
/// own. The tokenizer and the model's file do not know it: its identifier is the number of tokens in the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landmarks {
    block: usize,
    /// True if training also predicts landmarks (`include_landmark_in_loss` of the released code).
    pub in_loss: bool,
}

impl Default for Landmarks {
    fn default() -> Self {
        Landmarks::DEFAULT
    }
}

impl Landmarks {
    /// Blocks of 64, as the paper's fine-tuned models have them; landmarks are predicted.
    pub const DEFAULT: Landmarks = Landmarks { block: 64, in_loss: true };

    /// Blocks of so many positions, the landmark's among them; landmarks are predicted.
    ///
    /// # Errors
    /// A block that is not 2 to [`MAX_BLOCK`].
    pub fn new(block: usize) -> Result<Landmarks, String> {
        if (2..=MAX_BLOCK).contains(&block) {
            return Ok(Landmarks { block, in_loss: true });
        }
        Err(format!("landmark: block: expected 2 to {MAX_BLOCK} positions, found {block}"))
    }

    /// Positions of a block, the landmark's among them.
    pub fn block(self) -> usize {
        self.block
    }

    /// Positions that a text of `n` tokens takes; also the position of the token after them.
    pub fn n_positions(self, n: usize) -> usize {
        n.saturating_add(n / (self.block - 1))
    }

    /// Tokens of a text that have room in `n` positions.
    pub fn n_tokens(self, n: usize) -> usize {
        n / self.block * (self.block - 1) + n % self.block
    }

    /// Returns true if a landmark comes after a text of `n` tokens.
    pub fn follows(self, n: usize) -> bool {
        n > 0 && n.is_multiple_of(self.block - 1)
    }

    /// Returns true if `text` names this setting, valid or not.
    pub fn are_named(text: &str) -> bool {
        text.split(':').next() == Some(NAME)
    }
}

/// `landmark:block=64`, and `,in-loss=false` where landmarks are not predicted.
impl fmt::Display for Landmarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME}:block={}", self.block)?;
        if self.in_loss {
            Ok(())
        } else {
            f.write_str(",in-loss=false")
        }
    }
}

impl FromStr for Landmarks {
    type Err = String;

    fn from_str(text: &str) -> Result<Landmarks, String> {
        let (name, rest) = settings::named(text);
        if name != NAME {
            return Err(format!("expected {NAME} or {NAME}:block=N,in-loss=false, found {text:?}"));
        }
        let Landmarks { mut block, mut in_loss } = Landmarks::DEFAULT;
        settings::read(NAME, rest, &mut [("block", &mut block), ("in-loss", &mut in_loss)])?;
        Ok(Landmarks { in_loss, ..Landmarks::new(block)? })
    }
}

/// Attention over a few of the blocks before a query, those whose landmarks score highest, in place of all of them:
/// section 3.3 of the paper. The blocks are shown near enough for the model to know their distances from training.
///
/// A text is cut into pieces of whole blocks. Queries see their own piece as it is, and each head takes `top` blocks of
/// those before it. With pieces of one block this is what the released code does where it is given a token at a time, as
/// in its generation; it reads prompts in longer ones (`max_chunk`: 128 positions where models were trained with 512 and
/// `top` is 5). A piece lies at the same place however a text is handed in, so results do not depend on batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopBlocks {
    /// Blocks that each query head takes, at least 1.
    pub top: usize,
    /// Positions of a piece, whole blocks; `None` is one block.
    pub piece: Option<usize>,
}

impl TopBlocks {
    /// Positions of a piece under these landmarks.
    ///
    /// # Errors
    /// A piece that is not of whole blocks.
    pub fn piece(self, landmarks: Landmarks) -> Result<usize, String> {
        let block = landmarks.block();
        match self.piece.unwrap_or(block) {
            piece if piece > 0 && piece.is_multiple_of(block) => Ok(piece),
            piece => {
                Err(format!("{self}: piece: expected a multiple of the block of {block}, found {piece}"))
            }
        }
    }
}

/// `landmark:top=5`, and `,piece=128` where that is given.
impl fmt::Display for TopBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME}:top={}", self.top)?;
        self.piece.map_or(Ok(()), |piece| write!(f, ",piece={piece}"))
    }
}

impl FromStr for TopBlocks {
    type Err = String;

    fn from_str(text: &str) -> Result<TopBlocks, String> {
        let (name, rest) = settings::named(text);
        let missing = || format!("expected {NAME}:top=K or {NAME}:top=K,piece=N, found {text:?}");
        let given = rest.filter(|_| name == NAME).ok_or_else(missing)?;
        let (mut top, mut piece) = (0, 0);
        let most = i32::MAX as usize;
        let (tops, pieces) = (&mut Within(&mut top, 1..=most), &mut Within(&mut piece, 1..=most));
        settings::read(NAME, Some(given), &mut [("top", tops), ("piece", pieces)])?;
        match top {
            0 => Err(missing()),
            top => Ok(TopBlocks { top, piece: Some(piece).filter(|&n| n > 0) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["landmark:block=64", "landmark:block=2", "landmark:block=50,in-loss=false"] {
            assert_eq!(text.parse::<Landmarks>().unwrap().to_string(), text);
        }
        assert_eq!("landmark".parse(), Ok(Landmarks::default()));
        assert_eq!("landmark:in-loss=true".parse(), Ok(Landmarks::default()));
        for text in ["", "landmark:", "landmarks", "landmark:64", "landmark:block=", "landmark:block=8,"] {
            let e = text.parse::<Landmarks>().unwrap_err();
            assert!(e.contains("expected ") && e.contains("found "), "{text}: {e}");
        }
        for text in ["landmark:block=0", "landmark:block=1", "landmark:block=257"] {
            let e = text.parse::<Landmarks>().unwrap_err();
            assert!(e.starts_with("landmark: block: expected 2 to 256 positions, found"), "{e}");
        }
    }

    #[test]
    fn blocks_that_are_taken_are_read_as_they_are_written() {
        for text in ["landmark:top=5", "landmark:top=1,piece=128"] {
            assert_eq!(text.parse::<TopBlocks>().unwrap().to_string(), text);
        }
        for text in
            ["", "landmark", "landmark:", "landmark:top=0", "landmark:top=-1", "landmark:top=x", "top=5"]
                .into_iter()
                .chain([
                    "landmark:top=5,",
                    "landmark:top=5,piece=0",
                    "landmark:piece=64",
                    "landmark:top=5,piece=64,",
                ])
        {
            let e = text.parse::<TopBlocks>().unwrap_err();
            assert!(e.contains("expected ") && e.contains("found "), "{text}: {e}");
        }
        let landmarks = Landmarks::new(8).unwrap();
        let of = |text: &str| text.parse::<TopBlocks>().unwrap().piece(landmarks);
        assert_eq!((of("landmark:top=3"), of("landmark:top=3,piece=24")), (Ok(8), Ok(24)));
        let e = of("landmark:top=3,piece=20").unwrap_err();
        assert_eq!(e, "landmark:top=3,piece=20: piece: expected a multiple of the block of 8, found 20");
    }

    #[test]
    fn positions_count_landmarks() {
        let landmarks = Landmarks::default();
        assert_eq!([0, 62, 63, 64, 512].map(|n| landmarks.n_positions(n)), [0, 62, 64, 65, 520]);
        for landmarks in [2, 3, 64, 256].map(|block| Landmarks::new(block).unwrap()) {
            let mut position = 0;
            for n in 0..1000 {
                assert_eq!(landmarks.n_positions(n), position);
                assert_eq!(landmarks.n_tokens(position), n);
                position += 1 + usize::from(landmarks.follows(n + 1));
            }
        }
    }
}
