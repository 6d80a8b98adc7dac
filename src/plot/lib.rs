//! Line charts, distance maps, and heat maps, as SVG, PNG, and PDF files, and as terminal text.

#![forbid(unsafe_code)]

mod axis;
mod pen;
mod look;
mod pdf;
mod text;
mod rope;
mod map;
mod ends;
mod grid;
mod map_draw;
mod draw;
mod heat;
mod output;

use std::path::PathBuf;

use files::Output;

pub use grid::Grid;
pub use heat::{Heat, HeatPanel};
pub use map::Map;
pub use output::check;
pub use rope::rope;

/// An error in drawing a chart or a map, in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// The chart has no point that its axes can show.
    #[error("chart {0}: expected at least one finite point, found none")]
    Empty(String),
    /// A map has no plan, or more than [`Map::MAX_PANELS`].
    #[error("map: expected 1 to {max} plans, found {0}", max = Map::MAX_PANELS)]
    Panels(usize),
    /// The file name has no known extension; it selects the format.
    #[error("{}: expected a name ending in .svg, .png, or .pdf", .0.display())]
    Extension(PathBuf),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] files::Error),
    /// An error of the drawing library.
    #[error("cannot draw the chart: {0}")]
    Draw(String),
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic; values at or below 0 are skipped.
    Log,
}

/// The stroke of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// A solid line in the color of the series.
    Solid,
    /// A dashed line in dark gray, for a reference that other lines are compared with.
    Reference,
}

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name at the end of the line. If a name is long, letters mark the ends, and a legend has the names.
    pub name: String,
    /// Points in drawing order. A point that is not finite (or not above 0 on a logarithmic axis) breaks the line.
    pub points: Vec<(f64, f64)>,
    /// For each point, the ends of an interval around its y, such as a 95% interval; NaN if unknown. Empty if none is
    /// known.
    pub bounds: Vec<(f64, f64)>,
    /// Stroke of the line.
    pub stroke: Stroke,
}
impl Series {
    /// Makes a series with a solid line, without intervals.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, bounds: Vec::new(), stroke: Stroke::Solid }
    }
    /// Adds the ends of an interval for each point.
    pub fn between(mut self, bounds: Vec<(f64, f64)>) -> Series {
        self.bounds = bounds;
        self
    }
}

/// A line across the chart at one value of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Marker {
    /// Value on the axis; the axis is extended to show it.
    pub at: f64,
    /// Text at the end of the line.
    pub label: String,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Name and unit of the values. A plot adds that a scale is logarithmic.
    pub label: String,
    /// Linear or logarithmic.
    pub scale: Scale,
    /// Lines at these values: vertical for the x axis, horizontal for the y axis.
    pub markers: Vec<Marker>,
    /// Values that the axis shows, whatever the points are.
    pub shown: Vec<f64>,
}
impl Axis {
    /// Makes an axis without markers.
    pub fn new(label: impl Into<String>, scale: Scale) -> Axis {
        Axis { label: label.into(), scale, markers: Vec::new(), shown: Vec::new() }
    }
    /// Adds a marker line.
    pub fn mark(mut self, at: f64, label: impl Into<String>) -> Axis {
        self.markers.push(Marker { at, label: label.into() });
        self
    }
    /// Extends the axis to these values.
    pub fn showing(mut self, values: impl IntoIterator<Item = f64>) -> Axis {
        self.shown.extend(values);
        self
    }
    /// The label, and whether the axis is logarithmic.
    fn name(&self) -> String {
        match self.scale {
            Scale::Linear => self.label.clone(),
            Scale::Log => format!("{} (log)", self.label),
        }
    }
}

/// A line chart.
///
/// ```
/// use ropewalk_plot::{Axis, Chart, Scale, Series};
/// let chart = Chart {
///     title: "Perplexity by position".into(),
///     x: Axis::new("position, tokens", Scale::Linear).mark(8192.0, "original context"),
///     y: Axis::new("perplexity", Scale::Log),
///     series: vec![Series::new("plain", vec![(1024.0, 21.0), (8192.0, 19.5), (16384.0, 476.0)])],
/// };
/// assert!(chart.text(60, 12)?.contains("perplexity"));
/// # Ok::<(), ropewalk_plot::PlotError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title above the plot, on up to two lines.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines, in the order of their colors.
    pub series: Vec<Series>,
}

impl Chart {
    /// The chart in Braille dots for a terminal, at most `width` columns wide; `height` is the number of rows of the
    /// plot itself. Letters at the right edge mark the ends of lines, and a key below the plot names them.
    ///
    /// # Errors
    /// Returns [`PlotError::Empty`] if the chart has no point to show.
    pub fn text(&self, width: usize, height: usize) -> Result<String, PlotError> {
        text::text(self, width, height)
    }
}

macro_rules! drawn {
    ($($of:ty),*) => {$(
        impl $of {
            /// Draws to a file, SVG, PNG, or PDF by its extension. The file is replaced atomically.
            ///
            /// # Errors
            /// Returns an error if a chart has no point to show, for another extension, or if writing the file fails.
            pub fn write(&self, path: impl Into<Output>) -> Result<(), PlotError> {
                output::write(self, &path.into())
            }

            /// The drawing as SVG text.
            ///
            /// # Errors
            /// Returns an error if a chart has no point to show, or if text cannot be drawn.
            pub fn to_svg(&self) -> Result<String, PlotError> {
                pen::svg(self)
            }
        }
    )*};
}
drawn!(Chart, Grid, Heat, Map);
