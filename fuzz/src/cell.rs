//! Results of a study's cells, and the report made of them.

use std::collections::HashMap;

use ropewalk_study::report::Report;
use ropewalk_study::{Folder, Plan};

use crate::plan::{find, SHORT};
use crate::{accepted, file, scratch};

/// Puts the bytes into a study's folder as the result of a cell, and makes the report: no tag in a result becomes
/// one of the page.
pub fn run(bytes: &[u8]) -> bool {
    let plan = Plan::read(&file("plan.toml", SHORT.as_bytes()), &find).unwrap();
    let folder = scratch(&format!("{:?}-study", std::thread::current().id()));
    let study = Folder::open(&folder, &plan, &find).unwrap();
    std::fs::write(folder.join("cells/ab.json"), bytes).unwrap();
    accepted(study.records().map(|records| {
        let report = Report::new(&plan, &records);
        let empty = Report::new(&plan, &HashMap::new());
        for tag in ["<script", "<img", "<u>"] {
            assert_eq!(report.html().matches(tag).count(), empty.html().matches(tag).count(), "{tag}");
        }
        assert!(!report.markdown().is_empty());
    }))
}

/// A result with every field, and a failure.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![DONE.into(), FAILED.into()]
}

const DONE: &str = r#"{"hash":"ab","cell":{"model":"m","method":"plain","task":"vt","length":512,"seed":null},"state":{"done":{
"metric":"all","value":50.0,"interval":[10.0,90.5],"interval_kind":"wilson","metrics":[{"name":"all","value":50.0,
"interval":[10.0,90.5]}],"samples":2,"tokens":480,"protocol":"<script>","source":"<u>","rope":"plain","n_ctx":512,
"chance":12.5,"buckets":[{"start":0,"end":256,"nll":2.5,"tokens":255}],"by":[{"tag":"depth","value":"0","score":50.0,
"samples":2}],"adapter":null,"tokens_trained":1000,"notes":["<img src=x>"],"seconds":1.5,"tokens_per_s":320.0}}}"#;

const FAILED: &str = r#"{"hash":"ab","cell":{"model":"m","method":"plain","task":"vt","length":512,"seed":null},
"state":{"failed":"<script>"}}"#;
