//! Settings of training by key, as they are typed.

use ropewalk::data::HeldOut;
use ropewalk::train::optim::AdamW;
use ropewalk::train::{Settings, KEYS};

fn read(text: &str) -> Result<Settings, String> {
    let mut out = Settings::default();
    out.read("--set", text).map(|()| out)
}

#[test]
fn values_are_read_as_they_are_shown() {
    let defaults = Settings::defaults();
    for key in KEYS {
        let mut again = Settings::default();
        let Some(text) = defaults.text(key.name) else {
            assert!(key.default.is_empty(), "{}", key.name);
            continue;
        };
        again.put("x", key.name, &text).unwrap();
        assert_eq!(again.text(key.name), Some(text));
    }
    let found = read("batch=8, lr = 1e-5,held-out=0.05,loss=longce:short=16,gamma=3").unwrap();
    let (batch, optim) = found.optimiser();
    assert_eq!((batch, optim.schedule.lr, optim.schedule.steps), (8, 1e-5, 100));
    assert_eq!((optim.adamw, optim.clip), (AdamW::default(), 1.0));
    assert_eq!(found.held_out, Some(HeldOut::Fraction(0.05)));
    assert_eq!(found.text("loss").as_deref(), Some("longce:short=16,gamma=3"));
    // A plain name leaves what is after it alone, and what is given wins.
    let found = read("upsample=fu,doc-mask=true").unwrap();
    assert_eq!(
        (found.text("upsample").unwrap(), found.doc_mask),
        ("fu:length=4096,keep=0.1".into(), Some(true))
    );
    let both = read("clip=3").unwrap().or(read("clip=2,ema=0.5").unwrap());
    assert_eq!((both.clip, both.ema, both.batch), (Some(3.0), Some(0.5), None));
}

#[test]
fn mistakes_are_named() {
    for (text, says) in [
        ("", "--set: expected key=value, found ``"),
        ("doc-mask", "--set: expected key=value, found `doc-mask`"),
        ("bach=2", "--set: unknown parameter `bach` (did you mean `batch`?); known: steps, batch, lr"),
        ("clip=1,clip=1", "--set: clip is given twice"),
        ("batch=0", "--set: batch: expected at least 1, found 0"),
        ("data-tokens=0", "--set: data-tokens: expected at least 1, found 0"),
        ("warmup=0.5", "--set: warmup: expected a whole number, found `0.5`"),
        ("doc-mask=yes", "--set: doc-mask: expected true or false, found `yes`"),
        (
            "schedule=step",
            "--set: schedule: expected constant or linear or cosine or cosine-part, found `step`",
        ),
        ("warmup-shape=x", "--set: warmup-shape: expected linear or log, found `x`"),
        ("packing=best", "--set: packing: expected pack, long, truncate, records or whole, found 'best'"),
        ("upsample=fu:keep=NaN", "--set: upsampling fu: keep: expected a number from 0 to 1, found NaN"),
        ("loss=longce:gamma=0", "--set: loss longce: gamma: expected a number from 1 to 1000000, found 0"),
        ("loss=longce:gamma=2,clip=1", "--set: loss longce: unknown parameter `clip`"),
        (
            "held-out=1.5",
            "--set: held-out: expected a share below 1 (0.05) or a number of sequences (4), found `1.5`",
        ),
        ("log=", "--set: log: expected a value, found none"),
    ] {
        let said = read(text).unwrap_err();
        assert!(said.starts_with(says), "{text}: {said}");
    }
}
