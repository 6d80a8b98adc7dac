//! Line charts and distance maps as SVG, PNG and terminal text. Just below `cli`: draws, never prints.

mod axis;
mod draw;
mod map;
mod map_draw;
mod pen;
mod rope;
mod text;

use std::path::{Path, PathBuf};

pub use map::Map;
pub use rope::rope;

/// Why a chart could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// No point that the axes can show.
    #[error("chart {0}: expected at least one finite point, found none")]
    Empty(String),
    /// A map of no plan, or of too many to stand beside each other.
    #[error("map: expected 1 to {max} plans, found {0}", max = Map::MAX_PANELS)]
    Panels(usize),
    /// The file name decides the format.
    #[error("{}: expected a name ending in .svg or .png", .0.display())]
    Extension(PathBuf),
    /// The file cannot be written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// What was being written.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The drawing library's own complaint.
    #[error("cannot draw the chart: {0}")]
    Draw(String),
}

/// How an axis maps values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By the logarithm; values at or below 0 are left out.
    Log,
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// In the series' own colour.
    Solid,
    /// In dark grey dashes: what the others are compared with.
    Reference,
}

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// For the legend.
    pub name: String,
    /// In drawing order; a point that is not finite (or not above 0 on a log axis) breaks the line.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
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
    /// Where; the axis is stretched to show it.
    pub at: f64,
    /// Written at its end.
    pub label: String,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Name and unit.
    pub label: String,
    /// Mapping.
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
    /// Above the plot; cut to fit.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines.
    pub series: Vec<Series>,
}

impl Chart {
    /// Draws to a file, SVG or PNG by its extension: written beside, then renamed into place.
    pub fn write(&self, path: &Path) -> Result<(), PlotError> {
        pen::write(self, path)
    }

    /// The chart as SVG text.
    pub fn to_svg(&self) -> Result<String, PlotError> {
        pen::svg(self)
    }

    /// The chart in Braille dots for a terminal, at most `width` columns wide; `height` counts the rows of the plot itself.
    ///
    /// Letters at the right edge name the lines where they end; below stands what they mean.
    pub fn text(&self, width: usize, height: usize) -> Result<String, PlotError> {
        text::text(self, width, height)
    }
}
