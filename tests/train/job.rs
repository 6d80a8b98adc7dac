//! A whole training job through the library: what it writes and reports, how it stops and resumes, what it refuses.

use std::sync::Mutex;

use ropewalk::control::{Control, Progress, Stop};
use ropewalk::finetune::{self, Job, JobError};
use ropewalk::model::Error;

use crate::run::World;

const STEPS: u64 = 4;

fn job(world: &World, output: &str) -> Job {
    let mut job = Job::new(vec![world.path("texts").into()], world.path(output));
    job.rope = Some("pi:factor=2".parse().unwrap());
    job.n_ctx = Some(32);
    job.n_block = 20;
    job.n_threads = 1;
    job.given.read("--set", &format!("steps={STEPS},batch=2,held-out=2,save-every=1")).unwrap();
    job
}

#[test]
fn a_job_stops_resumes_and_reports_what_it_wrote() {
    let world = World::new("job");
    let notes = Mutex::new(Vec::new());
    let note = |text: std::fmt::Arguments<'_>| notes.lock().unwrap().push(text.to_string());
    let whole = job(&world, "whole.gguf");
    let report = finetune::run(&whole, &world.model, &Control::default().with_notes(&note)).unwrap();
    assert_eq!((report.run.steps, report.ctx), (STEPS, 32));
    assert!(report.rope.starts_with("pi:factor=2"), "{report:?}");
    assert_eq!(report.n_bytes, std::fs::metadata(&whole.output).unwrap().len());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((json["steps"].as_u64(), json["adapter"].as_str()), (Some(STEPS), whole.output.to_str()));
    assert!(json.get("recipe").is_none() && json.get("chart").is_none(), "{json}");
    assert!(notes.lock().unwrap().iter().any(|n| n.contains("held-out sequences")), "{notes:?}");
    assert!(whole.log().is_file() && whole.plot().is_file() && whole.checkpoints().is_dir());

    let stop = Stop::default();
    let show = |p: &Progress<'_>| {
        if (p.done, p.total) == (2, STEPS) {
            stop.request();
        }
    };
    let mut stopped = job(&world, "a.gguf");
    let control = Control::default().with_stop(&stop).with_progress(&show);
    let e = finetune::run(&stopped, &world.model, &control).unwrap_err();
    assert!(matches!(e, JobError::Failed(Error::Interrupted)), "{e:?}");
    assert!(!stopped.output.exists());
    let e = finetune::run(&stopped, &world.model, &Control::default()).unwrap_err();
    assert!(matches!(&e, JobError::Run(text) if text.contains("an earlier run")), "{e:?}");
    stopped.resume = true;
    let report = finetune::run(&stopped, &world.model, &Control::default()).unwrap();
    assert_eq!(report.run.steps, STEPS);
    let [whole, resumed] = [&whole, &stopped].map(|job| std::fs::read(&job.output).unwrap());
    assert!(whole == resumed, "a run that was stopped and resumed wrote another adapter");
}

#[test]
fn settings_that_cannot_be_used_are_told_from_failures() {
    let world = World::new("job-refused");
    let refused = |change: &dyn Fn(&mut Job), says: &str| {
        let mut job = job(&world, "a.gguf");
        change(&mut job);
        let e = finetune::run(&job, &world.model, &Control::default()).unwrap_err();
        assert!(matches!(&e, JobError::Settings(text) if text.contains(says)), "{says}: {e:?}");
    };
    refused(&|job| job.targets = Some(vec!["full".into(), "q".into()]), "expected it alone");
    refused(&|job| job.output = job.output.with_file_name("none").join("a.gguf"), "no such folder");
    refused(&|job| job.plot = Some(job.output.clone()), "`plot`");
    refused(&|job| job.plot = Some(job.output.with_extension("txt")), "ending in .svg");
    refused(&|job| job.given.lr_min = Some(1e-6), "lr-min");
    refused(&|job| (job.chat, job.given.text_field) = (true, Some("body".into())), "text-field");
    refused(&|job| job.answers_only = true, "answers-only");
    refused(
        &|job| (job.given.doc_mask, job.given.eod_mask_loss) = (Some(true), Some(false)),
        "eod-mask-loss",
    );
    refused(
        &|job| (job.targets, job.given.dropout) = (Some(vec!["q".into(), "output".into()]), Some(0.1)),
        "dropout",
    );
    let mut job = job(&world, "a.gguf");
    job.rank = Some(0);
    let e = finetune::run(&job, &world.model, &Control::default()).unwrap_err();
    assert!(matches!(&e, JobError::Failed(Error::Argument { name, .. }) if name == "rank"), "{e:?}");
}
