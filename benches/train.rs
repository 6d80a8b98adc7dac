//! Whole training steps of the default model (forward, backward, clipping, AdamW), rank 8 on q, k, v and
//! output, batch 1: tokens a second, processor time of a step and the largest resident set. Each case is a
//! process of its own.
//!
//!     cargo bench --bench train -- [--model FILE] [--ctx 512,2048] [--threads 2] [--block 512] \
//!         [--keep products] [--keep-type f32,bf16] [--math auto,bf16] [--steps 5]

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use ropewalk::math::Math;
use ropewalk::model::{Model, ModelParams};
use ropewalk::train::optim::{OptimParams, Optimizer, Schedule};
use ropewalk::train::{Checkpointing, SavedType, Sequence, TrainParams, Trainer};

type Error = Box<dyn std::error::Error>;

const USAGE: &str = "--model FILE, --ctx, --threads, --block, --steps N, \
    --keep inputs|attention|products|auto, --keep-type f32|f16|bf16 or --math auto|bf16|f32, lists by comma";

#[derive(Debug, Clone)]
struct Case {
    model: PathBuf,
    ctx: usize,
    threads: usize,
    block: usize,
    keep: String,
    keep_type: String,
    math: Math,
    steps: usize,
}

impl Case {
    fn args(&self) -> Vec<String> {
        let n = |name: &str, n: usize| [format!("--{name}"), n.to_string()];
        let mut out = vec!["--case".into(), "--model".into(), self.model.display().to_string()];
        out.extend([n("ctx", self.ctx), n("threads", self.threads), n("block", self.block)].concat());
        out.extend(["--keep".into(), self.keep.clone(), "--math".into(), self.math.to_string()]);
        out.extend(["--keep-type".into(), self.keep_type.clone()]);
        out.extend(n("steps", self.steps));
        out
    }

    fn run(&self) -> Result<(), Error> {
        let keep = match self.keep.as_str() {
            "auto" => None,
            "inputs" => Some(Checkpointing::Inputs),
            "attention" => Some(Checkpointing::Attention),
            "products" => Some(Checkpointing::Products),
            other => {
                return Err(format!("--keep {other}: expected inputs, attention, products or auto").into())
            }
        };
        let saved_type = match self.keep_type.as_str() {
            "f32" => SavedType::F32,
            "f16" => SavedType::F16,
            "bf16" => SavedType::Bf16,
            other => return Err(format!("--keep-type {other}: expected f32, f16 or bf16").into()),
        };
        let model = Model::load(&self.model, &ModelParams::cpu())?;
        let settings = TrainParams::new(self.ctx)
            .n_block(self.block)
            .n_threads(self.threads)
            .checkpointing(keep)
            .saved_type(saved_type)
            .math(self.math);
        let mut trainer = Trainer::new(&model, &settings)?;
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))?;
        let tokens: Vec<i32> = model.vocab().tokenize(&text.repeat(20), false, false)?;
        let tokens = tokens.get(..=self.ctx).ok_or("the text is too short for this context")?;
        let steps = self.steps.max(1) as u64;
        let schedule = Schedule::constant(1e-4, steps);
        let params = OptimParams::new(schedule);
        let mut optimizer = Optimizer::new(params, trainer.params())?;
        let (mut loss, mut walls, mut cpus) = (0.0, Vec::new(), Vec::new());
        for _ in 0..steps {
            let (began, before) = (Instant::now(), processor_seconds());
            loss = trainer.accumulate(Sequence::new(tokens), 1.0)?;
            optimizer.step(trainer.params_mut())?;
            walls.push(began.elapsed().as_secs_f64());
            cpus.push(processor_seconds() - before);
        }
        let (wall, cpu) = (median(walls), median(cpus));
        println!(
            "{:>6} {:>7} {:>6} {:>9} {:>5} {:>5} {:>10.1} {:>8.3} {:>9} {:>8.4}",
            self.ctx,
            self.threads,
            self.block,
            format!("{:?}", trainer.checkpointing()).to_lowercase(),
            self.keep_type,
            self.math.name(),
            self.ctx as f64 / wall,
            cpu,
            status("VmHWM:").map_or("?".into(), |kib| (kib / 1024).to_string()),
            loss
        );
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// KiB under this name in what Linux says of the process.
fn status(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|l| l.strip_prefix(name))?.split_ascii_whitespace().next()?.parse().ok()
}

/// User and system time of the process so far, on Linux; NaN elsewhere.
fn processor_seconds() -> f64 {
    let ticks = || {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // Behind the program's name, which may contain anything: fields 14 and 15 of proc(5), in hundredths.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
        Some(fields.next()?.parse::<f64>().ok()? + fields.next()?.parse::<f64>().ok()?)
    };
    ticks().map_or(f64::NAN, |t| t / 100.0)
}

fn list(name: &str, text: &str) -> Result<Vec<usize>, Error> {
    text.split(',')
        .map(|n| n.parse().map_err(|_| format!("--{name} {text}: expected numbers").into()))
        .collect()
}

fn main() -> Result<(), Error> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut case = Case {
        model: root.join("models/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ctx: 512,
        threads: 2,
        block: 512,
        keep: "auto".into(),
        keep_type: "f32".into(),
        math: Math::Auto,
        steps: 5,
    };
    let (mut ctx, mut threads, mut blocks) = (vec![512, 2048], vec![case.threads], vec![case.block]);
    let (mut keeps, mut types) = (vec![case.keep.clone()], vec![case.keep_type.clone()]);
    let (mut maths, mut alone) = (vec![case.math], false);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg}: expected a value"));
        match arg.as_str() {
            "--bench" => {} // Cargo's.
            "--case" => alone = true,
            "--model" => case.model = value()?.into(),
            "--ctx" => ctx = list("ctx", &value()?)?,
            "--threads" => threads = list("threads", &value()?)?,
            "--block" => blocks = list("block", &value()?)?,
            "--keep" => keeps = value()?.split(',').map(String::from).collect(),
            "--keep-type" => types = value()?.split(',').map(String::from).collect(),
            "--math" => maths = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--steps" => case.steps = value()?.parse()?,
            other => return Err(format!("{other}: expected {USAGE}").into()),
        }
    }
    if !alone {
        println!("   ctx threads  block      keep  type  math   tokens/s    cpu s  peak MiB     loss");
    }
    for &ctx in &ctx {
        for (&threads, &block) in threads.iter().flat_map(|t| blocks.iter().map(move |b| (t, b))) {
            let kept = keeps.iter().flat_map(|keep| types.iter().map(move |t| (keep, t)));
            for ((keep, keep_type), &math) in kept.flat_map(|k| maths.iter().map(move |m| (k, m))) {
                let (keep, keep_type) = (keep.clone(), keep_type.clone());
                let case = Case { ctx, threads, block, keep, keep_type, math, ..case.clone() };
                if alone {
                    case.run()?;
                } else if !Command::new(std::env::current_exe()?).args(case.args()).status()?.success() {
                    eprintln!("{ctx} tokens: failed");
                }
            }
        }
    }
    Ok(())
}
