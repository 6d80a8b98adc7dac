//! The shape of the code, checked: layers, registries, file sizes, where `unsafe` and printing may stand;
//! in `documents`, that the documents tell the truth, in `evidence`, that its queue works, in `messages`, that
//! libraries name no options, in `opening`, that one crate opens files, and in `programs`, that unit tests are run. A failure says what to do; ARCHITECTURE.md says why.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

mod documents;
mod evidence;
mod messages;
mod opening;
mod programs;
mod reading;

use reading::{blank, first_names, sources};

/// The crates of the workspace, low to high, and the ones among them that each may depend on (for its tests,
/// any). A new crate gets a line here and in ARCHITECTURE.md.
#[rustfmt::skip]
const CRATES: &[(&str, &[&str])] = &[
    ("ropewalk-files", &[]),
    ("ropewalk-gguf", &["ropewalk-files"]),
    ("ropewalk-core", &["ropewalk-files", "ropewalk-gguf"]),
    ("ropewalk-import", &["ropewalk-files", "ropewalk-gguf", "ropewalk-core"]),
    ("ropewalk-tasks", &["ropewalk-files", "ropewalk-core"]),
    ("ropewalk-data", &["ropewalk-files", "ropewalk-core"]),
    ("ropewalk-plot", &["ropewalk-files", "ropewalk-core"]),
    ("ropewalk-study", &["ropewalk-files", "ropewalk-core", "ropewalk-plot"]),
    ("ropewalk-serve", &["ropewalk-core"]),
    ("ropewalk-kernels", &["ropewalk-files", "ropewalk-gguf"]),
    ("ropewalk-processor", &[]),
    ("ropewalk-ggml", &["ropewalk-files", "ropewalk-gguf", "ropewalk-kernels"]),
    ("ropewalk-llama", &["ropewalk-files", "ropewalk-gguf", "ropewalk-core", "ropewalk-ggml"]),
    ("convert", &["ropewalk-files", "ropewalk-gguf", "ropewalk-core", "ropewalk-import", "ropewalk-ggml", "ropewalk-llama", "ropewalk-processor"]),
    ("ropewalk", &["ropewalk-files", "ropewalk-gguf", "ropewalk-core", "ropewalk-data", "ropewalk-import", "ropewalk-plot", "ropewalk-serve", "ropewalk-study", "ropewalk-tasks",
        "ropewalk-ggml", "ropewalk-llama", "ropewalk-processor", "convert"]),
    (
        "ropewalk-fuzz",
        &["ropewalk-gguf", "ropewalk-import", "ropewalk-ggml", "ropewalk-serve", "ropewalk-study", "ropewalk-tasks", "convert", "ropewalk"],
    ),
    ("ropewalk-naive", &["ropewalk-ggml", "ropewalk"]),
];

/// The crates that may depend on the C code; without them the others compile in seconds.
const C_CODE: (&str, &[&str]) = ("llama-cpp-sys-2", &["ropewalk-ggml", "ropewalk-llama"]);

/// Modules of a crate, by the folder of its sources, low to high. A module may use those of earlier lines
/// only: not later ones, not its neighbors. A new module gets a place here, in the crate's lib.rs and in
/// ARCHITECTURE.md.
const LAYERS: &[(&str, &[&[&str]])] = &[
    (
        "src/core",
        &[
            &["control", "divergence", "remedy", "settings", "setters", "terminal", "text", "tokenizer"],
            &["apart", "longppl", "program", "signals"],
            &["ids"],
            &["hparams"],
            &["rope"],
            &["landmark"],
            &["adapter"],
            &["contents"],
            &["tests"],
        ],
    ),
    (
        "src/import",
        &[
            &["error"],
            &["json"],
            &["safetensors", "meaning"],
            &["needed", "tensor", "config"],
            &["keys"],
            &["vocab"],
            &["general", "arch"],
            &["modules"],
            &["checkpoint"],
            // Its test program.
            &["tests"],
        ],
    ),
    (
        "src/tasks",
        &[
            &["error"],
            &["data"],
            &["task"],
            &["text", "draws"],
            &["metrics"],
            &["ruler", "needle", "passkey", "longbench", "lveval", "infinitebench", "short", "made"],
            &["registry"],
            &["internals"],
            &["tests"],
        ],
    ),
    (
        "src/data",
        &[
            &["error"],
            &["random", "jsonl"],
            &["text", "testing"],
            &["corpus"],
            &["sample"],
            &["transform", "synthetic"],
            &["dataset"],
            &["histogram"],
        ],
    ),
    (
        "src/plot",
        &[
            &["axis", "pen"],
            &["look", "pdf", "text", "rope", "map"],
            &["ends", "grid", "map_draw"],
            &["draw", "heat", "output"],
        ],
    ),
    (
        "src/study",
        &[
            &["error"],
            &["plan"],
            &["cell"],
            &["outcome", "stats", "units"],
            &["folder"],
            &["report"],
            &["run"],
            &["work"],
            // Its test program.
            &["tests"],
        ],
    ),
    (
        "src/serve",
        &[
            &["backend"],
            &["error"],
            &["fields"],
            &["calls"],
            &["metrics", "answer", "wire"],
            &["app"],
            &["page"],
            &["guard", "stream"],
            &["completions"],
            &["chat", "responses", "score", "selftest", "slots", "tokens", "models"],
            &["server"],
            // Its test program.
            &["tests"],
        ],
    ),
    (
        "src",
        &[
            &["error"],
            &["math", "origin"],
            &["weights"],
            &["adapter"],
            &["layers"],
            &["kv"],
            &["states"],
            &["graph"],
            &["arch"],
            &["model"],
            &["session"],
            &["eval", "train", "chat", "fetch", "scheduler"],
            &["plot"],
            &["finetune"],
            &["studies"],
            &["internals"],
            &["cli"],
        ],
    ),
];

/// Lines of a file, tests included.
const MAX_LINES: usize = 500;

/// Folders where every file that defines an entry must be in the slice that lists them:
/// (folder, what a file with an entry contains, the slice, the file it is in).
const REGISTRIES: &[(&str, &str, &str, &str)] = &[
    ("src/core/rope", ": Method =", "METHODS", "src/core/rope/mod.rs"),
    ("src/arch", ": Arch =", "ARCHS", "src/arch/mod.rs"),
    ("src/data/transform", ": Method =", "METHODS", "src/data/transform/mod.rs"),
    ("src/data/synthetic", ": Family =", "FAMILIES", "src/data/synthetic/mod.rs"),
    ("src/cli", "COMMAND: Command =", "COMMANDS", "src/cli/mod.rs"),
];

struct Source {
    /// Relative to the repository, with `/`.
    path: String,
    text: String,
    /// The text with comments and the insides of literals blanked: same lines, same columns.
    code: String,
}

impl Source {
    /// The folder of [`LAYERS`] a file belongs to, and its module there: `src/core/rope/pi.rs` is of `rope`
    /// in `src/core`.
    fn module(&self) -> Option<(&'static str, &str)> {
        // Folders that hold others come last.
        let (folder, inside) = LAYERS
            .iter()
            .find_map(|(folder, _)| Some((*folder, self.path.strip_prefix(folder)?.strip_prefix('/')?)))?;
        let name = inside.split('/').next()?;
        Some((folder, name.strip_suffix(".rs").unwrap_or(name).trim_end_matches("_tests")))
            .filter(|(_, name)| *name != "lib" && *name != "main")
    }

    fn line_of(&self, at: usize) -> usize {
        self.code[..at].matches('\n').count() + 1
    }

    /// Where a word stands in the code by itself.
    fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
            let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
            let (before, after) = (&self.code[..at], &self.code[at + word.len()..]);
            let goes_on = word.ends_with(part_of_name) && after.starts_with(part_of_name);
            !before.ends_with(part_of_name) && !goes_on
        })
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[track_caller]
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Reads every Rust file of the project.
fn read_sources() -> Vec<Source> {
    let mut paths = vec![root().join("build.rs")];
    for folder in ["src", "ggml", "convert", "python", "tests", "benches", "fuzz"] {
        walk(&root().join(folder), &mut paths);
    }
    let mut out: Vec<Source> = paths
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "rs") && p.is_file())
        .map(|p| {
            let path = p.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
            let text = std::fs::read_to_string(&p).unwrap();
            let code = blank(&text);
            Source { path, text, code }
        })
        .collect();
    out.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(out.len() > 20, "tidy found only {} Rust files: it looks in the wrong place", out.len());
    out
}

fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|e| e.unwrap().path()).filter(|p| !p.ends_with("target")) {
        if path.is_dir() {
            walk(&path, out);
        } else {
            out.push(path);
        }
    }
}

/// The place of a module in the order of its crate.
fn layer(folder: &str, module: &str) -> Option<usize> {
    layers(folder).iter().position(|l| l.contains(&module))
}

fn layers(folder: &str) -> &'static [&'static [&'static str]] {
    LAYERS.iter().find(|(f, _)| *f == folder).map_or(&[], |(_, layers)| layers)
}

fn order(folder: &str) -> String {
    layers(folder).iter().map(|l| l.join(", ")).collect::<Vec<_>>().join(" < ")
}

#[track_caller]
fn check(what: &str, mut faults: Vec<String>) {
    faults.dedup();
    let mut message = String::new();
    faults.iter().for_each(|f| writeln!(message, "  {f}").unwrap());
    assert!(faults.is_empty(), "\n{what}\n{message}");
}

/// The packages of the workspace as Cargo knows them.
fn packages() -> Vec<serde_json::Value> {
    let cargo = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(cargo.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&cargo.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&cargo.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

#[test]
fn crates_depend_only_on_lower_ones() {
    let packages = packages();
    let mut faults = Vec::new();
    for package in &packages {
        let name = package["name"].as_str().unwrap();
        let Some((_, allowed)) = CRATES.iter().find(|(n, _)| *n == name) else {
            faults.push(format!("{name} has no place in CRATES of tests/tidy/main.rs"));
            continue;
        };
        let dependencies = package["dependencies"].as_array().unwrap();
        for on in dependencies.iter().filter(|d| d["kind"].as_str() != Some("dev")) {
            let on = on["name"].as_str().unwrap();
            if CRATES.iter().any(|(n, _)| *n == on) && !allowed.contains(&on) {
                faults.push(format!("{name} depends on {on}"));
            }
            if on == C_CODE.0 && !C_CODE.1.contains(&name) {
                faults.push(format!("{name} depends on the C code"));
            }
        }
    }
    assert_eq!(packages.len(), CRATES.len(), "CRATES of tests/tidy/main.rs names a crate that is gone");
    check("A crate may use only those that CRATES of tests/tidy/main.rs allows it.", faults);
}

#[test]
fn modules_use_only_lower_layers() {
    let mut faults = Vec::new();
    for source in sources() {
        let Some((folder, module)) = source.module() else { continue };
        let Some(own) = layer(folder, module) else {
            faults.push(format!("{}: `{module}` has no place in LAYERS of tests/tidy/main.rs", source.path));
            continue;
        };
        // The program sees its library by name.
        for prefix in ["crate::", "ropewalk::", "super::"] {
            for at in source.words(prefix) {
                for name in first_names(&source.code, at + prefix.len()) {
                    let Some(theirs) = layer(folder, &name).filter(|_| name != module) else { continue };
                    // As a rule `super::x` is a neighbor inside the module's own folder.
                    let mut local =
                        [format!("{folder}/{module}/{name}.rs"), format!("{folder}/{module}/{name}")]
                            .into_iter();
                    if prefix == "super::" && local.any(|p| root().join(p).exists()) {
                        continue;
                    }
                    if theirs >= own {
                        let place = format!("{}:{}", source.path, source.line_of(at));
                        faults.push(format!("{place}: `{module}` uses `{name}`, which is not below it"));
                    }
                }
            }
        }
    }
    let what = "Pass what is needed in as an argument or a trait, or move what both need further down.";
    let orders: Vec<String> =
        LAYERS.iter().map(|(folder, _)| format!("{folder}: {}", order(folder))).collect();
    check(&format!("A module may use only lower ones. {}.\n{what}", orders.join(". ")), faults);
}

#[test]
fn libraries_list_their_modules_in_layer_order() {
    for (folder, _) in LAYERS {
        let path = format!("{folder}/lib.rs");
        let code = blank(&read(&path));
        let listed: Vec<&str> = code
            .split(';')
            .filter_map(|s| s.trim().rsplit_once("mod ").map(|(_, name)| name.trim()))
            .collect();
        let mut faults: Vec<String> = listed
            .iter()
            .filter(|m| layer(folder, m).is_none())
            .map(|m| format!("{path}: `{m}` has no place in LAYERS of tests/tidy/main.rs"))
            .collect();
        for pair in listed.windows(2).filter(|p| layer(folder, p[0]) > layer(folder, p[1])) {
            faults.push(format!("{path}: `{}` stands before `{}`, which is below it", pair[0], pair[1]));
        }
        check(&format!("The order is {}.", order(folder)), faults);
    }
}

#[test]
fn files_begin_with_what_they_are_and_stay_short() {
    let mut faults = Vec::new();
    for source in sources() {
        if !source.text.starts_with("//! ") {
            faults.push(format!("{}: begin it with a `//!` line that says what the file is", source.path));
        }
        let n = source.text.lines().count();
        if n > MAX_LINES {
            faults.push(format!("{}: {n} lines, at most {MAX_LINES}: split it by what it does", source.path));
        }
    }
    check("Every file says what it is and fits in one reading.", faults);
}

#[test]
fn no_more_lines_than_the_ceiling() {
    evidence::passes(&mut std::process::Command::new("scripts/lines.sh"));
}

#[test]
fn unsafe_stands_only_in_the_crates_around_ggml() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| !s.path.starts_with("ggml/")) {
        for at in source.words("unsafe") {
            faults.push(format!("{}:{}", source.path, source.line_of(at)));
        }
    }
    check(
        "`unsafe` belongs into the crates of ggml/, behind a safe function that checks what it is given.",
        faults,
    );
}

#[test]
fn only_the_command_lines_print_and_read_the_environment() {
    let mut faults = Vec::new();
    for source in sources() {
        let p = source.path.as_str();
        let library = ["src/", "convert/src/", "python/"].iter().any(|f| p.starts_with(f))
            || p.starts_with("ggml/") && p.contains("/src/");
        // Tests say what they skip on a processor that lacks it.
        let may = ["src/cli/", "convert/src/cli"].iter().any(|f| p.starts_with(f))
            || ["main.rs", "/tests.rs"].iter().any(|name| p.ends_with(name));
        if !library || may {
            continue;
        }
        for word in ["println!", "eprintln!", "print!", "eprint!", "dbg!", "std::env", "env::var"] {
            for at in source.words(word) {
                // Where the program lies and what libraries are called is not the environment.
                let everywhere = ["std::env::current_exe", "std::env::consts"];
                let known = match p {
                    // Where libraries lie is handed on to processes that inherit nothing else.
                    "src/core/apart.rs" => ["std::env::var_os(name)?))"; 2],
                    // A variable of ggml itself, under which its results are wrong unless it is set.
                    "ggml/src/backend.rs" => {
                        ["std::env::var_os(EARLY_STARTS)", "std::env::set_var(EARLY_STARTS"]
                    }
                    // What the processor has, as if it had less.
                    "ggml/kernels/src/simd/level.rs" => ["std::env::var_os(VARIABLE)"; 2],
                    _ => everywhere,
                };
                if !everywhere.iter().chain(&known).any(|name| source.code[at..].starts_with(name)) {
                    faults.push(format!("{p}:{}: {word}", source.line_of(at)));
                }
            }
        }
    }
    check("Below the command line nothing prints or reads the environment: take it as an argument.", faults);
}

/// A test that is switched off, or returns early when a file or a program is missing, tests nothing.
#[test]
fn no_test_passes_without_having_run() {
    let mut faults = Vec::new();
    for source in sources() {
        for at in source.words("#[ignore") {
            faults.push(format!("{}:{}: #[ignore", source.path, source.line_of(at)));
        }
        if !source.path.split('/').any(|folder| folder == "tests") {
            continue;
        }
        for (at, _) in source.code.match_indices("#[test]") {
            let body = &source.code[at..];
            let body = &body[..body.find("\n}").unwrap_or(body.len())];
            // A property may pass over a case that makes no sense, with `return Ok(())`.
            let early = body
                .match_indices("else { return")
                .filter(|(at, _)| !body[*at..].starts_with("else { return Ok("));
            for (from, _) in early {
                faults.push(format!("{}:{}", source.path, source.line_of(at + from)));
            }
        }
    }
    check("A test that lacks what it needs must fail: use unwrap, expect or assert.", faults);
}

#[test]
fn every_entry_is_in_its_registry() {
    let all = sources();
    for (folder, marker, slice, registry) in REGISTRIES {
        let text = blank(&read(registry));
        let (_, after) = text
            .split_once(&format!("static {slice}:"))
            .unwrap_or_else(|| panic!("{registry}: expected `static {slice}: ... = &[...];`, found none"));
        let listed = after.split(';').next().unwrap_or_default();
        let (mut faults, mut found) = (Vec::new(), 0);
        for source in all.iter().filter(|s| s.path.starts_with(&format!("{folder}/")) && s.path != *registry)
        {
            if !source.code.contains(marker) {
                continue;
            }
            found += 1;
            let name = source.path[folder.len() + 1..].split('/').next().unwrap_or_default();
            let name = name.strip_suffix(".rs").unwrap_or(name);
            if !listed.contains(&format!("{name}::")) {
                faults.push(format!("{}: no `{name}::` in {slice}", source.path));
            }
        }
        check(&format!("What is in {folder} but not in {slice} of {registry} cannot be reached."), faults);
        assert!(found > 0, "no file of {folder} contains `{marker}`: this test looks for the wrong thing");
    }
}
