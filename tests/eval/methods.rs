//! Reports of a measurement under several methods, as one object.

use ropewalk::eval::one_object;
use serde_json::{json, Value};

#[test]
fn reports_become_one_object_with_flat_rows() {
    let report = |rope: &str, task: &str, metric: &str, stopped: bool| {
        json!({"model": "m", "rope": rope, "task": task, "metric": metric, "notes": ["n"], "interrupted": stopped,
               "results": [{"length": 1, "interrupted": false}, {"length": 2, "interrupted": stopped}]})
    };
    let one = Value::from(one_object(&[report("plain", "a", "x", false)]).unwrap());
    let row = |n| json!({"rope": "plain", "task": "a", "length": n, "interrupted": false, "finished": true});
    assert_eq!(
        one,
        json!({"model": "m", "rope": "plain", "task": "a", "metric": "x", "notes": ["n"], "interrupted": false,
               "results": [row(1), row(2)]})
    );
    let empty =
        json!({"model": "m", "rope": "", "task": "b", "metric": "x", "interrupted": true, "results": []});
    let all = [report("plain", "a", "x", false), report("pi", "a", "y", true), empty];
    let all = Value::from(one_object(&all).unwrap());
    let row = |rope, metric, n, finished: bool| json!({"rope": rope, "task": "a", "metric": metric, "length": n, "interrupted": !finished, "finished": finished});
    let rows = [
        row("plain", "x", 1, true),
        row("plain", "x", 2, true),
        row("pi", "y", 1, true),
        row("pi", "y", 2, false),
    ];
    assert_eq!(all, json!({"model": "m", "notes": ["n"], "interrupted": true, "results": rows}));
}
