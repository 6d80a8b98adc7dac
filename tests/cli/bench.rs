//! `ropewalk bench` on a tiny model: its report, and libllama dying in the midst of it.

use std::process::Stdio;

#[cfg(target_os = "linux")]
use crate::common::process::children;
use crate::common::program::{command, run};
use crate::models::{model, ok};

#[test]
fn bench_measures_ours_and_libllama() {
    let base = [
        "bench",
        "-m",
        model(),
        "-p",
        "32",
        "-n",
        "4",
        "-d",
        "0,16",
        "-r",
        "2",
        "--device",
        "cpu",
        "-t",
        "1",
        "-q",
    ];
    let json = run(
        &[&base[..], &["--json", "--against", "libllama", "--rope", "plain", "--rope", "harpe"]].concat()
    )
    .json();
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

/// libllama dies of a signal in the midst of a test: what is ours is reported, and its rows say what
/// happened.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_in_libllama_does_not_take_the_bench_with_it() {
    use std::time::{Duration, Instant};
    for more in [&["--json"][..], &[]] {
        let head = ["bench", "-m", model(), "-p", "64", "-n", "0", "-r", "400", "--against", "libllama"];
        let args = [&head[..], &["--device", "cpu", "-t", "1", "-q"], more].concat();
        let mut command = command(&args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let started = Instant::now();
        let libllama = loop {
            if let [one] = children(child.id())[..] {
                break one;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "no process for libllama in a minute");
            std::thread::sleep(Duration::from_millis(5));
        };
        std::thread::sleep(Duration::from_millis(200));
        let kill = std::process::Command::new("kill").args(["-ILL", &libllama.to_string()]).status().unwrap();
        assert!(kill.success());
        let output = child.wait_with_output().unwrap();
        let (stdout, stderr) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
        assert!(
            stderr.ends_with("error: libllama died of signal 4 (SIGILL): its figures are missing\n"),
            "{stderr}"
        );
        if more.is_empty() {
            assert!(
                stdout.contains("| pp64 | libllama | declared | died of signal 4 (SIGILL) |"),
                "{stdout}"
            );
            continue;
        }
        let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        let [ours, theirs] = &json["results"].as_array().unwrap()[..] else { panic!("{json}") };
        assert_eq!(ours["samples_ts"].as_array().unwrap().len(), 400);
        assert!(ours["died"].is_null() && ours["ratio"].is_null(), "{ours}");
        assert_eq!((&ours["finished"], &theirs["finished"]), (&true.into(), &false.into()));
        assert_eq!(theirs["died"], "died of signal 4 (SIGILL)");
        assert!(theirs["avg_ts"].is_null() && theirs["median_ts"].is_null(), "{theirs}");
    }
}
