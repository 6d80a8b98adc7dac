//! Translates the habits of users of other tools. Options of llama.cpp, lm-eval and PEFT that mean the same here are accepted;
//! others that many people type end in an error that names ours.
//! `tests/cli/units.rs` compiles this file for itself.

use std::ffi::OsString;

use ropewalk::train::set::{Key, KEYS};

use super::usage;

/// The meaning of a foreign option here.
#[derive(Debug, Clone, Copy)]
pub(super) enum Means {
    /// This option, with the same value.
    Option(&'static str),
    /// This option of this command, with the same value.
    Of(&'static str, &'static str),
    /// This option, whose value is `@` and the name of a file.
    File(&'static str),
    /// A setting, `key=value`, of this option.
    Setting(&'static str, &'static str),
    /// These words, in commands that have the option. It has no value itself.
    Flag(&'static str, &'static [&'static str]),
    /// The value is an operand of `eval`.
    Operand,
    /// Layers on the GPU: none or all.
    GpuLayers,
    /// Attention in one op, or not; the value may be left out.
    FlashAttention,
    /// A key of `--set`, named as if it were an option. One that is true or false has its value left out.
    Key(&'static Key),
    /// Nothing that can be taken. The error says this.
    Nothing(&'static str),
}

use Means::{File, Flag, FlashAttention, GpuLayers, Nothing, Of, Operand, Option as Ours, Setting};

const SAMPLER: &str = "--sampler";
pub(super) const SET: &str = "--set";
const TENSOR_TYPE: &str = "--tensor-type";
const ROPE: &str =
    "use --rope, as in --rope yarn:factor=4, pi:factor=4 or abf:base=1e6; `ropewalk rope --list` lists them";
const ONE_DEVICE: &str = "the whole model runs on one device: --device auto, cpu or cuda:0";

/// Options by the names people type, and what they are here. A name with `_` is looked up with `-`.
pub(super) const OPTIONS: &[(&[&str], Means)] = &[
    // llama.cpp, lm-eval, PEFT, TRL, and their relatives
    (&["--ctx-size", "--max-seq-length", "--max-length"], Ours("--ctx")),
    (&["--n-predict", "--n-gen"], Ours("--predict")),
    (&["--n-prompt"], Ours("--lengths")),
    (&["--cache-type-k", "--cache-type-v", "-ctk", "-ctv"], Ours("--kv")),
    (&["-np", "--n-parallel", "--max-num-seqs"], Ours("--parallel")),
    (&["--served-model-name"], Ours("--alias")),
    (&["--chat-template-file", "--chat-template"], Ours("--template")),
    // lm-eval counts prompts, llama.cpp tokens.
    (&["--batch-size"], Of("eval", "--parallel")),
    (&["--batch-size"], Ours("--batch")),
    (&["--ubatch-size", "-ub"], Ours("--ubatch")),
    (&["--temperature"], Ours("--temp")),
    (&["-sys", "--system-prompt"], Ours("--system")),
    (&["-sysf", "--system-prompt-file"], File("--system")),
    (&["--ppl-stride"], Ours("--stride")),
    (&["--chunks"], Ours("--max-windows")),
    (&["--outtype"], Ours("--type")),
    (&["--outfile", "--output-path"], Ours("--output")),
    (&["--limit"], Ours("--samples")),
    (&["--model-name-or-path"], Ours("--model")),
    (&["--train-file"], Ours("--data")),
    (&["--lora-r", "--lora-rank"], Ours("--rank")),
    (&["--lora-alpha"], Ours("--alpha")),
    (&["--target-modules"], Ours("--targets")),
    (&["--max-steps"], Ours("--steps")),
    (&["--max-new-tokens", "--max-tokens"], Ours("--predict")),
    (&["--learning-rate"], Ours("--lr")),
    (&["--tasks"], Operand),
    (&["-ngl", "--n-gpu-layers", "--gpu-layers"], GpuLayers),
    (&["-fa", "--flash-attn"], FlashAttention),
    (&["--token-embedding-type"], Setting(TENSOR_TYPE, "token_embd")),
    (&["--output-tensor-type"], Setting(TENSOR_TYPE, "output")),
    (&["--leave-output-tensor"], Flag(TENSOR_TYPE, &[TENSOR_TYPE, "output=keep"])),
    (&["--typical"], Setting(SAMPLER, "typical")),
    (&["--repeat-penalty"], Setting(SAMPLER, "repeat-penalty")),
    (&["--repeat-last-n"], Setting(SAMPLER, "repeat-last-n")),
    (&["--frequency-penalty"], Setting(SAMPLER, "frequency-penalty")),
    (&["--presence-penalty"], Setting(SAMPLER, "presence-penalty")),
    (&["--dry-multiplier"], Setting(SAMPLER, "dry-multiplier")),
    (&["--dry-base"], Setting(SAMPLER, "dry-base")),
    (&["--dry-allowed-length"], Setting(SAMPLER, "dry-allowed-length")),
    (&["--dry-penalty-last-n"], Setting(SAMPLER, "dry-last-n")),
    (&["--lora-dropout"], Setting(SET, "dropout")),
    (&["--warmup-steps"], Setting(SET, "warmup")),
    (&["--lr-scheduler-type"], Setting(SET, "schedule")),
    (&["--adam-beta1"], Setting(SET, "beta1")),
    (&["--adam-beta2"], Setting(SET, "beta2")),
    (&["--max-grad-norm"], Setting(SET, "clip")),
    (&["--save-steps"], Setting(SET, "save-every")),
    (&["--eval-steps"], Setting(SET, "eval-every")),
    (&["--save-total-limit"], Setting(SET, "keep-last")),
    (&["--per-device-train-batch-size"], Setting(SET, "batch")),
    (&["-cnv", "--conversation", "--interactive"], Nothing("use `ropewalk chat`")),
    // A prompt is only completed.
    (&["-no-cnv", "--no-cnv", "--no-conversation"], Flag("--prompt", &[])),
    (&["-no-cnv", "--no-cnv", "--no-conversation"], Nothing("use `ropewalk run`")),
    (&["--log-disable"], Flag("--quiet", &["--quiet"])),
    (&["--color"], Nothing("leave it out: the text of a model has no colors")),
    (&["--mlock"], Nothing("leave it out: no option keeps the model in memory")),
    (
        &["--mmap", "--no-mmap"],
        Nothing("leave it out: weights are mapped under --device cpu, and uploaded under others"),
    ),
    // Templates are always Jinja, and requests always share batches.
    (&["--jinja"], Flag("--template", &[])),
    (&["-cb", "--cont-batching"], Flag("--parallel", &[])),
    (
        &["-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"],
        Nothing("fetch the model first: ropewalk pull hf:ORG/REPO/FILE"),
    ),
    (
        &["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"],
        Nothing("use --rope self-extend, with group=N and window=W: --rope self-extend:group=8,window=512"),
    ),
    (&["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"], Nothing(ROPE)),
    (&["--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor"], Nothing(ROPE)),
    (&["--yarn-beta-fast", "--yarn-beta-slow"], Nothing(ROPE)),
    (&["--lora-scaled"], Nothing("use --lora FILE:SCALE")),
    (&["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"], Nothing(ONE_DEVICE)),
    (&["--kl-divergence"], Nothing("use --against FILE, rope=SPEC, kv=TYPE or lora=FILE")),
    (
        &["--num-fewshot"],
        Nothing("each task uses the shots of its paper: `ropewalk eval --list TASK` shows them"),
    ),
    (&["--model-args"], Nothing("use -m FILE, with --rope and --ctx")),
    (&["--api-key"], Nothing("use --api-key-file FILE: other users can see command-line arguments")),
    (&["--peft"], Nothing("name the adapter's directory as the input: ropewalk convert DIR -m MODEL -o OUT")),
    (&["--gradient-accumulation-steps"], Nothing("use --set batch=N, the sequences of a step")),
    (&["--modules-to-save"], Nothing("use --targets q,k,v,o,norms,embeddings")),
    (&["--num-train-epochs"], Nothing("use --steps N; --plan-memory and --inspect-data show what N takes")),
    (&["--output-dir"], Nothing("use -o FILE.gguf, the adapter to write")),
];

/// Commands by the names people type, and what to type here.
pub(super) const COMMANDS: &[(&str, &str)] = &[
    ("quantize", "ropewalk convert IN --type q4_k_m -o OUT"),
    ("merge", "ropewalk convert IN --lora ADAPTER -o OUT"),
    ("export", "ropewalk convert ADAPTER -m MODEL --to-peft FOLDER"),
    ("imatrix", "ropewalk convert MODEL --imatrix-from TEXT -o OUT"),
    ("generate", "ropewalk run"),
    ("complete", "ropewalk run"),
    ("ppl", "ropewalk perplexity"),
    ("train", "ropewalk finetune"),
    ("passkey", "ropewalk eval passkey"),
    ("niah", "ropewalk eval niah_single_1"),
    ("tasks", "ropewalk eval --list"),
    ("compare", "ropewalk perplexity -m A --against B"),
    ("search", "ropewalk advise --search"),
    ("download", "ropewalk pull"),
    ("show", "ropewalk inspect"),
    ("attention", "ropewalk inspect MODEL --map layer=3,head=2 -f TEXT"),
    ("server", "ropewalk serve"),
];

/// The words of the command line with foreign options in our own names, where `app` has the option.
///
/// # Errors
/// An option or a command that is another thing here.
pub(super) fn translate(app: &clap::Command, words: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let Some(name) = words.get(1).and_then(|w| w.to_str()) else { return Ok(words) };
    if name == "help" {
        let rest = words.iter().skip(2).take(1).cloned();
        return Ok(words.iter().take(1).cloned().chain(rest).chain(["--help".into()]).collect());
    }
    let Some(command) = app.find_subcommand(name) else {
        return match COMMANDS.iter().find(|(typed, _)| *typed == name) {
            Some((_, ours)) => Err(usage(format!("{name}: no such command; use {ours}"))),
            None => Ok(words),
        };
    };
    let mut out: Vec<OsString> = words[..2].to_vec();
    let mut rest = words[2..].iter().peekable();
    if matches!(name, "run" | "chat") {
        let is_operand = |word: &&OsString| !word.is_empty() && !word.to_string_lossy().starts_with('-');
        for option in ["--model", "--prompt"] {
            if let Some(word) = rest.next_if(|word| has(command, option) && is_operand(word)) {
                out.extend([option.into(), word.clone()]);
            }
        }
    }
    while let Some(word) = rest.next() {
        if word == "--" {
            out.push(word.clone());
            out.extend(rest.cloned());
            break;
        }
        let Some((typed, attached, means)) = word.to_str().and_then(|w| found(command, w)) else {
            out.push(word.clone());
            continue;
        };
        if let Nothing(instead) = means {
            return Err(usage(format!("{typed}: {instead}")));
        }
        let value = match attached {
            Some(value) => Some(OsString::from(value)),
            None if matches!(means, Flag(..)) => None,
            None if matches!(means, Means::Key(key) if key.default == "false") => Some("true".into()),
            None if matches!(means, FlashAttention) => {
                rest.next_if(|w| ["on", "off", "auto", "0", "1"].iter().any(|v| w == v)).cloned()
            }
            None => rest.next().cloned(),
        };
        let given = || value.clone().ok_or_else(|| usage(format!("{typed}: a value is required")));
        match means {
            // Modules have transformers' names: q_proj.
            Ours(option) if typed == "--target-modules" => {
                put(&mut out, &typed, option, given()?.to_string_lossy().replace("_proj", "").into())?;
            }
            Ours(option) | Of(_, option) => put(&mut out, &typed, option, given()?)?,
            Means::Key(key) => out.extend([SET.into(), pair(key.name, &given()?)]),
            File(option) => {
                let mut file = OsString::from("@");
                file.push(given()?);
                out.extend([option.into(), file]);
            }
            Setting(option, key) => out.extend([option.into(), pair(key, &given()?)]),
            Flag(_, words) => out.extend(words.iter().map(OsString::from)),
            Operand => out.push(given()?),
            GpuLayers => {
                let layers = given()?;
                put(&mut out, &typed, "--device", device(&typed, &layers.to_string_lossy())?.into())?;
            }
            FlashAttention => {
                if value.is_some_and(|v| v == "off" || v == "0") {
                    put(&mut out, &typed, "--attention", "explicit".into())?;
                }
            }
            Nothing(_) => {}
        }
    }
    Ok(out)
}

/// The foreign option that a word is, the value attached to it, and what it means; `None` if the command has an option of
/// that name itself, or lacks the one that is meant.
fn found<'w>(command: &clap::Command, word: &'w str) -> Option<(String, Option<&'w str>, Means)> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let name = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
    let known = OPTIONS.iter().filter(|(names, _)| names.contains(&name.as_str())).map(|(_, means)| *means);
    let key = KEYS.iter().find(|key| name.strip_prefix("--") == Some(key.name)).map(Means::Key);
    let taken = |means: &Means| match *means {
        Ours(option) | File(option) | Setting(option, _) | Flag(option, _) => has(command, option),
        Of(name, _) => command.get_name() == name,
        GpuLayers => has(command, "--device"),
        FlashAttention => has(command, "--attention"),
        Operand => command.get_name() == "eval",
        Means::Key(_) => command.get_name() == "finetune",
        Nothing(_) => true,
    };
    let means = known.chain(key).find(taken)?;
    (!has(command, &name)).then_some((name, value, means))
}

pub(super) fn has(command: &clap::Command, option: &str) -> bool {
    command.get_arguments().any(|a| a.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long)))
}

fn pair(key: &str, value: &OsString) -> OsString {
    let mut pair = OsString::from(format!("{key}="));
    pair.push(value);
    pair
}

/// Adds an option. One that two foreign options stand for (types of keys and of values) has one value.
fn put(out: &mut Vec<OsString>, typed: &str, option: &str, value: OsString) -> anyhow::Result<()> {
    let before = out.iter().position(|w| w == option).and_then(|at| out.get(at + 1));
    if option == "--kv" && before.is_some() {
        if before == Some(&value) {
            return Ok(());
        }
        return Err(usage(format!("{typed}: keys and values have one type here, --kv TYPE")));
    }
    out.extend([option.into(), value]);
    Ok(())
}

/// The device that so many layers on the GPU stand for.
fn device(typed: &str, layers: &str) -> anyhow::Result<&'static str> {
    match layers {
        "0" => Ok("cpu"),
        "all" | "auto" => Ok("auto"),
        _ if layers.parse().is_ok_and(|n: i64| !(0..99).contains(&n)) => Ok("auto"),
        _ => Err(usage(format!("{typed} {layers}: {ONE_DEVICE}"))),
    }
}
