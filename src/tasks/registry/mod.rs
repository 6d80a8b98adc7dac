//! All tasks, and families of them.

use ropewalk_core::settings::{quoted, suggestion};

use crate::{infinitebench, longbench, lveval, made, needle, passkey, ruler, short, Error, Result, Task};

/// The slices that the files of tasks export.
static FAMILIES: &[&[&dyn Task]] = &[
    ruler::TASKS,
    needle::TASKS,
    passkey::TASKS,
    made::TASKS,
    longbench::TASKS,
    lveval::TASKS,
    infinitebench::TASKS,
    short::TASKS,
];

/// Tasks that are reported together, with their mean.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// Name, as typed.
    pub name: &'static str,
    /// Description of what it measures, in a sentence.
    pub about: &'static str,
    /// Names of its tasks.
    pub tasks: &'static [&'static str],
}

/// Families of tasks.
pub static GROUPS: &[Group] = &[
    Group {
        name: "longbench",
        about: "LongBench v1, its 16 English sets: question answering, summaries, few-shot, synthetic, code.",
        tasks: longbench::NAMES,
    },
    Group {
        name: "ruler",
        about: "RULER, its 13 tasks: needles, chains, counts, questions.",
        tasks: ruler::NAMES,
    },
    Group { name: "ruler_niah", about: "RULER, its 8 tasks that look for needles.", tasks: ruler::NIAH },
    Group {
        name: "needle",
        about: "A sentence hidden in a long text, in the three forms of the papers.",
        tasks: &["needle_lceg", "needle_lwm", "needle_kamradt"],
    },
    Group {
        name: "graphwalks",
        about: "Sets of nodes in a graph that is a long list of edges.",
        tasks: &["graphwalks_bfs", "graphwalks_parents"],
    },
    Group {
        name: "babilong",
        about: "Questions about one to three facts among the sentences of a book.",
        tasks: &["babilong_qa1", "babilong_qa2", "babilong_qa3", "babilong_qa4", "babilong_qa5"],
    },
    Group {
        name: "lveval",
        about: "LV-Eval, nine sets of questions on mixed-up documents in English and Chinese.",
        tasks: lveval::NAMES,
    },
    Group {
        name: "lveval_single",
        about: "LV-Eval's four sets with the answer in one place.",
        tasks: lveval::SINGLE_HOP,
    },
    Group {
        name: "lveval_multi",
        about: "LV-Eval's five sets with the answer spread over several places.",
        tasks: lveval::MULTI_HOP,
    },
    Group {
        name: "infinitebench_en",
        about: "InfiniteBench's four English tasks on books and screenplays.",
        tasks: infinitebench::ENGLISH,
    },
    Group {
        name: "infinitebench",
        about: "InfiniteBench's five tasks on books and screenplays, one of them in Chinese.",
        tasks: infinitebench::NAMES,
    },
    Group {
        name: "short",
        about: "What did extending cost? Seven short tasks after lm-evaluation-harness.",
        tasks: &["mmlu", "hellaswag", "arc_challenge", "piqa", "triviaqa", "nq_open", "gsm8k_cot"],
    },
    Group {
        name: "short5",
        about: "The five short tasks of HARPE's Table 5.",
        tasks: &["mmlu", "hellaswag", "arc_challenge", "piqa", "triviaqa"],
    },
];

/// All tasks.
pub static TASKS: std::sync::LazyLock<Vec<&'static dyn Task>> =
    std::sync::LazyLock::new(|| FAMILIES.iter().flat_map(|family| family.iter().copied()).collect());

/// The tasks of a name: one, or those of a group.
///
/// # Errors
/// An unknown name; the message lists what is near it.
pub fn find(name: &str) -> Result<Vec<&'static dyn Task>> {
    let named = |name: &str| TASKS.iter().copied().find(|t| t.info().name == name);
    if let Some(group) = GROUPS.iter().find(|g| g.name == name) {
        return Ok(group.tasks.iter().filter_map(|n| named(n)).collect());
    }
    match named(name) {
        Some(task) => Ok(vec![task]),
        None => {
            let known = || GROUPS.iter().map(|g| g.name).chain(TASKS.iter().map(|t| t.info().name));
            let mut near: Vec<&str> =
                known().filter(|k| !name.is_empty() && k.contains(name)).take(4).collect();
            let tip = match near.pop() {
                None => suggestion(name, known()),
                Some(last) if near.is_empty() => format!(" (did you mean `{last}`?)"),
                Some(last) => format!(" (did you mean {} or {last}?)", near.join(", ")),
            };
            let (groups, tasks) = (GROUPS.len(), TASKS.len());
            Err(Error::invalid(format!(
                "unknown task {}{tip}; there are {groups} groups and {tasks} tasks",
                quoted(name)
            )))
        }
    }
}

/// The tasks of several names, groups taken apart, each task once.
///
/// # Errors
/// Those of [`find`].
pub fn find_all(names: &[String]) -> Result<Vec<&'static dyn Task>> {
    let mut all = names.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?.concat();
    let mut seen = std::collections::HashSet::new();
    all.retain(|task| seen.insert(task.info().name));
    Ok(all)
}
