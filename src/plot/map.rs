//! Distance maps: the distance at which each query sees each key under a plan, as an image and as text.

use ropewalk_core::hparams::Hparams;
use ropewalk_core::rope::{Branch, LayerPlan, Plan};

use super::PlotError;

/// The distances that plans show to a model, query by key, with a panel for each plan, two in a row.
///
/// ```
/// # use ropewalk_core::{hparams::Hparams, rope::Plan};
/// # use ropewalk_plot::{Map, PlotError};
/// # fn draw(plan: &Plan, hp: &Hparams) -> Result<(), PlotError> {
/// let map = Map::new(&[plan], hp)?;
/// println!("{}", map.text(64, 24));
/// map.write("map.svg")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Map {
    pub(super) panels: Vec<Panel>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Panel {
    pub(super) title: String,
    /// Number of tokens: queries down, keys across.
    pub(super) n: i32,
    /// Original context, in tokens.
    pub(super) trained: i32,
    branches: Vec<Branch>,
}

/// The distance at which one query sees a few neighboring keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    /// All of the keys come after the query.
    Later,
    /// Some keys come before the query, and it sees none of them.
    Unseen,
    /// The largest distance, in tokens, at which one of the keys is seen.
    At(i32),
}

impl Map {
    /// Largest number of panels.
    pub const MAX_PANELS: usize = 4;

    /// Makes a map of plans for the model `hp`, with a panel for each plan in this order.
    ///
    /// # Errors
    /// Returns [`PlotError::Panels`] for no plan, or for more than [`Map::MAX_PANELS`].
    pub fn new(plans: &[&Plan], hp: &Hparams) -> Result<Map, PlotError> {
        if plans.is_empty() || plans.len() > Self::MAX_PANELS {
            return Err(PlotError::Panels(plans.len()));
        }
        let tokens = |n: usize| i32::try_from(n).unwrap_or(i32::MAX).max(1);
        let panel = |p: &&Plan| Panel {
            title: p.spec.to_string(),
            n: tokens(p.n_ctx),
            trained: tokens(p.n_ctx_orig(hp)),
            branches: shown(p).branches.clone(),
        };
        Ok(Map { panels: plans.iter().map(panel).collect() })
    }

    /// The map as text, at most `width` columns wide; `height` is the number of rows of a panel. Digits are tenths of
    /// the original context.
    pub fn text(&self, width: usize, height: usize) -> String {
        let (width, height) = (width.clamp(24, 400), height.clamp(4, 100));
        self.panels.iter().map(|p| p.text(width, height)).collect::<Vec<_>>().join("\n")
    }
}

/// The first layer group whose attention pattern the spec changes, or else the first that does not see every key.
fn shown(plan: &Plan) -> &LayerPlan {
    let limited = || plan.kinds().iter().filter(|k| !k.is_plain_reach());
    limited().find(|k| k.applies).or_else(|| limited().next()).unwrap_or_else(|| plan.main())
}

impl Panel {
    /// The map in cells, with no more rows and columns than tokens. A row shows the last of its queries. A column
    /// shows all of its keys, so that a handful of keys that every query sees stays visible.
    pub(super) fn cells(&self, rows: usize, columns: usize) -> Vec<Vec<Cell>> {
        let edge = |at: usize, of: usize| (i64::from(self.n) * at as i64 / of as i64) as i32;
        let (rows, columns) = (rows.min(self.n as usize), columns.min(self.n as usize));
        let cell = |i: i32, keys: std::ops::Range<i32>| {
            if keys.start > i {
                return Cell::Later;
            }
            let largest = self.branches.iter().filter_map(|b| b.largest(i, keys.clone())).max();
            largest.map_or(Cell::Unseen, Cell::At)
        };
        (0..rows)
            .map(|r| edge(r + 1, rows) - 1)
            .map(|i| (0..columns).map(|c| cell(i, edge(c, columns)..edge(c + 1, columns))).collect())
            .collect()
    }

    fn text(&self, width: usize, height: usize) -> String {
        let last = (self.n - 1).to_string();
        let gutter = last.len().max("query".len()) + 1;
        let cells = self.cells(height, width - gutter - 1);
        let mut lines = vec![
            format!("tenths of the original context of {} tokens: the distance shown", self.trained),
            "# beyond it; . not seen; rows: one query; columns: the farthest key".into(),
            format!("{:>1$}", "query", gutter - 1),
        ];
        let rows = cells.len();
        for (r, row) in cells.iter().enumerate() {
            let drawn: String = row.iter().map(|c| self.letter(*c)).collect();
            let quarter = (r + 1) * 4 / rows > r * 4 / rows;
            let at = i64::from(self.n) * (r as i64 + 1) / rows as i64 - 1;
            let label = if quarter { at.to_string() } else { String::new() };
            lines.push(format!("{label:>0$} \u{2502}{drawn}", gutter - 1));
        }
        let columns = cells.first().map_or(0, Vec::len);
        lines.push(format!("{:gutter$}\u{2514}{}", "", "\u{2500}".repeat(columns)));
        // First and last key under the ends of the axis, where there is room.
        lines.push(match columns.checked_sub(1 + last.len()) {
            Some(middle) if middle > 3 => format!("{:gutter$} 0{:^middle$}{last}", "", "key"),
            _ => format!("{:gutter$} key 0..{last}", ""),
        });
        let cut = |l: &String| l.chars().take(width).collect::<String>();
        lines.iter().map(|l| format!("{}\n", cut(l).trim_end())).collect()
    }

    fn letter(&self, cell: Cell) -> char {
        match cell {
            Cell::Later => ' ',
            Cell::Unseen => '.',
            Cell::At(d) if d > self.trained => '#',
            Cell::At(d) => {
                let tenths = i64::from(d.max(0)) * 10 / i64::from(self.trained);
                char::from_digit(tenths.min(9) as u32, 10).unwrap_or('9')
            }
        }
    }
}
