//! The rope scaling that a file declares, as a spec.

use super::{Part, RopeError, Spec, Value};
use crate::hparams::Hparams;
use crate::settings::quoted;

impl Spec {
    /// The model as its file declares it: `ropewalk.rope.spec`, else its `rope.scaling.*`, else `plain`.
    ///
    /// # Errors
    /// A declaration that is no spec, or that no method here computes.
    pub fn declared(hp: &Hparams) -> Result<Spec, RopeError> {
        let Some(text) = &hp.rope_scaling.spec else { return Spec::of_keys(hp) };
        let at = |e: RopeError| e.at("ropewalk.rope.spec");
        let spec: Spec = text.parse().map_err(at)?;
        match spec.is_declared() {
            true => Err(at(RopeError::new(format!("expected a method, found {spec}")))),
            false => Ok(spec),
        }
    }

    /// The scaling of the file's standard keys alone: what the model was trained under, whatever a conversion
    /// declares on top.
    ///
    /// Reads the keys as llama.cpp does: a factor without a type is linear, a factor of 0 is none, and
    /// `yarn_attn_factor` counts only if `yarn_ext_factor` is 0 (elsewhere llama.cpp recomputes it); `attn_factor`
    /// always multiplies, so with a type that has no magnitude here it is an error. Under `longrope` it also divides
    /// all angles by `factor`, which no method here does: an error.
    pub(super) fn of_keys(hp: &Hparams) -> Result<Spec, RopeError> {
        let s = &hp.rope_scaling;
        let refuse = |what: &str| Err(RopeError::new(format!("{what}; name a rope spec to use instead")));
        if let Some(fault) = &s.fault {
            return refuse(fault);
        }
        let kind = s.kind.as_deref();
        let factor = s.factor.filter(|f| *f != 0.0).unwrap_or(1.0);
        let attn = s.attn_factor.filter(|a| *a != 1.0);
        if let (None | Some("none" | "linear"), Some(attn)) = (kind, attn) {
            return refuse(&format!(
                "rope.scaling.attn_factor: expected 1 or none with rope.scaling.type {}, found {attn}",
                kind.unwrap_or("linear")
            ));
        }
        if kind == Some("longrope") && factor != 1.0 {
            return refuse(&format!(
                "rope.scaling.factor: expected 1 or none with rope.scaling.type longrope, found {factor} (llama.cpp divides \
                 angles by it on top of the factor tensors)"
            ));
        }
        let number = |x: Option<f64>| x.map(Value::Number);
        let (name, mut args) = match kind {
            Some("none") => return Ok(Spec::plain()),
            Some("yarn") if factor == 1.0 && attn.is_none() => return Ok(Spec::plain()),
            None | Some("linear") if factor == 1.0 => return Ok(Spec::plain()),
            None | Some("linear") => ("pi", vec![("factor", number(Some(factor)))]),
            Some("yarn") => {
                let ext = s.yarn_ext_factor.filter(|e| *e >= 0.0);
                let yarn_attn = s.yarn_attn_factor.filter(|a| ext == Some(0.0) && *a >= 0.0);
                let attn = match (s.attn_factor, yarn_attn) {
                    (None, None) => None,
                    (a, b) => Some(a.unwrap_or(1.0) * b.unwrap_or(1.0)),
                };
                let args = vec![
                    ("factor", number(Some(factor))),
                    ("beta-fast", number(s.yarn_beta_fast.filter(|b| *b >= 0.0))),
                    ("beta-slow", number(s.yarn_beta_slow.filter(|b| *b >= 0.0))),
                    ("ext-factor", number(ext)),
                    ("attn-factor", number(attn)),
                    // llama.cpp also divides by it, but only where it computes the magnitude itself.
                    ("log-multiplier", number(s.yarn_log_mul)),
                ];
                ("yarn", args)
            }
            Some("longrope") => ("longrope", vec![("attn-factor", number(s.attn_factor))]),
            Some(other) => {
                let expected = "none, linear, yarn or longrope";
                let what = format!("rope.scaling.type: expected {expected}, found {}", quoted(other));
                if other == "dynamic" {
                    let method = format!("dynamic-ntk:factor={factor} is the method of transformers");
                    return Err(RopeError::new(format!("{what}; {method}; name it")));
                }
                return refuse(&what);
            }
        };
        let original = s.n_ctx_orig.filter(|n| *n > 0 && !s.n_ctx_orig_kept);
        args.push(("original", original.map(|n| Value::Count(n.into()))));
        let part = Part::from_values(name, &args);
        let part = part.map_err(|e: RopeError| e.at("rope.scaling of the file"))?;
        Ok(Spec::from_parts(vec![part]))
    }
}
