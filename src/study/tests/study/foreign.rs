//! Parts and folders that somebody else filled.

use std::fs;
use std::path::{Path, PathBuf};

use ropewalk_study::{merge, report, Plan, SAMPLES};

use crate::fake::{find, Fake, Study};

const PLAN: &str = r#"
title = "Small"
lengths = [4096, 8192]
texts = ["essays.txt"]
models = [{ name = "small", path = "small.gguf" }]
methods = [{ name = "plain", spec = "plain" }]
tasks = [{ name = "perplexity" }, { name = "vt" }]
"#;

/// A sound part `good`, and `bad` with all other cells.
fn parts() -> Study {
    let study = Study::new(PLAN);
    for (name, task) in [("good", "perplexity"), ("bad", "vt")] {
        study.run(name, &mut Fake::default()).unwrap();
        study.keep(name, task);
    }
    fs::write(study.at("private"), "PRIVATE KEY").unwrap();
    study
}

/// Files below a folder that are no reports, with their contents.
fn tree(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            out.extend(tree(&path));
        } else {
            out.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    out.sort();
    out
}

fn only(folder: &Path) -> PathBuf {
    let mut all: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all.swap_remove(0)
}

/// The merge fails in one line that names a file, writes nothing, and works once the file is away.
#[track_caller]
fn refused(study: &Study, name: &Path, why: &str) {
    let merged = |dirs: &[&str]| {
        let dirs: Vec<PathBuf> = dirs.iter().map(|d| study.at(d)).collect();
        merge(&dirs, study.at("out"), &find)
    };
    let (folder, plan) = merged(&["good"]).unwrap();
    report::write(&folder, &plan).unwrap();
    drop(folder);
    let before = tree(&study.at("out"));
    let said = merged(&["good", "bad"]).unwrap_err().to_string();
    assert!(said.contains(name.to_str().unwrap()) && said.contains(why), "{said}");
    assert!(!said.contains('\n') && !said.contains("PRIVATE"), "{said}");
    assert_eq!(tree(&study.at("out")), before, "{why}");
    let said_anew = merge(&[study.at("bad")], study.at("new"), &find).unwrap_err().to_string();
    assert!(said_anew.contains(why) && !study.at("new").exists(), "{said_anew}");
    // It poisons nothing.
    let (folder, plan) = merged(&["good"]).unwrap();
    report::write(&folder, &plan).unwrap();
}

/// Puts a file with these bytes in the place of a sound one.
#[track_caller]
fn damaged(part: &str, change: impl FnOnce(&str) -> Vec<u8>, why: &str) {
    let study = parts();
    let path = only(&study.at("bad").join(part));
    let bytes = change(&fs::read_to_string(&path).unwrap());
    fs::write(&path, bytes).unwrap();
    refused(&study, &path, why);
}

#[test]
fn cells_that_cannot_be_are_not_merged() {
    let replace = |from: &'static str, to: &'static str| {
        move |good: &str| {
            assert!(good.contains(from), "{from}: {good}");
            good.replacen(from, to, 1).into_bytes()
        }
    };
    // A task in percent: vt.
    damaged("cells", replace("\"value\": ", "\"value\": 1"), "value: expected");
    damaged("cells", replace("\"value\": ", "\"value\": 1e308, \"value\": "), "duplicate field");
    damaged("cells", replace("\"tokens_per_s\": ", "\"tokens_per_s\": -"), "tokens_per_s: expected");
    damaged("cells", replace("\"model\": \"small\"", "\"model\": \"large\""), "no cell of the plan is");
    damaged("cells", replace("\"length\": ", "\"length\": 1"), "no cell of the plan is");
    damaged("cells", replace("\"seed\": null", "\"seed\": 1"), "no cell of the plan is");
    damaged("cells", replace("\"hash\": \"", "\"hash\": \"../"), "its hash is");
    damaged("cells", |_| Vec::new(), "expected the result");
    damaged("cells", |good| good.as_bytes()[..good.len() / 2].to_vec(), "expected the result");
    damaged("cells", |_| b"\xff\xfe".to_vec(), "expected the result");
}

/// Likelihoods that no chart can show, in whatever bucket; `good` holds the perplexities.
#[test]
fn a_likelihood_beyond_all_measure_is_named_in_every_folder() {
    for nll in ["1000", "710", "231", "-1", "1e308"] {
        let study = Study::new(PLAN);
        for (name, task) in [("good", "vt"), ("bad", "perplexity")] {
            study.run(name, &mut Fake::default()).unwrap();
            study.keep(name, task);
        }
        let path = only(&study.at("bad/cells"));
        let mut cell: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for bucket in cell["state"]["done"]["buckets"].as_array_mut().unwrap() {
            bucket["nll"] = nll.parse::<f64>().unwrap().into();
        }
        fs::write(&path, cell.to_string()).unwrap();
        refused(&study, &path, "nll of a bucket: expected -0.01 to 230.0");
        // The study's folder and that of a merge report it as well.
        let said = study.run("bad", &mut Fake::default()).unwrap_err().to_string();
        assert!(said.contains(path.to_str().unwrap()), "{said}");
        let said = merge(&[study.at("good")], study.at("bad"), &find).unwrap_err().to_string();
        assert!(said.contains(path.to_str().unwrap()), "{said}");
    }
}

/// A sparse file takes no room on its sender's disk.
#[test]
fn samples_are_samples_of_a_size() {
    let study = parts();
    let path = only(&study.at("bad/samples"));
    let file = fs::File::options().write(true).truncate(true).open(&path).unwrap();
    file.set_len((1 << 30) + 1).unwrap();
    refused(&study, &path, "found more than 1073741824 bytes");
    // Nor is any other file taken for samples. Those of an earlier build are once their first line is there.
    fs::write(&path, "PRIVATE KEY\n").unwrap();
    refused(&study, &path, "; earlier builds wrote none: put it before the first line, or delete the file");
    fs::write(&path, SAMPLES.header() + "{\"sample\":1}\n").unwrap();
    merge(&[study.at("bad")], study.at("out"), &find).unwrap();
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{symlink, PermissionsExt};

    use super::*;

    fn pipe(path: &Path) {
        let done = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(done.success());
    }

    /// Everything that may stand in the place of a file.
    type Impostor = (&'static str, Box<dyn Fn()>);
    fn impostors(path: &Path, study: &Study) -> Vec<Impostor> {
        let (path, private, folder) = (path.to_owned(), study.at("private"), study.at("good"));
        let link = |to: PathBuf| {
            let path = path.clone();
            Box::new(move || symlink(&to, &path).unwrap()) as Box<dyn Fn()>
        };
        let at = path.clone();
        let fifo = Box::new(move || pipe(&at)) as Box<dyn Fn()>;
        let at = path.clone();
        vec![
            ("symbolic link", link(private)),
            ("symbolic link", link(folder)),
            ("symbolic link", link("/dev/zero".into())),
            ("symbolic link", link("nowhere".into())),
            ("not a regular file", fifo),
            ("not a regular file", Box::new(move || fs::create_dir(&at).unwrap())),
        ]
    }

    #[test]
    fn nothing_but_files_is_read_from_a_part() {
        for part in ["cells", "samples", "plan.toml"] {
            for i in 0..6 {
                let study = parts();
                let path = study.at("bad").join(part);
                let path = if path.is_dir() { only(&path) } else { path };
                fs::remove_file(&path).unwrap();
                let (why, put) = impostors(&path, &study).swap_remove(i);
                put();
                refused(&study, &path, why);
            }
        }
        // Folders on the way are no links either.
        for part in ["cells", "samples"] {
            let study = parts();
            let path = study.at("bad").join(part);
            fs::rename(&path, study.at("moved")).unwrap();
            symlink(study.at("moved"), &path).unwrap();
            refused(&study, Path::new(part), "symbolic link");
        }
        // Nor is the lock.
        let study = parts();
        symlink(study.at("made"), study.at("bad/.ropewalk-lock")).unwrap();
        refused(&study, &study.at("bad/.ropewalk-lock"), "symbolic link");
        assert!(!study.at("made").exists());
    }

    #[test]
    fn a_part_that_cannot_be_written_is_merged_and_left_as_it_was() {
        let study = parts();
        study.run("whole", &mut Fake::default()).unwrap();
        let before = tree(&study.at("bad"));
        let all = ["bad", "bad/cells", "bad/samples", "bad/adapters"];
        let mode = |mode| {
            for folder in all {
                fs::set_permissions(study.at(folder), fs::Permissions::from_mode(mode)).unwrap();
            }
        };
        mode(0o555);
        // Root can write there all the same, so also check that nothing was written.
        let stamp = || fs::metadata(study.at("bad")).unwrap().modified().unwrap();
        let was = stamp();
        let merged = merge(&[study.at("bad"), study.at("good")], study.at("out"), &find);
        assert_eq!(stamp(), was);
        mode(0o755);
        let (folder, plan) = merged.unwrap();
        report::write(&folder, &plan).unwrap();
        drop(folder);
        assert_eq!(tree(&study.at("bad")), before);
        assert_eq!(study.reports("out"), study.reports("whole"));
        // While a study runs there it is not read.
        let held = study.open("bad").unwrap();
        let said = merge(&[study.at("bad")], study.at("new"), &find).unwrap_err().to_string();
        assert!(said.contains("another study runs here: in use by process"), "{said}");
        drop(held);
    }

    /// `-o` names a folder of somebody else, whose plan is the same.
    #[test]
    fn a_study_writes_into_its_own_folder_only() {
        for part in ["cells", "samples", "adapters"] {
            let study = parts();
            fs::create_dir(study.at("elsewhere")).unwrap();
            fs::remove_dir_all(study.at("bad").join(part)).unwrap();
            symlink(study.at("elsewhere"), study.at("bad").join(part)).unwrap();
            let said = study.run("bad", &mut Fake::default()).unwrap_err().to_string();
            assert!(said.contains(part) && said.contains("found a link"), "{said}");
            assert_eq!(tree(&study.at("elsewhere")), []);
        }
        // Samples of a cell that is measured next: a link to a private file, and one to nowhere.
        let study = parts();
        let names: Vec<_> = tree(&study.at("good/samples"))
            .into_iter()
            .map(|(p, _)| p.file_name().unwrap().to_owned())
            .collect();
        symlink(study.at("private"), study.at("bad/samples").join(&names[0])).unwrap();
        symlink(study.at("made"), study.at("bad/samples").join(&names[1])).unwrap();
        let summary = study.run("bad", &mut Fake::default()).unwrap();
        assert_eq!((summary.failed, summary.measured), (2, 0), "{summary:?}");
        assert_eq!(fs::read_to_string(study.at("private")).unwrap(), "PRIVATE KEY");
        assert!(!study.at("made").exists() && study.reports("bad").0.contains("symbolic link"));
        // Its plan, and a plan that is named, wait for nobody.
        fs::remove_file(study.at("bad/plan.toml")).unwrap();
        pipe(&study.at("bad/plan.toml"));
        let said = study.run("bad", &mut Fake::default()).unwrap_err().to_string();
        assert!(said.contains("bad/plan.toml") && said.contains("not a regular file"), "{said}");
        for (path, why) in [("bad/plan.toml", "not a regular file"), ("bad", "not a regular file")] {
            let said = Plan::read(&study.at(path), &find).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        symlink("/dev/zero", study.at("zero.toml")).unwrap();
        assert!(Plan::read(&study.at("zero.toml"), &find).is_err());
        // Texts are hashed, not waited for: their cells fail.
        fs::remove_file(study.at("essays.txt")).unwrap();
        pipe(&study.at("essays.txt"));
        let summary = study.run("new", &mut Fake::default()).unwrap();
        assert_eq!((summary.failed, summary.measured), (2, 2), "{summary:?}");
    }
}
