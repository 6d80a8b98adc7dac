//! `ropewalk rope` for methods of the reach axis: what it prints, draws and refuses.

use crate::common::program::run;
use crate::models::model;
use ropewalk::DType;

#[test]
fn a_reach_method_shows_its_branches_and_a_map() {
    let output = run(&["rope", "self-extend:window=64,group=4,original=256", "-m", model(), "--ctx", "600"]);
    assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{output:?}");
    for text in [
        "distance 0..63  as it is",
        "floor(i/4) + 48 - floor(j/4)",
        "largest distance within the context 197",
        "a query sees 600 keys at most",
        "the cache keeps every key",
        "tenths of the original context of 256 tokens",
        "wavelength",
    ] {
        assert!(output.stdout.contains(text), "{text}: {}", output.stdout);
    }
    let streaming = run(&["rope", "streaming:sinks=4,window=96", "-m", model(), "--ctx", "600"]);
    assert!(
        streaming.stdout.contains("the cache holds 100 keys at most, however long the text"),
        "{streaming:?}"
    );
    let plain = run(&["rope", "yarn:factor=2", "-m", model(), "--ctx", "600"]);
    assert!(plain.code == 0 && !plain.stdout.contains("tenths of"), "{plain:?}");
}

#[test]
fn json_has_the_branches() {
    let json =
        run(&["rope", "lm-infinite:window=64,global=2,evict=true", "-m", model(), "--ctx", "600", "--json"])
            .json();
    assert_eq!(
        json["branches"],
        serde_json::json!([
            { "pairs": "distance 0..63", "shown": "as it is", "largest": 63 },
            { "pairs": "keys 0..1, distance 64..", "shown": "always 64", "largest": 64 },
        ])
    );
    let number = |key: &str| json[key].as_u64();
    assert_eq!(
        (number("largest_distance"), number("most_keys"), number("n_held")),
        (Some(64), Some(66), Some(66))
    );
    let plain = run(&["rope", "plain", "-m", model(), "--ctx", "600", "--json"]).json();
    assert_eq!(plain["branches"][0]["pairs"], "all keys");
    assert_eq!((plain["largest_distance"].as_u64(), plain["n_held"].as_u64()), (Some(599), None));
    let methods = run(&["rope", "--list", "--json"]).json();
    let axis = |name: &str| {
        let all = methods["methods"].as_array().unwrap();
        all.iter().find(|m| m["name"] == name).unwrap()["axis"].as_str().unwrap().to_owned()
    };
    assert_eq!((axis("dca").as_str(), axis("yarn").as_str()), ("attention", "frequency"));
    let listed = run(&["rope", "--list"]).stdout;
    for text in
        ["streaming (attention): ", "rerope (attention): ", "settings of every frequency method", "    drop "]
    {
        assert!(listed.contains(text), "{text}: {listed}");
    }
    let keys = |name: &str| -> Vec<String> {
        let all = methods["methods"].as_array().unwrap();
        let params = all.iter().find(|m| m["name"] == name).unwrap()["params"].as_array().unwrap().clone();
        params.iter().map(|p| p["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys("plain"), ["original", "drop", "keep-short", "temperature", "temperature-scale"]);
    assert_eq!(
        keys("rerope"),
        ["window", "leak", "original", "keep-short", "temperature", "temperature-scale"]
    );
}

#[test]
fn fractions_of_a_position_and_temperatures_are_told() {
    let spec = "rerope:window=64,leak=4,temperature=logn,original=256";
    let output = run(&["rope", spec, "-m", model(), "--ctx", "600"]);
    // 64 + (599 - 64) / 4 is 197.75.
    for text in [
        "(i + 192)/4 - j/4",
        "largest distance within the context 198",
        "queries i times max(1, ln(i+1) / ln 256)",
    ] {
        assert!(output.stdout.contains(text), "{text}: {}", output.stdout);
    }
    let json = run(&["rope", spec, "-m", model(), "--ctx", "600", "--json"]).json();
    assert_eq!(json["temperature"], "max(1, ln(i+1) / ln 256)");
    let none = run(&["rope", "plain:drop=1", "-m", model(), "--ctx", "600"]);
    assert!(none.code == 0 && none.stdout.contains("not rotated"), "{none:?}");
}

#[test]
fn maps_are_drawn_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let (map, plot) = (dir.path().join("map.svg"), dir.path().join("plot.png"));
    let (map, plot) = (map.to_str().unwrap(), plot.to_str().unwrap());
    let spec = "self-extend:window=64,group=4,original=256";
    let specs = ["rope", spec, "dca:original=256", "plain", "-m", model(), "--ctx", "600"];
    let output = run(&[&specs[..], &["--map", map, "--plot", plot, "--json"]].concat());
    let json = output.json();
    let specs: Vec<&str> =
        json["results"].as_array().unwrap().iter().map(|row| row["rope"].as_str().unwrap()).collect();
    assert_eq!(specs[0], "self-extend:window=64,group=4,log-scale=false,original=256");
    assert!(specs.len() == 3 && specs[1].starts_with("dca:chunk=192") && specs[2] == "plain", "{specs:?}");
    // At the top is what all have in common.
    assert_eq!((json["n_ctx"].as_u64(), json.get("rope")), (Some(600), None));
    assert!(output.stderr.contains("map.svg") && output.stderr.contains("plot.png"), "{output:?}");
    let svg = std::fs::read_to_string(map).unwrap();
    assert!(svg.contains("self-extend:window=64") && svg.contains("dca:chunk=192") && svg.contains("plain"));
    assert!(std::fs::read(plot).unwrap().starts_with(b"\x89PNG"));
}

#[test]
fn methods_are_compared_in_one_plot() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("plot.svg");
    let specs = ["yarn:factor=2", "yarn:factor=4", "harpe", "self-extend:window=64,group=4"];
    let args = ["-m", model(), "--ctx", "600", "--plot", plot.to_str().unwrap()];
    let output = run(&[&["rope"][..], &specs, &args].concat());
    assert_eq!(output.code, 0, "{output:?}");
    let svg = std::fs::read_to_string(&plot).unwrap();
    for name in ["yarn:factor=2", "yarn:factor=4", "harpe, KV head 1", "self-extend"] {
        assert!(svg.contains(name), "{name}");
        assert!(output.stdout.contains(name.split(',').next().unwrap()), "{name}: {}", output.stdout);
    }
    assert_eq!(svg.matches("as in the file").count(), 1);
    assert_eq!(output.stdout.matches("(the file declares").count(), 4);
    assert!(
        output.stdout.contains("group=4,log-scale=false,original=512:\na query i sees"),
        "{}",
        output.stdout
    );
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map.svg");
    let map = map.to_str().unwrap();
    for (args, words) in [
        (&["yarn:factor=2", "--map", map][..], &["--map", "yarn:factor=2", "its own distance", "--plot"][..]),
        (&["dca", "--map", "map.jpg"], &["--map map.jpg", ".svg, .png, or .pdf"]),
        (&["dca", "--map", map, "--plot", map], &["apart from the other output"]),
        (&["dca", "yarm", "--map", map], &["yarm", "yarn"]),
        (&["yarn", "plain", "--map", map], &["--map", "yarn:factor", " and plain "]),
        (&["dca", "dca", "dca", "dca", "dca", "--map", map], &["--map: expected at most 4 methods, found 5"]),
    ] {
        let output = run(&[&["rope", "-m", model(), "--ctx", "600"], args].concat());
        assert!(output.code == 2 && output.stdout.is_empty(), "{args:?}: {output:?}");
        assert!(words.iter().all(|w| output.stderr.contains(w)), "{args:?}: {output:?}");
    }
    let late = run(&["rope", "dca", "dca:chunk=9,local=9", "-m", model(), "--ctx", "600", "--map", map]);
    assert!(late.code == 1 && late.stderr.contains("local"), "{late:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Of a file that declares YaRN: what keeps it, what replaces it, and that the program says which.
#[test]
fn a_declared_scaling_is_kept_or_replaced_and_the_program_says_so() {
    let path = crate::common::random_model("gpt-oss-tiny", DType::F32, "cli-rope-declared");
    let rope = |spec: &str| run(&["rope", spec, "-m", path.to_str().unwrap(), "--ctx", "512"]);
    let declares = "(the file declares yarn:factor=4,original=64)";
    for (spec, made, said) in [
        ("declared", "yarn:factor=4,", ""),
        ("self-extend:group=4", "yarn:factor=4,", "self-extend keeps it and acts on top"),
        ("plain", "plain", "plain replaces it: `declared` is the model as it ships"),
        ("plain+self-extend:group=4", "plain+self-extend:", "replaces it"),
        ("ntk:factor=8", "ntk:factor=8", "replaces it"),
    ] {
        let output = rope(spec);
        assert_eq!((output.code, output.stderr.as_str()), (0, ""), "{spec}: {output:?}");
        let first = output.stdout.lines().next().unwrap();
        assert!(first.contains(&format!(": rope {made}")) && first.ends_with(declares), "{spec}: {first}");
        let note = output.stdout.lines().find(|line| line.starts_with("note: The file declares"));
        assert_eq!(note.is_some(), !said.is_empty(), "{spec}: {note:?}");
        assert!(note.unwrap_or_default().contains(said), "{spec}: {note:?}");
    }
    std::fs::remove_file(path).unwrap();
}
