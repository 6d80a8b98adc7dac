//! The network of CLEX in adapter files: `clex.up.weight` and `clex.down.weight`, with a spec of the method.

use gguf::{Error, File, Result, TensorInfo};

use super::{refuse, AdapterMeta, AdapterReader};
use crate::hparams::{keys, ClexNet};
use crate::ids::ParamId;
use crate::rope::Clex;

/// The shape of a network in an adapter file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClexInfo {
    /// Pairs of rotary dimensions.
    pub n_pairs: usize,
    /// Hidden width.
    pub n_hidden: usize,
}

/// Returns true if a tensor is, or claims to be, a part of a network.
pub(super) fn is_part(name: &str) -> bool {
    name.starts_with("clex.")
}

/// The network that a file has: both matrices, whose shapes suit each other and the spec that the adapter was
/// trained under.
pub(super) fn info(file: &File, meta: &AdapterMeta) -> Result<Option<ClexInfo>> {
    let [up, down] = [ParamId::ClexUp, ParamId::ClexDown].map(|id| id.to_string());
    let mut parts = file.tensors().iter().filter(|t| is_part(&t.name));
    let Some(first) = parts.clone().next() else { return Ok(None) };
    if let Some(other) = parts.find(|t| t.name != up && t.name != down) {
        return Err(refuse(file, &other.name, format!("{up} and {down}"), "another part of CLEX"));
    }
    let shape = |name: &str| -> Result<[usize; 2]> {
        let t =
            file.tensor(name).ok_or_else(|| refuse(file, name, "the other half of the network", "none"))?;
        match t.shape[..] {
            [a, b] => Ok([a as usize, b as usize]),
            _ => Err(refuse(file, name, "two dimensions", format_args!("{:?}", t.shape))),
        }
    };
    let ([n_pairs, n_hidden], found) = (shape(&up)?, shape(&down)?);
    if found != [n_hidden, n_pairs] {
        let expected = format!("{:?}, the shape of {up} turned", [n_hidden, n_pairs]);
        return Err(refuse(file, &down, expected, format_args!("{found:?}")));
    }
    // Widths do not depend on the trained window.
    let trained = meta.rope.as_ref().and_then(|spec| Clex::of(spec, 1));
    let clex = trained.ok_or_else(|| {
        let expected = format!("{} to be of clex", keys::LORA_ROPE);
        let found = meta.rope.as_ref().map_or("none".into(), ToString::to_string);
        refuse(file, &first.name, expected, found)
    })?;
    let expected = n_pairs.checked_mul(2).map(|n_rot| clex.n_hidden(n_rot));
    if expected != Some(n_hidden) {
        let expected = format!("a hidden width of {} x {}", clex.param_factor, 2 * n_pairs as u128);
        return Err(refuse(file, &up, expected, n_hidden));
    }
    Ok(Some(ClexInfo { n_pairs, n_hidden }))
}

impl AdapterReader {
    /// The network of CLEX at a scale of the adapter, or `None` where it brings none: the down projection times
    /// `scale`, so that at 0 it is the untrained network.
    ///
    /// # Errors
    /// Returns the errors of [`AdapterReader::values`].
    pub fn clex_net<E: From<Error>>(
        &self,
        scale: f32,
        dequantize: impl Fn(&File, &TensorInfo) -> Result<Vec<f32>, E>,
    ) -> Result<Option<ClexNet>, E> {
        let Some(ClexInfo { n_pairs, n_hidden }) = self.clex() else { return Ok(None) };
        let up = self.values(&ParamId::ClexUp.to_string(), &dequantize)?;
        let mut down = self.values(&ParamId::ClexDown.to_string(), &dequantize)?;
        down.iter_mut().for_each(|x| *x *= scale);
        let net = ClexNet::new(n_pairs, n_hidden, up, down);
        Ok(Some(net.map_err(|what| self.file().error("clex", what))?))
    }
}
