//! One model under different adapters: it shares its weights, and each adapter's requests are answered as alone.

use std::path::Path;

use ropewalk::adapter::{self, AdapterFile, AdapterMeta, AdapterSpec, NewPair};
use ropewalk::model::Model;
use ropewalk::scheduler::{Refusal, Scheduler, SchedulerParams};
use ropewalk::{DType, ModelParams};

use super::super::model;
use super::{alone, request, run, run_one, session, Log, Told};
use crate::common::{all_logits, some_tokens};

/// An adapter of the model `llama-tiny`.
fn adapter(m: &Model, path: &Path, k: usize) -> AdapterSpec {
    let n = m.hparams().n_embd;
    // Signs that follow no row and no column: the pair must not be a constant.
    let values =
        |n: usize, k: usize| -> Vec<f32> { (0..n).map(|i| ((i * i + k) % 7) as f32 / 7.0 - 0.4).collect() };
    let (a, b) = (values(n * 2, k), values(2 * n, k + 1));
    let pair = |il: usize| NewPair {
        weight: format!("blk.{il}.attn_output.weight"),
        n_in: n,
        n_out: n,
        a: &a,
        b: &b,
    };
    let file = AdapterFile {
        arch: "llama",
        rank: 2,
        alpha: 4.0,
        pairs: vec![pair(0), pair(1)],
        modules_to_save: Vec::new(),
        meta: AdapterMeta::default(),
        dtype: DType::F32,
    };
    adapter::write(path, &file).unwrap();
    AdapterSpec::new(path, 1.0)
}

#[test]
fn a_model_takes_more_adapters_and_stays_as_it_is() {
    let (m, dir) = (model("llama-tiny", DType::F32), tempfile::tempdir().unwrap());
    let [one, other] = [1, 3].map(|k| adapter(m, &dir.path().join(format!("{k}.gguf")), k));
    let text = some_tokens(40, m.hparams().n_vocab);
    let logits = |m: &Model| all_logits(m, &session(64, 1, "plain"), &text);
    let before = logits(m);
    let under = m.with_adapters(std::slice::from_ref(&one)).unwrap();
    let both = under.with_adapters(std::slice::from_ref(&other)).unwrap();
    let loaded = |adapters: &[AdapterSpec]| {
        Model::load(m.file().path(), &ModelParams::cpu().adapters(adapters.to_vec())).unwrap()
    };
    for (found, expected) in
        [(&under, loaded(std::slice::from_ref(&one))), (&both, loaded(&[one.clone(), other]))]
    {
        assert_eq!(logits(found), logits(&expected));
        let digests = |m: &Model| m.adapters().iter().map(|a| a.digest().to_owned()).collect::<Vec<_>>();
        assert_eq!((digests(found), found.n_bytes()), (digests(&expected), expected.n_bytes()));
    }
    assert_eq!(logits(m), before);
    assert!(logits(&under) != before && logits(&both) != logits(&under));
    let missing = m.with_adapters(&[AdapterSpec::new("none.gguf", 1.0)]).unwrap_err().to_string();
    assert!(missing.contains("none.gguf"), "{missing}");
}

/// Requests of all adapters at once, and again from the cache, which no adapter shares with another.
#[test]
fn each_adapter_is_answered_as_alone() {
    let (m, dir) = (model("llama-tiny", DType::F32), tempfile::tempdir().unwrap());
    let mut models = vec![m.clone()];
    for k in [1, 3] {
        let spec = adapter(m, &dir.path().join(format!("{k}.gguf")), k);
        models.push(m.with_adapters(&[spec]).unwrap());
    }
    let text = some_tokens(600, m.hparams().n_vocab);
    let plans = [session(256, 2, "plain"), session(1024, 1, "yarn:factor=2")];
    let how = SchedulerParams::new(plans.to_vec()).step_tokens(Some(40));
    let scheduler = Scheduler::with_models(&models, how.clone()).unwrap();
    assert_eq!(scheduler.plans().len(), 6);
    let expected: Vec<_> = models.iter().map(|m| alone(m, &plans[0], &text[..60], 12).0).collect();
    assert!(expected[0] != expected[1] && expected[1] != expected[2], "{expected:?}");
    for n_cached in [0, 59] {
        let told = run(&scheduler, (0..3).map(|i| request(&text[..60], 12).model(i)).collect());
        assert_eq!(told.iter().map(|told| &told.tokens).collect::<Vec<_>>(), Vec::from_iter(&expected));
        assert_eq!(told.iter().map(Told::n_cached).collect::<Vec<_>>(), [n_cached; 3]);
        let plans: Vec<_> = told.iter().map(|told| told.started.unwrap().0).collect();
        assert_eq!(plans, [0, 2, 4]);
    }
    // The first plan of the adapter that fits, and the one that is named.
    for (n, model, plan) in [(500, 1, None), (60, 0, Some(3))] {
        let told = run_one(&scheduler, request(&text[..n], 3).model(model).plan(plan));
        assert_eq!(told.started.map(|started| started.0), Some(3));
        assert_eq!(told.tokens, alone(&models[1], &plans[1], &text[..n], 3).0);
    }
    let refused =
        scheduler.submit(request(&text[..3], 3).model(3), Log::new().sink(0)).expect_err("a refusal");
    assert!(matches!(refused, Refusal::Invalid(_)) && refused.to_string().contains("0 to 2"), "{refused}");
    assert!(Scheduler::with_models(&[], how).is_err());
}
