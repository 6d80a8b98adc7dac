//! The network of CLEX as plain numbers: an adapter brings it, the rope method `clex` computes with it.

/// Two linear maps without biases, from the logarithms of the frequencies to their velocities; one network for
/// all layers and heads (CLEX, arXiv:2310.16450, section 3.3).
#[derive(Clone, PartialEq)]
pub struct ClexNet {
    n_pairs: usize,
    n_hidden: usize,
    up: Vec<f32>,
    down: Vec<f32>,
}

impl ClexNet {
    /// A network of `up`, `[n_pairs, n_hidden]`, and `down`, `[n_hidden, n_pairs]`; the first dimension runs
    /// fastest, as in GGUF files.
    ///
    /// # Errors
    /// Matrices that are empty or of other sizes; values that are not finite. The text is the end of a
    /// sentence on the network.
    pub fn new(n_pairs: usize, n_hidden: usize, up: Vec<f32>, down: Vec<f32>) -> Result<ClexNet, String> {
        let size = n_pairs.checked_mul(n_hidden).filter(|n| *n > 0);
        for (name, values) in [("up", &up), ("down", &down)] {
            if size != Some(values.len()) {
                let found = values.len();
                return Err(format!("{name}: expected the values of {n_pairs} x {n_hidden}, found {found}"));
            }
            if let Some(i) = values.iter().position(|x| !x.is_finite()) {
                return Err(format!("{name}: expected finite values, found {} at {i}", values[i]));
            }
        }
        Ok(ClexNet { n_pairs, n_hidden, up, down })
    }

    /// Pairs of rotary dimensions it is for.
    pub fn n_pairs(&self) -> usize {
        self.n_pairs
    }

    /// Hidden width of the network.
    pub fn n_hidden(&self) -> usize {
        self.n_hidden
    }

    /// From pairs to the hidden layer, `[n_pairs, n_hidden]`.
    pub fn up(&self) -> &[f32] {
        &self.up
    }

    /// From the hidden layer to pairs, `[n_hidden, n_pairs]`.
    pub fn down(&self) -> &[f32] {
        &self.down
    }
}

/// Prints the shape, because the values are thousands.
impl std::fmt::Debug for ClexNet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ClexNet { n_pairs, n_hidden, .. } = self;
        f.debug_struct("ClexNet")
            .field("n_pairs", n_pairs)
            .field("n_hidden", n_hidden)
            .finish_non_exhaustive()
    }
}
