//! The command line's conversions of adapters, which write no model.

use std::path::{Path, PathBuf};

use gguf::Output;
use ropewalk_core::control::Control;

use super::{reported, Args, Done};
use crate::{peft, Error, Result};

/// Adapters to and from PEFT.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PeftArgs {
    /// Base model of the adapter, of any types
    ///
    /// IN is a PEFT adapter directory, and OUT a LoRA file. With --to-peft, IN is a LoRA file
    #[arg(short, long, value_name = "MODEL", conflicts_with_all = CONFLICTS)]
    pub(super) model: Option<PathBuf>,
    /// Convert a LoRA file to a PEFT adapter in this directory
    #[arg(long, value_name = "DIR", requires = "model", conflicts_with = "output")]
    to_peft: Option<PathBuf>,
    /// Model repository on Hugging Face, for --to-peft
    #[arg(long, value_name = "ORG/REPO", requires = "to_peft", hide_short_help = true)]
    base: Option<String>,
}

/// Options that are of models.
const CONFLICTS: [&str; 8] =
    ["random", "rope", "ctx", "llama_cpp", "dtype", "lora", "errors", "imatrix_from"];

impl PeftArgs {
    pub(super) fn asked(&self) -> bool {
        self.model.is_some()
    }
}

pub(super) fn act(args: &Args, control: &Control<'_>) -> Result<Done> {
    let given = &args.peft;
    let (Some(base), Some(input)) = (&given.model, &args.input) else {
        return Err(Error::Usage("-m MODEL needs an adapter as IN".into()));
    };
    let output = |path: &Path| Output::new(path, args.force);
    let (to, report) = match (&given.to_peft, &args.output) {
        (Some(folder), _) => {
            let base_name = given.base.as_deref();
            (folder, peft::to_peft(input, base, output(folder), base_name, control)?)
        }
        (None, Some(_)) if input.is_file() => {
            let what = format!(
                "{}: -m expects a PEFT directory; to make one from a LoRA file, add --to-peft DIR",
                input.display()
            );
            return Err(Error::Usage(what));
        }
        (None, Some(to)) => (to, peft::from_peft(input, base, output(to), control)?),
        (None, None) => return Err(Error::Usage("-o OUT is missing".into())),
    };
    let ranks = match report.ranks {
        Some((a, b)) if a == b => format!(" of rank {a}"),
        Some((a, b)) => format!(" of ranks {a} to {b}"),
        None => String::new(),
    };
    let mut lines = report.notes.clone();
    if given.to_peft.is_some() && given.base.is_none() {
        lines.push("--base ORG/REPO sets base_model_name_or_path.".into());
    }
    lines.push(format!(
        "{}: {} pairs{ranks}, {} replaced tensors, {} bytes",
        to.display(),
        report.n_pairs,
        report.n_modules,
        report.bytes
    ));
    Ok(Done { lines, json: reported(input, to, &report)? })
}
