//! Sessions of models with landmarks: the tokens that the session adds, the slots that texts need, and the places of
//! keys.
//!
//! Callers count tokens of the text; landmarks take only positions and slots. A landmark is computed with the token
//! that ends its block, and the logits of that token are those of the landmark. The text continues after the
//! landmark: in training as well, the token after a block is predicted from the landmark. So at any length, a
//! sequence is the same as in a fresh session.

use ggml::graph::Executor;

use super::batch::Item;
use super::inputs::table_of;
use super::{Attention, SeqId, Session, SessionParams};
use crate::graph::{SeenInputs, TableShape};
use crate::kv::CELL_BLOCK;
use crate::model::{Error, Model, Result};

/// The parameters with the context in cells: positions, and one more for each sequence, so that a last token fits
/// whether or not a landmark follows it.
pub(super) fn in_positions(model: &Model, params: &SessionParams) -> SessionParams {
    let one = usize::from(model.landmarks().is_some());
    SessionParams { n_ctx: model.n_positions(params.n_ctx).saturating_add(one), ..params.clone() }
}

/// Refuses to take blocks by landmarks that the model does not have, and pieces that are not whole blocks.
pub(super) fn check_top(model: &Model, params: &SessionParams) -> Result<()> {
    let Attention::Landmark(top) = params.attention else { return Ok(()) };
    match model.landmarks() {
        Some(landmarks) => {
            top.piece(landmarks).map(|_| ()).map_err(|e| Error::Invalid(format!("attention: {e}")))
        }
        None => Err(Error::Unsupported(format!(
            "attention: {top}: expected an adapter that was trained with landmarks, found none"
        ))),
    }
}

impl Session {
    /// Refuses what is not defined under landmark attention.
    pub(super) fn refuse_landmarks(&self, what: &str) -> Result<()> {
        match self.model.landmarks() {
            None => Ok(()),
            Some(landmarks) => {
                Err(Error::Unsupported(format!("{what}: expected plain attention, found {landmarks}")))
            }
        }
    }

    /// Items with the landmarks that follow them, and for each the index of the item whose logits are its own. Of an
    /// item that a landmark follows, the logits wanted are the landmark's. The items' sequences are there.
    pub(super) fn with_landmarks(&self, items: &[Item]) -> (Vec<Item>, Vec<usize>) {
        let Some(landmarks) = self.model.landmarks() else {
            return (items.to_vec(), (0..items.len()).collect());
        };
        let (mut all, mut origins) = (Vec::new(), Vec::new());
        let mut lengths: Vec<usize> = self.tokens.iter().map(Vec::len).collect();
        for (i, &item) in items.iter().enumerate() {
            let n = &mut lengths[item.seq as usize];
            *n += 1;
            let follows = landmarks.follows(*n);
            all.push(Item { logits: item.logits && !follows, ..item });
            origins.push(i);
            if follows {
                all.push(Item { token: self.model.landmark_token(), ..item });
                origins.push(i);
            }
        }
        (all, origins)
    }

    /// Cells that `n` tokens of one sequence take at most, wherever in it they stand.
    pub(crate) fn cells_at_most(&self, n: usize) -> usize {
        let one = usize::from(self.model.landmarks().is_some());
        self.model.n_positions(n).saturating_add(one)
    }

    /// Tokens of one sequence for which there are free cells.
    pub(super) fn n_free_tokens(&self) -> usize {
        let n = self.kv.n_free();
        self.model.landmarks().map_or(n, |landmarks| landmarks.n_tokens(n.saturating_sub(1)))
    }

    pub(super) fn table_shape(&self, n_positions: usize, n_tables: usize) -> Option<TableShape> {
        let landmarks = self.model.landmarks()?;
        let top = match self.params.attention {
            // The piece was checked when the session was opened.
            Attention::Landmark(top) => Some((top.top, top.piece(landmarks).unwrap_or(landmarks.block()))),
            Attention::Auto | Attention::Explicit => None,
        };
        let n_positions = n_positions.next_multiple_of(CELL_BLOCK);
        Some(TableShape { block: landmarks.block(), n_positions, n_tables, top })
    }

    pub(super) fn tables_of(&self, places: &[(SeqId, i32)]) -> Option<TableShape> {
        let end = places.iter().map(|p| p.1 + 1).max().unwrap_or(0);
        self.table_shape(end as usize, table_of(places).1.len())
    }

    /// Tables of cells, the table of each token, and the positions it sees; `None` without landmarks.
    pub(super) fn tables_for(&self, places: &[(SeqId, i32)]) -> Option<Tables> {
        let shape = self.tables_of(places)?;
        let (tables, seqs) = table_of(places);
        // Positions that nobody sees name the first cell.
        let mut cells = vec![0i32; shape.n_positions * shape.n_tables];
        for (&seq, table) in seqs.iter().zip(cells.chunks_exact_mut(shape.n_positions)) {
            let own = self.kv.cells().iter().enumerate().filter(|(_, c)| c.seqs & (1 << seq) != 0);
            for (i, cell) in own {
                if let Some(to) = usize::try_from(cell.pos).ok().and_then(|pos| table.get_mut(pos)) {
                    *to = i as i32;
                }
            }
        }
        Some(Tables { cells, tables, key_ranges: places.iter().flat_map(|p| [0, p.1 + 1]).collect() })
    }
}

/// Values of the inputs of landmark attention: see [`SeenInputs::Tables`].
pub(super) struct Tables {
    cells: Vec<i32>,
    tables: Vec<i32>,
    key_ranges: Vec<i32>,
}

impl Tables {
    pub(super) fn set(&self, exec: &mut Executor, ids: SeenInputs) -> Result<()> {
        let SeenInputs::Tables { cells, tables, key_ranges } = ids else { return Ok(()) };
        exec.set(cells, &self.cells)?;
        exec.set(tables, &self.tables)?;
        Ok(exec.set(key_ranges, &self.key_ranges)?)
    }
}
