//! RoPE methods, and what they do to a model.

use std::path::PathBuf;

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use ropewalk::gguf::File;
use ropewalk::hparams::Hparams;
use ropewalk::rope::{self, METHODS};
use ropewalk::Error;
use serde_json::json;

use crate::args::{self, object};
use crate::error::{argument, raised};

/// A RoPE method for one model and one context: its frequencies, and the distances that the model is shown. If kinds of
/// layers differ, arrays are those of the first kind that the method changes; `to_dict` has all kinds.
#[pyclass(frozen, module = "ropewalk")]
pub(crate) struct Plan {
    pub(crate) plan: rope::Plan,
    pub(crate) hp: Hparams,
}

impl Plan {
    pub(crate) fn new(plan: rope::Plan, hp: Hparams) -> Plan {
        Plan { plan, hp }
    }

    /// The plan of a layer: without its number, that of the first kind that the method changes.
    fn of(&self, layer: Option<usize>) -> PyResult<&rope::LayerPlan> {
        let Some(il) = layer else { return Ok(self.plan.main()) };
        self.plan.of_layer(il).ok_or_else(|| argument("layer", "a layer with attention", il))
    }
}

/// Rows of equal length as an array of two dimensions.
fn table(py: Python<'_>, rows: usize, values: Vec<f64>) -> PyResult<Bound<'_, PyArray2<f64>>> {
    let columns = values.len() / rows.max(1);
    values.into_pyarray(py).reshape([rows, columns])
}

#[pymethods]
impl Plan {
    /// The method, with every default filled in.
    #[getter]
    fn spec(&self) -> String {
        self.plan.spec.to_string()
    }

    /// The context that the plan is made for, in tokens.
    #[getter]
    fn n_ctx(&self) -> usize {
        self.plan.n_ctx
    }

    /// The trained context that the method counts from, in tokens.
    #[getter]
    fn n_ctx_orig(&self) -> usize {
        self.plan.n_ctx_orig(&self.hp)
    }

    /// Facts and warnings.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.plan.notes.clone()
    }

    /// Factor on rotated queries and keys.
    #[getter]
    fn mscale(&self) -> f64 {
        self.plan.main().mscale
    }

    /// Radians per position. A row is a table of frequencies: one for all heads, or one per KV head. A column is a pair of
    /// dimensions.
    #[getter]
    fn frequencies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let freqs = &self.plan.main().freqs;
        table(py, freqs.n_tables, freqs.theta.clone())
    }

    /// A base per KV head, for methods that have them.
    #[getter]
    fn bases<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<f64>>> {
        self.plan.bases().map(|bases| bases.to_vec().into_pyarray(py))
    }

    /// The distance that the model is shown between each query and key at these positions: a row per query, and NaN for keys
    /// that it does not see.
    #[pyo3(signature = (queries, keys, layer=None))]
    fn distances<'py>(
        &self,
        py: Python<'py>,
        queries: Vec<u32>,
        keys: Vec<u32>,
        layer: Option<usize>,
    ) -> PyResult<Bound<'py, PyArray2<f64>>> {
        let layer = self.of(layer)?;
        let position = |at: u32| i32::try_from(at).unwrap_or(i32::MAX);
        let distance = |q: u32, k: u32| match k <= q {
            true => layer.distance(position(q), position(k)).unwrap_or(f64::NAN),
            false => f64::NAN,
        };
        let mut values: Vec<f64> = Vec::new();
        let n = queries.len().saturating_mul(keys.len());
        if values.try_reserve_exact(n).is_err() {
            let needed = n.saturating_mul(size_of::<f64>());
            let what = format!("distances: cannot allocate {needed} bytes");
            return Err(raised(Error::OutOfMemory { needed, free: None, what, remedy: None }));
        }
        let all = queries.iter().flat_map(|&q| keys.iter().map(move |&k| (q, k)));
        py.detach(|| values.extend(all.map(|(q, k)| distance(q, k))));
        table(py, queries.len(), values)
    }

    /// The factor on queries at these positions: the attention temperature of the method or of the model.
    #[pyo3(signature = (queries, layer=None))]
    fn query_scale<'py>(
        &self,
        py: Python<'py>,
        queries: Vec<u32>,
        layer: Option<usize>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let layer = self.of(layer)?;
        let scale = |&at: &u32| layer.q_scale(i32::try_from(at).unwrap_or(i32::MAX));
        Ok(queries.iter().map(scale).collect::<Vec<f64>>().into_pyarray(py))
    }

    /// All of the plan: for each kind of layer its frequencies, pair by pair, and which keys queries see.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let view = self.plan.inspect(&self.hp).map_err(raised)?;
        let report = json!({
            "rope": view.rope.to_string(),
            "n_ctx": view.n_ctx,
            "n_ctx_orig": view.n_ctx_orig,
            "n_held": view.n_held,
            "kinds": view.kinds,
            "recurrent_layers": view.recurrent,
            "notes": view.notes,
        });
        object(py, &report)
    }

    fn __repr__(&self) -> String {
        format!("<ropewalk.Plan {} at {} tokens>", self.plan.spec, self.plan.n_ctx)
    }
}

/// All RoPE methods: a dict each, with its name, axis, parameters, and what it does.
#[pyfunction]
pub(crate) fn methods(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let rows = METHODS.iter().map(|m| {
        let params: Vec<_> = m.params.iter().chain(m.settings()).collect();
        json!({ "name": m.name, "about": m.about, "axis": m.axis.to_string(), "params": params })
    });
    object(py, &rows.collect::<Vec<_>>())
}

/// The plan of a RoPE method for the model in a file. Reads only the metadata. The default method is the one that the file
/// declares; the default context is the trained one.
#[pyfunction]
#[pyo3(signature = (path, rope=None, n_ctx=None))]
pub(crate) fn inspect(path: PathBuf, rope: Option<&str>, n_ctx: Option<usize>) -> PyResult<Plan> {
    let hp = Hparams::from_gguf(&File::open(&path).map_err(raised)?).map_err(raised)?;
    let spec = match args::spec(rope)? {
        Some(spec) => spec,
        None => rope::Spec::declared(&hp).map_err(raised)?,
    };
    let plan = rope::Plan::new(&spec, &hp, n_ctx.unwrap_or(hp.n_ctx_train)).map_err(raised)?;
    Ok(Plan::new(plan, hp))
}
