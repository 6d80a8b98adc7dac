//! Rotation of one head by the cosines and sines of its pairs of dimensions.

/// Rotates pairs of neighbors `(2j, 2j + 1)` of `x` into `y`, both `[n_rot]`, by `cos` and `sign * sin`,
/// `[n_rot / 2]` each.
pub fn adjacent(x: &[f32], cos: &[f32], sin: &[f32], sign: f32, y: &mut [f32]) {
    for (((y, x), c), s) in y.chunks_exact_mut(2).zip(x.chunks_exact(2)).zip(cos).zip(sin) {
        let s = sign * s;
        (y[0], y[1]) = (x[0] * c - x[1] * s, x[0] * s + x[1] * c);
    }
}

/// Rotates pairs `(j, j + n_rot / 2)` of `x` into `y`, otherwise like [`adjacent`].
pub fn halves(x: &[f32], cos: &[f32], sin: &[f32], sign: f32, y: &mut [f32]) {
    let half = x.len() / 2;
    let ((xa, xb), (ya, yb)) = (x.split_at(half), y.split_at_mut(half));
    let (inputs, outputs) = (xa.iter().zip(xb), ya.iter_mut().zip(yb));
    for (((ya, yb), (xa, xb)), (c, s)) in outputs.zip(inputs).zip(cos.iter().zip(sin)) {
        let s = sign * s;
        (*ya, *yb) = (xa * c - xb * s, xa * s + xb * c);
    }
}
