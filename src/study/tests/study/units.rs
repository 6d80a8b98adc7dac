//! Units: how a study is cut, run in parts, and merged.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use ropewalk_core::control::Control;
use ropewalk_study::{list_units, Folder, Results, Unit, Units};

use crate::fake::{find, Fake, Study, PLAN, TRAINING};

/// The cells of a method.
const CELLS: usize = 23;

fn listed(study: &Study, name: &str) -> Units {
    let plan = study.plan();
    let results = Results::open(&study.at(name), &plan, &find).unwrap();
    list_units(&plan, results.as_ref(), &mut Fake::default(), &Control::default()).unwrap()
}

#[test]
fn every_cell_is_in_one_unit() {
    let study = Study::new(PLAN);
    let (plan, units) = (study.plan(), study.plan().units());
    for cell in plan.cells() {
        let of: Vec<&Unit> = units.iter().filter(|unit| unit.has(&cell)).collect();
        assert!(of.len() == 1 && of[0].model == "small" && of[0].method == cell.method.name, "{of:?}");
        assert_eq!(of[0].length, cell.length.filter(|_| cell.method.train.is_none()));
        assert_eq!(of[0].trains, cell.method.train.is_some());
    }
    // Of each method that is not trained three lengths, and the tasks without one.
    assert_eq!(units.len(), 6 * 4 + 1);
    let ids: HashSet<&str> = units.iter().map(|unit| unit.id.as_str()).collect();
    assert_eq!(ids.len(), units.len());
    assert!(ids.iter().all(|id| id.len() == 12 && id.bytes().all(|b| b"0123456789abcdef".contains(&b))));
    // They stay when methods and lengths are added, wherever the files are.
    let text = PLAN.replace("lengths = [4096,", "lengths = [2048, 4096,").replace("small.gguf", "s.gguf");
    let text = text.replacen(
        "[[methods]]",
        "[[methods]]\nname = \"abf\"\nspec = \"abf:base=1000000\"\n[[methods]]",
        1,
    );
    let more = Study::new(&text).plan();
    for unit in units.iter().filter(|unit| !unit.trains) {
        assert_eq!(more.unit(&unit.id).unwrap().length, unit.length);
    }
    let said = plan.unit("../../etc").unwrap_err().to_string();
    assert!(said.contains("plan.toml: expected the ID of a unit, found \"../../etc\""), "{said}");
}

#[test]
fn units_put_together_have_the_report_of_one_run() {
    let study = Study::new(PLAN);
    let mut whole = Fake::default();
    study.run("whole", &mut whole).unwrap();
    let (mut ran, mut trained) = (Vec::new(), 0);
    for row in listed(&study, "s").units {
        let unit = study.plan().unit(&row.unit.id).unwrap();
        // Stopped in the middle, like a task of a cluster, and run again.
        let mut fake = Fake { stop_after: Some(1), ..Fake::default() };
        let summary = study.run_unit("s", &unit, &mut fake).unwrap();
        assert!(summary.stopped && summary.measured == 1, "{summary:?}");
        assert_eq!(summary.cells, row.work.cells);
        let mut rest = Fake::default();
        let summary = study.run_unit("s", &unit, &mut rest).unwrap();
        assert_eq!((summary.known, summary.measured), (1, row.work.cells - 1));
        trained += fake.trained + rest.trained;
        ran.extend(fake.ran.into_iter().chain(rest.ran));
        assert!(!study.at("s/parts").join(&row.unit.id).join("report.html").exists());
    }
    ran.sort();
    whole.ran.sort();
    assert_eq!((ran, trained), (whole.ran, 1), "each cell was measured once");
    study.merge(&["s/parts"], "s").unwrap();
    assert_eq!(study.reports("s"), study.reports("whole"));
    assert_eq!(fs::read_dir(study.at("s/samples")).unwrap().count(), 7 * CELLS);
    // Nothing is left, in the study or in a unit whose folder is away, and a second merge changes nothing.
    study.merge(&["s/parts"], "s").unwrap();
    assert_eq!(study.run("s", &mut Fake::default()).unwrap().known, 7 * CELLS);
    fs::remove_dir_all(study.at("s/parts")).unwrap();
    for unit in study.plan().units() {
        let summary = study.run_unit("s", &unit, &mut Fake::default()).unwrap();
        assert_eq!((summary.known, summary.measured), (summary.cells, 0));
    }
    assert_eq!(study.reports("s"), study.reports("whole"));
}

#[test]
fn parts_of_a_study_may_overlap() {
    let study = Study::new(PLAN);
    study.run("whole", &mut Fake::default()).unwrap();
    study.run("a", &mut Fake { stop_after: Some(80), ..Fake::default() }).unwrap();
    study.run("b", &mut Fake { stop_after: Some(120), ..Fake::default() }).unwrap();
    for unit in study.plan().units().iter().filter(|unit| unit.method == "streaming") {
        study.run_unit("c", unit, &mut Fake::default()).unwrap();
    }
    study.run("d", &mut Fake { fails: Some(("streaming", "no memory")), ..Fake::default() }).unwrap();
    study.merge(&["d", "c/parts", "a", "b"], "merged").unwrap();
    assert_eq!(study.reports("merged"), study.reports("whole"));
    // Into one of them.
    study.merge(&["d", "c/parts", "a", "b"], "a").unwrap();
    assert_eq!(study.reports("a"), study.reports("whole"));
}

#[test]
fn the_most_expensive_unit_comes_first() {
    let study = Study::new(PLAN);
    let all = listed(&study, "s");
    assert_eq!((all.cells, all.done, all.bytes), (7 * CELLS, 0, 2 << 20));
    assert!(!study.at("s").exists());
    let costs: Vec<f64> = all.units.iter().map(|unit| unit.work.cost).collect();
    assert!(costs.windows(2).all(|pair| pair[0] >= pair[1]), "{costs:?}");
    let first = &all.units[0];
    let of_method = (4096 + 8192 + 12288) * (8 + 20 * 6) + 2 * 20 * 100;
    assert!(first.unit.trains && first.work.tokens == of_method + TRAINING, "{first:?}");
    // What is measured costs nothing more, wherever it is.
    let unit = study.plan().unit(&first.unit.id).unwrap();
    study.run_unit("s", &unit, &mut Fake { stop_after: Some(CELLS - 1), ..Fake::default() }).unwrap();
    let find = |units: &Units| units.units.iter().find(|row| row.unit.id == unit.id).unwrap().clone();
    let row = find(&listed(&study, "s"));
    assert!(row.is_left() && row.work.done == CELLS - 1 && row.work.tokens < TRAINING, "{row:?}");
    study.run_unit("s", &unit, &mut Fake::default()).unwrap();
    let after = listed(&study, "s");
    assert!(!find(&after).is_left() && find(&after).work.cost == 0.0 && after.done == CELLS);
    assert!((after.cost + costs[0] - all.cost).abs() < 1.0);
    study.merge(&["s/parts"], "s").unwrap();
    fs::remove_dir_all(study.at("s/parts")).unwrap();
    assert_eq!(listed(&study, "s").done, CELLS);
    let text = listed(&study, "s").text("Title");
    assert!(
        text.contains(&format!("{}    23    23   0.0%", unit.id)) && text.contains("yarn, trained, trained"),
        "{text}"
    );
}

#[test]
fn two_processes_do_not_run_one_unit() {
    let study = Study::new(PLAN);
    let units = study.plan().units();
    let open = |unit: &Unit| Folder::open_unit(study.at("s"), &study.plan(), unit.clone(), &find);
    let held = open(&units[0]).unwrap();
    let said = open(&units[0]).unwrap_err().to_string();
    assert!(said.contains(&units[0].id) && said.contains("another study runs here"), "{said}");
    // Others run, and what runs is not merged.
    let other = open(&units[1]).unwrap();
    let said = study.merge(&["s/parts"], "merged").unwrap_err().to_string();
    assert!(said.contains("another study runs here"), "{said}");
    drop((held, other));
    // Nor does a unit of another plan.
    study.run_unit("s", &units[2], &mut Fake::default()).unwrap();
    study.merge(&["s/parts"], "s").unwrap();
    fs::write(study.at("plan.toml"), PLAN.replace("samples = 20", "samples = 21")).unwrap();
    let said = open(&study.plan().units()[0]).unwrap_err().to_string();
    assert!(said.contains("another plan") && said.contains("s/plan.toml"), "{said}");
}

#[test]
fn a_unit_that_has_begun_is_passed_over() {
    let study = Study::new(PLAN);
    let units = study.plan().units();
    study.run_unit("s", &units[0], &mut Fake::default()).unwrap();
    // Killed before the copy of the plan was made.
    let begun = study.at("s/parts").join(&units[1].id);
    fs::create_dir(&begun).unwrap();
    study.merge(&["s/parts"], "s").unwrap();
    // Perplexity, two seeds of passkey, and four tasks of RULER.
    assert_eq!(study.open("s").unwrap().records().unwrap().len(), 7);
    // With results it is a part, which says what it is of.
    fs::create_dir(begun.join("cells")).unwrap();
    fs::write(begun.join("cells/x.json"), "").unwrap();
    let said = study.merge(&["s/parts"], "s").unwrap_err().to_string();
    assert!(said.contains(begun.join("plan.toml").to_str().unwrap()), "{said}");
    // Neither a part nor parts.
    fs::create_dir(study.at("empty")).unwrap();
    let said = study.merge(&["empty"], "s").unwrap_err().to_string();
    assert!(
        said.contains("empty: expected plan.toml of a part, or a directory of parts, found neither"),
        "{said}"
    );
}

/// A record of one part in another, with a change.
fn twice(from: &str, to: &str) -> (Study, [PathBuf; 2]) {
    let study = Study::new(PLAN);
    let unit = study.plan().units()[0].clone();
    for name in ["a", "b"] {
        study.run_unit(name, &unit, &mut Fake::default()).unwrap();
    }
    let mut names: Vec<_> = fs::read_dir(study.at("a/parts").join(&unit.id).join("cells"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    let paths =
        ["a", "b"].map(|name| study.at(name).join("parts").join(&unit.id).join("cells").join(&names[0]));
    let text = fs::read_to_string(&paths[1]).unwrap();
    assert!(text.contains(from), "{from}: {text}");
    fs::write(&paths[1], text.replacen(from, to, 1)).unwrap();
    (study, paths)
}

#[test]
fn a_cell_has_one_set_of_figures() {
    for (from, to, key) in [
        ("\"samples\": ", "\"samples\": 1", "samples: expected "),
        ("\"value\": ", "\"value\": 1.0, \"chance\": null, \"n_ctx\": 1, \"x\": ", "unknown field `x`"),
        ("\"notes\": []", "\"notes\": [\"\\u001b[31m\"]", "notes: expected [], as in "),
        ("\"protocol\": \"", "\"protocol\": \"\\n", "protocol: expected \""),
    ] {
        let (study, [first, second]) = twice(from, to);
        let said = study.merge(&["a/parts", "b/parts"], "out").unwrap_err().to_string();
        assert!(said.contains(second.to_str().unwrap()) && said.contains(key), "{said}");
        assert!(!said.contains(['\n', '\u{1b}']) && !study.at("out").exists(), "{said}");
        if key.contains("expected") {
            assert!(said.contains(first.to_str().unwrap()) && said.contains(", found "), "{said}");
            // So in the folder that they are merged into.
            study.merge(&["a/parts"], "out").unwrap();
            let said = study.merge(&["b/parts"], "out").unwrap_err().to_string();
            assert!(said.contains(second.to_str().unwrap()) && said.contains("out/cells/"), "{said}");
        }
        fs::remove_file(&second).unwrap();
        study.merge(&["a/parts", "b/parts"], "out").unwrap();
    }
    // Two machines are not equally fast.
    let (study, _) = twice("\"seconds\": ", "\"seconds\": 10");
    study.merge(&["a/parts", "b/parts"], "out").unwrap();
}

#[cfg(unix)]
#[test]
fn links_lead_neither_out_of_a_study_nor_into_one() {
    use std::os::unix::fs::symlink;
    let study = Study::new(PLAN);
    let unit = study.plan().units()[0].clone();
    fs::create_dir(study.at("elsewhere")).unwrap();
    // A unit does not write elsewhere.
    for link in ["s/parts".to_owned(), format!("t/parts/{}", unit.id)] {
        let at = study.at(&link);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        symlink(study.at("elsewhere"), &at).unwrap();
        let said = study.run_unit(&link[..1], &unit, &mut Fake::default()).unwrap_err().to_string();
        assert!(said.contains(&link) && said.contains("found a link"), "{said}");
        assert_eq!(fs::read_dir(study.at("elsewhere")).unwrap().count(), 0);
    }
    // In a directory of parts, only folders are parts.
    study.run_unit("good", &unit, &mut Fake::default()).unwrap();
    let odd = study.at("good/parts/odd");
    let part = study.at("good/parts").join(&unit.id);
    let refused = |why: &str| {
        let said = study.merge(&["good/parts"], "out").unwrap_err().to_string();
        assert!(said.contains("good/parts/odd") && said.contains(why), "{said}");
        assert!(!study.at("out").exists());
        fs::remove_file(&odd).unwrap();
    };
    symlink(&part, &odd).unwrap();
    refused("symbolic link");
    fs::write(&odd, "").unwrap();
    refused("is not a folder");
    assert!(std::process::Command::new("mkfifo").arg(&odd).status().unwrap().success());
    refused("is not a");
    // Nor is a listing led elsewhere.
    fs::rename(&part, study.at("moved")).unwrap();
    symlink(study.at("moved"), &part).unwrap();
    let (plan, mut fake) = (study.plan(), Fake::default());
    let results = Results::open(&study.at("good"), &plan, &find).unwrap();
    let said = list_units(&plan, results.as_ref(), &mut fake, &Control::default()).unwrap_err().to_string();
    assert!(said.contains("symbolic link"), "{said}");
}
