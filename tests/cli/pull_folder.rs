//! `ropewalk pull hf:ORG/REPO` against a hub on this machine: a folder in place when it is whole, and never before.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{json, Value};

use super::hub::{at_once, file, names, sum, Asked, Hub, Reply, SOURCE};
use crate::common::program::{command, finish, Output};

pub(crate) const REPO: &str = "hf:org/tiny-llama";
const SHARDS: [&str; 3] = [
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
];
const TOOLS: &str = "additional_chat_templates/tool_use.jinja";
/// What no import reads.
const OTHER: [&str; 7] = [
    "README.md",
    ".gitattributes",
    "pytorch_model.bin",
    "onnx/model.safetensors",
    "model-old.safetensors",
    "additional_chat_templates/README.md",
    "additional_chat_templates/old/x.jinja",
];

/// The files of a repository, and its commit.
#[derive(Clone)]
pub(crate) struct Repository {
    commit: String,
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Repository {
    /// A recorded checkpoint with its tokenizer, and much that no import reads.
    pub(crate) fn new() -> Repository {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/import/tests/checkpoints");
        let mut files = BTreeMap::new();
        for folder in ["llama", "tokenizers/bpe-template"] {
            for entry in std::fs::read_dir(root.join(folder)).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                files.insert(name, std::fs::read(entry.path()).unwrap());
            }
        }
        files.remove("expected.json");
        files.insert(TOOLS.to_owned(), b"{{ tools }}".to_vec());
        for other in OTHER {
            files.insert(other.to_owned(), b"not read".to_vec());
        }
        Repository { commit: "a".repeat(40), files }
    }

    /// The files that an import reads, sorted.
    pub(crate) fn read(&self) -> Vec<&str> {
        self.files.keys().map(String::as_str).filter(|n| !OTHER.contains(n)).collect()
    }

    /// Their names, without those of folders, sorted.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.read().iter().map(|path| path.rsplit('/').next().unwrap()).collect();
        names.sort_unstable();
        names
    }

    /// As the hub lists it: checksums of large files alone.
    fn listing(&self) -> Value {
        let sibling = |(name, bytes): (&String, &Vec<u8>)| {
            let mut one = json!({ "rfilename": name, "size": bytes.len(), "blobId": "0" });
            if name.ends_with(".safetensors") {
                one["lfs"] = json!({ "sha256": sum(bytes), "size": bytes.len(), "pointerSize": 134 });
            }
            one
        };
        json!({ "id": "org/tiny-llama", "sha": self.commit, "siblings": self.files.iter().map(sibling).collect::<Vec<_>>() })
    }

    fn answer(&self, asked: &Asked) -> Reply {
        let mut reply = Reply::new(200);
        if asked.path == "/api/models/org/tiny-llama/revision/main?blobs=true" {
            reply.body = self.listing().to_string().into_bytes();
            reply.set("Content-Length", reply.body.len().to_string());
            return reply;
        }
        let name = asked.path.strip_prefix(&format!("/org/tiny-llama/resolve/{}/", self.commit));
        match name.and_then(|name| self.files.get(name)) {
            Some(bytes) => file(asked, bytes),
            None => {
                reply.refuse(404);
                reply
            }
        }
    }
}

/// A hub whose repository can change, and whose answers go through a function.
pub(crate) fn hub(
    repository: Repository,
    twist: impl Fn(&Asked, &mut Reply) + Send + Sync + 'static,
) -> (Hub, Arc<Mutex<Repository>>) {
    let shared = Arc::new(Mutex::new(repository));
    let served = Arc::clone(&shared);
    let hub = Hub::twisted(move |asked, reply| {
        *reply = served.lock().unwrap().answer(asked);
        twist(asked, reply);
    });
    (hub, shared)
}

/// Pulls the repository, which must leave its folder with exactly what is read of it, a record, and nothing else.
#[track_caller]
pub(crate) fn whole(hub: &Hub, repository: &Repository, dir: &Path, args: &[&str]) -> Output {
    let output = hub.pull(dir, &[&[REPO], args].concat());
    assert_eq!(output.code, 0, "{output:?}");
    let folder = dir.join("tiny-llama");
    let mut top: Vec<&str> = repository.read().iter().map(|path| path.split('/').next().unwrap()).collect();
    top.dedup();
    assert_eq!(names(&folder), top);
    let templates = folder.join("additional_chat_templates");
    assert!(!templates.exists() || names(&templates) == ["tool_use.jinja"]);
    for name in repository.read() {
        assert!(std::fs::read(folder.join(name)).unwrap() == repository.files[name], "{name}");
    }
    assert!(names(dir).iter().all(|n| n.starts_with("tiny-llama")), "{:?}", names(dir));
    output
}

/// Pulls the repository, which must fail with one line that has these words in it, and put nothing in place.
#[track_caller]
fn fails(hub: &Hub, dir: &Path, words: &str) {
    hub.pull_fails(dir, &[REPO, "--retries", "0"], &[words]);
}

fn asked_for(hub: &Hub) -> Vec<String> {
    hub.asked().iter().map(|a| a.path.rsplit('/').next().unwrap().to_owned()).collect()
}

#[test]
fn a_folder_arrives_whole_is_converted_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, shared) = hub(Repository::new(), |_, _| {});
    let repository = shared.lock().unwrap().clone();
    let output = whole(&hub, &repository, dir.path(), &[]);
    let folder = dir.path().join("tiny-llama");
    assert_eq!(output.stdout.trim(), folder.to_str().unwrap());
    assert!(output.stderr.contains("next: ropewalk convert "), "{output:?}");
    let mut asked = asked_for(&hub);
    assert_eq!(asked.remove(0), "main?blobs=true");
    asked.sort();
    assert_eq!(asked, repository.names(), "each file once, and no other");

    let record = std::fs::read(dir.path().join("tiny-llama.source.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(
        (record["source"].as_str(), record["revision"].as_str()),
        (Some(REPO), Some(&*repository.commit))
    );
    assert_eq!(record["files"].as_array().unwrap().len(), repository.read().len());

    // Here already: the hub is not asked.
    let n = hub.asked().len();
    let convert = ["--convert", "--type", "q8_0", "--pre", "gpt-2", "--json"];
    let done = whole(&hub, &repository, dir.path(), &convert);
    assert_eq!(hub.asked().len(), n);
    let made = dir.path().join("tiny-llama-q8_0.gguf");
    // Names are not looked for in this directory.
    assert!(done.stderr.contains(&format!("ropewalk run -m {}\n", made.display())), "{done:?}");
    let done = done.json();
    assert_eq!(done["converted"].as_str().unwrap(), made.to_str().unwrap());
    assert!(done["files"].as_array().unwrap().iter().all(|f| f["verified"] == true && f["fetched"] == false));
    let inspect = || {
        let mut call = command(&["inspect", REPO, "--json"]);
        call.env("ROPEWALK_MODELS", dir.path());
        finish(call)
    };
    let found = inspect();
    assert_eq!(found.code, 0, "{found:?}");
    let template = &found.json()["metadata"]["tokenizer.chat_template.tool_use"];
    assert!(template.to_string().contains("{{ tools }}"), "{template}");
    // A second file of it: which one is meant must be said.
    let output = whole(&hub, &repository, dir.path(), &["--convert", "--pre", "gpt-2", "-q"]);
    assert_eq!(output.stdout.trim(), dir.path().join("tiny-llama.gguf").to_str().unwrap());
    let found = inspect();
    assert!(found.code != 0 && found.stderr.contains("tiny-llama-q8_0.gguf"), "{found:?}");
    let again = whole(&hub, &repository, dir.path(), &convert);
    assert!(again.stderr.is_empty() || again.stderr.contains("already converted"), "{again:?}");
}

#[test]
fn connections_that_break_or_stall_are_resumed_file_by_file() {
    let dir = tempfile::tempdir().unwrap();
    let cut = |asked: &Asked, reply: &mut Reply| {
        if asked.path.ends_with(SHARDS[1]) && asked.from.is_none() {
            reply.cut = 1000;
        }
    };
    let (broken, shared) = hub(Repository::new(), cut);
    let repository = shared.lock().unwrap().clone();
    fails(&broken, dir.path(), "1000 bytes are kept");
    assert_eq!(names(dir.path()), [".partial"], "nothing is in place");
    let n = broken.asked().len();
    whole(&broken, &repository, dir.path(), &[]);
    let again: Vec<Asked> = broken.asked()[n..].to_vec();
    // The hub's list has checksums of weights: what was whole is not sent a second time, and the shard goes on where it broke.
    let weights: Vec<_> = again.iter().filter(|a| a.path.ends_with(".safetensors")).collect();
    assert!(weights[0].path.ends_with(SHARDS[1]) && weights[1].path.ends_with(SHARDS[2]), "{weights:?}");
    assert_eq!((weights.len(), weights[0].from, weights[1].from), (2, Some(1000), None));
    // The small files have none, and come from their first byte.
    assert_eq!(again.len(), 1 + repository.read().len() - 1);
    assert_eq!(again.iter().filter(|a| a.from.is_some()).count(), 1);

    // It stands still, in the list or in a shard, longer than any test runs.
    let long = Duration::from_secs(24 * 3600);
    let stalls: [fn(&Asked, &mut Reply, Duration); 2] = [
        |asked, reply, long| {
            if asked.n == 0 {
                reply.wait = long;
            }
        },
        |asked, reply, long| {
            if asked.path.ends_with(SHARDS[0]) && asked.from.is_none() {
                reply.pause = Some((2000, long));
            }
        },
    ];
    at_once(stalls, |stall| {
        let other = tempfile::tempdir().unwrap();
        let (stalled, _) = hub(Repository::new(), move |asked, reply| stall(asked, reply, long));
        let output = whole(&stalled.for_impatient("2"), &repository, other.path(), &["--retries", "2"]);
        // On a busy machine the hub may be late once more.
        assert!(output.stderr.contains("retry 1 of 2"), "{output:?}");
    });
}

#[test]
fn a_repository_that_changes_between_calls_is_of_one_commit() {
    let dir = tempfile::tempdir().unwrap();
    let cut = |asked: &Asked, reply: &mut Reply| {
        if asked.path.ends_with(SHARDS[2]) && asked.path.contains("/aaaa") {
            reply.cut = 500;
        }
    };
    let (hub, shared) = hub(Repository::new(), cut);
    fails(&hub, dir.path(), "500 bytes are kept");
    let n = hub.asked().len();
    {
        let mut now = shared.lock().unwrap();
        now.commit = "b".repeat(40);
        now.files.get_mut("config.json").unwrap().push(b'\n');
        now.files.remove("chat_template.jinja");
        now.files.remove(TOOLS);
        for shard in &SHARDS[1..] {
            let bytes = now.files.get_mut(*shard).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
        }
    }
    let now = shared.lock().unwrap().clone();
    let output = whole(&hub, &now, dir.path(), &[]);
    assert!(output.stderr.contains("does not match"), "{output:?}");
    let again = asked_for(&hub)[n..].to_vec();
    assert!(again.contains(&"config.json".to_owned()) && !again.contains(&SHARDS[0].to_owned()), "{again:?}");
}

#[test]
fn what_a_hub_says_is_never_believed() {
    type Change = fn(&mut Repository);
    let index = |file: &str| {
        let text = Repository::new().files["model.safetensors.index.json"].clone();
        String::from_utf8(text).unwrap().replace(SHARDS[0], file).into_bytes()
    };
    let named = |file: &'static str| {
        let index = index(file);
        move |r: &mut Repository| drop(r.files.insert("model.safetensors.index.json".into(), index.clone()))
    };
    let outside = "expected the name of a .safetensors file in this folder";
    for (file, words) in [
        ("../../evil.safetensors", outside),
        ("/etc/x.safetensors", outside),
        ("onnx/model.safetensors", outside),
        ("other.safetensors", "lists other.safetensors, which is missing"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut repository = Repository::new();
        named(file)(&mut repository);
        let (hub, _) = hub(repository, |_, _| {});
        fails(&hub, dir.path(), words);
        assert!(
            !asked_for(&hub).iter().any(|n| n.ends_with(".safetensors")),
            "{file}: weights were asked for"
        );
    }
    let changes: [(Change, &str); 6] = [
        (|r| drop(r.files.remove("config.json")), "expected config.json and weights in safetensors"),
        (
            |r| {
                r.files.retain(|n, _| !n.ends_with(".safetensors"));
                r.files.insert("tiny-q4.gguf".into(), vec![0]);
            },
            "one can be pulled: hf:org/tiny-llama/tiny-q4.gguf",
        ),
        (|r| r.commit = "../../x".into(), "names no commit"),
        (|r| r.commit = "A".repeat(40), "names no commit"),
        (
            |r| drop(r.files.insert("model.safetensors.index.json".into(), b"{".to_vec())),
            "index.json: is not JSON",
        ),
        (
            |r| {
                r.files.remove("model.safetensors.index.json");
                r.files.retain(|n, _| !n.starts_with("model"));
                r.files.insert("weights.safetensors".into(), vec![0]);
            },
            "found no model.safetensors",
        ),
    ];
    for (change, words) in changes {
        let dir = tempfile::tempdir().unwrap();
        let mut repository = Repository::new();
        change(&mut repository);
        let (hub, _) = hub(repository, |_, _| {});
        fails(&hub, dir.path(), words);
    }
    type Twist = fn(&mut Reply);
    // What is done to the answer to which request.
    let twists: [(&str, Twist, &str); 4] = [
        ("/api/", |r| set(r, b"<html>"), "expected a list of files"),
        ("/api/", |r| set(r, b"[]"), "expected a list of files"),
        ("/api/", |r| set(r, &vec![b' '; 17 << 20]), "has more than 16777216 bytes"),
        (SHARDS[1], |r| *r.body.last_mut().unwrap() ^= 1, "expected sha256"),
    ];
    for (at, twist, words) in twists {
        let dir = tempfile::tempdir().unwrap();
        let (hub, _) = hub(Repository::new(), move |asked, reply| {
            if asked.path.contains(at) {
                twist(reply);
            }
        });
        fails(&hub, dir.path(), words);
    }
}

fn set(reply: &mut Reply, body: &[u8]) {
    reply.body = body.to_vec();
    reply.set("Content-Length", body.len().to_string());
}

#[test]
fn redirects_are_followed_and_a_token_stays_off_plain_http() {
    let dir = tempfile::tempdir().unwrap();
    let (other, _) = hub(Repository::new(), |_, _| {});
    let to = other.address.clone();
    let (hub, shared) = hub(Repository::new(), move |asked, reply| {
        if asked.path.contains("/api/") || asked.path.ends_with(".safetensors") {
            reply.redirect(format!("{to}{}", asked.path));
        }
    });
    let repository = shared.lock().unwrap().clone();
    for source in [REPO, SOURCE] {
        let mut call = hub.call(dir.path(), &[source]);
        call.env("HF_TOKEN", "hf_secret");
        let output = finish(call);
        assert!(output.code == 1 && output.stderr.contains("plain http"), "{output:?}");
        assert!(hub.asked().is_empty() && names(dir.path()).is_empty() && !output.stderr.contains("secret"));
    }
    whole(&hub, &repository, dir.path(), &[]);
    assert_eq!(asked_for(&other).len(), 1 + SHARDS.len());
}

#[test]
fn a_folder_that_is_here_is_checked_and_never_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, shared) = hub(Repository::new(), |_, _| {});
    let repository = shared.lock().unwrap().clone();
    whole(&hub, &repository, dir.path(), &[]);
    let n = hub.asked().len();
    let refused = |source: &str, words: &str| {
        let output = hub.pull(dir.path(), &[source, "--as", "tiny-llama"]);
        assert!(output.code == 1 && output.stderr.contains(words), "{output:?}");
    };
    refused("hf:other/tiny-llama", "is hf:org/tiny-llama, not hf:other/tiny-llama");
    let shard = dir.path().join("tiny-llama").join(SHARDS[0]);
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&shard, &bytes).unwrap();
    refused(REPO, "expected sha256");
    bytes.pop();
    std::fs::write(&shard, &bytes).unwrap();
    refused(REPO, "bytes, found");
    std::fs::remove_file(&shard).unwrap();
    refused(REPO, SHARDS[0]);
    let record = dir.path().join("tiny-llama.source.json");
    std::fs::write(&record, "{}").unwrap();
    refused(REPO, "expected the record of a pulled folder");
    std::fs::remove_file(&record).unwrap();
    refused(REPO, "no record says that it is hf:org/tiny-llama");
    std::fs::write(dir.path().join("plain"), "").unwrap();
    let output = hub.pull(dir.path(), &[REPO, "--as", "plain"]);
    assert!(output.code == 1 && output.stderr.contains("is not a directory"), "{output:?}");
    for args in
        [&["--as", "../x"][..], &["--sha256", &sum(b"")], &["--type", "q8_0"], &["--convert", "--type", "q9"]]
    {
        let output = hub.pull(dir.path(), &[&[REPO], args].concat());
        assert_eq!(output.code, 2, "{args:?}: {output:?}");
    }
    assert_eq!(hub.asked().len(), n, "the hub is not asked");
}

#[cfg(unix)]
#[test]
fn a_conversion_that_fails_names_its_output() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, shared) = hub(Repository::new(), |_, _| {});
    let repository = shared.lock().unwrap().clone();
    whole(&hub, &repository, dir.path(), &[]);
    let call = hub.call(dir.path(), &[REPO, "--convert", "--pre", "gpt-2", "-q"]);
    let small = ["sh", "-c", "ulimit -f 8; exec \"$0\" \"$@\""];
    let output = finish(crate::limited::through(&small, &call));
    assert!(output.code == 1 && output.stderr.contains("/tiny-llama.gguf: "), "{output:?}");
    assert!(output.stderr.contains("File too large") && !output.stderr.contains(".partial"), "{output:?}");
}

/// Killed at the moment when the GGUF file is there, it has left the record as well. What an earlier one has not finished is
/// made again, and a file of somebody else stays.
#[test]
fn a_converted_file_is_in_place_only_with_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let (hub, shared) = hub(Repository::new(), |_, _| {});
    let repository = shared.lock().unwrap().clone();
    whole(&hub, &repository, dir.path(), &[]);
    let convert = ["--convert", "--pre", "gpt-2", "-q"];
    let [made, record] = ["", ".source.json"].map(|end| dir.path().join(format!("tiny-llama.gguf{end}")));
    std::fs::write(&made, "My thesis").unwrap();
    let output = hub.pull(dir.path(), &[&[REPO], &convert[..]].concat());
    assert!(output.code == 1 && output.stderr.contains("no record says that it was made"), "{output:?}");
    assert_eq!(std::fs::read(&made).unwrap(), b"My thesis");
    std::fs::remove_file(&made).unwrap();
    std::fs::create_dir(dir.path().join(".partial")).unwrap();
    std::fs::write(dir.path().join(".partial/tiny-llama.gguf.made"), "half of it").unwrap();
    let mut call = hub.call(dir.path(), &[&[REPO], &convert[..]].concat());
    let mut child = call.stdout(Stdio::null()).spawn().unwrap();
    while !made.exists() {
        assert!(child.try_wait().unwrap().is_none() || made.exists(), "it made no file");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let recorded: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    assert_eq!(recorded["sha256"].as_str().unwrap(), sum(&std::fs::read(&made).unwrap()));
    let output = whole(&hub, &repository, dir.path(), &convert[..3]);
    assert!(output.stderr.contains("tiny-llama.gguf: already converted"), "{output:?}");
}
