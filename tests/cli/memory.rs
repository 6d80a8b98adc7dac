//! The memory of training compared with the plan, measured from the outside.

use serde_json::Value;

use crate::common::program::run_in;
use crate::common::size;
use crate::finetune::Folder;
use convert::random::{write, Shape};
use ropewalk::DType;

/// Bytes planned, and the most that the program held while it trained a step.
fn planned_and_held(folder: &Folder, model: &str, ctx: usize, more: &[&str]) -> [u64; 2] {
    let ctx = ctx.to_string();
    let head =
        ["finetune", "-m", model, "-d", "long.txt", "--ctx", &ctx, "--device", "cpu", "-t", "1", "--json"];
    let of = |more: &[&str]| -> Value { run_in(folder.dir.path(), &[&head[..], more].concat()).json() };
    let keep = [&["--set", "checkpointing=products"], more].concat();
    let plan = of(&[&keep[..], &["--plan-memory"]].concat());
    let parts = ["device", "host"].map(|part| plan[part].as_u64().unwrap());
    let name = [model, &ctx, &more.concat()].concat().replace(['=', ':', ','], "-");
    let output = format!("{name}.gguf");
    let run = of(&[&keep[..], &["-o", &output, "--steps", "1", "--set", "held-out=0"]].concat());
    [parts.iter().sum(), run["peak_bytes"].as_u64().unwrap()]
}

/// Bytes by which what a program holds differs from run to run, more on a busy machine: a quarter of the pairs below.
const NOISE: f64 = (16 << 20) as f64;

/// The program itself, its tokenizer and the texts take the same at every context; what a longer one takes beyond a shorter
/// one is planned, to a tenth and [`NOISE`]. No pairs of tokens are held: at 4,096 tokens they would be 64 MiB for one head.
#[test]
fn a_longer_context_takes_what_was_planned() {
    let folder = Folder::new();
    let words = (0..60_000).map(|n| ["sea", "rope", "walk", "hemp", "tar"][(n * 3 + n / 7) % 5]);
    std::fs::write(folder.file("long.txt"), words.collect::<Vec<_>>().join(" ")).unwrap();
    let runs: [(&str, &[&str]); 6] = [
        ("llama-tiny", &[]),
        ("llama-tiny", &["--attention", "s2"]),
        ("llama-tiny", &["--attention", "landmark"]),
        ("llama-tiny", &["--rope", "self-extend:window=64,group=8"]),
        ("llama-tiny", &["--transform", "pose:target=16384"]),
        ("qwen35-tiny", &[]),
    ];
    for (name, more) in runs {
        let model = format!("{name}.gguf");
        if !folder.file(&model).exists() {
            write(&Shape::named(name).unwrap(), DType::Q8_0, 7, folder.file(&model)).unwrap();
        }
        let [short, long] = [1024, size(4096, 8192)].map(|ctx| planned_and_held(&folder, &model, ctx, more));
        let (planned, held) = (long[0] - short[0], long[1].saturating_sub(short[1]));
        println!("{name} {more:?}: planned {short:?} {long:?}");
        assert!(
            held as f64 <= 1.1 * planned as f64 + NOISE,
            "{name} {more:?}: {held} more bytes, {planned} planned"
        );
        // The rest is the program: as much as without any context to speak of.
        let rest = long[1] as i64 - long[0] as i64;
        assert!(rest < 100 << 20, "{name} {more:?}: {rest} bytes beside the plan");
    }
}
