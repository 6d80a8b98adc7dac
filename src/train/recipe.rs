//! Training recipes of the papers, under their names.

use super::longce::LongCe;
use super::optim::{Decay, WarmupShape};
use super::seen::TrainAttention;
use super::set::Settings;
use crate::data::{Packing, Separator, Upsample};
use crate::landmark::Landmarks;

/// Said of recipes of full training where low-rank pairs are trained: their rates and steps are for another kind.
pub const ALL_PARAMETERS: &str =
    "the paper trained all parameters of the model; here only the targets are trained, most \
     of them by low-rank pairs";

/// The settings that a paper or its code states. `source` says where they are from, and which of them it
/// leaves open.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// Name of the recipe.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// The spec of the rope method.
    pub rope: &'static str,
    /// Tokens of a sequence.
    pub n_ctx: usize,
    /// The data method, `--transform`.
    pub method: Option<&'static str>,
    /// Puts in the settings that differ from those that most recipes share.
    pub set: fn(&mut Settings),
    /// The length of training.
    pub length: Amount,
    /// The size of a step.
    pub batch: Batch,
    /// The attention of training.
    pub attention: TrainAttention,
    /// Modules trained as a whole next to low-rank pairs, as `--targets` takes it: modules, or `full` where the paper
    /// trained all parameters, which is done only when asked for.
    pub train: &'static [&'static str],
    /// Where the figures are from, and what they leave open.
    pub source: &'static str,
}

/// How long a recipe trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// Steps of the optimizer.
    Steps(u64),
    /// Tokens.
    Tokens(u64),
}

impl Amount {
    /// Steps at a context, in tokens, and a batch, in sequences.
    pub(crate) fn steps(self, n_ctx: usize, batch: usize) -> u64 {
        match self {
            Amount::Steps(n) => n,
            Amount::Tokens(n) => n.div_ceil((n_ctx.max(1) as u64).saturating_mul(batch.max(1) as u64)),
        }
    }
}

/// How much text a recipe takes a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// Sequences.
    Sequences(usize),
    /// Tokens.
    Tokens(u64),
}

fn shared() -> Settings {
    Settings {
        lr: Some(2e-5),
        lr_min: Some(0.0),
        warmup: Some(0),
        warmup_shape: Some(WarmupShape::Linear),
        schedule: Some(Decay::Constant),
        beta1: Some(0.9),
        beta2: Some(0.95),
        weight_decay: Some(0.0),
        clip: Some(1.0),
        ema: Some(0.0),
        packing: Some(Packing::Pack),
        upsample: Some(Upsample::None),
        doc_mask: Some(false),
        eod_mask_loss: Some(false),
        loss: Some(None),
        ..Settings::default()
    }
}

/// The settings of a recipe: fields of [`Settings`] and their values.
macro_rules! set {
    ($($field:ident = $value:expr),* $(,)?) => {
        |set: &mut Settings| {
            $(set.$field = Some($value);)*
        }
    };
}

/// Long documents more often, as Fu et al. 2024 released it.
const FU: Upsample = Upsample::Fu { length: 4096, keep: 0.1 };

/// The "4M tokens" of a step: 32 sequences of 128k tokens.
const FOUR_MILLION: u64 = 1 << 22;

/// Settings that most recipes share.
const BASE: Recipe = Recipe {
    name: "",
    about: "",
    rope: "",
    n_ctx: 4096,
    method: None,
    set: |_| {},
    length: Amount::Steps(0),
    batch: Batch::Sequences(1),
    attention: TrainAttention::Full,
    train: &["full"],
    source: "",
};

/// The study's NTK-32K, as its authors' words have it.
const LCEG: Recipe = Recipe {
    name: "lceg",
    about: "the controlled study (LCEG) in the paper's words: 1B tokens, 32 sequences a step",
    rope: "dynamic-ntk:trained=32768",
    n_ctx: 32_768,
    set: set!(warmup = 20, beta2 = 0.999, separator = Separator::Bos, upsample = FU),
    length: Amount::Tokens(1_000_000_000),
    batch: Batch::Sequences(32),
    source: "paper, section 4 and appendix 9.2: rate, linear warm-up, no weight decay, 32 sequences a step. It names \
             no decay of the rate, and a moving average of the weights without its constant: none is kept here, and \
             the setting ema takes one. Betas, clipping and the 20 steps of warm-up are those of the released script. The rope \
             is the study's best, NTK-32K; any other can replace it. BOS before each document and long documents \
             more often, source by source (Fu et al.), are the form of its data",
    ..BASE
};

/// All recipes.
pub static RECIPES: &[Recipe] = &[
    Recipe {
        name: "sba",
        about: "SBA-RoPE: 1,250 steps of 8 sequences",
        rope: "sba:factor=2",
        set: set!(warmup = 60, packing = Packing::Truncate, separator = Separator::Both),
        length: Amount::Steps(1250),
        batch: Batch::Sequences(8),
        source: "paper, section 3.1; it names a linear warm-up and no decay after it, and no clipping (1 \
                 here). Its other models have sba:factor=4, trained on 4,096 tokens as well. It cuts each \
                 text to one sequence between BOS and EOS",
        ..BASE
    },
    LCEG,
    Recipe {
        name: "lceg-code",
        about: "the controlled study (LCEG) as released: 1B tokens, 256 sequences a step, logarithmic \
                warm-up, linear decay",
        set: set!(
            warmup = 20, warmup_shape = WarmupShape::Log, schedule = Decay::Linear, beta2 = 0.999,
            separator = Separator::Bos, upsample = FU,
        ),
        batch: Batch::Sequences(256),
        source: "finetune.sh, fine-tune.py and ds_configs/stage3_offload.json of the released code, which \
                 state all of it; `auto` there is the default of Hugging Face's trainer. No moving average \
                 is kept. That this script made the published models is likely, and not said",
        ..LCEG
    },
    Recipe {
        name: "longlora",
        about: "LongLoRA: shifted sparse attention, 1,000 steps of 64 sequences, norms and embeddings whole",
        rope: "pi",
        n_ctx: 32_768,
        set: set!(warmup = 20, beta2 = 0.999, separator = Separator::Eos),
        length: Amount::Steps(1000),
        batch: Batch::Sequences(64),
        attention: TrainAttention::Shifted { group: None },
        train: &["norms", "embeddings"],
        source: "README, fine-tune.py and llama_attn_replace.py of the released code: rank 8, alpha 16 on q, k, v \
                 and o, norms and the input embedding at the same rate, 8 GPUs of 8 accumulated sequences; betas \
                 and clipping are the defaults of Hugging Face's trainer. Position interpolation, documents joined \
                 by EOS. The context is one of several in the paper; any other can replace it",
        ..BASE
    },
    Recipe {
        name: "landmark",
        about: "Landmark attention: 15,000 steps of 128 sequences of 512 tokens, blocks of 64",
        rope: "plain",
        n_ctx: 512,
        // The rate at the end is that of a cosine from 2e-5 to 0 that is left at four fifths of its way.
        set: set!(
            lr_min = 1.9098300562505255e-6, warmup = 450, schedule = Decay::CosinePart, beta2 = 0.999,
            weight_decay = 0.1, separator = Separator::Eos,
        ),
        length: Amount::Steps(15_000),
        batch: Batch::Sequences(128),
        attention: TrainAttention::Landmark(Landmarks::DEFAULT),
        source: "README and train.py of the released code (llama/), for LLaMA 7B: 8 GPUs of 2 sequences, 8 \
                 accumulated, 3 % warm-up, a cosine that stops at 0.4 of a period; betas and clipping are the \
                 defaults of Hugging Face's trainer. Texts are joined by EOS. Its weight decay also acts on norms, \
                 whose class that trainer does not know; here it leaves them alone. It trains all parameters, which \
                 cannot be done here under landmark attention. The controlled study (LCEG) trains it by its own recipe: \
                 lceg-code with landmark attention, rope plain, and a context of 512 tokens",
        ..BASE
    },
    Recipe {
        name: "harpe",
        about: "HARPE: one stage of 6B tokens",
        rope: "harpe",
        n_ctx: 131_072,
        set: set!(separator = Separator::Bos, upsample = FU),
        length: Amount::Tokens(6_000_000_000),
        batch: Batch::Tokens(FOUR_MILLION),
        source: "paper, section 4.4: rate, betas and tokens; it refers to Fu et al. 2024 for the rest, who \
                 take 4M tokens a step (2^22 here), a constant rate, and BOS before each document; its data are \
                 theirs, with long documents more often, source by source. No weight decay and clipping to 1 are \
                 set here",
        ..BASE
    },
    Recipe {
        name: "utk",
        about: "Untie the Knots: 20B tokens, 4M a step, cosine",
        rope: "abf:base=5000000",
        n_ctx: 131_072,
        method: Some("utk-80"),
        set: set!(lr = 1e-5, lr_min = 1e-6, warmup = 200, schedule = Decay::Cosine, eod_mask_loss = true),
        length: Amount::Tokens(20_000_000_000),
        batch: Batch::Tokens(FOUR_MILLION),
        source: "paper, section 4.2: rates, warm-up, betas, tokens, 4M tokens a step (2^22 here); the base \
                 is that of section 4.3. Knots on 80 % of the sequences; no loss where a document ends is the \
                 switch that its released code needs. No weight decay and clipping to 1 are set here",
        ..BASE
    },
    Recipe {
        name: "drope",
        about: "DroPE: recalibration without any position at the original context, 5,000 steps of 512 sequences",
        rope: "plain:drop=1",
        set: set!(lr = 1e-4, warmup = 100, schedule = Decay::Cosine, beta2 = 0.999),
        length: Amount::Steps(5000),
        batch: Batch::Sequences(512),
        source: "cfgs/run_cfg/llama2_7b_drope.yaml of the released code (arXiv 2512.12167), for Llama 2 at its own 4,096 tokens: \
                 set the context to the window of your model. Its second form adds norms of queries and keys, which no \
                 architecture here gains. Beyond the window its paper scales the softmax: force the adapter under rope \
                 plain:drop=1,temperature=X, X by measuring",
        ..BASE
    },
    Recipe {
        name: "clex",
        about: "CLEX: 2B tokens, 512 sequences of 4,096 a step, cosine",
        rope: "clex",
        set: set!(warmup = 29, schedule = Decay::Cosine, beta2 = 0.999, separator = Separator::Bos),
        length: Amount::Tokens(2_000_000_000),
        batch: Batch::Sequences(512),
        source: "scripts/train_lm.sh of the released code: rate, 16 x 4 x 8 sequences of 4,096, warm-up in 3 % of the \
                 steps, no weight decay, no log-scale; no EOS between documents by its dataset.py. The number of \
                 steps is left open there; its readme names 2B tokens. Betas and clipping are the defaults of Hugging \
                 Face's trainer. It trains all parameters, which cannot be done here under clex. The \
                 controlled study has T = 32 and SiLU, the defaults here",
        ..BASE
    },
    Recipe {
        name: "longce",
        about: "LongCE: 200 steps of 8 sequences, targets weighed by what the long context adds",
        rope: "pi:factor=8",
        n_ctx: 32_768,
        set: set!(
            warmup = 20, schedule = Decay::Linear, packing = Packing::Long, separator = Separator::Bos,
            loss = Some(LongCe::default()),
        ),
        length: Amount::Steps(200),
        batch: Batch::Sequences(8),
        source: "finetune/train.sh, finetune.py and deepspeed/zero3.json of the released code (arXiv 2410.23771), for \
                 Llama 2 on PG-19: linear warm-up and decay, position interpolation by 8, windows of one document. 8 \
                 sequences are what one process accumulates; how many ran is not said. Clipping is accelerate's default. \
                 At 32,768 tokens the short context has 4,096 and a stride of 1,024; elsewhere they go by the context. \
                 Its other form scales the base (EABF) by 4",
        ..BASE
    },
    Recipe {
        name: "pose",
        about: "PoSE: 1,000 steps of 64 sequences of 2,048 tokens at positions of a context 64 times as long",
        rope: "yarn",
        n_ctx: 2048,
        method: Some("pose:factor=64"),
        set: set!(
            warmup = 10, warmup_shape = WarmupShape::Log, schedule = Decay::Linear, beta2 = 0.999,
            separator = Separator::Bos,
        ),
        length: Amount::Steps(1000),
        batch: Batch::Sequences(64),
        source: "script/run_train_skipos.sh, train_pose.py and configs/deepspeed_config.json of the released code (arXiv \
                 2309.10400), for LLaMA at its own 2,048 tokens (set the context to the window of your model) on 8 GPUs of 8 \
                 sequences: DeepSpeed's logarithmic warm-up and linear decay; betas and clipping are the defaults of \
                 Hugging Face's trainer. `64 yarn` is the command of its readme; elsewhere transform pose:factor=8 \
                 and rope pi. Both chunks are of one document, short ones are left out. It keeps the checkpoint of the \
                 least validation loss; here the last one is written",
        ..BASE
    },
];

impl Recipe {
    /// The recipe of this name.
    pub fn find(name: &str) -> Option<&'static Recipe> {
        RECIPES.iter().find(|r| r.name == name)
    }

    /// Sequences of a step at a context of `n_ctx` tokens: tokens of a step are rounded to the nearest number
    /// of sequences, at least one.
    pub fn batch(&self, n_ctx: usize) -> usize {
        match self.batch {
            Batch::Sequences(n) => n,
            Batch::Tokens(n) => (n as f64 / n_ctx.max(1) as f64).round().max(1.0) as usize,
        }
    }

    /// Steps at a context, in tokens, and a batch, in sequences.
    pub fn steps(&self, n_ctx: usize, batch: usize) -> u64 {
        self.length.steps(n_ctx, batch)
    }

    /// Returns the recipe's settings at a context of `n_ctx` tokens. The number of steps follows from the given batch,
    /// or the recipe's, and the warmup fits into the given steps, or the recipe's.
    pub fn settings(&self, n_ctx: usize, given: &Settings) -> Settings {
        let (mut own, batch) = (shared(), self.batch(n_ctx));
        (self.set)(&mut own);
        let steps = self.steps(n_ctx, given.batch.unwrap_or(batch));
        let warmup = own.warmup.map(|n| n.min(given.steps.unwrap_or(steps)));
        Settings { steps: Some(steps), batch: Some(batch), warmup, ..own }
    }
}
