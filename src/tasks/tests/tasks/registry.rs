//! Descriptions of tasks, and every task asked by somebody who knows and by somebody who says nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ropewalk_core::control::{Control, Stop};
use ropewalk_tasks::{find, Answer, Ask, DataFile, Error, Setup, Task, GROUPS, TASKS};

use crate::testing::{error, setup, Simple};

fn link(from: &Path, to: &Path) {
    assert!(from.exists(), "{} is missing: `make models` fetches what tests need", from.display());
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(from, to).unwrap();
}

/// A folder with published data where packages carry it, and elsewhere records of the same form of our own.
fn data() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (models, fixtures) = (here.join("../../models"), here.join("tests/fixtures"));
    let into = |name: &str| dir.path().join(name);
    let files = |folder: PathBuf| -> Vec<PathBuf> {
        let found = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        found.map(|f| f.unwrap().path()).filter(|f| f.is_file()).collect()
    };
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    for file in files(models.join("benchmarks/ruler")) {
        link(&file, &into("ruler").join(name(&file)));
    }
    link(&models.join("texts/essays.txt"), &into("needle/essays.txt"));
    link(&models.join("texts/essays.txt"), &into("babilong/book.txt"));
    for family in ["longbench", "trec"] {
        for file in files(fixtures.join("longbench/data").join(family)) {
            link(&file, &into(family).join(name(&file)));
        }
    }
    for file in files(fixtures.join("infinitebench")) {
        link(&file, &into("infinitebench").join(name(&file)));
    }
    for task in TASKS.iter() {
        for file in task.info().files.iter().filter(|f| f.name.starts_with("lveval/")) {
            link(&fixtures.join("lveval/en.jsonl"), &into(file.name));
        }
    }
    dir
}

/// Tasks whose data this test has. Of the others the families' own tests ask the same: short tasks, whose
/// files have one checksum, and those that cut Chinese into words, for which a dictionary is needed.
fn measurable(task: &dyn Task) -> bool {
    let elsewhere = |name: &str| name.starts_with("short/") || name.starts_with("jieba/");
    !task.info().files.iter().any(|f| elsewhere(f.name))
}

#[test]
fn who_knows_gets_full_marks_and_a_mute_none() {
    let dir = data();
    let mut asked = 0;
    for task in TASKS.iter().filter(|t| measurable(**t)) {
        let info = task.info();
        let encoder = Simple::default();
        let mut setup = setup(&encoder, dir.path(), 16384, &[]);
        setup.samples = Some(3);
        let samples = task.samples(&setup).unwrap_or_else(|e| panic!("{}: {e}", info.name));
        let mut n = 0;
        for sample in samples.iter {
            let sample = sample.unwrap_or_else(|e| panic!("{}: {e}", info.name));
            let marks = (sample.judge)(&sample.expected);
            assert_eq!(marks.len(), info.metrics.len(), "{}", info.name);
            assert!((marks[0] - info.best).abs() < 1e-8, "{} {}: {marks:?}", info.name, sample.id);
            if let Ask::Generate { max_tokens, .. } = sample.ask {
                assert!(max_tokens > 0, "{}", info.name);
                let mute = (sample.judge)(&Answer::Text(String::new()));
                assert_eq!(mute[0], 0.0, "{} {}: a mute", info.name, sample.id);
            }
            n += 1;
        }
        assert!(n > 0, "{} has no sample", info.name);
        asked += 1;
    }
    assert!(asked >= 45, "{asked} of {} tasks", TASKS.len());
}

/// A report has an entry for each value of a group: none of them grows with the samples, as words of questions do.
#[test]
fn groups_have_few_values() {
    // MMLU has 57 subjects, and Kamradt's needle is asked for at 35 depths.
    const MOST: usize = 64;
    let dir = data();
    let (mut checked, mut many) = (0, Vec::new());
    for task in TASKS.iter() {
        let info = task.info();
        if !measurable(*task) {
            // Their questions are few in the families' own tests: their groups are those whose values are published.
            let known: &[&str] = if info.name == "mmlu" { &["subject"] } else { &[] };
            assert_eq!(info.groups, known, "{}", info.name);
            continue;
        }
        let encoder = Simple::default();
        let mut setup = setup(&encoder, dir.path(), 16384, &[]);
        setup.samples = Some(MOST + 8);
        if let Some(depth) = info.options.iter().find(|o| o.name == "depth" && info.groups.contains(&"depth"))
        {
            setup
                .options
                .insert(depth.name.into(), if info.name == "passkey" { "0/1" } else { "0/100" }.into());
        }
        let mut values: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for sample in task.samples(&setup).unwrap_or_else(|e| panic!("{}: {e}", info.name)).iter {
            let sample = sample.unwrap_or_else(|e| panic!("{}: {e}", info.name));
            for (tag, value) in sample.tags {
                values.entry(tag).or_default().insert(value);
            }
        }
        for group in info.groups {
            let n = values.get(group).map_or(0, BTreeSet::len);
            assert!((2..=MOST).contains(&n), "{}: {group} has {n} values", info.name);
        }
        many.extend(values.iter().filter(|(_, values)| values.len() > MOST).map(|(tag, _)| *tag));
        checked += 1;
    }
    assert!(checked >= 45, "{checked} of {} tasks", TASKS.len());
    // What would be one entry for each sample is there, and is no group.
    assert!(many.contains(&"query") && many.contains(&"value"), "{many:?}");
}

#[test]
fn missing_files_say_where_they_come_from() {
    let (folder, encoder) = (tempfile::tempdir().unwrap(), Simple::default());
    let setup = setup(&encoder, folder.path(), 32_768, &[]);
    for task in TASKS.iter().filter(|task| !task.info().files.is_empty()) {
        let found = error(*task, &setup);
        let says = |file: &&DataFile| found.contains(&format!("{}: is missing: {}", file.name, file.from));
        assert!(task.info().files.iter().any(says), "{}: {found}", task.info().name);
    }
}

#[test]
fn work_stops_when_asked() {
    let (dir, encoder) = (data(), Simple::default());
    for name in ["longbench_lcc", "lveval_loogle_sd"] {
        let (stop, task) = (Stop::default(), find(name).unwrap()[0]);
        let control = Control::default().with_stop(&stop);
        let setup = Setup { control, ..setup(&encoder, dir.path(), 16_384, &[]) };
        let mut samples = task.samples(&setup).unwrap().iter;
        assert!(samples.next().unwrap().is_ok(), "{name}");
        stop.request();
        assert!(matches!(samples.next(), Some(Err(Error::Interrupted))), "{name}");
        assert!(matches!(task.samples(&setup), Err(Error::Interrupted)), "{name}");
    }
}

#[test]
fn names_are_unique_and_groups_name_tasks() {
    let mut names: Vec<&str> = TASKS.iter().map(|t| t.info().name).collect();
    names.extend(GROUPS.iter().map(|g| g.name));
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    // The mean of a family of one is its task.
    assert_eq!(names.len(), n, "two tasks or groups of one name");
    for group in GROUPS {
        let found = find(group.name).unwrap();
        assert_eq!(found.len(), group.tasks.len(), "{} names a task that is not there", group.name);
    }
    let sizes: Vec<_> = GROUPS.iter().map(|g| g.tasks.len()).collect();
    assert_eq!(sizes, [16, 13, 8, 3, 2, 5, 9, 4, 5, 4, 5, 7, 5]);
    let names = |group: &str| find(group).unwrap().iter().map(|t| t.info().name).collect::<Vec<_>>();
    assert_eq!([names("lveval_single"), names("lveval_multi")].concat(), names("lveval"));
    assert!(names("ruler_niah").iter().all(|name| name.starts_with("niah_")));
    assert!(!names("lveval").iter().any(|name| name.contains("factrecall")));
    assert!(!names("infinitebench_en").contains(&"infinitebench_zh_qa"));
}

#[test]
fn every_task_is_described() {
    for task in TASKS.iter() {
        let info = task.info();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(info.name.chars().all(plain), "{}", info.name);
        assert!(info.about.len() > 20 && info.about.ends_with('.'), "{}: {}", info.name, info.about);
        assert!(info.source.len() > 10 && !info.metrics.is_empty(), "{}", info.name);
        assert!(info.best > 0.0 && info.best <= 1.0, "{}", info.name);
        for opt in info.options {
            let known = opt.values.is_empty() || opt.values.contains(&opt.default);
            assert!(known && !opt.about.is_empty(), "{}: {}", info.name, opt.name);
        }
    }
}
