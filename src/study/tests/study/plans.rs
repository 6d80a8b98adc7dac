//! Plans: what is read, and what is refused.

use ropewalk_study::{Attention, Folder, Known, Names, Plan, Trained};

use crate::fake::{find, Study, PLAN};

#[test]
fn a_plan_is_read_with_its_defaults() {
    let study = Study::new(PLAN);
    let plan = study.plan();
    assert_eq!((plan.models.len(), plan.methods.len(), plan.tasks.len()), (1, 7, 8));
    assert_eq!(plan.cells().count(), plan.len());
    assert!(plan.cells().enumerate().all(|(i, c)| c.index == i));
    assert_eq!(plan.models[0].path, study.at("small.gguf"));
    let kinds: Vec<Attention> = plan.methods.iter().map(|m| m.attention).collect();
    assert_eq!(kinds[..4], [Attention::Exact; 4]);
    assert_eq!(kinds[4..], [Attention::Approximate; 3]);
    let trained: Vec<bool> = plan.methods.iter().map(|m| m.trained == Trained::Trained).collect();
    assert_eq!(trained, [false, false, false, true, false, false, false]);
    let niah = &plan.tasks[2];
    assert_eq!((niah.name.as_str(), niah.group.as_deref()), ("niah_single_2", Some("ruler_niah")));
    assert_eq!(niah.lengths, [Some(4096), Some(8192), Some(12288)]);
    assert_eq!((plan.tasks[1].seeds.clone(), niah.seeds.clone()), (vec![Some(1), Some(2)], vec![None]));
    assert_eq!(plan.tasks[7].lengths, [None]);
    assert_eq!(plan.tasks[5].options["ruler"], "2024");
}

#[test]
fn all_that_determines_a_cell_is_in_its_hash() {
    let hash = |text: &str, identity: &str, texts: &[String]| -> Vec<String> {
        Study::new(text).plan().cells().map(|c| c.hash(identity, texts)).collect()
    };
    let same = hash(PLAN, "m", &[]);
    assert_eq!(same, hash(PLAN, "m", &[]), "the folder of a plan is not part of it");
    let mut all = same.clone();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), same.len());
    let differ = |text: &str, identity: &str, texts: &[String]| -> usize {
        let other = hash(text, identity, texts);
        assert_eq!(other.len(), same.len());
        other.iter().zip(&same).filter(|(a, b)| a != b).count()
    };
    assert_eq!(differ(PLAN, "n", &[]), 161);
    assert_eq!(differ(PLAN, "m", &["t".into()]), 161);
    let changed = |from: &str, to: &str| {
        assert!(PLAN.contains(from), "{from}");
        differ(&PLAN.replace(from, to), "m", &[])
    };
    assert_eq!(changed("pi:factor=2", "pi:factor=3"), 23);
    assert_eq!(changed("\"100\"", "\"101\""), 23);
    assert_eq!(changed("max_windows = 8", "max_windows = 9"), 21);
    assert_eq!(changed("protocol = \"yarn\"", "protocol = \"press\""), 21);
    assert_eq!(changed("\"2024\"", "\"current\""), 21);
    assert_eq!(changed("samples = 20", "samples = 30"), 140);
    assert_eq!(changed("seeds = [1, 2]", "seeds = [1, 3]"), 21);
    assert_eq!(changed("12288", "16384"), 7 * 7);
    assert_eq!(changed("ctx = 8192", "ctx = 4096"), 14);
    assert_eq!(changed("samples = 20", "samples = 20\ntemplate = \"chat\""), 161);
    // Neither the heading nor where files lie.
    assert_eq!(changed("Twice", "Thrice") + changed("small.gguf", "elsewhere.gguf"), 0);
}

#[test]
fn bad_plans_are_refused_in_a_line_with_file_line_and_key() {
    let cases: &[(&str, &str, &str)] = &[
        ("samples = 20", "sampels = 20", "line 4: unknown field `sampels`, expected one of `title`"),
        ("samples = 20", "samples = 0", "line 4: samples: expected 1 to 1000000, found 0"),
        ("samples = 20", "samples = -3", "line 4: samples: invalid value: integer `-3`"),
        ("samples = 20", "samples = \"many\"", "line 4: samples: invalid type: string"),
        ("samples = 20", "samples = 1e99", "line 4: samples: invalid type: floating point"),
        ("samples = 20", "samples = 2000000", "found 2000000"),
        ("samples = 20", "samples = ", "line 4"),
        (
            "lengths = [4096, 8192",
            "lengths = [4096, 1, 8192",
            "line 3: lengths: expected 2 to 1073741824 tokens",
        ),
        ("lengths = [4096, 8192", "lengths = [4096, 4096", "line 3: lengths: 4096 stands twice"),
        (
            "lengths = [4096, 8192, 12288]",
            "lengths = []",
            "line 43: lengths: perplexity expects at least one",
        ),
        ("seeds = [1, 2]", "seeds = [2, 2]", "line 49: seeds: 2 stands twice"),
        ("seeds = [1, 2]", "seeds = []", "line 49: seeds: expected at least one, found none"),
        ("title = \"Twice the window\"", "title = \"\"", "line 2: title: expected 1 to 300 bytes, found 0"),
        ("title = \"Twice the window\"", "", "missing field `title`"),
        ("name = \"pi\"", "name = \"plain\"", "line 16: methods: the name \"plain\" stands twice"),
        ("name = \"pi\"", "name = \"\"", "line 16: methods: expected a name of 1 to 60 bytes"),
        ("name = \"pi\"", "name = \"p\\u001bi\"", "found control characters"),
        ("spec = \"pi:factor=2\"", "spec = \"pie\"", "line 17: spec: "),
        ("spec = \"pi:factor=2\"", "spec = \"pi:factor=0\"", "line 17: spec: "),
        (
            "spec = \"pi:factor=2\"",
            "spec = \"pi\"\nmodels = [\"large\"]",
            "line 18: models: expected some of small",
        ),
        ("spec = \"pi:factor=2\"", "spec = \"pi\"\ntokens = 5", "trained: expected \"trained\""),
        ("spec = \"pi:factor=2\"", "spec = \"pi\"\nkind = \"odd\"", "line 18: kind: unknown variant `odd`"),
        ("data = [\"essays.txt\"]", "data = []", "data: expected texts to train on, found none"),
        ("data = [\"essays.txt\"]", "date = []", "unknown field `date`"),
        ("path = \"small.gguf\"", "path = \"\"", "line 9: path: expected a GGUF file"),
        ("name = \"vt\"", "name = \"tv\"", "line 55: name: unknown task \"tv\""),
        ("name = \"vt\"", "name = \"empty\"", "which has none"),
        ("name = \"vt\"", "name = \"niah_single_2\"", "line 55: tasks: \"niah_single_2\" stands twice"),
        (
            "name = \"vt\"",
            "name = \"vt\"\nprotocol = \"yarn\"",
            "protocol: expected for perplexity only, found for vt",
        ),
        (
            "name = \"piqa\"",
            "name = \"piqa\"\nlengths = [4096]",
            "line 63: lengths: piqa is as long as its samples are",
        ),
        ("texts = [\"essays.txt\"]\n\n", "\n\n", "texts: perplexity expects at least one file, found none"),
        (
            "seeds = [1, 2]",
            "options = { depth = [1] }",
            "line 49: options: expected text, a number, true or false",
        ),
        ("seeds = [1, 2]", "options = { depths = 50 }", "has no option \"depths\"; expected depth, ruler"),
    ];
    for (from, to, expected) in cases {
        assert!(PLAN.contains(from), "{from}");
        let study = Study::new(&PLAN.replacen(from, to, 1));
        let said = Plan::read(&study.at("plan.toml"), &find).unwrap_err().to_string();
        let at = study.at("plan.toml");
        assert!(said.starts_with(&format!("{}: line ", at.display())), "{to}: {said}");
        assert!(said.contains(expected) && !said.contains('\n'), "{to}: {said}");
    }
}

#[test]
fn plans_that_are_none_or_too_large_are_refused() {
    let refused = |bytes: &[u8]| {
        let study = Study::new("");
        std::fs::write(study.at("plan.toml"), bytes).unwrap();
        let said = Plan::read(&study.at("plan.toml"), &find).unwrap_err().to_string();
        assert!(said.contains("plan.toml") && !said.contains('\n'), "{said}");
        said
    };
    refused(b"");
    assert!(refused(b"title = \"x\"\nmodels = []\nmethods = []\ntasks = []\n")
        .contains("models: expected at least one"));
    assert!(refused(b"\xff\xfe").contains("expected UTF-8"));
    assert!(refused(&vec![b'#'; (1 << 20) + 1]).contains("more than 1048576 bytes"));
    let many = |n: u64| format!("{:?}", (2..2 + n).collect::<Vec<_>>());
    let list = |n: u64| PLAN.replace("[4096, 8192, 12288]", &many(n));
    assert!(refused(list(1001).as_bytes()).contains("lengths: expected at most 1000, found 1001"));
    let large = list(1000).replace("seeds = [1, 2]", &format!("seeds = {}", many(200)));
    // 7 methods x (1000 x (1 + 200 + 4) + 2).
    assert!(refused(large.as_bytes()).contains("expected at most 100000 cells in all, found 1435014"));
    let nowhere = Plan::read(std::path::Path::new("no/such/plan.toml"), &find).unwrap_err().to_string();
    assert!(nowhere.starts_with("no/such/plan.toml: "), "{nowhere}");
}

/// Knows that a rate can be written in two ways, and that one option is none.
struct Rates;

impl Names for Rates {
    fn tasks(&self, name: &str) -> Result<Vec<Known>, String> {
        find(name)
    }

    fn training(&self, args: &[String], spec: Option<&str>) -> Result<String, String> {
        let words = args.join(" ").replace('=', " ");
        match words.strip_prefix("--lr ").map(str::parse::<f64>) {
            Some(Ok(lr)) => Ok(format!("{lr} under {spec:?}")),
            _ => Err(format!("expected --lr X, found {words}")),
        }
    }
}

#[test]
fn a_recipe_is_what_it_comes_to_and_not_its_words() {
    let with = |words: &str| Study::new(&PLAN.replace("\"--steps\", \"100\"", words));
    let read = |study: &Study| Plan::read(&study.at("plan.toml"), &Rates);
    let hashes = |words: &str| -> Vec<String> {
        read(&with(words)).unwrap().cells().map(|c| c.hash("m", &[])).collect()
    };
    let one = hashes("\"--lr\", \"1e-4\"");
    assert_eq!(one, hashes("\"--lr=0.0001\""));
    assert_ne!(one, hashes("\"--lr=0.0002\""));
    // Both are one study; its folder may be gone on with.
    let (a, b) = (with("\"--lr\", \"1e-4\""), with("\"--lr=0.0001\""));
    let folder = a.at("s");
    drop(Folder::open(&folder, &read(&a).unwrap(), &Rates).unwrap());
    drop(Folder::open(&folder, &read(&b).unwrap(), &Rates).unwrap());
    let other = read(&with("\"--lr=0.0002\"")).unwrap();
    assert!(Folder::open(&folder, &other, &Rates).unwrap_err().to_string().contains("another methods"));
    // An unknown recipe option is an error when the plan is read, with its line.
    let said = read(&with("\"--log\", \"thesis.tex\"")).unwrap_err().to_string();
    assert!(said.contains("line 28: args: expected --lr X, found --log thesis.tex"), "{said}");
}

#[test]
fn a_stride_alone_is_the_protocol_of_strides() {
    let protocol = |with: &str| {
        let plan = Study::new(&PLAN.replace("protocol = \"yarn\"", with)).plan();
        plan.tasks.iter().find(|task| task.name == "perplexity").unwrap().protocol.clone()
    };
    assert_eq!(protocol("stride = 8").as_deref(), Some("stride"));
    assert_eq!(protocol("protocol = \"yarn\"\nstride = 8").as_deref(), Some("yarn"));
    assert_eq!(protocol(""), None);
}

/// The copy in the study's folder has such a path as it is, the plan of that folder's parent one below it.
#[test]
fn a_plan_with_absolute_paths_is_gone_on_with() {
    let study = Study::new(PLAN);
    let path = study.at("small.gguf").display().to_string();
    std::fs::write(study.at("plan.toml"), PLAN.replace("\"small.gguf\"", &format!("{path:?}"))).unwrap();
    drop(study.open("s").unwrap());
    drop(study.open("s").unwrap());
    std::fs::write(study.at("plan.toml"), PLAN.replace("small.gguf", "other.gguf")).unwrap();
    assert!(study.open("s").unwrap_err().to_string().contains("another paths"));
}

#[test]
fn the_example_is_a_plan() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/study-small.toml");
    let plan = Plan::read(&path, &find).unwrap();
    let names: Vec<&str> = plan.tasks.iter().map(|t| t.name.as_str()).collect();
    let needles = ["niah_single_2", "niah_multikey_1", "niah_multivalue", "niah_multiquery"];
    for task in needles.into_iter().chain(["perplexity", "longppl", "passkey", "vt", "cwe", "piqa"]) {
        assert!(names.contains(&task), "{task}");
    }
    // The example has no method that needs factors or a network, and was made before STRING and ReRoPE.
    let others = ["longrope", "string", "rerope", "clex"];
    for method in ropewalk_core::rope::METHODS.iter().filter(|m| !others.contains(&m.name)) {
        let spec = |s: &Option<String>| {
            s.as_ref().is_some_and(|s| s.split(':').next().is_some_and(|name| name == method.name))
        };
        assert!(plan.methods.iter().any(|m| spec(&m.spec)), "{}", method.name);
    }
    assert_eq!(plan.len(), 12 * (8 * 3 + 1 + 1));
}
