//! `ropewalk inspect`, alone and with `--kernels`: which kernels multiply a model's weights, for people and for programs.

use crate::common::program::run;
use crate::models::{model, ok};

#[test]
fn kernels_of_a_model_are_shown() {
    let text = ok(run(&["inspect", model(), "--kernels"])).stdout;
    assert!(text.starts_with("matrix products on this processor (") && text.contains("\n  q8_0 "), "{text}");
    for (pass, math) in [("inference", "auto"), ("inference", "int8"), ("training ", "f32")] {
        assert!(text.contains(&format!("  {pass}  --math {math:4}  1")), "{pass} {math}: {text}");
    }
    let contents = ok(run(&["inspect", model()])).stdout;
    let (_, short) = contents.split_once("\n\nmatrix products on this processor (").unwrap();
    assert!(short.contains("\n  q8_0 ") && short.contains("  training   --math auto"), "{short}");
    for line in short.lines().skip(1) {
        assert!(text.contains(line) && !line.contains("--math f32"), "{line}: {text}");
    }
    let json = ok(run(&["inspect", model(), "--kernels", "--json"])).json();
    let products = json["products"].as_array().unwrap();
    let auto =
        |p: &&serde_json::Value| p["math"] == "auto" && p["pass"] == "inference" && p["type"] == "q8_0";
    let choices = products.iter().find(auto).unwrap()["choices"].as_array().unwrap();
    assert_eq!(choices[0]["from"], 1);
    for choice in choices {
        assert!(text.contains(choice["kernel"].as_str().unwrap()), "{choice}: {text}");
    }
}
