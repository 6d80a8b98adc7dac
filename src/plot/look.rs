//! Colors, dashes, and widths of lines, and the color ramp of maps.

use plotters::prelude::*;

use super::pen::{Pen, Point};
use super::{Chart, PlotError, Stroke};

/// The color-blind safe palette of Okabe and Ito, with black in place of yellow.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
/// Lengths of dashes and of the gaps between them, which tell lines of one color apart. The first lines are solid.
const DASHES: [(i32, i32); 2] = [(7, 4), (2, 3)];
/// Dashes of a reference.
const REFERENCE: (i32, i32) = (5, 4);
/// A ramp from dark violet over green to amber, for maps.
const RAMP: [RGBColor; 5] = [
    RGBColor(68, 1, 84),
    RGBColor(59, 82, 139),
    RGBColor(33, 145, 140),
    RGBColor(94, 201, 98),
    RGBColor(235, 170, 20),
];

/// The ramp's color at `place`, from 0 to 1.
pub(super) fn ramp(place: f64) -> RGBColor {
    let at = place.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let (a, t) = (at as usize, at.fract());
    let b = (a + 1).min(RAMP.len() - 1);
    let mix = |a: u8, b: u8| (f64::from(a) * (1.0 - t) + f64::from(b) * t).round() as u8;
    RGBColor(mix(RAMP[a].0, RAMP[b].0), mix(RAMP[a].1, RAMP[b].1), mix(RAMP[a].2, RAMP[b].2))
}

/// How a line is drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) colour: RGBColor,
    /// `None` if the line is solid.
    dashes: Option<(i32, i32)>,
    /// Width in quarters of a unit.
    quarters: i32,
}

/// The look of each line of a chart: at most seven colors, then the same ones dashed.
pub(super) fn look(chart: &Chart) -> impl Iterator<Item = Look> + '_ {
    let mut solid = 0;
    chart.series.iter().map(move |s| match s.stroke {
        Stroke::Reference => Look { colour: RGBColor(70, 70, 70), dashes: Some(REFERENCE), quarters: 5 },
        Stroke::Solid => {
            let (colour, round) = (COLOURS[solid % COLOURS.len()], solid / COLOURS.len());
            solid += 1;
            let dashes = (round > 0).then(|| DASHES[(round - 1) % DASHES.len()]);
            Look { colour, dashes, quarters: 6 }
        }
    })
}

/// Draws a line in its look.
pub(super) fn stroke<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    points: &[Point],
    look: Look,
) -> Result<(), PlotError> {
    match look.dashes {
        None => pen.line(points.to_vec(), look.colour, look.quarters),
        Some(dashes) => pen.dashed(points, look.colour, look.quarters, dashes),
    }
}
