//! Training that the plan of a study asks for.
//!
//! A plan is a file that people send each other, so its options are not those of a command line: only options that
//! change what is learned, or how it is computed, are taken. What names a file, writes one or shows something is refused.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args as _, FromArgMatches};
use ropewalk::studies::Training;
use ropewalk::train::set::{Group, Key};
use ropewalk::train::KEYS;

use super::super::options::parse_spec;
use super::args::TrainingArgs;
use super::options;

fn command() -> clap::Command {
    TrainingArgs::augment_args(clap::Command::new("recipe").no_binary_name(true).disable_help_flag(true))
}

/// Reads the words of a recipe, under the rope spec of its method. `machine` is the device and the threads where the
/// recipe names none.
///
/// # Errors
/// An option that does not exist, is not for recipes, or has a value that makes no sense.
pub(crate) fn recipe(
    words: &[String],
    spec: Option<&str>,
    machine: (&str, usize),
) -> Result<Training, String> {
    let found = command().try_get_matches_from(words).map_err(|e| first_lines(&e))?;
    let args = TrainingArgs::from_arg_matches(&found).map_err(|e| first_lines(&e))?;
    let mut job = args.job(Vec::new(), "adapter.gguf".into()).map_err(|e| format!("{e:#}"))?;
    let writes = |key: &&Key| matches!(key.group, Group::Files) || key.name == "output-type";
    if let Some(key) = KEYS.iter().filter(writes).find(|key| job.given.text(key.name).is_some()) {
        return Err(format!("--set {}: not a setting of a recipe, because the study names files", key.name));
    }
    if let Some(spec) = spec {
        job.rope = Some(parse_spec(spec).map_err(|e| format!("{e:#}"))?);
    }
    let is_given = |id: &str| found.value_source(id) == Some(ValueSource::CommandLine);
    if !is_given("threads") {
        job.n_threads = machine.1;
    }
    let device = if is_given("device") { args.device.as_str() } else { machine.0 };
    if job.trains_all() {
        return Err("--targets full: a study measures adapters; expected pairs, norms or embeddings".into());
    }
    job.settings().and_then(|_| job.check_recipe()).map_err(|e| options(&e.to_string()))?;
    Ok(Training { job, device: device.into() })
}

/// The error of a word, without the usage of the whole command.
fn first_lines(e: &clap::Error) -> String {
    let text = e.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = first.lines().map(str::trim).collect();
    let mut line = lines.join(" ").trim_start_matches("error: ").to_owned();
    if e.kind() == ErrorKind::UnknownArgument {
        let command = command();
        let mut all: Vec<&str> = command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        all.sort_unstable();
        line += &format!(": the study names models and files, and a recipe has only {}", all.join(", "));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::args::Args;
    use super::*;

    fn parse(words: &[&str]) -> Result<Training, String> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        recipe(&words, Some("pi:factor=2"), ("auto", 0))
    }

    fn settings(words: &[&str]) -> String {
        parse(words).unwrap_or_else(|e| panic!("{words:?}: {e}")).settings().unwrap()
    }

    /// Options that decide where the same result is computed.
    const MACHINE: &[&str] = &["device", "threads", "ubatch"];
    /// Each option with a value other than its default, and each setting.
    const OPTIONS: &str = "--alpha=3 --answers-only --attention=s2 --chat --ctx=64 --lr=1e-4 --math=f32 --rank=4 \
        --recipe=longlora --seed=7 --set=rslora=true --steps=7 --targets=q --transform=cip --device=cpu --threads=3 \
        --ubatch=64";
    const SET: &str = "steps=7 batch=2 lr=1e-4 lr-min=1e-5 warmup=3 warmup-shape=log schedule=linear beta1=0.8 beta2=0.9 \
        weight-decay=0.1 clip=0.5 ema=0.5 dropout=0.1 rslora=true held-out=2 packing=truncate separator=eos doc-mask=true \
        eod-mask-loss=true loss=longce upsample=fu data-tokens=7 synthetic=0.3 order=text data-offset=7 text-field=body \
        token-type=u32 replace-invalid=true checkpointing=inputs saved-type=f16 eval-every=3 save-every=3";
    /// Settings that name files, or are about them.
    const REFUSED: &str = "output-type=f32 keep-last=3 checkpoints=thesis log=thesis.tex cache=thesis.tex";

    #[test]
    fn every_option_that_is_taken_is_in_the_settings_or_of_the_machine() {
        let plain = settings(&[]);
        for word in OPTIONS.split_whitespace() {
            let name = word.trim_start_matches('-').split('=').next().unwrap();
            assert_eq!(settings(&[word]) == plain, MACHINE.contains(&name), "{word}");
        }
        assert_eq!(OPTIONS.split_whitespace().count(), command().get_arguments().count());
        assert_eq!(
            plain,
            settings(&["--rank", "8", "--alpha=16", "--set", "order=shuffled,clip=1", "--steps=100"])
        );
        for word in SET.split_whitespace() {
            // Its schedule falls.
            let falls: &[&str] = if word.starts_with("lr-min") { &["--set", "schedule=cosine"] } else { &[] };
            let with = settings(&[&["--set", word], falls].concat());
            let looks = ["checkpointing", "eval-every", "save-every"].iter().any(|key| word.starts_with(key));
            assert_eq!(with == settings(falls), looks, "{word}");
        }
        for word in REFUSED.split_whitespace() {
            let said = parse(&["--set", word]).unwrap_err();
            let name = word.split('=').next().unwrap();
            assert!(said.starts_with(&format!("--set {name}: not a setting of a recipe")), "{said}");
        }
        let n = [SET, REFUSED].iter().map(|all| all.split_whitespace().count()).sum::<usize>();
        assert_eq!(n, KEYS.len());
    }

    /// Texts of the first version: with another text, a study that has been begun would train and measure all of it again.
    #[test]
    fn studies_that_were_begun_are_known() {
        const PLAIN: &str = "Some(\"pi:factor=2\"), TrainParams { n_ctx: 0, n_positions: None, rope: None, attention: Full, lora: \
            LoraParams { targets: [\"q\", \"k\", \"v\", \"o\"], rank: 8, alpha: 16.0, rslora: false, dropout: 0.0, \
            norms: false, embeddings: false, all: false, seed: 42 }, n_block: 512, n_threads: 0, checkpointing: \
            None, saved_type: F32, dequantize_bytes: 134217728, math: Auto, portable: false }, 1, OptimParams { \
            adamw: AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0 }, schedule: Schedule { lr: \
            0.0002, lr_min: 0.0, warmup: 0, warmup_shape: Linear, steps: 100000, decay: Constant }, clip: 1.0, \
            ema: 0.0 }, Settings { steps: Some(100000), batch: Some(1), lr: Some(0.0002), lr_min: Some(0.0), \
            warmup: Some(0), warmup_shape: Some(Linear), schedule: Some(Constant), beta1: Some(0.9), beta2: \
            Some(0.95), weight_decay: Some(0.0), clip: Some(1.0), ema: Some(0.0), dropout: Some(0.0), rslora: \
            Some(false), output_type: Some(F32), held_out: None, packing: Some(Pack), separator: Some(Auto), \
            doc_mask: Some(false), eod_mask_loss: Some(false), loss: Some(None), upsample: Some(None), \
            data_tokens: None, synthetic: None, order: Some(Shuffled), data_offset: None, text_field: \
            Some(\"text\"), token_type: Some(U16), replace_invalid: Some(false), checkpointing: None, saved_type: \
            Some(F32), eval_every: None, save_every: None, keep_last: Some(2), checkpoints: None, log: None, \
            cache: None }, None, false, false";
        const OTHER: &str = "Some(\"pi:factor=2\"), TrainParams { n_ctx: 64, n_positions: None, rope: None, attention: Shifted { \
            group: None }, lora: LoraParams { targets: [\"q\"], rank: 4, alpha: 3.0, rslora: true, dropout: 0.1, \
            norms: true, embeddings: false, all: false, seed: 7 }, n_block: 512, n_threads: 0, checkpointing: \
            None, saved_type: F16, dequantize_bytes: 134217728, math: F32, portable: false }, 64, OptimParams { \
            adamw: AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }, schedule: Schedule { lr: \
            2e-5, lr_min: 0.0, warmup: 20, warmup_shape: Linear, steps: 100000, decay: Constant }, clip: 1.0, ema: \
            0.0 }, Settings { steps: Some(100000), batch: Some(64), lr: Some(2e-5), lr_min: Some(0.0), warmup: \
            Some(20), warmup_shape: Some(Linear), schedule: Some(Constant), beta1: Some(0.9), beta2: Some(0.999), \
            weight_decay: Some(0.0), clip: Some(1.0), ema: Some(0.0), dropout: Some(0.1), rslora: Some(true), \
            output_type: Some(F32), held_out: None, packing: Some(Pack), separator: Some(Eos), doc_mask: \
            Some(false), eod_mask_loss: Some(false), loss: Some(None), upsample: Some(None), data_tokens: None, \
            synthetic: None, order: Some(Shuffled), data_offset: None, text_field: Some(\"text\"), token_type: \
            Some(U16), replace_invalid: Some(false), checkpointing: None, saved_type: Some(F16), eval_every: None, \
            save_every: None, keep_last: Some(2), checkpoints: None, log: None, cache: None }, Some(\"cip\"), \
            true, true";
        assert_eq!(settings(&["--steps=100000"]), PLAIN);
        let words = "--recipe=longlora --alpha=3 --answers-only --chat --ctx=64 --math=f32 --rank=4 --seed=7 --steps=100000 \
            --targets=q,norms --transform=cip --set=rslora=true,dropout=0.1,saved-type=f16";
        assert_eq!(settings(&words.split_whitespace().collect::<Vec<_>>()), OTHER);
    }

    #[test]
    fn ways_to_write_the_same_are_the_same() {
        assert_eq!(settings(&["--lr", "1e-4"]), settings(&["--lr=0.0001"]));
        assert_eq!(settings(&["--lr", "1e-4"]), settings(&["--set", "lr=1e-4"]));
        assert_eq!(settings(&["--ctx", "4k", "-r", "4"]), settings(&["-r4", "-c", "4096"]));
        assert_eq!(
            settings(&["--targets", "q,norms", "--targets", "embeddings"]),
            settings(&["--targets=q,norms,embeddings"])
        );
        let under = |spec| recipe(&[], spec, ("auto", 0)).unwrap().settings().unwrap();
        assert_ne!(under(Some("pi:factor=2")), under(Some("pi:factor=4")));
        assert_ne!(under(None), under(Some("pi:factor=4")));
    }

    /// Every option of `finetune` that is not taken.
    #[test]
    fn files_and_other_models_are_refused_by_name() {
        let (all, taken) = (Args::augment_args(clap::Command::new("finetune")), command());
        let is_taken = |long: &&str| taken.get_arguments().any(|one| one.get_long() == Some(*long));
        let others = all.get_arguments().filter_map(|option| option.get_long());
        let others: Vec<&str> = others.filter(|long| !is_taken(long)).collect();
        assert!(others.len() > 10, "{others:?}");
        for long in others {
            let said = parse(&[&format!("--{long}")]).expect_err(long);
            let what = format!("unexpected argument '--{long}' found");
            assert!(said.contains(&what) && !said.contains('\n'), "{said}");
        }
        for (words, why) in [
            (&["thesis.tex"][..], "unexpected argument 'thesis.tex'"),
            (&["--steps", "2", "thesis.tex"], "unexpected argument 'thesis.tex'"),
            (&["--", "thesis.tex"], "unexpected argument 'thesis.tex'"),
            (&["--out", "x"], "unexpected argument '--out'"),
            (&["--help"], "unexpected argument '--help'"),
            (&["--steps"], "a value is required for '--steps <N>'"),
            (&["--steps", "none"], "invalid value 'none' for '--steps <N>'"),
            (&["--lr", "1", "--lr", "2"], "cannot be used multiple times"),
            (&["--targets", "full"], "a study measures adapters"),
            (&["--set", "batch=0"], "--set: batch: expected at least 1"),
            (&["--set", "bach=2"], "did you mean `batch`?"),
            (&["-qr", "4"], "unexpected argument '-q'"),
        ] {
            let said = parse(words).expect_err(&words.join(" "));
            assert!(said.contains(why) && !said.contains('\n'), "{words:?}: {said}");
        }
    }
}
