//! `study --slurm`: a job array of Slurm that measures the units of a study, and the job that merges them.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{anyhow, ensure, Context};
use clap::parser::ValueSource;
use clap::ArgMatches;
use files::{Kind, Output};
use ropewalk::study::{UnitRow, Units};
use ropewalk_core::text::bytes;
use serde_json::json;

use super::super::usage;

/// Tasks of an array, at most: Slurm's `MaxArraySize` is 1001, and indices begin with 0.
const MAX_TASKS: usize = 1000;
/// CPUs of a task where nobody asks for a number.
const CPUS: usize = 8;
/// Bytes of memory that the program takes apart from the model.
const PROGRAM: u64 = 512 << 20;

/// The beginning of a script's second line.
const MARK: &str = "# Written by `ropewalk study --slurm`.";
const SCRIPT: Kind = Kind::new("a script of `study --slurm`", |head| {
    head.strip_prefix(b"#!/bin/bash\n").is_some_and(|rest| rest.starts_with(MARK.as_bytes()))
});

/// Options of `study` that are passed on to every task.
const PASSED_ON: [&str; 7] = ["kv", "parallel", "device", "batch", "ubatch", "attention", "math"];
/// Options of `sbatch` that both jobs get.
const OF_BOTH: [&str; 5] = ["account", "clusters", "partition", "qos", "reservation"];
/// Options of `sbatch` that the scripts and `--submit` set.
const OURS: [&str; 7] = ["array", "chdir", "dependency", "no-requeue", "parsable", "requeue", "wrap"];
/// The signal near the time limit, to the script alone, which passes it on.
const SIGNAL: &str = "B:HUP@";

/// The scripts, and what they do.
pub(super) struct Jobs {
    array: PathBuf,
    merge: PathBuf,
    n_tasks: usize,
    n_units: usize,
    memory: u64,
    ids: Vec<String>,
}

/// Checks a word for `sbatch`, and gives its name and itself as a line of a script takes it.
fn option(word: &str) -> anyhow::Result<(&str, String)> {
    let name = word.strip_prefix("--").and_then(|rest| rest.split('=').next()).unwrap_or_default();
    let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    if !is_name || word.contains(|c: char| c.is_control() || "'\"\\#".contains(c)) {
        return Err(usage(format!(
            "sbatch option {word:?}: expected --NAME or --NAME=VALUE without quotes, backslashes, and #"
        )));
    }
    // sbatch takes the beginning of a name for the name.
    let is_ours = OURS.iter().any(|ours| ours.starts_with(name));
    if is_ours || "signal".starts_with(name) && !word.starts_with(&format!("--signal={SIGNAL}")) {
        let ours = "expected none that the study sets, and a signal as --signal=B:HUP@SECONDS";
        return Err(usage(format!("sbatch option --{name}: {ours}")));
    }
    let quoted = if word.contains(char::is_whitespace) { format!("\"{word}\"") } else { word.to_owned() };
    Ok((name, quoted))
}

/// A word of a shell's command line.
fn quoted(word: impl AsRef<OsStr>) -> anyhow::Result<String> {
    let word = word.as_ref();
    let text = word.to_str().filter(|text| !text.contains(char::is_control));
    let text = text.ok_or_else(|| anyhow!("{word:?}: expected a name of UTF-8 in one line, for a script"))?;
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

/// The units that are left, as so many tasks: the next one always goes to the task with the least work.
fn tasks(units: &Units) -> Vec<String> {
    let left: Vec<&UnitRow> = units.units.iter().filter(|unit| unit.is_left()).collect();
    let mut tasks: Vec<(f64, Vec<&str>)> = vec![(0.0, Vec::new()); left.len().min(MAX_TASKS)];
    for unit in left {
        let least = tasks.iter_mut().min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.len().cmp(&b.1.len())));
        if let Some((cost, ids)) = least {
            *cost += unit.work.cost;
            ids.push(&unit.unit.id);
        }
    }
    tasks.into_iter().map(|(_, ids)| ids.join(" ")).collect()
}

impl Jobs {
    /// Writes the scripts into `launch` in the directory of the study. `words` are options for `sbatch`.
    pub(super) fn write(
        plan: &Path,
        out: &Output,
        units: &Units,
        matches: &ArgMatches,
        words: &[String],
    ) -> anyhow::Result<Jobs> {
        let words = words.iter().map(|word| option(word)).collect::<anyhow::Result<Vec<_>>>()?;
        let tasks = tasks(units);
        let study = out.path();
        let parts = study.join("parts");
        ensure!(
            !tasks.is_empty(),
            "{}: expected cells without a result, found none; `ropewalk study merge {} -o {}` writes the report",
            study.display(),
            parts.display(),
            study.display()
        );
        let threads = matches.get_one::<usize>("threads").copied().filter(|n| *n > 0);
        let memory = units.bytes.saturating_add(units.bytes / 20 * 3).saturating_add(PROGRAM);
        let defaults = [
            ("job-name", "ropewalk".to_owned()),
            ("cpus-per-task", threads.unwrap_or(CPUS).to_string()),
            ("mem", format!("{}M", memory.div_ceil(1 << 20))),
            ("time", "4:00:00".to_owned()),
            ("signal", format!("{SIGNAL}300")),
            ("open-mode", "append".to_owned()),
            ("output", "%A_%a.log".to_owned()),
        ];
        let mut head = format!("#SBATCH --array=1-{}\n#SBATCH --requeue\n", tasks.len());
        for (name, value) in &defaults {
            // sbatch takes one of --mem, --mem-per-cpu, and --mem-per-gpu.
            if !words.iter().any(|(given, _)| given == name || given.starts_with(&format!("{name}-per-"))) {
                head += &format!("#SBATCH --{name}={value}\n");
            }
        }
        words.iter().for_each(|(_, word)| head += &format!("#SBATCH {word}\n"));
        let of_both = words.iter().filter(|(name, _)| OF_BOTH.contains(name));
        let of_merge: String = of_both.map(|(_, word)| format!("#SBATCH {word}\n")).collect();

        let here = quoted(std::env::current_dir().context("the working directory")?)?;
        let program = quoted(std::env::current_exe().context("the path of this program")?)?;
        let [plan, study, parts] = [plan, study, parts.as_path()].map(quoted);
        let (plan, study, parts) = (plan?, study?, parts?);
        let mut passed_on = String::new();
        for name in
            PASSED_ON.iter().filter(|name| matches.value_source(name) == Some(ValueSource::CommandLine))
        {
            for value in matches.get_raw(name).into_iter().flatten() {
                passed_on += &format!(" --{name} {}", quoted(value)?);
            }
        }
        let force = if out.is_forced() { " --force" } else { "" };
        let units: String = tasks.iter().map(|ids| format!("  '{ids}'\n")).collect();
        let array = format!(
            "#!/bin/bash\n{MARK} A task measures the units of a line.\n{head}\nunits=(\n{units})\n\
             ids=${{units[SLURM_ARRAY_TASK_ID - 1]}}\nparts={parts}\n\
             study=({program} study {plan} -o {study}{passed_on}{force} -t \"$SLURM_CPUS_PER_TASK\")\n\
             cd {here} || exit 1\n{ARRAY}"
        );
        let merge = format!(
            "#!/bin/bash\n{MARK} It makes the report.\n#SBATCH --job-name=ropewalk-merge\n#SBATCH --mem=2G\n\
             #SBATCH --time=1:00:00\n#SBATCH --output=%j.log\n{of_merge}\ncd {here} || exit 1\n\
             exec {program} study merge {parts} -o {study}{force}\n"
        );

        let launch = out.join("launch");
        fs::create_dir_all(launch.path()).with_context(|| launch.path().display().to_string())?;
        files::own_folder(launch.path()).with_context(|| launch.path().display().to_string())?;
        let write = |name: &str, text: &str| -> anyhow::Result<PathBuf> {
            let to = launch.join(name);
            let path = to.path().to_owned();
            let io = |e| files::Error::new(&path, e);
            files::replace(to, &SCRIPT, |out| out.write_all(text.as_bytes()).map_err(io))?;
            Ok(path)
        };
        Ok(Jobs {
            n_tasks: tasks.len(),
            n_units: tasks.iter().map(|ids| ids.split(' ').count()).sum(),
            memory,
            array: write("array.sbatch", &array)?,
            merge: write("merge.sbatch", &merge)?,
            ids: Vec::new(),
        })
    }

    /// Submits the array, and the merge that waits for all of its tasks, however they end.
    pub(super) fn submit(&mut self) -> anyhow::Result<()> {
        let array = sbatch(&self.array, None)?;
        let merge = sbatch(&self.merge, Some(&array));
        let merge = merge
            .with_context(|| format!("job {} is submitted, and {} is not", array.id, self.merge.display()));
        self.ids = vec![array.id, merge?.id];
        Ok(())
    }

    pub(super) fn json(&self) -> serde_json::Value {
        json!({
            "array": self.array.display().to_string(), "merge": self.merge.display().to_string(),
            "tasks": self.n_tasks, "units": self.n_units, "bytes": self.memory, "jobs": self.ids,
        })
    }

    pub(super) fn text(&self) -> String {
        let tasks = format!("{} units in {} tasks of {}", self.n_units, self.n_tasks, bytes(self.memory));
        match &self.ids[..] {
            [array, merge] => format!("{tasks}: job {array}, and {merge} to merge\n"),
            _ => {
                let shown = |path: &Path| quoted(path).unwrap_or_else(|_| path.display().to_string());
                let launch = shown(self.array.parent().unwrap_or(Path::new(".")));
                let (array, merge) = (shown(&self.array), shown(&self.merge));
                format!(
                    "{tasks}\nsbatch --chdir={launch} {array}\n\
                     sbatch --chdir={launch} --dependency=afterany:JOB {merge}\n"
                )
            }
        }
    }
}

/// A job that was submitted, and its cluster, if sbatch chose among several.
struct Submitted {
    id: String,
    cluster: Option<String>,
}

/// Submits a script, to run after all tasks of a job.
fn sbatch(script: &Path, after: Option<&Submitted>) -> anyhow::Result<Submitted> {
    let mut command = Command::new("sbatch");
    command.arg("--parsable").arg("--chdir").arg(script.parent().unwrap_or(Path::new(".")));
    command.args(after.map(|job| format!("--dependency=afterany:{}", job.id)));
    // On another one, the number is that of another job.
    let cluster = after.and_then(|job| job.cluster.as_ref());
    command.args(cluster.map(|name| format!("--clusters={name}")));
    let output = command.arg(script).stdin(Stdio::null()).output().map_err(|e| match e.kind() {
        ErrorKind::NotFound => anyhow!("sbatch: not found; without --submit, the scripts are written only"),
        _ => anyhow!("sbatch: {e}"),
    })?;
    let said = String::from_utf8_lossy(&output.stdout);
    let (id, cluster) = match said.trim().split_once(';') {
        Some((id, cluster)) => (id, Some(cluster.to_owned())),
        None => (said.trim(), None),
    };
    ensure!(
        output.status.success() && !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit()),
        "sbatch: expected the number of a job, found {said:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(Submitted { id: id.to_owned(), cluster })
}

/// The rest of the script of a task.
const ARRAY: &str = r#"
# What the units have on disk: results, samples, checkpoints. What is only written again, as a failure is, is no progress.
state() {
  for id in $ids; do
    find "$parts/$id" -type f ! -name '.*' ! -name '*.log.jsonl' ! -name '*.svg' -printf '%p %s\n' 2>/dev/null
  done | sort | cksum
}
before=$(state)
hup='' term='' pid='' code=0
# Near the time limit, Slurm signals this shell alone.
trap 'hup=1; [ -z "$pid" ] || kill -HUP "$pid" 2>/dev/null' HUP
# To cancel or to preempt a task, Slurm signals all of its processes: wait for ropewalk.
trap 'term=1' TERM
for id in $ids; do
  [ -z "$term" ] || { code=143; break; }
  [ -z "$hup" ] || { code=129; break; }
  "${study[@]}" --unit "$id" & pid=$!
  [ -z "$hup" ] || kill -HUP "$pid" 2>/dev/null
  while kill -0 "$pid" 2>/dev/null; do wait "$pid"; done
  wait "$pid"
  status=$?
  [ "$status" = 0 ] || code=$status
  # Another unit runs after an error, and none after a signal.
  [ "$status" -lt 128 ] || break
done
# The time was up (129), and something was done in it: queue this task again.
if [ "$code" = 129 ] && [ "$(state)" != "$before" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; then
  scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
fi
exit "$code"
"#;
