//! Results of a study's cells, and the report made of them.

use std::collections::HashMap;

use ropewalk_study::report::Report;
use ropewalk_study::{Folder, Plan};

use crate::plan::find;
use crate::{accepted, file, scratch};

/// A plan with every kind of figure: scores, needles, perplexity by position.
const PLAN: &str = r#"title = "a"
texts = ["t.txt"]
lengths = [512, 1024]
models = [{ name = "m", path = "m.gguf" }]
methods = [{ name = "plain", spec = "plain" }]
tasks = [{ name = "vt" }, { name = "piqa" }, { name = "perplexity" }, { name = "longppl" }]
"#;

/// Hash of a cell, in hexadecimal.
const HASH: &str = "abababababababababababababababababababababababababababababababab";

/// Puts the bytes into a study's folder as the result of a cell, and makes the report: no tag in a result becomes
/// one of the page, and no chart has a place that is no number.
pub fn run(bytes: &[u8]) -> bool {
    let plan = Plan::read(&file("plan.toml", PLAN.as_bytes()), &find).unwrap();
    let folder = scratch(&format!("{:?}-study", std::thread::current().id()));
    let study = Folder::open(&folder, &plan, &find).unwrap();
    std::fs::write(folder.join("cells").join(format!("{HASH}.json")), bytes).unwrap();
    accepted(study.records().map(|records| {
        let report = Report::new(&plan, &records);
        let empty = Report::new(&plan, &HashMap::new());
        let html = report.html();
        for tag in ["<script", "<img", "<u>"] {
            assert_eq!(html.matches(tag).count(), empty.html().matches(tag).count(), "{tag}");
        }
        for svg in html.split("<svg").skip(1).filter_map(|s| s.split("</svg>").next()) {
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        assert!(!report.markdown().is_empty());
    }))
}

/// A result of each kind with every field, and a failure.
pub fn seeds() -> Vec<Vec<u8>> {
    let of = |task: &str, value: &str| {
        DONE.replace("TASK", task).replace("VALUE", value).replace("HASH", HASH).into()
    };
    let failed = FAILED.replace("HASH", HASH).into();
    vec![of("vt", "50.0"), of("perplexity", "12.2"), of("longppl", "90.0"), failed]
}

const DONE: &str = r#"{"hash":"HASH","cell":{"model":"m","method":"plain","task":"TASK","length":512,"seed":null},"state":{"done":{
"metric":"all","value":VALUE,"interval":[10.0,90.5],"interval_kind":"wilson","metrics":[{"name":"all","value":50.0,
"interval":[10.0,90.5]}],"samples":2,"tokens":480,"protocol":"<script>","source":"<u>","rope":"plain","n_ctx":512,
"chance":12.5,"buckets":[{"start":0,"end":256,"nll":2.5,"tokens":255},{"start":256,"end":512,"nll":229.0,"tokens":256}],
"by":[{"tag":"depth","value":"0","score":50.0,
"samples":2}],"adapter":null,"tokens_trained":1000,"notes":["<img src=x>"],"seconds":1.5,"tokens_per_s":320.0}}}"#;

const FAILED: &str = r#"{"hash":"HASH","cell":{"model":"m","method":"plain","task":"vt","length":512,"seed":null},
"state":{"failed":"<script>"}}"#;
