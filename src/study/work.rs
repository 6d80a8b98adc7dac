//! The cells of a study that are left to measure, and their cost, before anything runs.

use ropewalk_core::control::Control;
use ropewalk_core::text::{bytes, count};
use serde::Serialize;

use crate::cell::Cell;
use crate::folder::Results;
use crate::run::{hash, Runner, Texts};
use crate::{Error, Plan, Result, Unit};

/// The work left in several cells.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Work {
    /// Cells.
    pub cells: usize,
    /// Cells with a result.
    pub done: usize,
    /// Tokens of the others, and of the training that comes first.
    pub tokens: u64,
    /// Floating-point operations of these tokens: the same on every machine.
    pub cost: f64,
    /// Bytes of memory that the largest part of this work takes.
    pub bytes: u64,
    /// Cells that cannot be measured, and why.
    pub problems: Vec<String>,
    #[serde(skip)]
    is_trained: bool,
}

impl Work {
    /// Adds a cell. `is_done` says of a hash whether there is a result.
    fn add(
        &mut self,
        cell: &Cell<'_>,
        runner: &mut dyn Runner,
        texts: &mut Texts,
        is_done: impl FnOnce(&str) -> Result<bool>,
    ) -> Result<()> {
        self.cells += 1;
        let hash = hash(cell, runner, texts);
        if let Ok((hash, _)) = &hash {
            if is_done(hash)? {
                self.done += 1;
                return Ok(());
            }
        }
        let estimated = hash.and_then(|_| {
            let own = runner.estimate(cell)?;
            // It is there if something was measured with it.
            if cell.method.train.is_none() || self.is_trained || self.done > 0 {
                return Ok((own, None));
            }
            Ok((own, Some(runner.estimate_training(cell)?)))
        });
        match estimated {
            Ok((own, training)) => {
                self.is_trained |= training.is_some();
                for part in [Some(own), training].into_iter().flatten() {
                    self.tokens = self.tokens.saturating_add(part.tokens);
                    self.cost += part.cost;
                    self.bytes = self.bytes.max(part.bytes);
                }
            }
            Err(why) => self.problems.push(format!("{}: {why}", cell.key())),
        }
        Ok(())
    }
}

/// Estimated cost of a study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listing {
    /// A row for each model under each method.
    pub rows: Vec<Row>,
    /// Cells of the study.
    pub cells: usize,
    /// Cells with a result.
    pub done: usize,
    /// Tokens of the others.
    pub tokens: u64,
    /// Bytes of memory that the largest of them takes.
    pub bytes: u64,
    /// Seconds of all of them.
    pub seconds: f64,
}

/// One model under one method.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// The method.
    pub method: String,
    /// The cells of the row.
    #[serde(flatten)]
    pub work: Work,
    /// Seconds that they take.
    pub seconds: f64,
}

impl Listing {
    /// The rows as text, and their sum. `title` is that of the plan.
    pub fn text(&self, title: &str) -> String {
        let mut out = format!("{title}\n\n");
        for row in &self.rows {
            out += &format!(
                "{:<28} {:<16} {:>4} cells, {:>4} done, {:>12} tokens, {}\n",
                row.model,
                row.method,
                row.work.cells,
                row.work.done,
                count(row.work.tokens),
                bytes(row.work.bytes)
            );
            row.work.problems.iter().for_each(|p| out += &format!("    {p}\n"));
        }
        out + &format!(
            "\n{} cells, {} done; {} tokens, at most {} of memory, about {:.0} minutes or more (by the speed of a \
             short prompt)\n",
            self.cells,
            self.done,
            count(self.tokens),
            bytes(self.bytes),
            self.seconds / 60.0
        )
    }
}

/// Estimates the cost of a study, at the speed of this machine. `results` are those of the study, if there are some already.
///
/// # Errors
/// The results; [`Error::Stopped`].
pub fn list(
    plan: &Plan,
    results: Option<&Results>,
    runner: &mut dyn Runner,
    control: &Control<'_>,
) -> Result<Listing> {
    let mut texts = Texts::default();
    let mut rows: Vec<Row> = Vec::new();
    for cell in plan.cells() {
        if control.stopped() {
            break;
        }
        let same = |r: &Row| r.model == cell.model.name && r.method == cell.method.name;
        if !rows.last().is_some_and(same) {
            let (model, method) = (cell.model.name.clone(), cell.method.name.clone());
            rows.push(Row { model, method, ..Row::default() });
        }
        let Some(row) = rows.last_mut() else { continue };
        let before = row.work.cost;
        row.work.add(&cell, runner, &mut texts, |hash| results.map_or(Ok(false), |r| r.has(hash)))?;
        let added = row.work.cost - before;
        if added > 0.0 {
            match runner.speed(&cell) {
                Ok(speed) => row.seconds += added / speed,
                Err(why) => row.work.problems.push(format!("{}: {why}", cell.key())),
            }
        }
    }
    // A part of the sums would pass for all of them.
    control.unless_stopped(Error::Stopped)?;
    let sum = |f: &dyn Fn(&Work) -> usize| rows.iter().map(|row| f(&row.work)).sum();
    Ok(Listing {
        cells: sum(&|w| w.cells),
        done: sum(&|w| w.done),
        tokens: rows.iter().fold(0, |n: u64, row| n.saturating_add(row.work.tokens)),
        bytes: rows.iter().map(|row| row.work.bytes).max().unwrap_or(0),
        seconds: rows.iter().map(|row| row.seconds).sum(),
        rows,
    })
}

/// The units of a study.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Units {
    /// The most expensive first, then in the order of the plan.
    pub units: Vec<UnitRow>,
    /// Cells of the study.
    pub cells: usize,
    /// Cells with a result.
    pub done: usize,
    /// Floating-point operations that the others take.
    pub cost: f64,
    /// Bytes of memory that the largest of them takes.
    pub bytes: u64,
}

/// A unit, and what is left of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UnitRow {
    /// The unit.
    #[serde(flatten)]
    pub unit: Unit,
    /// Its cells.
    #[serde(flatten)]
    pub work: Work,
}

impl UnitRow {
    /// Returns true if a cell has no result.
    pub fn is_left(&self) -> bool {
        self.work.done < self.work.cells
    }
}

impl Units {
    /// The units as text, and their sum. `title` is that of the plan.
    pub fn text(&self, title: &str) -> String {
        let mut out = format!(
            "{title}\n\n{:<12} {:>5} {:>5} {:>6} {:>10}\n",
            "unit", "cells", "done", "cost", "memory"
        );
        for row in &self.units {
            let unit = &row.unit;
            let share = if self.cost > 0.0 { 100.0 * row.work.cost / self.cost } else { 0.0 };
            let length = unit.length.map(|n| format!(", {} tokens", count(n))).unwrap_or_default();
            out += &format!(
                "{} {:>5} {:>5} {share:>5.1}% {:>10}  {}, {}{length}{}\n",
                unit.id,
                row.work.cells,
                row.work.done,
                bytes(row.work.bytes),
                unit.model,
                unit.method,
                if unit.trains { ", trained" } else { "" }
            );
            row.work.problems.iter().for_each(|p| out += &format!("    {p}\n"));
        }
        out + &format!(
            "\n{} units of {} cells, {} done; {:.3e} floating-point operations, at most {} of memory\n",
            self.units.len(),
            self.cells,
            self.done,
            self.cost,
            bytes(self.bytes)
        )
    }
}

/// Estimates the cost of the units of a study. Cells with a result in `results`, or in the folder of a unit there, are done.
/// The model is not run.
///
/// # Errors
/// The results; [`Error::Stopped`].
pub fn list_units(
    plan: &Plan,
    results: Option<&Results>,
    runner: &mut dyn Runner,
    control: &Control<'_>,
) -> Result<Units> {
    let units = plan.units();
    let mut unit_of = vec![0; plan.len()];
    for (i, unit) in units.iter().enumerate() {
        unit.cells.iter().for_each(|&cell| unit_of[cell] = i);
    }
    let row = |unit| UnitRow { unit, work: Work::default() };
    let mut rows: Vec<UnitRow> = units.into_iter().map(row).collect();
    let mut texts = Texts::default();
    // In the order of the plan, in which models and methods are loaded once.
    for cell in plan.cells() {
        control.unless_stopped(Error::Stopped)?;
        let UnitRow { unit, work } = &mut rows[unit_of[cell.index]];
        work.add(&cell, runner, &mut texts, |hash| match results {
            Some(results) => Ok(results.has(hash)? || results.has_in_unit(&unit.id, hash)?),
            None => Ok(false),
        })?;
    }
    rows.sort_by(|a, b| b.work.cost.total_cmp(&a.work.cost));
    let sum = |f: &dyn Fn(&Work) -> usize| rows.iter().map(|row| f(&row.work)).sum();
    Ok(Units {
        cells: sum(&|w| w.cells),
        done: sum(&|w| w.done),
        cost: rows.iter().map(|row| row.work.cost).sum(),
        bytes: rows.iter().map(|row| row.work.bytes).max().unwrap_or(0),
        units: rows,
    })
}
