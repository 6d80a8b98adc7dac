//! Documents and other tracked files: what they name must be there, on every machine.

use std::collections::BTreeMap;
use std::process::Command;

use super::{check, read, root};

/// Files git tracks.
fn tracked() -> Vec<String> {
    let out = Command::new("git").arg("-C").arg(root()).args(["ls-files", "-z"]).output().expect("git");
    assert!(out.status.success(), "not a clone of the repository: {}", String::from_utf8_lossy(&out.stderr));
    let list = String::from_utf8(out.stdout).expect("names in UTF-8");
    list.split('\0').filter(|p| !p.is_empty()).map(str::to_owned).collect()
}

#[test]
fn no_registry_hosts_and_no_paths_of_one_machine() {
    // In pieces, or this file would be the first to fail.
    let hosts = [
        ["crates", "io"],
        ["pypi", "org"],
        ["pythonhosted", "org"],
        ["debian", "org"],
        ["huggingface", "co"],
    ]
    .map(|parts| parts.join("."));
    let folders = ["root", "home", "Users", "tmp", "work"].map(|f| format!("/{f}/"));
    let mut faults = Vec::new();
    for path in tracked().iter().filter(|p| !p.ends_with("Cargo.lock")) {
        let Ok(text) = std::fs::read_to_string(root().join(path)) else { continue };
        for (n, line) in text.lines().enumerate() {
            for host in hosts.iter().filter(|h| line.contains(h.as_str())) {
                let what = "name the package; which registry serves it is the reader's choice";
                faults.push(format!("{path}:{}: {host}: {what}", n + 1));
            }
            for folder in &folders {
                let inside = |c: char| c.is_alphanumeric() || "._-~}$*/".contains(c);
                if line.match_indices(folder.as_str()).any(|(at, _)| !line[..at].ends_with(inside)) {
                    faults
                        .push(format!("{path}:{}: {folder}: a path of one machine; make it relative", n + 1));
                }
            }
        }
    }
    check("Tracked files must mean the same everywhere.", faults);
}

#[test]
fn the_architecture_document_names_every_module() {
    let text = read("ARCHITECTURE.md");
    let mut faults = Vec::new();
    let folders = [
        "src",
        "src/core",
        "src/data",
        "src/import",
        "src/plot",
        "src/serve",
        "src/study",
        "ggml/files/src",
        "ggml/gguf/src",
        "ggml/kernels/src",
        "ggml/src",
        "ggml/llama/src",
        "convert/src",
    ];
    for folder in folders {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            // Modules, not crates inside the folder or other files.
            let module = if path.is_dir() {
                !path.join("Cargo.toml").exists()
            } else {
                path.extension().is_some_and(|e| e == "rs")
            };
            if !module {
                continue;
            }
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let module = name.strip_suffix(".rs").unwrap_or(&name);
            if ["lib", "main", "tests"].contains(&module) || module.ends_with("_tests") {
                continue;
            }
            let known = [format!("`{module}`"), format!("`{module}.rs`"), format!("`{module}/`")];
            if !known.iter().any(|k| text.contains(k)) {
                faults.push(format!("{folder}/{name}: say in ARCHITECTURE.md what `{module}` is for"));
            }
        }
    }
    check("The code map must show all of the code.", faults);
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut faults = Vec::new();
    for path in tracked().iter().filter(|p| p.ends_with(".md")) {
        let text = read(path);
        let folder = root().join(path).parent().unwrap().to_owned();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next()) {
            if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
                faults.push(format!("{path}: {target} is not there"));
            }
        }
    }
    check("Links are relative to the file they stand in.", faults);
}

/// The Markdown files of a folder, not of folders in it.
fn documents_in(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let mut out: Vec<String> = entries
        .map(|entry| format!("{folder}/{}", entry.unwrap().file_name().to_string_lossy()))
        .filter(|path| path.ends_with(".md"))
        .collect();
    out.sort();
    assert!(!out.is_empty(), "{folder} has no documents: this test looks in the wrong place");
    out
}

fn help(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ropewalk"));
    let all = if args.is_empty() { "--help" } else { "--help-all" };
    let out = command.args(args).arg(all).env("COLUMNS", "100").output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The commands that the help lists.
fn commands() -> Vec<String> {
    let list = help(&[]);
    let names = list.lines().filter_map(|l| l.strip_prefix("  ")?.split(' ').next());
    let names: Vec<String> =
        names.filter(|c| c.starts_with(char::is_alphabetic)).map(str::to_owned).collect();
    assert!(names.len() > 5, "the help lists only {} commands", names.len());
    names
}

#[test]
fn the_reference_is_what_help_prints() {
    let path = "docs/guide/reference.md";
    let mut page = "# Command reference\n\n\
                    What `ropewalk COMMAND --help-all` prints. `ropewalk COMMAND --help` is shorter.\n"
        .to_owned();
    let names = commands();
    for name in std::iter::once("").chain(names.iter().map(String::as_str)) {
        let args: Vec<&str> = name.split_whitespace().collect();
        let lines = help(&args).lines().map(|line| format!("{}\n", line.trim_end())).collect::<String>();
        page += &format!("\n## {}\n\n```text\n{lines}```\n", format!("ropewalk {name}").trim_end());
    }
    let now = std::fs::read_to_string(root().join(path)).unwrap_or_default();
    if now != page {
        let new = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("reference.md");
        std::fs::write(&new, page).unwrap();
        check("The reference is generated.", vec![format!("{path}: copy {} over it", new.display())]);
    }
}

/// Command lines in a document's code blocks, or shown by a script, without the program's name.
fn command_lines(path: &str) -> Vec<String> {
    let text = read(path).replace("\\\n", " ");
    let mut in_fence = false;
    let mut out = Vec::new();
    for line in text.lines() {
        in_fence ^= line.starts_with("```");
        let code = in_fence || line.starts_with("    ") || line.starts_with("show ");
        let line = line.trim().trim_start_matches("$ ").trim_start_matches("show ");
        if let Some(words) = line.strip_prefix("ropewalk ").filter(|_| code) {
            out.push(words.split(['#', '|']).next().unwrap_or_default().to_owned());
        }
    }
    out
}

#[test]
fn documents_show_commands_and_flags_that_exist() {
    let (commands, mut helps) = (help(&[]), BTreeMap::new());
    let (mut faults, mut found) = (Vec::new(), 0);
    let named = ["README.md", "models/README.md", "scripts/demo.sh"].map(str::to_owned);
    for path in named.into_iter().chain(documents_in("docs/guide")).chain(documents_in("docs/results")) {
        for line in command_lines(&path) {
            found += 1;
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some(command) = words.first().filter(|c| !c.starts_with('-')) else { continue };
            if !commands.lines().any(|l| l.split_whitespace().next() == Some(*command)) {
                faults.push(format!("{path}: no command `{command}`: {line}"));
                continue;
            }
            let known = helps.entry((*command).to_owned()).or_insert_with(|| help(&[command]));
            // What follows `--` is for another program.
            let own = words.iter().take_while(|w| **w != "--");
            for flag in own.filter(|w| w.starts_with("--")) {
                let flag = flag.split('=').next().unwrap_or_default();
                if !known.split(|c: char| c.is_whitespace() || ",[]<>=".contains(c)).any(|w| w == flag) {
                    faults.push(format!("{path}: `{command}` has no {flag}: {line}"));
                }
            }
        }
    }
    check("What the documents tell people to type must work.", faults);
    assert!(found > 5, "only {found} command lines found: this test looks for the wrong thing");
}

#[test]
fn lists_in_documents_are_complete() {
    let listed = Command::new(env!("CARGO_BIN_EXE_ropewalk")).args(["rope", "--list"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let names = listed.lines().filter_map(|l| l.split_once(" (")).map(|(name, _)| name);
    let methods = names.filter(|name| !name.contains(' ') && *name != "declared");
    let finetune = help(&["finetune"]);
    let recipes = finetune.split("--recipe <NAME>").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let recipes = recipes.split("[possible values:").nth(1).unwrap().split(',').map(str::trim);
    let (readme, guide) = (read("README.md"), read("docs/guide/fine-tuning.md"));
    let matrix = read("docs/guide/compatibility.md");
    let of_methods: Vec<(&str, &str, &str)> = methods
        .flat_map(|m| [("README.md", m, &*readme), ("docs/guide/compatibility.md", m, &*matrix)])
        .collect();
    let of_recipes: Vec<(&str, &str, &str)> =
        recipes.map(|r| ("docs/guide/fine-tuning.md", r, &*guide)).collect();
    assert!(of_methods.len() > 20 && of_recipes.len() > 8, "{of_methods:?} {of_recipes:?}");
    let has = |text: &str, name: &str| ["`", ":"].iter().any(|end| text.contains(&format!("`{name}{end}")));
    let missing = of_methods.iter().chain(&of_recipes).filter(|(_, name, text)| !has(text, name));
    let faults = missing.map(|(path, name, _)| format!("{path}: no `{name}`")).collect();
    check("Documents name every method and every recipe.", faults);
}

/// The page is generated again whenever there are new records.
#[test]
fn documents_quote_the_evidence_as_it_is() {
    let evidence = read("docs/evidence.md");
    let (readme, guide) = ("README.md", "docs/guide/which-method.md");
    // Perplexity at 14k to 16k, and loss minus that of YaRN.
    let quoted = [(readme, "plain", 4), (readme, "yarn", 4), (guide, "ntk", 5), (guide, "pi", 5)];
    let missing = quoted.into_iter().filter_map(|(path, method, column)| {
        let row = evidence.lines().find_map(|line| line.strip_prefix(&format!("| {method} | ")));
        let cell = row.and_then(|row| row.split(" | ").nth(column)).expect("a table of methods");
        let figure = cell.trim_start_matches(['*', '+']).split(['*', ' ']).next().unwrap();
        (!read(path).contains(figure)).then(|| format!("{path}: no {figure}, which is `{method}` now"))
    });
    check("Figures from docs/evidence.md must be those of its records.", missing.collect());
}

#[test]
fn advise_begins_with_the_methods_that_the_evidence_found_best() {
    let (evidence, source) = (read("docs/evidence.md"), read("src/eval/advise.rs"));
    let list = source.split("const ORDER").nth(1).and_then(|rest| rest.split("];").next()).unwrap();
    let order: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let table = evidence.split("minus yarn |").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
    let mut found: Vec<(f64, &str)> = Vec::new();
    for row in table.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells.get(1).copied().unwrap_or_default();
        // YaRN is what the others are compared with.
        let shown = cells.get(7).and_then(|cell| cell.split(' ').next()).unwrap_or_default();
        let loss = if name == "yarn" { Some(0.0) } else { shown.parse().ok() };
        found.extend(loss.filter(|_| order.contains(&name)).map(|loss: f64| (loss, name)));
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let names: Vec<&str> = found.iter().map(|(_, name)| *name).filter(|name| *name != "plain").collect();
    assert_eq!(order[1..], names, "ORDER in src/eval/advise.rs must be that of docs/evidence.md");
}

/// Words that documents and help do without; `*` stands for any ending.
#[rustfmt::skip]
const AVOIDED: &[&str] = &[
    "\u{2014}*", "anew", "are none", "behaviour*", "behind", "beside", "blazing", "but for", "colour*", "easily",
    "go on", "goes on", "is no", "is said", "just", "licence*", "likeliest", "meanwhile", "neighbour*", "of its own",
    "of their own", "optimis*", "powerful", "quantis*", "recognis*", "seamless*", "simply", "so many", "so often",
    "tokenis*", "what there is", "whereof", "worked out",
];

/// Whether prose in lower case, without the words in backticks, has one of [`AVOIDED`].
fn has(prose: &str, avoided: &str) -> bool {
    let word = avoided.trim_end_matches('*');
    prose.match_indices(word).any(|(at, _)| {
        let (before, after) = (&prose[..at], &prose[at + word.len()..]);
        let begins = !word.starts_with(char::is_alphanumeric) || !before.ends_with(char::is_alphanumeric);
        begins && (word != avoided || !after.starts_with(char::is_alphanumeric))
    })
}

#[test]
fn documents_use_plain_words() {
    let mut texts: Vec<(String, String)> =
        commands().iter().map(|c| (format!("{c} --help-all"), help(&[c]))).collect();
    let named = "README CONTRIBUTING ARCHITECTURE SECURITY CHANGELOG models/README docs/results \
                 docs/evidence docs/gguf-keys docs/results/records/README";
    let documents = named.split(' ').map(|name| format!("{name}.md"));
    let documents = documents.chain(documents_in("docs/guide")).chain(documents_in("docs/results"));
    texts.extend(documents.map(|path| (path.clone(), read(&path))));
    let mut faults = Vec::new();
    for (path, text) in &texts {
        let mut in_fence = false;
        for (n, line) in text.lines().enumerate() {
            in_fence ^= line.trim_start().starts_with("```");
            if path.ends_with(".md") && (in_fence || line.starts_with("    ")) {
                continue;
            }
            let prose: String = line.to_lowercase().split('`').step_by(2).collect();
            for word in AVOIDED.iter().filter(|word| has(&prose, word)) {
                faults.push(format!("{path}:{}: {word}: {}", n + 1, line.trim()));
            }
        }
    }
    check("Documents and help use plain American English.", faults);
}

#[test]
fn documents_stay_short() {
    let most = [("README.md", 180), ("ARCHITECTURE.md", 250), ("docs/results.md", 150)];
    let long = most.iter().filter(|(path, most)| read(path).lines().count() > *most);
    let faults = long.map(|(path, most)| format!("{path}: more than {most} lines")).collect();
    check("Readers begin with these documents: cut, or move to the guide.", faults);
}

#[test]
fn results_are_rendered_from_records() {
    let mut command = Command::new("python3");
    command.args(["scripts/results.py", "--check"]).env("PYTHONUTF8", "1").current_dir(root());
    let out = command.output().expect("Python 3.9 or later as python3");
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {}\n{stdout}{stderr}", out.status);
}
