//! Training under methods that say which keys queries see, and at which distances: gradients against the naive model, the
//! loss against sessions, documents, blocks, and what is refused.

use convert::random::{Ffn, Shape};
use gguf::{Array, Value};
use ropewalk::model::Model;
use ropewalk::rope::{Axis, Plan, Spec, METHODS};
use ropewalk::train::{Sequence, TrainAttention, TrainParams, Trainer};
use ropewalk::DType;

use crate::cases::{case, dca, leaky, lm_infinite, rerope, self_extend, streaming, string, Case};
use crate::common::{made, open, score, some_tokens, with_kv, LOGITS};
use crate::differences::check_by;
use crate::gradients::{models, settings, N_VOCAB};
use crate::same::blocks_do_not_matter;
use naive::Definition;

/// Log-n scaling of a model trained for 8 tokens.
fn log_8(i: i64) -> f64 {
    (((i + 1) as f64).ln() / 8f64.ln()).max(1.0)
}

/// So small that 40 tokens cross every border. Frequencies and magnitudes are the plan's, which other tests compare with
/// papers.
const REACHES: &[Case] = &[
    case("self-extend:window=9,group=3", self_extend::<9, 3>),
    Case {
        q_scale: log_8,
        ..case("self-extend:window=8,group=4,log-scale=true,original=8", self_extend::<8, 4>)
    },
    case("lm-infinite:window=12,global=3", lm_infinite::<12, 3>),
    case("lm-infinite:window=10,global=2,evict=true", lm_infinite::<10, 2>),
    case("dca:chunk=12,local=3,mscale=1.1", dca::<12, 3>),
    case("dca:chunk=10,local=7", dca::<10, 7>),
    case("streaming:sinks=3,window=10", streaming::<3, 10>),
    case("streaming:sinks=0,window=9", streaming::<0, 9>),
    case("string:shifted-offset=14,local-value=4", string::<14, 4>),
    case("rerope:window=9", rerope::<9>),
    Case { unit: 3, ..case("rerope:window=9,leak=3", leaky::<9, 3>) },
    case("yarn:factor=4,original=16+self-extend:window=9,group=3", self_extend::<9, 3>),
    Case {
        unit: 5,
        ..case("harpe:bases=uniform,base-min=20000,base-max=900000+rerope:window=10,leak=5", leaky::<10, 5>)
    },
];

/// A case in texts of several documents, each as if it were alone, in the layers that the method acts on; the others are
/// as the model has them.
struct InDocuments<'a> {
    case: &'a Case,
    plan: &'a Plan,
    segment_starts: &'a [u32],
    /// For each kind of layer, whether the method says who sees whom there.
    reached: Vec<bool>,
}

/// Where windows are, they stay.
fn reached(model: &Model) -> Vec<bool> {
    model.hparams().attention.iter().map(|l| l.rotation.is_some() && l.window.is_none()).collect()
}

impl InDocuments<'_> {
    fn start(&self, i: i64) -> i64 {
        self.segment_starts.iter().map(|&s| i64::from(s)).filter(|&s| s <= i).max().unwrap_or(0)
    }
}

impl Definition for InDocuments<'_> {
    fn distance(&self, i: i64, j: i64) -> Option<i64> {
        self.distance_in(0, i, j)
    }

    fn distance_in(&self, kind: usize, i: i64, j: i64) -> Option<i64> {
        let start = self.start(i);
        match j >= start {
            true if self.reached[kind] => (self.case.rel)(i - start, j - start),
            true => Some((i - j) * self.case.unit),
            false => None,
        }
    }

    fn sees_unrotated(&self, i: i64, j: i64) -> bool {
        j >= self.start(i)
    }

    fn unit(&self) -> i64 {
        self.case.unit
    }

    fn mscale(&self, kind: usize) -> f64 {
        self.plan.kinds()[kind].mscale
    }

    fn q_scale(&self, kind: usize, i: i64) -> f64 {
        // Where the method acts, the model's own temperature also counts from the beginning of a document.
        let i = if self.reached[kind] { i - self.start(i) } else { i };
        let own = self.plan.kinds()[kind].temperature.map_or(1.0, |t| t.at(i as i32));
        own * if self.reached[kind] { (self.case.q_scale)(i) } else { 1.0 }
    }
}

/// A layer with attention sinks and without a window, of as many experts as are used.
fn with_sinks() -> Model {
    let pattern = Value::Array(Array::Bool(vec![false]));
    let keys =
        vec![("attention.sliding_window", Value::U32(8)), ("attention.sliding_window_pattern", pattern)];
    let shape = Shape {
        n_layer: 1,
        n_embd: 48,
        n_head: 4,
        n_head_kv: 2,
        n_embd_head: 16,
        n_ff: 32,
        n_vocab: N_VOCAB,
        n_ctx_train: 64,
        keys,
        ffn: Ffn::Experts { n: 2, used: 2, shared: 0 },
        ..Shape::named("gpt-oss-tiny").unwrap()
    };
    made("train-reach-sinks.gguf", &shape, DType::F32, 9)
}

/// The models that a reach acts on, and of each architecture one.
fn list() -> Vec<(&'static str, Model)> {
    let mut list = models();
    list.retain(|(_, model)| model.hparams().arch != "cohere2");
    list.push(("gpt-oss, sinks", with_sinks()));
    list
}

#[test]
fn every_reach_is_trained_here() {
    let specs: Vec<Spec> = REACHES.iter().map(|c| c.spec.parse().unwrap()).collect();
    for method in METHODS.iter().filter(|m| m.axis == Axis::Reach) {
        assert!(specs.iter().any(|spec| spec.part(method.name).is_some()), "{}", method.name);
    }
}

#[test]
fn gradients_under_reaches_are_those_of_finite_differences() {
    let list = list();
    for (i, case) in REACHES.iter().enumerate() {
        // Each case with two models, in turns.
        for (about, model) in [2 * i, 2 * i + 1].iter().map(|k| &list[k % list.len()]) {
            let (about, reached) = (format!("{about}, {}", case.spec), reached(model));
            let settings = settings(40, 16, case.spec);
            check_by(&about, model, &settings, 39, &[], false, &|plan, segment_starts| {
                Box::new(InDocuments { case, plan, segment_starts, reached: reached.clone() })
            });
        }
        let (about, model) = &list[(2 * i + 5) % list.len()];
        let settings = settings(40, 11, case.spec);
        let (about, reached) = (format!("{about}, {}, documents", case.spec), reached(model));
        check_by(&about, model, &settings, 40, &[0, 5, 23], true, &|plan, segment_starts| {
            Box::new(InDocuments { case, plan, segment_starts, reached: reached.clone() })
        });
    }
}

/// One branch is a range of keys for each query, which the ops of every backend also have.
#[test]
fn a_window_is_trained_in_ops_of_every_backend() {
    let (about, model) = models().remove(0);
    let case = REACHES.iter().find(|case| case.spec.starts_with("streaming:sinks=0")).unwrap();
    let (settings, reached) = (settings(40, 16, case.spec).portable(true), reached(&model));
    check_by(about, &model, &settings, 39, &[4], false, &|plan, segment_starts| {
        Box::new(InDocuments { case, plan, segment_starts, reached: reached.clone() })
    });
}

/// The trainer's losses are those of a session under the same method, as far as rounding goes.
#[test]
fn losses_are_those_of_sessions() {
    let (_, model) = models().remove(0);
    let tokens = some_tokens(200, N_VOCAB);
    for case in REACHES {
        let mut trainer = Trainer::new(&model, &settings(199, 64, case.spec)).unwrap();
        let losses = trainer.losses(Sequence::new(&tokens)).unwrap();
        let params = with_kv(199, DType::F32).rope(Some(case.spec.parse().unwrap()));
        let rows = score(&mut open(&model, &params), &tokens[..199]);
        for (i, (row, loss)) in rows.chunks_exact(N_VOCAB).zip(&losses).enumerate() {
            let lse = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            let want = lse - f64::from(row[tokens[i + 1] as usize]);
            assert!((loss - want).abs() < LOGITS, "{}: token {i}: {loss}, a session's {want}", case.spec);
        }
    }
}

#[test]
fn blocks_threads_and_what_is_kept_do_not_matter() {
    let (_, model) = models().remove(1);
    for case in REACHES {
        blocks_do_not_matter(case.spec, &model, &settings(96, 96, case.spec), &[13, 30], [1, 2, 3]);
    }
}

#[test]
fn what_is_not_trained_under_a_reach_says_so() {
    let (_, model) = models().remove(0);
    let refused = |change: &dyn Fn(&mut TrainParams)| {
        let mut how = settings(40, 16, "self-extend:window=9,group=3");
        change(&mut how);
        Trainer::new(&model, &how).unwrap_err().to_string()
    };
    let e = refused(&|how| how.portable = true);
    assert!(e.contains("its 2 branches are trained on the CPU by ropewalk's own ops (not portable)"), "{e}");
    let e = refused(&|how| how.attention = TrainAttention::Shifted { group: None });
    assert!(
        e.ends_with("it selects the keys that queries see; expected attention full with it, found s2"),
        "{e}"
    );
    let e = refused(&|how| how.attention = "landmark:block=8".parse().unwrap());
    assert!(e.contains("landmark attention: expected a rope method of frequencies only"), "{e}");
    let e = refused(&|how| how.n_positions = Some(80));
    assert!(e.contains("expected 40 consecutive positions, found a context of 80"), "{e}");
    let e = refused(&|how| how.rope = Some("clex+self-extend:window=9,group=3".parse().unwrap()));
    assert!(e.ends_with("expected no attention method with it"), "{e}");
}
