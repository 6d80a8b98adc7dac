//! The command line's conversions of adapters, which write no model.

use std::path::PathBuf;

use ropewalk_core::terminal;
use serde_json::json;

use super::{print_json, Args};
use crate::{peft, Error, Result};

/// Adapters to and from PEFT.
#[derive(Debug, clap::Args)]
pub(super) struct PeftArgs {
    /// Convert PEFT's adapter in DIR to a LoRA file of llama.cpp
    #[arg(long, value_name = "DIR", requires = "model", conflicts_with_all = CONFLICTS)]
    peft: Option<PathBuf>,
    /// Convert a LoRA file to PEFT's adapter in DIR
    #[arg(long, value_name = "DIR", requires = "model", conflicts_with_all = CONFLICTS, conflicts_with_all = ["peft", "output"])]
    to_peft: Option<PathBuf>,
    /// The model's repository on Hugging Face, for --to-peft
    #[arg(long, value_name = "ORG/REPO", requires = "to_peft")]
    base: Option<String>,
    /// The model that the adapter is for, of any types
    #[arg(short, long, value_name = "BASE")]
    model: Option<PathBuf>,
}

/// Options that are of models.
const CONFLICTS: [&str; 8] = ["random", "rope", "ctx", "llama_cpp", "dtype", "lora", "check", "errors"];

impl PeftArgs {
    pub(super) fn asked(&self) -> bool {
        self.peft.is_some() || self.to_peft.is_some() || self.model.is_some()
    }
}

pub(super) fn act(args: &Args) -> Result<()> {
    let given = &args.peft;
    let Some(base) = &given.model else { return Err(Error::Usage("-m BASE is missing".into())) };
    let (from, to, report) = match (&given.peft, &given.to_peft, &args.input, &args.output) {
        (Some(folder), None, None, Some(output)) => (folder, output, peft::from_peft(folder, base, output)?),
        (None, Some(folder), Some(input), None) => {
            (input, folder, peft::to_peft(input, base, folder, given.base.as_deref())?)
        }
        (Some(_), ..) => {
            return Err(Error::Usage("--peft DIR takes -m BASE and -o OUT, and no other file".into()))
        }
        (_, Some(_), ..) => return Err(Error::Usage("--to-peft DIR takes -m BASE and a LoRA file".into())),
        _ => return Err(Error::Usage("-m BASE is for --peft and --to-peft".into())),
    };
    if !args.quiet {
        use std::io::Write as _;
        let ranks = report.ranks.map_or(String::new(), |(a, b)| {
            if a == b {
                format!(" of rank {a}")
            } else {
                format!(" of ranks {a} to {b}")
            }
        });
        let mut lines = report.notes.clone();
        lines.push(format!(
            "{}: {} pairs{ranks}, {} replaced tensors, {} bytes",
            to.display(),
            report.n_pairs,
            report.n_modules,
            report.bytes
        ));
        for line in lines {
            // A closed stderr is no reason to fail: the files are written.
            let _ = writeln!(std::io::stderr(), "{}", terminal::shown(&line));
        }
    }
    if args.json {
        let mut object = json!({"input": super::path(from), "output": super::path(to)});
        let rest = serde_json::to_value(&report).map_err(|e| Error::Invalid(e.to_string()))?;
        if let (serde_json::Value::Object(object), serde_json::Value::Object(rest)) = (&mut object, rest) {
            object.extend(rest);
        }
        return print_json(&object);
    }
    Ok(())
}
