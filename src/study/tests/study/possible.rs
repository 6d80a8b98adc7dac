//! Whatever figures a result holds, it is refused or the report shows it.

use std::fs;

use proptest::prelude::*;
use proptest::sample::select;
use ropewalk_study::report::Report;
use serde_json::{json, Value};

use crate::fake::Study;

const PLAN: &str = r#"
title = "Odd"
lengths = [512, 1024]
texts = ["essays.txt"]
models = [{ name = "m", path = "m.gguf" }]
methods = [
    { name = "plain", spec = "plain" },
    { name = "pi", spec = "pi:factor=2" },
    { name = "yarn", spec = "yarn:factor=2", adapters = ["a.gguf"] },
]
tasks = [
    { name = "perplexity" },
    { name = "longppl" },
    { name = "passkey", seeds = [1, 2] },
    { name = "niah_single_2" },
    { name = "piqa" },
]
"#;

/// Figures, most of them possible.
fn figure() -> impl Strategy<Value = f64> {
    let odd = [
        0.0,
        -0.0,
        1.0,
        100.0,
        100.1,
        0.99,
        -1.0,
        1e-300,
        5e-324,
        230.0,
        231.0,
        1e100,
        1e101,
        f64::MAX,
        f64::MIN,
    ];
    prop_oneof![4 => 1.0..100.0f64, 1 => select(odd.to_vec()), 1 => -10.0..1e6f64]
}

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 1..5000u64, 1 => select(vec![0, 1 << 31, 1 << 50, 1 << 53, u64::MAX])]
}

fn ends() -> impl Strategy<Value = Value> {
    prop_oneof![Just(Value::Null), (figure(), figure()).prop_map(|(a, b)| json!([a.min(b), a.max(b)]))]
}

prop_compose! {
    fn bucket()(width in prop_oneof![3 => Just(64), 1 => count()], nll in prop_oneof![3 => 0.0..230.0f64, 1 => figure()],
                stderr in prop_oneof![Just(Value::Null), figure().prop_map(Value::from)],
                tokens in count()) -> (u64, f64, Value, u64) {
        (width, nll, stderr, tokens)
    }
}

prop_compose! {
    fn done()(value in figure(), interval in ends(), samples in count(), tokens in count(), n_ctx in count(),
              metric in (figure(), ends()), chance in prop_oneof![Just(Value::Null), figure().prop_map(Value::from)],
              buckets in prop::collection::vec(bucket(), 0..6),
              by in prop::collection::vec((select(vec!["0", "50", "100%", "1e308", "NaN", "inf", "x"]), figure(), count()), 0..4),
              seconds in figure(), tokens_per_s in figure()) -> Value {
        let mut at = 0u64;
        let buckets: Vec<Value> = buckets.into_iter().map(|(width, nll, stderr, tokens)| {
            let start = at;
            at = at.saturating_add(width);
            json!({ "start": start, "end": at, "nll": nll, "nll_stderr": stderr, "tokens": tokens })
        }).collect();
        let by: Vec<Value> = by.into_iter().map(|(value, score, samples)| {
            json!({ "tag": "depth", "value": value, "score": score, "samples": samples })
        }).collect();
        json!({
            "metric": "m", "value": value, "interval": interval, "interval_kind": "wilson",
            "metrics": [{ "name": "m", "value": metric.0, "interval": metric.1 }], "samples": samples, "tokens": tokens,
            "protocol": "p", "source": "s", "rope": "r", "n_ctx": n_ctx, "chance": chance, "buckets": buckets,
            "by": by, "adapter": null, "tokens_trained": tokens, "notes": [], "seconds": seconds,
            "tokens_per_s": tokens_per_s,
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_kept_can_be_shown(results in prop::collection::vec(done(), 3 * 11)) {
        let study = Study::new(PLAN);
        let (plan, folder) = (study.plan(), study.open("s").unwrap());
        prop_assert_eq!(plan.len(), results.len());
        for (cell, done) in plan.cells().zip(results) {
            let (key, hash) = (cell.key(), cell.hash("", &[]));
            let path = study.at("s/cells").join(format!("{hash}.json"));
            let record = json!({ "hash": hash, "cell": key, "state": { "done": done } });
            fs::write(&path, record.to_string()).unwrap();
            // A result that is refused is away; those that are possible go on to the report.
            if let Err(said) = folder.get(&hash) {
                prop_assert!(said.to_string().contains(&hash) && !said.to_string().contains('\n'), "{}", said);
                fs::remove_file(&path).unwrap();
            }
        }
        let records = folder.records().unwrap();
        let report = Report::new(&plan, &records);
        let (html, markdown) = (report.html(), report.markdown());
        prop_assert!(!html.contains("NaN") && !markdown.contains("NaN"));
        for svg in html.split("<svg").skip(1).map(|s| s.split("</svg>").next().unwrap()) {
            prop_assert!(!svg.contains("inf"), "{}", svg);
        }
        prop_assert!(!html.contains(">inf") && !html.contains(">-inf"));
    }
}
