//! `inspect --map`: maps of one head and of the same head under another setting, and what is refused.

use serde_json::Value;

use crate::common::program::{run, Output};
use crate::models::{model, ok, text_file};

fn drawn(file: &str, map: &str, more: &[&str]) -> Output {
    let args = ["inspect", model(), "--device", "cpu", "-t", "1", "-q", "-f", file, "--ctx", "200", "--map"];
    let map = if map.is_empty() { None } else { Some(map) };
    run(&[&args[..], map.as_slice(), more].concat())
}

fn rows(report: &Value) -> Vec<Vec<f64>> {
    let row = |row: &Value| row.as_array().unwrap().iter().map(|p| p.as_f64().unwrap()).collect();
    report["map"]["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn one_head_is_chosen_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let file = text_file(dir.path(), "text.txt", 400);
    let svg = dir.path().join("map.svg");
    let report = ok(drawn(&file, "distance=50", &["-o", svg.to_str().unwrap(), "--json"])).json();
    assert_eq!(report["results"].as_array().unwrap().len(), 1);
    let report = report["results"][0].clone();
    let heads = report["heads"].as_array().unwrap();
    assert!(heads.len() > 1 && heads[0] == report["shown"], "{report}");
    assert!(heads.windows(2).all(|h| h[0]["far"].as_f64() >= h[1]["far"].as_f64()), "{report}");
    let map = rows(&report);
    assert_eq!((report["map"]["tile"].as_u64(), map.len()), (Some(16), 200usize.div_ceil(16)));
    assert!(map.iter().enumerate().all(|(r, row)| row.len() == r + 1));
    assert!(map.iter().flatten().all(|p| *p > 0.0 && *p <= 1.0), "{report}");
    // The first query sees itself alone.
    assert_eq!(map[0][0], 1.0);
    assert!(std::fs::read_to_string(&svg).unwrap().trim_end().ends_with("</svg>"));

    let shown = &report["shown"];
    let out = ok(drawn(&file, "distance=50", &[])).stdout;
    assert!(out.contains(&format!("layer {}, head {} (from 0)", shown["layer"], shown["head"])), "{out}");
    assert!(out.contains("key 0..200") && out.contains("| layer |"), "{out}");
    // The same head, named.
    let named = format!("distance=50,layer={},head={},tiles=50", shown["layer"], shown["head"]);
    let named = ok(drawn(&file, &named, &["--json"])).json()["results"][0].clone();
    assert_eq!((&named["shown"], rows(&named).len()), (shown, 4));
}

#[test]
fn two_settings_are_drawn_with_their_difference() {
    let dir = tempfile::tempdir().unwrap();
    let file = text_file(dir.path(), "text.txt", 400);
    let png = dir.path().join("map.png");
    let args = ["--rope", "plain", "--against", "rope=pi:factor=4"];
    let more = [&args[..], &["--plot", png.to_str().unwrap(), "--json"]].concat();
    let both = ok(drawn(&file, "distance=50", &more)).json();
    let (a, b) = (&both["results"][0], &both["results"][1]);
    assert_eq!((a["shown"]["layer"].clone(), a["shown"]["head"].clone()), {
        (b["shown"]["layer"].clone(), b["shown"]["head"].clone())
    });
    assert!(a["rope"] == "plain" && b["rope"].as_str().unwrap().starts_with("pi:factor=4"), "{both}");
    assert!(rows(a) != rows(b) && rows(a).len() == rows(b).len());
    assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"));
    let out = ok(drawn(&file, "distance=50", &args)).stdout;
    assert!(out.contains("the second minus the first") && out.contains("pi:factor=4"), "{out}");
    // The same under the same is no difference.
    let out = ok(drawn(&file, "distance=50", &["--rope", "plain", "--against", "rope=plain"])).stdout;
    let difference = out.split("the second minus the first").nth(1).unwrap();
    let cells: String = difference.lines().filter_map(|l| Some(l.split_once('\u{2502}')?.1)).collect();
    assert!(cells.len() > 50 && cells.chars().all(|c| c == '.'), "{out}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = text_file(dir.path(), "text.txt", 400);
    for (map, more, code, holds) in [
        ("distance=199", &[][..], 1, "no two of 200 tokens are more than 199 apart"),
        ("layer=99", &[], 2, "layer: expected 0 to"),
        ("layer=0,head=99", &[], 2, "head: expected 0 to"),
        ("head=0", &[], 2, "--map: expected layer=N with head=N"),
        ("tiles=0", &[], 2, "--map: tiles: must be at least 1"),
        ("layers=1", &[], 2, "--map: unknown parameter `layers` (did you mean `layer`?)"),
        ("", &["-o", "map.jpg"], 2, "--plot map.jpg: expected a name ending in .svg, .png, or .pdf"),
        ("", &["--against", "rope=nothing"], 2, "nothing"),
        ("", &["--against", "kv=q3"], 2, "expected kv=f32|f16|q8_0|q4_0, found kv=q3"),
        ("", &["--against", "kv=f32", "--against", "kv=q8_0"], 2, "--against: expected one kv, found two"),
        ("", &["--against", "no-such.gguf"], 1, "no-such.gguf: no such file"),
        ("", &["--all"], 2, "cannot be used with"),
    ] {
        let out = drawn(&file, map, more);
        let end = (out.code, out.stdout.is_empty(), out.stderr.contains(holds));
        assert_eq!(end, (code, true, true), "{map} {more:?}: {out:?}");
    }
    // What is of the map alone is no option of the rest.
    for more in [&["--device", "cpu"][..], &["-f", &file], &["--against", "kv=f32"], &["-o", "map.svg"]] {
        let out = run(&[&["inspect", model()][..], more].concat());
        assert!(out.code == 2 && out.stderr.contains("--map"), "{more:?}: {out:?}");
    }
}
