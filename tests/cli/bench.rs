//! `ropewalk bench` on a tiny model: its report.

use std::process::Command;

use crate::common::program::{run, split};
use crate::models::{model, ok};

#[test]
fn bench_measures_ours_and_libllama() {
    let base = [split("bench -p 32 -n 4 -d 0,16 -r 2 --device cpu -t 1 -m"), vec![model()]].concat();
    let args =
        &[&base[..], &["--json", "--against", "libllama", "--rope", "plain", "--rope", "harpe"]].concat();
    let output = run(args);
    let json = output.json();
    let isa = ok(run(&["inspect", model(), "--kernels", "--json"])).json()["isa"].to_string();
    let lacks = isa.contains("AVX-512") && !cfg!(target_feature = "avx512f");
    assert_eq!(output.stderr.contains("compiled without this processor's AVX-512"), lacks, "{output:?}");
    assert_eq!((json["device"].as_str(), json["threads"].as_u64()), (Some("cpu"), Some(1)));
    let rows = json["results"].as_array().unwrap();
    assert_eq!(rows.len(), 4 * 3);
    let names: Vec<&str> = rows.iter().step_by(3).map(|r| r["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp32", "tg4", "pp32 @ d16", "tg4 @ d16"]);
    for row in rows {
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0 && row["stddev_ts"].as_f64().unwrap() >= 0.0, "{row}");
        assert_eq!((&row["task"], &row["finished"]), (&"bench".into(), &true.into()), "{row}");
        let tokens = ["depth", "n_prompt", "n_gen"].map(|key| row[key].as_u64().unwrap());
        assert_eq!(row["length"], tokens.iter().sum::<u64>(), "{row}");
        assert_eq!(row["ratio"].is_null(), row["engine"] == "libllama", "{row}");
    }
    let text = ok(run(&base));
    assert!(text.stdout.contains("| pp32 | ropewalk | plain |"), "{text:?}");
    let small = run(&[&base[..], &["--ctx", "8"]].concat());
    assert!(small.code == 1 && small.stderr.contains("needs 48"), "{small:?}");
}

/// One turn of the script that measures speed on a busy machine, with one thread, so that libllama waits for no other.
#[test]
fn the_speed_on_a_busy_machine_is_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_ropewalk");
    let folder = dir.path().to_str().unwrap();
    let mut script = Command::new("benches/busy.sh");
    script.current_dir(env!("CARGO_MANIFEST_DIR")).envs([("TURNS", "1"), ("TRAIN", ""), ("THREADS", "1")]);
    let out = script.envs([("MODEL", model()), ("PROGRAM", program), ("FOLDER", folder)]).output().unwrap();
    let (table, said) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{said}");
    let row = |name: &str| table.lines().find(|line| line.starts_with(&format!("| {name} |"))).expect(name);
    for name in ["pp512, libllama", "pp512, ropewalk", "tg32, libllama", "tg32, ropewalk"] {
        let speeds: Vec<f64> = row(name).split('|').skip(2).filter_map(|x| x.trim().parse().ok()).collect();
        assert!(speeds.len() == 4 && speeds.iter().all(|x| *x > 0.0), "{table}");
    }
    assert!(table.contains("\nEight runs at once took "), "{table}");
}
