//! The recording, read, and the numbers it is made from: see `tests/reference/README.md`.

use ropewalk::ids::Role;
use ropewalk::model::Model;
use ropewalk::train::{LoraParams, TrainParams, Trainer};
use ropewalk::Token;

/// `training.bin`.
pub(crate) static BLOB: &[u8] = include_bytes!("../../reference/training.bin");

#[derive(serde::Deserialize)]
pub(crate) struct Recording {
    pub(crate) rank: usize,
    pub(crate) alpha: f64,
    pub(crate) n_tokens: usize,
    /// Of the whole curve; the cases have the first `n_tokens`.
    pub(crate) tokens: Vec<Token>,
    pub(crate) cases: Vec<Case>,
    pub(crate) curve: Curve,
}

#[derive(serde::Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) spec: String,
    pub(crate) targets: Vec<String>,
    pub(crate) loss: f64,
    pub(crate) base_loss: f64,
    pub(crate) gradients: Vec<Gradient>,
}

#[derive(serde::Deserialize)]
pub(crate) struct Gradient {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) norm: f64,
    pub(crate) signs: Vec<f64>,
    pub(crate) samples: Vec<f64>,
    pub(crate) whole: Option<Stored>,
    #[serde(default)]
    pub(crate) rows: Vec<Row>,
}

#[derive(serde::Deserialize)]
pub(crate) struct Stored {
    pub(crate) at: usize,
    pub(crate) scale: f64,
}

#[derive(serde::Deserialize)]
pub(crate) struct Row {
    pub(crate) row: usize,
    #[serde(flatten)]
    pub(crate) stored: Stored,
}

#[derive(serde::Deserialize)]
pub(crate) struct Curve {
    pub(crate) lr: f64,
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) clip: f64,
    pub(crate) steps: usize,
    pub(crate) tokens_per_step: usize,
    pub(crate) targets: Vec<String>,
    pub(crate) losses: Vec<f64>,
    pub(crate) base_losses: Vec<f64>,
    pub(crate) gradient_norms: Vec<f64>,
    pub(crate) final_norms: Norms,
}

#[derive(serde::Deserialize)]
pub(crate) struct Norms {
    pub(crate) a: f64,
    pub(crate) b: f64,
}

pub(crate) fn recording() -> Recording {
    serde_json::from_str(include_str!("../../reference/training.json")).expect("the recording")
}

impl Recording {
    pub(crate) fn case(&self, name: &str) -> &Case {
        self.cases.iter().find(|c| c.name == name).expect("a recorded case")
    }

    /// The text of the cases.
    pub(crate) fn text(&self) -> &[Token] {
        &self.tokens[..self.n_tokens]
    }

    /// Parameters of the recording's adapter, on weights that it names as files do.
    pub(crate) fn lora(&self, targets: &[String]) -> LoraParams {
        let users = |file: &String| {
            let found = Role::all().find(|role| role.gguf() == file);
            found.unwrap_or_else(|| panic!("{file}: no target")).target().to_string()
        };
        LoraParams::default().targets(targets.iter().map(users).collect()).rank(self.rank).alpha(self.alpha)
    }
}

impl Stored {
    /// `n` elements.
    pub(crate) fn values(&self, n: usize) -> Vec<f64> {
        let bytes = BLOB[self.at..self.at + 2 * n].chunks_exact(2);
        bytes.map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64() * self.scale).collect()
    }
}

/// Of a stream, the word at a place: SplitMix64 from its counter.
pub(crate) fn word(stream: u64, e: u64) -> u64 {
    let z = (stream << 32).wrapping_add(e + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Values of a half of a pair by its name in the file; `None` for other tensors.
fn seeded(name: &str, n: usize) -> Option<Vec<f32>> {
    const PARTS: [&str; 7] = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let mut parts = name.strip_prefix("blk.")?.split('.');
    let layer: u64 = parts.next()?.parse().ok()?;
    let part = parts.next()?;
    let target = PARTS.iter().position(|p| *p == part)? as u64;
    let side = match (parts.next()?, parts.next()?) {
        ("weight", "lora_a") => 0,
        ("weight", "lora_b") => 1,
        _ => return None,
    };
    let stream = 14 * layer + 2 * target + side;
    let value = |e| ((word(stream, e) >> 40) as f64 / (1 << 23) as f64 - 1.0) / 16.0;
    Some((0..n as u64).map(|e| value(e) as f32).collect())
}

/// A trainer whose pairs have the recording's values, B only with `b`.
pub(crate) fn trainer(model: &Model, settings: &TrainParams, b: bool) -> Trainer {
    let mut trainer = Trainer::new(model, settings).unwrap_or_else(|e| panic!("{e}"));
    let pairs = trainer.params_mut().list_mut().iter_mut().filter(|t| t.id.to_string().contains(".lora_"));
    for t in pairs {
        if b || t.id.to_string().ends_with("a") {
            let n = t.value.len();
            t.value = seeded(&t.id.to_string(), n).unwrap_or_else(|| panic!("{}: not recorded", t.id));
        }
    }
    trainer.params().upload().unwrap();
    trainer
}

#[test]
fn words_are_those_of_the_recording() {
    let words: Vec<u64> = (0..3).map(|e| word(0, e)).collect();
    assert_eq!(words, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
}
