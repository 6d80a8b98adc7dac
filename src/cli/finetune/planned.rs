//! Training that the plan of a study asks for.
//!
//! A plan is a file that people send each other, so its options are not those of a command line: only options that
//! change what is learnt, or how it is computed, are taken. What names a file, writes one or shows something is refused.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args as _, FromArgMatches};
use ropewalk::control::Control;
use ropewalk::data::Source;
use ropewalk::train::{checkpoint, TrainParams};

use super::super::models;
use super::args::Args;
use super::job;

/// Options of a recipe. A new option of `finetune` is refused until it stands here; what it changes must then be in
/// [`Training::settings`], unless it is one of [`MACHINE`].
const ALLOWED: &[&str] = &[
    "alpha",
    "answers-only",
    "attention",
    "batch",
    "beta1",
    "beta2",
    "chat",
    "clip",
    "ctx",
    "data-method",
    "data-offset",
    "data-tokens",
    "doc-mask",
    "dropout",
    "ema",
    "eod-mask-loss",
    "held-out",
    "keep-type",
    "knot-tokens",
    "loss",
    "lr",
    "lr-min",
    "mark-tokens",
    "math",
    "order",
    "packing",
    "rank",
    "recipe",
    "replace-invalid",
    "rslora",
    "schedule",
    "seed",
    "separator",
    "steps",
    "synthetic",
    "targets",
    "text-field",
    "token-type",
    "train",
    "upsample",
    "warmup",
    "warmup-shape",
    "weight-decay",
];

/// Those that decide where and in which order the same is computed, and how often it is looked at.
const MACHINE: &[&str] = &["block", "device", "eval-every", "keep", "save-every", "threads"];

/// Stand for what the study gives. Attached, so that no word behind them is taken as theirs.
const GIVEN: &[&str] = &["--model=-", "--output=-", "--data=-"];

/// The training of a recipe: options that were read and found fit.
#[derive(Debug)]
pub(crate) struct Training {
    args: Args,
    /// Whether the recipe names a device, and a number of threads.
    device: bool,
    threads: bool,
}

impl Training {
    /// Reads the words of a recipe, under the rope spec of its method.
    ///
    /// # Errors
    /// An option that does not exist, is not for recipes, or has a value that makes no sense.
    pub(crate) fn parse(words: &[String], spec: Option<&str>) -> Result<Training, String> {
        let command = || {
            let command = clap::Command::new("finetune").no_binary_name(true).disable_help_flag(true);
            Args::augment_args(command)
        };
        let words = GIVEN.iter().copied().chain(words.iter().map(String::as_str));
        let found = command().try_get_matches_from(words).map_err(|e| first_lines(&e))?;
        for option in command().get_arguments() {
            let name = option.get_long().unwrap_or_default();
            if is_given(&found, option.get_id().as_str())
                && !ALLOWED.contains(&name)
                && !MACHINE.contains(&name)
            {
                let mut all = [ALLOWED, MACHINE].concat();
                all.sort_unstable();
                return Err(format!(
                    "--{name}: not an option of a recipe, for the study names models and files; expected some of {}",
                    all.join(", ")
                ));
            }
        }
        let mut args = Args::from_arg_matches(&found).map_err(|e| first_lines(&e))?;
        args.out.quiet = true;
        if let Some(spec) = spec {
            args.rope.set(spec);
        }
        let device = is_given(&found, "device");
        let training = Training { args, device, threads: is_given(&found, "threads") };
        if training.args.trains_all() {
            return Err("--train all: a study measures adapters; expected norms or embeddings".into());
        }
        training.args.settings().and_then(|_| training.args.check_recipe()).map_err(|e| format!("{e:#}"))?;
        Ok(training)
    }

    /// All that is learnt depends on but the model and the contents of the texts: the same text for the same training,
    /// however its options are written and on whatever machine.
    ///
    /// # Errors
    /// As of [`Training::parse`].
    pub(crate) fn settings(&self) -> Result<String, String> {
        let settings = self.args.settings().map_err(|e| format!("{e:#}"))?;
        let usual = TrainParams::new(0);
        let (batch, optimiser) = self.args.optimiser(settings.n_ctx);
        let rope = settings.rope.as_ref().map(ToString::to_string);
        let settings = TrainParams {
            rope: None,
            n_block: usual.n_block,
            n_threads: usual.n_threads,
            checkpointing: None,
            portable: false,
            dequantize_bytes: usual.dequantize_bytes,
            ..settings
        };
        Ok(format!("{rope:?}, {settings:?}, {batch}, {optimiser:?}, {}", self.args.texts_in_words()))
    }

    /// Trains an adapter on a model under its rope and puts it at `output`, with checkpoints and log in the same
    /// folder. Goes on from the newest checkpoint there. `machine` is the device and the threads where the recipe names
    /// none.
    ///
    /// # Errors
    /// Those of training, being stopped among them; a link in the place of a file that is written.
    pub(crate) fn run(
        &self,
        model: &Path,
        data: &[PathBuf],
        output: &Path,
        machine: (&str, usize),
        control: &Control<'_>,
    ) -> anyhow::Result<()> {
        let (device, threads) = ((!self.device).then_some(machine.0), (!self.threads).then_some(machine.1));
        let args = self.args.for_output(output.to_owned()).on_machine(device, threads);
        let mut args = args.on_model(model.display().to_string(), model);
        args.data = data.iter().cloned().map(Source::from).collect();
        for path in [args.checkpoints(), args.log(), args.plot()] {
            if path.is_symlink() {
                anyhow::bail!(
                    "{}: is a symbolic link, expected a file or folder of the study",
                    path.display()
                );
            }
        }
        args.files.resume = !checkpoint::list(&args.checkpoints()).is_empty();
        let choice = args.model()?;
        args.check_outputs(&choice.path)?;
        let _lock = files::Lock::file(output)?;
        let settings = args.settings()?;
        args.recipe_notes()?.iter().for_each(|note| control.note(format_args!("{note}")));
        let done = job::run(&args, &choice, &models::load(&choice, &args.out)?, &settings, control)?;
        done.problems.iter().for_each(|problem| control.note(format_args!("{problem}")));
        Ok(())
    }
}

/// Whether the words hold an option.
fn is_given(found: &ArgMatches, id: &str) -> bool {
    let n = found.get_raw(id).map_or(0, Iterator::count);
    // Of those that the study gives a second one is refused by clap, or, of texts, counted.
    let stands_for = GIVEN.iter().any(|word| word.trim_start_matches('-').starts_with(&format!("{id}=")));
    found.value_source(id) == Some(ValueSource::CommandLine) && (!stands_for || n > 1)
}

/// The error of a word, without the usage of the whole command.
fn first_lines(e: &clap::Error) -> String {
    let text = e.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = first.lines().map(str::trim).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Training, String> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        Training::parse(&words, Some("pi:factor=2"))
    }

    fn settings(words: &[&str]) -> String {
        parse(words).and_then(|t| t.settings()).unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    /// A value for each option, other than its default; a second option where it needs one.
    const VALUES: &[(&str, &[&str])] = &[
        ("alpha", &["3"]),
        ("answers-only", &[]),
        ("attention", &["s2"]),
        ("batch", &["2"]),
        ("beta1", &["0.8"]),
        ("beta2", &["0.9"]),
        ("chat", &[]),
        ("clip", &["0.5"]),
        ("ctx", &["64"]),
        ("data-method", &["cip"]),
        ("data-offset", &["7"]),
        ("data-tokens", &["7"]),
        ("doc-mask", &[]),
        ("dropout", &["0.1"]),
        ("ema", &["0.5"]),
        ("eod-mask-loss", &[]),
        ("held-out", &["2"]),
        ("keep-type", &["f16"]),
        ("knot-tokens", &["#1,#2,#3,#4", "--data-method", "utk-80"]),
        ("loss", &["longce"]),
        ("lr", &["1e-4"]),
        ("lr-min", &["1e-5", "--schedule", "cosine"]),
        ("mark-tokens", &["#1,#2,#3,#4,#5", "--data-method", "utk-80"]),
        ("math", &["f32"]),
        ("order", &["text"]),
        ("packing", &["truncate"]),
        ("rank", &["4"]),
        ("recipe", &["longlora"]),
        ("replace-invalid", &[]),
        ("rslora", &[]),
        ("schedule", &["linear"]),
        ("seed", &["7"]),
        ("separator", &["eos"]),
        ("steps", &["7"]),
        ("synthetic", &["0.3"]),
        ("targets", &["q"]),
        ("text-field", &["body"]),
        ("token-type", &["u32"]),
        ("train", &["norms"]),
        ("upsample", &["fu"]),
        ("warmup", &["3"]),
        ("warmup-shape", &["log"]),
        ("weight-decay", &["0.1"]),
        ("block", &["64"]),
        ("device", &["cpu"]),
        ("eval-every", &["3"]),
        ("keep", &["inputs"]),
        ("save-every", &["3"]),
        ("threads", &["3"]),
    ];

    #[test]
    fn every_option_that_is_taken_is_in_the_settings_or_of_the_machine() {
        let plain = settings(&[]);
        for name in [ALLOWED, MACHINE].concat() {
            let (_, values) =
                VALUES.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name}: no value"));
            let option = format!("--{name}");
            let words: Vec<&str> = std::iter::once(option.as_str()).chain(values.iter().copied()).collect();
            let without = settings(words.get(2..).unwrap_or_default());
            assert_eq!(settings(&words) == without, MACHINE.contains(&name), "{name}");
        }
        assert_eq!(plain, settings(&["--rank", "8", "--alpha=16", "--order", "shuffled", "--steps=100"]));
    }

    #[test]
    fn ways_to_write_the_same_are_the_same() {
        assert_eq!(settings(&["--lr", "1e-4"]), settings(&["--lr=0.0001"]));
        assert_eq!(settings(&["--ctx", "4k", "-r", "4"]), settings(&["-r4", "-c", "4096"]));
        assert_eq!(
            settings(&["--train", "norms", "--train", "embeddings"]),
            settings(&["--modules-to-save=norms,embeddings"])
        );
        let under = |spec| Training::parse(&[], spec).unwrap().settings().unwrap();
        assert_ne!(under(Some("pi:factor=2")), under(Some("pi:factor=4")));
        assert_ne!(under(None), under(Some("pi:factor=4")));
    }

    /// Every option of `finetune` that is not taken, in every way to write it.
    #[test]
    fn files_and_other_models_are_refused_by_name() {
        let command = Args::augment_args(clap::Command::new("finetune"));
        let mut refused = 0;
        for option in command.get_arguments() {
            let long = option.get_long().unwrap();
            if [ALLOWED, MACHINE].concat().contains(&long) {
                continue;
            }
            let value = match long {
                "keep-last" => "3",
                "memory" => "12GiB",
                "output-type" => "f32",
                "rope" => "pi:factor=2",
                _ => "thesis.tex",
            };
            let takes = option.get_action().takes_values();
            let names = option
                .get_long_and_visible_aliases()
                .unwrap_or_default()
                .into_iter()
                .map(|n| format!("--{n}"));
            for name in names.chain(option.get_short().map(|c| format!("-{c}"))) {
                let ways = match (takes, name.starts_with("--")) {
                    (false, _) => vec![vec![name.clone()]],
                    (true, true) => vec![vec![name.clone(), value.into()], vec![format!("{name}={value}")]],
                    (true, false) => vec![vec![name.clone(), value.into()], vec![format!("{name}{value}")]],
                };
                for words in ways {
                    let said = Training::parse(&words, None).expect_err(&words.join(" "));
                    // Clap asks for what it needs first.
                    let named = if long == "memory" { "plan-memory" } else { long };
                    assert!(
                        said.contains(&format!("--{named}")) && !said.contains('\n'),
                        "{words:?}: {said}"
                    );
                    refused += 1;
                }
            }
        }
        assert!(refused > 20, "{refused}");
        for (words, why) in [
            (&["thesis.tex"][..], "unexpected argument 'thesis.tex'"),
            (&["--steps", "2", "thesis.tex"], "unexpected argument 'thesis.tex'"),
            (&["--", "thesis.tex"], "unexpected argument 'thesis.tex'"),
            (&["--out", "x"], "unexpected argument '--out'"),
            (&["--help"], "unexpected argument '--help'"),
            (&["--steps"], "a value is required for '--steps <N>'"),
            (&["--steps", "none"], "invalid value 'none' for '--steps <N>'"),
            (&["--lr", "1", "--lr", "2"], "cannot be used multiple times"),
            (&["--train", "all"], "a study measures adapters"),
            (&["--batch", "0"], "--batch: expected at least 1"),
            (&["-qr", "4"], "--quiet"),
        ] {
            let said = parse(words).expect_err(&words.join(" "));
            assert!(said.contains(why) && !said.contains('\n'), "{words:?}: {said}");
        }
    }
}
