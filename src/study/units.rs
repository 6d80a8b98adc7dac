//! Units: cells that are measured together on one machine, so that a method is trained once and a model is loaded rarely.

use std::collections::HashMap;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::cell::Cell;
use crate::plan::Plan;
use crate::{Error, Result};

/// Hexadecimal digits of an ID.
const DIGITS: usize = 12;

/// All cells of a model under a method that is trained, or else those of a model under a method at one length. The places of
/// its cells hold for one plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unit {
    /// 12 hexadecimal digits: a hash of the names of its cells.
    pub id: String,
    /// Name of the model.
    pub model: String,
    /// Name of the method.
    pub method: String,
    /// Tokens of its cells; `None` if the method is trained, or the tasks have no lengths.
    pub length: Option<u64>,
    /// True if the method is trained.
    pub trains: bool,
    /// Places of its cells in the plan, in order.
    #[serde(skip)]
    pub(crate) cells: Vec<usize>,
}

impl Unit {
    /// Returns true if a cell of the plan belongs to this unit.
    pub fn has(&self, cell: &Cell<'_>) -> bool {
        self.cells.binary_search(&cell.index).is_ok()
    }
}

impl Plan {
    /// The units, in the order of their first cells. Each cell belongs to one.
    pub fn units(&self) -> Vec<Unit> {
        let mut units: Vec<(Unit, Sha256)> = Vec::new();
        let mut known = HashMap::new();
        for cell in self.cells() {
            let (model, method) = (&cell.model.name, &cell.method.name);
            let trains = cell.method.train.is_some();
            let length = cell.length.filter(|_| !trains);
            let at = *known.entry((model, method, length)).or_insert_with(|| {
                let (model, method) = (model.clone(), method.clone());
                let unit = Unit { id: String::new(), model, method, length, trains, cells: Vec::new() };
                units.push((unit, Sha256::new()));
                units.len() - 1
            });
            let (unit, hash) = &mut units[at];
            unit.cells.push(cell.index);
            // Strings and numbers always serialize.
            hash.update(serde_json::to_vec(&cell.key()).unwrap_or_default());
        }
        let named = |(unit, hash): (Unit, Sha256)| {
            let mut id = format!("{:x}", hash.finalize());
            id.truncate(DIGITS);
            Unit { id, ..unit }
        };
        units.into_iter().map(named).collect()
    }

    /// The unit of an ID.
    ///
    /// # Errors
    /// The plan has none of this ID.
    pub fn unit(&self, id: &str) -> Result<Unit> {
        let found = self.units().into_iter().find(|unit| unit.id == id);
        found.ok_or_else(|| {
            let id: String = id.chars().take(40).collect();
            Error::folder(&self.path, format_args!("expected the ID of a unit, found {id:?}"))
        })
    }
}
