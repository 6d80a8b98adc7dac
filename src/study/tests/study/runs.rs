//! Running, stopping, listing, merging.

use files::faults::{failing_at, Step};
use ropewalk_core::control::{Control, Stop};
use ropewalk_study::{list, Error, Results, State};

use crate::fake::{find, Fake, Study, PLAN, TRAINING};

/// 7 methods x (3 perplexity + 6 passkey + 12 others + 2 short).
const CELLS: usize = 7 * 23;

#[test]
fn a_study_stopped_again_and_again_has_the_report_of_one_in_one_go() {
    let study = Study::new(PLAN);
    let mut whole = Fake::default();
    let summary = study.run("whole", &mut whole).unwrap();
    assert_eq!((summary.cells, summary.measured, summary.failed), (CELLS, CELLS, 0));
    assert_eq!((whole.trained, whole.ran.len()), (1, CELLS));
    let mut ran = Vec::new();
    for after in [1, 13, 60] {
        let mut fake = Fake { stop_after: Some(after), ..Fake::default() };
        let summary = study.run("parts", &mut fake).unwrap();
        assert!(summary.stopped && summary.measured == after && summary.known == ran.len(), "{summary:?}");
        let (html, markdown) = study.reports("parts");
        assert!(html.contains("This study is not whole") && html.contains("not run"), "{html}");
        assert!(markdown.contains("not run"));
        ran.extend(fake.ran);
    }
    let mut rest = Fake::default();
    let summary = study.run("parts", &mut rest).unwrap();
    assert_eq!((summary.known, summary.stopped), (74, false));
    ran.extend(rest.ran);
    assert_eq!(ran, whole.ran, "each cell was measured once, in order");
    assert_eq!(study.reports("parts"), study.reports("whole"));
    // The figures of time do differ: the report does not show them.
    let seconds = |name: &str| -> Vec<f64> {
        let records = study.open(name).unwrap().records().unwrap();
        let mut all: Vec<f64> = records.values().filter_map(|r| Some(r.result()?.seconds)).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    assert_ne!(seconds("parts"), seconds("whole"));
}

#[test]
fn parts_of_different_models_or_plans_are_not_mixed() {
    let study = Study::new(PLAN);
    study.run("a", &mut Fake::default()).unwrap();
    study.run("b", &mut Fake { identity: "another model", ..Fake::default() }).unwrap();
    let said = study.merge(&["a", "b"], "ab").unwrap_err().to_string();
    assert!(said.contains("another state of model") && !said.contains('\n'), "{said}");
    // Both files are named, so that one can be looked at and removed.
    for name in ["a", "b"] {
        let cells = std::fs::read_dir(study.at(name).join("cells")).unwrap();
        let mut paths = cells.map(|entry| entry.unwrap().path().display().to_string());
        assert!(paths.any(|path| said.contains(&path)), "{name}: {said}");
    }
    let other = Study::new(&PLAN.replace("samples = 20", "samples = 21"));
    other.run("c", &mut Fake::default()).unwrap();
    let said = study.merge(&["a", other.at("c").to_str().unwrap()], "ac").unwrap_err().to_string();
    assert!(said.contains("another tasks, lengths, samples or seeds"), "{said}");
    assert!(study.merge(&[], "x").is_err() && study.merge(&["nowhere"], "x").is_err());
}

#[test]
fn failed_cells_are_rows_that_say_why_and_are_tried_again() {
    let study = Study::new(PLAN);
    let mut fake = Fake { fails: Some(("dca, vt", "out of memory: 8 GiB <wanted>")), ..Fake::default() };
    let summary = study.run("s", &mut fake).unwrap();
    assert_eq!((summary.measured, summary.failed), (CELLS - 3, 3));
    let (html, markdown) = study.reports("s");
    assert!(html.contains("small, dca, vt, 4096 tokens"), "{html}");
    assert!(html.contains("out of memory: 8 GiB &lt;wanted&gt;") && !html.contains("<wanted>"));
    assert!(markdown.contains("out of memory: 8 GiB &lt;wanted&gt;"));
    assert!(html.contains("<td class=\"failed\">failed</td>"));
    // Means of what is left say of how many parts they are: 3 of 4 tasks of RULER, at 3 lengths 9 of 12.
    assert!(html.contains("<small>3 of 4</small>") && html.contains("<small>9 of 12</small>"));
    let mut again = Fake::default();
    let summary = study.run("s", &mut again).unwrap();
    assert_eq!((summary.known, summary.measured, summary.failed), (CELLS - 3, 3, 0));
    assert!(again.ran.iter().all(|key| key.contains("dca, vt")));
    study.run("whole", &mut Fake::default()).unwrap();
    assert_eq!(study.reports("s"), study.reports("whole"));
}

#[test]
fn what_cannot_be_trained_or_read_fails_its_own_cells_only() {
    let study = Study::new(PLAN);
    let mut fake = Fake { fails: Some(("training", "")), unreadable: Some("pi"), ..Fake::default() };
    let summary = study.run("s", &mut fake).unwrap();
    assert_eq!((fake.trained, summary.failed, summary.measured), (1, 2 * 23, CELLS - 2 * 23));
    let (html, _) = study.reports("s");
    assert!(html.contains("training: the loss is not a number") && html.contains("small.gguf: no such file"));
    // What has no result yet fails again.
    let mut fake = Fake { fails: Some(("training", "")), unreadable: Some("pi"), ..Fake::default() };
    let summary = study.run("s", &mut fake).unwrap();
    assert_eq!((summary.known, summary.failed), (CELLS - 2 * 23, 2 * 23));
    // A figure that is not a number is also a failure.
    let mut fake = Fake { scores: Some(("yarn, trained, cwe", f64::NAN)), ..Fake::default() };
    let summary = study.run("s", &mut fake).unwrap();
    assert_eq!((summary.failed, summary.measured), (3, 2 * 23 - 3));
    let (html, _) = study.reports("s");
    assert!(html.contains("value: expected -1e-6 to 100.000001, found NaN (&quot;accuracy&quot;)"), "{html}");
    study.run("s", &mut Fake::default()).unwrap();
    study.run("whole", &mut Fake::default()).unwrap();
    assert_eq!(study.reports("s"), study.reports("whole"));
}

#[test]
fn results_stay_while_their_inputs_cannot_be_read() {
    let study = Study::new(PLAN);
    study.run("s", &mut Fake::default()).unwrap();
    let before = study.reports("s");
    let summary = study.run("s", &mut Fake { unreadable: Some("pi"), ..Fake::default() }).unwrap();
    assert_eq!((summary.put_aside, summary.known, summary.failed), (0, CELLS, 0));
    assert_eq!(study.reports("s"), before);
}

#[test]
fn results_of_another_model_or_text_are_put_aside() {
    let study = Study::new(PLAN);
    study.run("s", &mut Fake::default()).unwrap();
    std::fs::write(study.at("essays.txt"), "Another essay.\n").unwrap();
    let summary = study.run("s", &mut Fake::default()).unwrap();
    assert_eq!((summary.put_aside, summary.measured, summary.known), (21, 21, CELLS - 21));
    let summary = study.run("s", &mut Fake { identity: "x", ..Fake::default() }).unwrap();
    assert_eq!((summary.put_aside, summary.measured), (CELLS, CELLS));
    assert_eq!(std::fs::read_dir(study.at("s/old")).unwrap().count(), CELLS + 21);
}

#[test]
fn two_studies_do_not_share_a_folder() {
    let study = Study::new(PLAN);
    let held = study.open("s").unwrap();
    let said = study.run("s", &mut Fake::default()).unwrap_err().to_string();
    assert!(said.contains("another study runs here") && !said.contains('\n'), "{said}");
    drop(held);
    study.run("s", &mut Fake { stop_after: Some(2), ..Fake::default() }).unwrap();
    // Comments and white space do not make another plan.
    let text = format!("# The same.\n{PLAN}");
    std::fs::write(study.at("plan.toml"), text).unwrap();
    study.run("s", &mut Fake { stop_after: Some(2), ..Fake::default() }).unwrap();
    for (from, to, key) in [
        ("samples = 20", "samples = 21", "tasks"),
        ("small.gguf", "large.gguf", "paths"),
        ("pi:factor=2", "pi:factor=4", "methods"),
        ("\"small\"", "\"large\"", "models"),
        ("Twice", "Thrice", "title"),
        ("[\"essays.txt\"]\n\n", "[\"novels.txt\"]\n\n", "paths"),
    ] {
        assert!(PLAN.contains(from));
        std::fs::write(study.at("plan.toml"), PLAN.replacen(from, to, 1)).unwrap();
        let said = study.run("s", &mut Fake::default()).unwrap_err().to_string();
        assert!(said.contains("another plan") && said.contains(key) && !said.contains('\n'), "{said}");
    }
}

#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    let study = Study::new(PLAN);
    study.run("whole", &mut Fake::default()).unwrap();
    let mut steps = Vec::new();
    // The first cells, each in turn kept from the disk at some step.
    for n in 0..25 {
        let (done, step) = failing_at(n, || study.run("s", &mut Fake::default()));
        let step = step.unwrap();
        let said = done.unwrap_err().to_string();
        assert!(said.contains("fails in a test") && !said.contains('\n'), "{step:?}: {said}");
        steps.push(step);
        // No half of a file, and no temporary one: what is there can be read.
        study.open("s").unwrap().records().unwrap();
        let names = std::fs::read_dir(study.at("s/cells")).unwrap();
        let names: Vec<String> = names.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        assert!(names.iter().all(|n| n.ends_with(".json") && n.len() == 69), "{names:?}");
    }
    for step in [Step::Create, Step::Write, Step::Sync, Step::Rename] {
        assert!(steps.contains(&step), "{step:?} was never reached");
    }
    study.run("s", &mut Fake::default()).unwrap();
    assert_eq!(study.reports("s"), study.reports("whole"));
}

#[test]
fn a_listing_says_what_is_left() {
    let study = Study::new(PLAN);
    let list = |results: Option<&Results>| {
        let mut fake = Fake { unreadable: Some("streaming"), ..Fake::default() };
        list(&study.plan(), results, &mut fake, &Control::default()).unwrap()
    };
    let all = list(None);
    assert_eq!((all.cells, all.done, all.rows.len(), all.bytes), (CELLS, 0, 7, 2 << 20));
    // (4096 + 8192 + 12288) tokens x (8 windows + 20 samples x (2 passkey + 4 tasks)) + 2 short x 20 x 100.
    let row = (4096 + 8192 + 12288) * (8 + 20 * 6) + 2 * 20 * 100;
    let tokens = |i: usize| all.rows[i].work.tokens;
    assert_eq!((tokens(0), tokens(3), all.tokens), (row, row + TRAINING, 6 * row + TRAINING));
    assert!((all.seconds - all.tokens as f64 / 1000.0).abs() < 1e-6);
    let problems = |i: usize| &all.rows[i].work.problems;
    assert_eq!((problems(6).len(), problems(0).len()), (23, 0));
    assert!(problems(6)[0].contains("no such file"));
    let stop = Stop::default();
    stop.request();
    let (mut fake, control) = (Fake::default(), Control::default().with_stop(&stop));
    let part = ropewalk_study::list(&study.plan(), None, &mut fake, &control);
    assert!(matches!(part, Err(Error::Stopped)), "{part:?}");
    // Nothing is made where no study is.
    let results = || Results::open(&study.at("s"), &study.plan(), &find).unwrap();
    assert!(results().is_none() && !study.at("s").exists());
    std::fs::create_dir(study.at("s")).unwrap();
    assert!(results().is_none() && std::fs::read_dir(study.at("s")).unwrap().next().is_none());
    study.run("s", &mut Fake { stop_after: Some(30), ..Fake::default() }).unwrap();
    // Also while a study runs.
    let folder = study.open("s").unwrap();
    let left = list(results().as_ref());
    assert_eq!((left.cells, left.done, left.rows[0].work.done, left.rows[1].work.done), (CELLS, 30, 23, 7));
    assert!(!folder.records().unwrap().values().any(|r| matches!(r.state, State::Failed(_))));
}
