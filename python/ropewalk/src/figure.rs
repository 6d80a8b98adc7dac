//! Charts and maps, which a notebook shows.

use std::path::PathBuf;

use pyo3::prelude::*;
use ropewalk::gguf::Output;
use ropewalk::plot::{self, Axis, Chart, Grid, Heat, HeatPanel, Map, Scale, Series};
use ropewalk::rope::Inspection;

use crate::error::{argument, of_plot, raised};
use crate::plan::Plan;

/// A chart or a map. A notebook shows it.
#[pyclass(frozen, module = "ropewalk")]
pub(crate) struct Figure(Drawing);

enum Drawing {
    Chart(Chart),
    Grid(Grid),
    Heat(Heat),
    Map(Map),
}

#[pymethods]
impl Figure {
    /// The picture as SVG text.
    fn svg(&self, py: Python<'_>) -> PyResult<String> {
        let svg = py.detach(|| match &self.0 {
            Drawing::Chart(drawing) => drawing.to_svg(),
            Drawing::Grid(drawing) => drawing.to_svg(),
            Drawing::Heat(drawing) => drawing.to_svg(),
            Drawing::Map(drawing) => drawing.to_svg(),
        });
        svg.map_err(of_plot)
    }

    fn _repr_svg_(&self, py: Python<'_>) -> PyResult<String> {
        self.svg(py)
    }

    /// The picture as text for a terminal, at most `width` columns wide; `height` is the number of rows of each plot.
    #[pyo3(signature = (width=78, height=20))]
    fn text(&self, width: usize, height: usize) -> PyResult<String> {
        match &self.0 {
            Drawing::Chart(drawing) => drawing.text(width, height).map_err(of_plot),
            Drawing::Grid(drawing) => Ok(drawing.text()),
            Drawing::Heat(drawing) => Ok(drawing.text(width, height)),
            Drawing::Map(drawing) => Ok(drawing.text(width, height)),
        }
    }

    /// Writes the picture to a file: SVG, PNG, or PDF by its extension. Only an earlier picture is replaced, unless `force`
    /// is true.
    #[pyo3(signature = (path, force=false))]
    fn save(&self, py: Python<'_>, path: PathBuf, force: bool) -> PyResult<()> {
        let output = Output::new(path, force);
        let saved = py.detach(|| match &self.0 {
            Drawing::Chart(drawing) => drawing.write(output),
            Drawing::Grid(drawing) => drawing.write(output),
            Drawing::Heat(drawing) => drawing.write(output),
            Drawing::Map(drawing) => drawing.write(output),
        });
        saved.map_err(of_plot)
    }
}

/// Plans of one model: what pictures compare is meant for one.
fn of_one_model(plans: &[Py<Plan>]) -> PyResult<&Plan> {
    let first = plans.first().ok_or_else(|| argument("plans", "at least one", "none"))?.get();
    match plans.iter().any(|plan| plan.get().hp != first.hp) {
        true => Err(argument("plans", "plans of one model", "several models")),
        false => Ok(first),
    }
}

/// The wavelength of each pair of dimensions under plans of one model.
#[pyfunction]
pub(crate) fn draw_wavelengths(plans: Vec<Py<Plan>>) -> PyResult<Figure> {
    of_one_model(&plans)?;
    let inspect = |plan: &Py<Plan>| plan.get().plan.inspect(&plan.get().hp).map_err(raised);
    let all = plans.iter().map(inspect).collect::<PyResult<Vec<Inspection>>>()?;
    Ok(Figure(Drawing::Chart(plot::rope(&all.iter().collect::<Vec<_>>()))))
}

/// The distances that plans of one model show to it, query by key.
#[pyfunction]
pub(crate) fn draw_distances(plans: Vec<Py<Plan>>) -> PyResult<Figure> {
    let hp = &of_one_model(&plans)?.hp;
    let all: Vec<_> = plans.iter().map(|plan| &plan.get().plan).collect();
    Ok(Figure(Drawing::Map(Map::new(&all, hp).map_err(of_plot)?)))
}

/// Name, points, and the ends of an interval at each point.
type Line = (String, Vec<(f64, f64)>, Vec<(f64, f64)>);

/// An axis: its label, whether it is logarithmic, values that are marked on it, and values that it shows.
type Ticks = (String, bool, Vec<(f64, String)>, Vec<f64>);

/// Lines over two axes.
#[pyfunction]
pub(crate) fn draw_lines(title: String, x: Ticks, y: Ticks, lines: Vec<Line>) -> Figure {
    let axis = |(label, log, marks, shown): Ticks| {
        let axis = Axis::new(label, if log { Scale::Log } else { Scale::Linear }).showing(shown);
        marks.into_iter().fold(axis, |axis, (at, label)| axis.mark(at, label))
    };
    let series = lines.into_iter().map(|(name, points, bounds)| Series::new(name, points).between(bounds));
    Figure(Drawing::Chart(Chart { title, x: axis(x), y: axis(y), series: series.collect() }))
}

/// Scores in percent, by row and column.
#[pyfunction]
pub(crate) fn draw_grid(
    title: String,
    x: String,
    y: String,
    columns: Vec<String>,
    rows: Vec<String>,
    scores: Vec<Vec<Option<f64>>>,
) -> Figure {
    Figure(Drawing::Grid(Grid { title, x, y, columns, rows, scores }))
}

/// A map: its title, tokens, original context, and the probability in each square.
type Squares = (String, usize, usize, Vec<Vec<f32>>);

/// Maps of attention. With `difference`, another map shows the second minus the first.
#[pyfunction]
pub(crate) fn draw_attention(maps: Vec<Squares>, scale: String, difference: bool) -> Figure {
    let shown = |row: Vec<f32>| row.into_iter().map(|p| (100.0 * p).clamp(0.0, 1.0)).collect();
    let panel = |(title, tokens, trained, rows): Squares| HeatPanel {
        title,
        tokens,
        trained,
        rows: rows.into_iter().map(shown).collect(),
        difference: false,
    };
    let mut panels: Vec<HeatPanel> = maps.into_iter().map(panel).collect();
    let third = match (&panels[..], difference) {
        ([first, second], true) => Some(HeatPanel::difference("the second minus the first", second, first)),
        _ => None,
    };
    panels.extend(third);
    Figure(Drawing::Heat(Heat { panels, scale }))
}
