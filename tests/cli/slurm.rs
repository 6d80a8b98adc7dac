//! `study --slurm`: the scripts, run as Slurm runs them, and what is submitted. No Slurm is needed.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::common::process::{children, hang_up_as_usual, signal, wait_until};
use crate::common::program::{command, finish, run_in, write_script, Output};
use crate::eval::refused;
use crate::finetune::Folder;
use crate::{hub, study};

/// A study, and stand-ins for Slurm's programs, which write down what they are called with.
struct Cluster {
    folder: Folder,
}

impl Cluster {
    fn new(words: &[&str]) -> Cluster {
        let folder = study::with_plan(words);
        for (name, prints) in [("sbatch", "echo $((100 + $(wc -l < \"$0.calls\")))"), ("scontrol", ":")] {
            let at = folder.file(name);
            write_script(&at, &format!("#!/bin/sh\necho \"$@\" >> \"$0.calls\"\n{prints}\n"));
            std::fs::write(folder.file(&format!("{name}.calls")), "").unwrap();
        }
        Cluster { folder }
    }

    fn calls(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.file(&format!("{name}.calls"))).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Finds the stand-ins before Slurm's programs.
    fn with_slurm(&self, mut command: Command) -> Command {
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("{}:{path}", self.folder.dir.path().display()));
        command.current_dir(self.folder.dir.path());
        command
    }

    fn slurm(&self, more: &[&str]) -> Output {
        let line =
            [&["study", "plan.toml", "-o", "out", "--device", "cpu", "--json", "--slurm"], more].concat();
        finish(self.with_slurm(command(&line)))
    }

    /// A task of the array, as Slurm starts it.
    fn task(&self, i: usize) -> Command {
        self.task_of(Path::new("out/launch/array.sbatch"), i)
    }

    fn task_of(&self, script: &Path, i: usize) -> Command {
        let mut bash = Command::new("bash");
        for (name, value) in command(&[]).get_envs() {
            match value {
                Some(value) => bash.env(name, value),
                None => bash.env_remove(name),
            };
        }
        let of_task = [("SLURM_ARRAY_JOB_ID", 7), ("SLURM_ARRAY_TASK_ID", i), ("SLURM_CPUS_PER_TASK", 1)];
        bash.env_remove("SLURM_RESTART_COUNT")
            .arg(script)
            .envs(of_task.map(|(name, n)| (name, n.to_string())));
        self.with_slurm(bash)
    }

    fn script(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.file("out/launch").join(name)).unwrap()
    }

    /// Runs tasks with another program in place of ropewalk, which gets the ID of the unit.
    fn instead(&self, program: &str) {
        let text = self.script("array.sbatch");
        let line = text.lines().find(|line| line.starts_with("study=(")).unwrap();
        let at = self.folder.file("instead");
        let text = text.replace(line, &format!("study=(bash '{}')", at.display()));
        std::fs::write(self.folder.file("out/launch/array.sbatch"), text).unwrap();
        std::fs::write(at, program).unwrap();
    }
}

#[test]
fn an_array_and_a_merge_make_the_report_of_one_machine() {
    let cluster = Cluster::new(study::WORDS);
    let folder = &cluster.folder;
    // sbatch takes one of --mem and --mem-per-cpu.
    cluster.slurm(&["--", "--mem-per-cpu=2G"]).json();
    assert!(!cluster.script("array.sbatch").contains("--mem="));
    let words =
        ["--kv", "q8_0", "-t", "1", "--submit", "--", "--partition=long", "--comment=a b", "--mem=3G"];
    let jobs = cluster.slurm(&words).json();
    assert_eq!((&jobs["tasks"], &jobs["units"], &jobs["jobs"][0]), (&3.into(), &3.into(), &"101".into()));
    let launch = "--parsable --chdir out/launch";
    let submitted = [
        format!("{launch} out/launch/array.sbatch"),
        format!("{launch} --dependency=afterany:101 out/launch/merge.sbatch"),
    ];
    assert_eq!(cluster.calls("sbatch"), submitted);
    let (array, merge) = (cluster.script("array.sbatch"), cluster.script("merge.sbatch"));
    for line in [
        "#SBATCH --array=1-3",
        "#SBATCH --requeue",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --time=4:00:00",
        "#SBATCH --signal=B:HUP@300",
        "#SBATCH --open-mode=append",
        "#SBATCH --partition=long",
        "#SBATCH \"--comment=a b\"",
        "#SBATCH --mem=3G",
    ] {
        assert!(array.lines().any(|l| l == line), "{line}: {array}");
    }
    assert_eq!(array.matches("--mem=").count(), 1, "{array}");
    assert!(merge.contains("\n#SBATCH --partition=long\n") && !merge.contains("--comment"), "{merge}");
    // The most expensive unit is the first task. Whatever order they end in, the report is the same.
    let units = study::study(folder, &["plan.toml", "-o", "out", "--units", "--kv", "q8_0"]).json();
    for i in [3, 1, 2] {
        let ended = finish(cluster.task(i));
        assert_eq!(ended.code, 0, "{ended:?}");
        let id = units["units"][i - 1]["id"].as_str().unwrap();
        assert!(ended.stdout.contains(&format!("out/parts/{id}")), "{ended:?}");
    }
    let mut bash = Command::new("bash");
    bash.arg("out/launch/merge.sbatch");
    let merged = finish(cluster.with_slurm(bash));
    assert!(merged.code == 0 && merged.stdout.starts_with("4 cells measured"), "{merged:?}");
    study::study(folder, &["plan.toml", "-o", "whole", "--kv", "q8_0"]).json();
    for name in ["report.html", "report.md"] {
        let read = |out: &str| std::fs::read_to_string(folder.file(out).join(name)).unwrap();
        assert!(read("out") == read("whole"), "{name}");
    }
    assert_eq!(cluster.calls("scontrol"), Vec::<String>::new());
    // Nothing is left to submit.
    let again = cluster.slurm(&["--kv", "q8_0", "--submit"]);
    refused(&again, 1, &["out: expected cells without a result, found none", "study merge out/parts -o out"]);
    assert_eq!(cluster.calls("sbatch").len(), 2);
}

/// Slurm signals the script alone near the time limit, and all processes to cancel a task.
#[test]
fn a_task_is_queued_again_when_its_time_is_up() {
    hang_up_as_usual();
    let cluster =
        Cluster::new(&[&study::WORDS[2..], &["--steps", "100000", "--set", "save-every=0"]].concat());
    cluster.slurm(&["-t", "1", "-q"]).json();
    let units = study::study(&cluster.folder, &["plan.toml", "-o", "out", "--units"]).json();
    let part = cluster.folder.file("out/parts").join(units["units"][0]["id"].as_str().unwrap());
    let log = || -> Option<PathBuf> {
        let names = hub::names(&part.join("adapters"));
        Some(part.join("adapters").join(names.iter().find(|name| name.ends_with(".log.jsonl"))?))
    };
    let n_lines = || log().and_then(|log| std::fs::read_to_string(log).ok()).map_or(0, |t| t.lines().count());
    let trains = |child: &Child| {
        let before = n_lines();
        wait_until("it trains", || n_lines() > before + 2);
        let found = children(child.id()).into_iter().find(|id| {
            std::fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.trim() == "ropewalk")
        });
        found.expect("the script runs ropewalk")
    };
    for n_requeued in 1..=2 {
        let mut task = cluster.task(1).spawn().unwrap();
        trains(&task);
        signal(task.id(), "-HUP");
        assert_eq!(task.wait().unwrap().code(), Some(129));
        assert_eq!(cluster.calls("scontrol"), vec!["requeue 7_1"; n_requeued]);
    }
    let mut task = cluster.task(1).spawn().unwrap();
    let unit = trains(&task);
    for id in [task.id(), unit] {
        signal(id, "-TERM");
    }
    assert_eq!(task.wait().unwrap().code(), Some(143));
    // As often as it may be.
    let mut task = cluster.task(1).env("SLURM_RESTART_COUNT", "100").spawn().unwrap();
    trains(&task);
    signal(task.id(), "-HUP");
    assert_eq!(task.wait().unwrap().code(), Some(129));
    assert_eq!(cluster.calls("scontrol").len(), 2);
    assert!(hub::names(&part.join("cells")).is_empty());
}

#[test]
fn a_task_that_does_nothing_is_not_queued_again() {
    let cluster = Cluster::new(study::WORDS);
    cluster.slurm(&[]).json();
    let calls = cluster.folder.file("instead.calls");
    let called = || std::fs::read_to_string(&calls).unwrap_or_default().lines().count();
    cluster.instead("echo \"$@\" >> instead.calls\nexit 129");
    assert_eq!((finish(cluster.task(1)).code, called()), (129, 1));
    assert_eq!(cluster.calls("scontrol"), Vec::<String>::new());
    // It is if there is a result, a checkpoint, or a sample more.
    cluster.instead("mkdir -p out/parts/$2/cells && echo 1 > out/parts/$2/cells/x.json\nexit 129");
    assert_eq!((finish(cluster.task(1)).code, cluster.calls("scontrol").len()), (129, 1));
    // The same result once more is nothing new, as of a cell that fails each time, nor are lines of a log.
    assert_eq!((finish(cluster.task(1)).code, cluster.calls("scontrol").len()), (129, 1));
    cluster
        .instead("mkdir -p out/parts/$2/adapters && date +%N >> out/parts/$2/adapters/x.log.jsonl\nexit 129");
    assert_eq!((finish(cluster.task(1)).code, cluster.calls("scontrol").len()), (129, 1));
    // Several units in a task: an error of one is not one of the next, and a signal ends the task.
    let text = cluster.script("array.sbatch");
    let first = text.lines().find(|line| line.starts_with("  '")).unwrap().to_owned();
    let id = first.trim().trim_matches('\'').to_owned();
    for (code, n) in [(1, 3), (0, 3), (137, 1)] {
        std::fs::remove_file(&calls).unwrap();
        cluster.instead(&format!(
            "echo \"$@\" >> instead.calls\n[ $(wc -l < instead.calls) = 2 ] || exit {code}"
        ));
        let text = cluster.script("array.sbatch").replace(&first, &format!("  '{id} {id} {id}'"));
        std::fs::write(cluster.folder.file("out/launch/array.sbatch"), text).unwrap();
        assert_eq!((finish(cluster.task(1)).code, called()), (code, n));
    }
    // TERM as a unit ends: no other one begins.
    std::fs::remove_file(&calls).unwrap();
    cluster.instead("echo \"$@\" >> instead.calls\nkill -TERM $PPID");
    assert_eq!((finish(cluster.task(1)).code, called()), (143, 1));
}

/// A plan that was changed while its study was not merged yet.
#[test]
fn parts_of_another_plan_are_refused_before_the_work() {
    let cluster = Cluster::new(study::WORDS);
    let part = cluster.folder.file("out/parts/0123456789ab");
    std::fs::create_dir_all(&part).unwrap();
    let text = study::plan(study::WORDS);
    std::fs::write(part.join("plan.toml"), text.replace("48, 64", "48")).unwrap();
    let said = cluster.slurm(&["--submit"]);
    refused(&said, 1, &["0123456789ab/plan.toml (another tasks, lengths", "use another folder"]);
    assert!(!cluster.folder.file("out/launch").exists() && cluster.calls("sbatch").is_empty());
    // One that only looks different.
    std::fs::write(part.join("plan.toml"), format!("# Mine\n{text}")).unwrap();
    assert_eq!(cluster.slurm(&["--submit"]).json()["units"], 3);
    std::fs::write(cluster.folder.file("out/parts/log"), "").unwrap();
    refused(&cluster.slurm(&["--submit"]), 1, &["out/parts/log"]);
}

/// `MaxArraySize` is 1001 where nobody has set it.
#[test]
fn an_array_has_at_most_a_thousand_tasks() {
    let cluster = Cluster::new(study::WORDS);
    let lengths: Vec<String> = (10..512).map(|n| n.to_string()).collect();
    let text = study::plan(study::WORDS).replace("48, 64", &lengths.join(","));
    let text = text.replace("train =", "tokens = 1\ntrained = \"trained\"\n#");
    std::fs::write(cluster.folder.file("plan.toml"), text).unwrap();
    let jobs = cluster.slurm(&[]).json();
    assert_eq!((&jobs["tasks"], &jobs["units"]), (&1000.into(), &(2 * 502).into()));
    let text = cluster.script("array.sbatch");
    let tasks: Vec<&str> = text.lines().filter(|line| line.starts_with("  '")).collect();
    assert_eq!(tasks.len(), 1000);
    let ids: std::collections::HashSet<&str> =
        tasks.iter().flat_map(|t| t.trim_matches([' ', '\'']).split(' ')).collect();
    assert_eq!(ids.len(), 2 * 502);
    // The cheapest share a task, each with one of the cheapest others.
    assert!(tasks[..990].iter().all(|task| !task.trim().contains(' ')));
}

#[test]
fn names_go_through_the_shell_as_they_are() {
    let cluster = Cluster::new(study::WORDS);
    let odd = "it's $(touch pwned) \"x\" #1";
    let dir = cluster.folder.file(odd);
    std::fs::create_dir(&dir).unwrap();
    for name in ["tiny.gguf", "texts", "plan.toml"] {
        symlink(cluster.folder.file(name), dir.join(name)).unwrap();
    }
    let line =
        ["study", "plan.toml", "-o", odd, "--device", "cpu", "--slurm", "-q", "--attention", "explicit"];
    let jobs = run_in(&dir, &line);
    assert!(jobs.code == 0 && jobs.stdout.contains("3 units in 3 tasks"), "{jobs:?}");
    let ended = finish(cluster.task_of(&dir.join(odd).join("launch/array.sbatch"), 3));
    assert!(ended.code == 0 && ended.stdout.contains(&format!("{odd}/parts/")), "{ended:?}");
    for at in [dir.as_path(), cluster.folder.dir.path()] {
        assert!(!at.join("pwned").exists());
    }
    let script = std::fs::read_to_string(dir.join(odd).join("launch/array.sbatch")).unwrap();
    assert!(script.contains(" --device 'cpu' --attention 'explicit' -t "), "{script}");
    // The printed commands can be run as they are.
    let mut bash = cluster.with_slurm(Command::new("bash"));
    bash.current_dir(&dir).args(["-c", jobs.stdout.lines().find(|line| line.starts_with("sbatch")).unwrap()]);
    assert_eq!(finish(bash).code, 0);
    assert_eq!(cluster.calls("sbatch"), [format!("--chdir={odd}/launch {odd}/launch/array.sbatch")]);
    // No line of a script can be added.
    let line = ["study", "plan.toml", "-o", "a\n#SBATCH --uid=0", "--slurm"];
    let said = run_in(cluster.folder.dir.path(), &line);
    refused(&said, 1, &["expected a name of UTF-8 in one line"]);
    assert!(!cluster.folder.file("a\n#SBATCH --uid=0").exists());
}

#[test]
fn what_sbatch_is_not_to_get_is_refused() {
    let cluster = Cluster::new(study::WORDS);
    for (word, why) in [
        ("--array=1-2", "sbatch option --array"),
        ("--dependency=singleton", "sbatch option --dependency"),
        ("--wrap=rm", "sbatch option --wrap"),
        ("--signal=USR1", "--signal=B:HUP@SECONDS"),
        ("--sig=USR1", "--signal=B:HUP@SECONDS"),
        ("--arr=1-2", "sbatch option --arr"),
        ("--no-requeue", "sbatch option --no-requeue"),
        ("-p", "expected --NAME or --NAME=VALUE"),
        ("long", "expected --NAME or --NAME=VALUE"),
        ("--", "expected --NAME or --NAME=VALUE"),
        ("--comment=a\nrm", "expected --NAME or --NAME=VALUE"),
        ("--comment=\"", "expected --NAME or --NAME=VALUE"),
        ("--Comment=x", "expected --NAME or --NAME=VALUE"),
    ] {
        refused(&cluster.slurm(&["--", word]), 2, &[why]);
    }
    refused(&cluster.slurm(&["--unit", "0123456789ab"]), 2, &["cannot be used with"]);
    let of_stdin = ["study", "-", "-o", "out", "--slurm"];
    refused(&run_in(cluster.folder.dir.path(), &of_stdin), 2, &["expected the file of a plan, found stdin"]);
    let line = ["study", "plan.toml", "-o", "out"];
    for more in [&["--submit"][..], &["--", "--partition=long"]] {
        refused(&run_in(cluster.folder.dir.path(), &[&line[..], more].concat()), 2, &["--slurm"]);
    }
    assert!(!cluster.folder.file("out").exists() && cluster.calls("sbatch").is_empty());
    // A refusal of sbatch, and what it says.
    cluster.slurm(&["--", "--signal=B:HUP@60"]).json();
    assert!(cluster.script("array.sbatch").contains("\n#SBATCH --signal=B:HUP@60\n"));
    let at = cluster.folder.file("sbatch");
    write_script(&at, "#!/bin/sh\necho 'invalid partition' >&2; exit 1\n");
    refused(&cluster.slurm(&["--submit"]), 1, &["sbatch: expected the number of a job", "invalid partition"]);
    write_script(&at, "#!/bin/sh\ncase \"$*\" in *merge*) exit 1;; *) echo '5;c1';; esac\n");
    refused(&cluster.slurm(&["--submit"]), 1, &["job 5 is submitted, and out/launch/merge.sbatch is not"]);
    // The merge waits for a job of its own cluster.
    write_script(&at, "#!/bin/sh\necho \"$@\" >> \"$0.calls\"; echo '5;c1'\n");
    assert_eq!(cluster.slurm(&["--submit", "--", "--clusters=c1,c2"]).json()["jobs"][1], "5");
    assert!(cluster.script("merge.sbatch").contains("\n#SBATCH --clusters=c1,c2\n"));
    let merge = "--parsable --chdir out/launch --dependency=afterany:5 --clusters=c1 out/launch/merge.sbatch";
    assert_eq!(cluster.calls("sbatch").last().map(String::as_str), Some(merge));
    // Neither a file of somebody else nor a link is written to.
    let at = cluster.folder.file("out/launch/array.sbatch");
    std::fs::write(&at, "#!/bin/bash\nrm -r thesis\n").unwrap();
    refused(&cluster.slurm(&[]), 1, &["array.sbatch", "is not a script of `study --slurm`", "--force"]);
    assert!(cluster.slurm(&["--force"]).json()["jobs"].as_array().is_some_and(Vec::is_empty));
    std::fs::rename(cluster.folder.file("out/launch"), cluster.folder.file("moved")).unwrap();
    symlink(cluster.folder.file("moved"), cluster.folder.file("out/launch")).unwrap();
    refused(&cluster.slurm(&[]), 1, &["out/launch", "symbolic link"]);
}
