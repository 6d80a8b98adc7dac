//! Line charts, distance maps and heat maps as SVG files, PNG files and terminal text.

mod axis;
mod draw;
mod grid;
mod heat;
mod map;
mod map_draw;
mod mark;
mod pen;
mod rope;
mod text;

use std::path::{Path, PathBuf};

pub use grid::Grid;
pub use heat::{Heat, HeatPanel};
pub use map::Map;
pub use rope::rope;

/// An error of drawing a chart or a map, in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The chart has no point that its axes can show.
    #[error("chart {0}: expected at least one finite point, found none")]
    Empty(String),
    /// A map was asked for with no plan, or with more than [`Map::MAX_PANELS`].
    #[error("map: expected 1 to {max} plans, found {0}", max = Map::MAX_PANELS)]
    Panels(usize),
    /// The file name has no known extension; it selects the format.
    #[error("{}: expected a name ending in .svg or .png", .0.display())]
    Extension(PathBuf),
    /// The file cannot be written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file to be written.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// An error of the drawing library.
    #[error("cannot draw the chart: {0}")]
    Draw(String),
}

/// Checks that a chart or a map can be drawn to `path`, before the work that it shows.
///
/// # Errors
/// A name without a known extension; something other than an earlier drawing is there.
pub fn check(path: &Path) -> Result<(), PlotError> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let kind = match extension.as_str() {
        "svg" => &mark::SVG,
        "png" => &mark::PNG,
        _ => return Err(PlotError::Extension(path.into())),
    };
    kind.check(path).map_err(|files::Error { path, source }| PlotError::Io { path, source })
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic; values at or below 0 are left out.
    Log,
}

/// The stroke of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// A solid line in the series' own colour.
    Solid,
    /// A dashed line in dark grey, for a reference that the other lines are compared with.
    Reference,
}

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points in drawing order. One that is not finite (or not above 0 on a logarithmic axis) breaks the
    /// line.
    pub points: Vec<(f64, f64)>,
    /// Stroke of the line.
    pub stroke: Stroke,
}
impl Series {
    /// A solid line.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, stroke: Stroke::Solid }
    }
}

/// A line across the chart at one value of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Marker {
    /// Value on the axis, which is extended to show it.
    pub at: f64,
    /// Text at the end of the line.
    pub label: String,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Name and unit of the values.
    pub label: String,
    /// Linear or logarithmic.
    pub scale: Scale,
    /// Lines across at these values: vertical ones for the x axis, horizontal ones for y.
    pub markers: Vec<Marker>,
}
impl Axis {
    /// An axis without markers.
    pub fn new(label: impl Into<String>, scale: Scale) -> Axis {
        Axis { label: label.into(), scale, markers: Vec::new() }
    }
    /// Adds a marker line.
    pub fn mark(mut self, at: f64, label: impl Into<String>) -> Axis {
        self.markers.push(Marker { at, label: label.into() });
        self
    }
}

/// A line chart.
///
/// ```
/// use ropewalk::plot::{Axis, Chart, Scale, Series};
/// let chart = Chart {
///     title: "Perplexity by position".into(),
///     x: Axis::new("position, tokens", Scale::Linear).mark(8192.0, "trained window"),
///     y: Axis::new("perplexity", Scale::Log),
///     series: vec![Series::new("plain", vec![(1024.0, 21.0), (8192.0, 19.5), (16384.0, 476.0)])],
/// };
/// assert!(chart.text(60, 12)?.contains("perplexity"));
/// # Ok::<(), ropewalk::plot::PlotError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title above the plot, cut to fit.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines, in the order of the legend.
    pub series: Vec<Series>,
}

impl Chart {
    /// Draws to a file, SVG or PNG by its extension, which is replaced atomically.
    ///
    /// # Errors
    /// A chart without a point to show, another extension, a file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PlotError> {
        pen::write(self, path)
    }

    /// The chart as SVG text.
    ///
    /// # Errors
    /// [`PlotError::Empty`] for a chart without a point to show.
    pub fn to_svg(&self) -> Result<String, PlotError> {
        pen::svg(self)
    }

    /// The chart in Braille dots for a terminal, at most `width` columns wide; `height` counts the rows of
    /// the plot itself. Letters at the right edge mark the ends of lines, and a key below the plot names
    /// them.
    ///
    /// # Errors
    /// [`PlotError::Empty`] for a chart without a point to show.
    pub fn text(&self, width: usize, height: usize) -> Result<String, PlotError> {
        text::text(self, width, height)
    }
}
