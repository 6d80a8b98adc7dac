//! The reach axis: pairs worked out by hand from each method's definition, defaults, refusals, and methods of
//! both axes together.

use std::f64::consts::TAU;

use ropewalk::hparams::{Hparams, LayerAttention};
use ropewalk::rope::{Axis, PairKind, Value, METHODS};

use super::{llama2, model, plan, refusal, smol, theta, view};

/// The distance the model is to be shown, `query,key=distance`; nothing after the sign where the key is not seen.
#[track_caller]
fn shows(spec: &str, n_ctx: usize, pairs: &str) {
    let plan = plan(spec, &smol(), n_ctx).unwrap_or_else(|e| panic!("{spec}: {e}"));
    for pair in pairs.split(' ') {
        let [i, j, want] = pair.split([',', '=']).collect::<Vec<_>>()[..] else { panic!("{pair}") };
        let found = plan.layer(0).distance(i.parse().unwrap(), j.parse().unwrap());
        assert_eq!(found.map(|d| d.to_string()).unwrap_or_default(), want, "{spec}: query {i}, key {j}");
    }
}

#[test]
fn self_extend_groups_far_positions() {
    // Below 4 as it is; beyond, floor(i/2) + 4 - 2 - floor(j/2).
    let small = "3,0=3 4,1=3 4,0=4 5,0=4 6,1=5 9,5=4 9,4=4 20,0=12 5,6=";
    shows("self-extend:window=4,group=2", 32, small);
    // (8 - 4) x 2 + 4 = 12 tokens show distances to 7, and the thirteenth one 8.
    shows("self-extend:window=4,group=2,original=8", 12, "11,0=7 12,0=8");
    // 128 + 896; 625 + 896 - 12; 2047 + 896.
    let smol = "1023,0=1023 1024,0=1024 5000,100=1509 16383,0=2943";
    shows("self-extend:window=1024,group=8", 16384, smol);
    let scaled = plan("self-extend:log-scale=true", &self::smol(), 16384).expect("a plan");
    assert_eq!((scaled.layer(0).q_scale(0), scaled.layer(0).q_scale(8191)), (1.0, 1.0));
    assert!((scaled.layer(0).q_scale(16383) - 14.0 / 13.0).abs() < 1e-12, "ln 2^14 / ln 2^13");
}

#[test]
fn lm_infinite_has_a_window_and_a_fixed_distance() {
    let pairs = "5,0=5 6,0=6 6,1=5 7,1=6 900,0=6 900,1=6 900,2= 9,3= 9,4=5";
    shows("lm-infinite:window=6,global=2", 1000, pairs);
    shows("lm-infinite:window=6,global=0", 1000, "5,0=5 6,0= 6,1=5");
    let held = |spec| plan(spec, &smol(), 16384).expect("a plan").n_held();
    assert_eq!(held("lm-infinite:window=6,global=2"), None);
    assert_eq!(held("lm-infinite:window=6,global=2,evict=true"), Some(8));
}

#[test]
fn dca_has_chunks_neighbours_and_one_far_query() {
    // Chunks of c = 8 - 2 = 6: keys at j mod 6; queries at i mod 6, min(i mod 6 + 6, 8), and min(11, 8).
    let pairs = "5,0=5 6,5=1 6,0=6 8,0=8 11,0=8 11,5=3 11,6=5 12,11=1 12,0=8 12,5=3 100,3=5";
    shows("dca:chunk=8,local=2", 128, pairs);
    // c = 5, so that 2c - 1 = 9 is below the chunk of 20.
    shows("dca:chunk=20,local=15", 128, "9,0=9 10,0=9 14,4=5");
}

#[test]
fn streaming_counts_positions_inside_its_cache() {
    let pairs = "0,0=0 4,0=4 4,1=3 4,2=2 5,0=4 5,1=3 5,2= 5,3=2 100,1=3 100,97= 100,98=2";
    shows("streaming:sinks=2,window=3", 128, pairs);
    let plan = plan("streaming:sinks=2,window=3", &smol(), 128).expect("a plan");
    assert_eq!((plan.evict, plan.n_held()), (true, Some(5)));
    assert!(plan.needs(1, 100) && plan.needs(98, 100) && !plan.needs(97, 100) && !plan.needs(2, 100));
}

/// Settings of the official code on Llama 3.1: 0.33 of 131072, and 128.
#[test]
fn string_moves_large_distances_down() {
    let llama31 = "43252,0=43252 43253,0=128 43254,1=128 131071,0=87946 131071,87819=43252 131071,87818=128";
    shows("string:shifted-offset=43253,local-value=128,original=131072", 131_072, llama31);
}

/// `rerope_patch.py` and `leaky_rerope_patch.py`: window 512, scaling factor 16.
#[test]
fn rerope_stops_or_slows_at_its_window() {
    let pairs = "511,0=511 512,0=512 9999,0=512 9999,9500=499";
    shows("rerope:window=512", 16384, pairs);
    let leaky = plan("rerope:window=512,leak=16", &smol(), 16384).expect("a plan");
    for (i, j, want) in [(511, 0, 511.0), (512, 0, 512.0), (513, 0, 512.0625), (16383, 0, 1503.9375)] {
        assert_eq!(leaky.layer(0).distance(i, j), Some(want), "query {i}, key {j}");
    }
    // What the code does: frequencies over 16, the query 512 x 15 positions further.
    let far = leaky.layer(0).branches[1];
    assert_eq!((far.q_pos.at(512), far.k_pos.at(512), far.q_pos.unit), (8192, 512, 16));
    let notes = plan("rerope:window=5000,leak=2", &smol(), 16384).expect("a plan").notes.join("\n");
    assert!(notes.contains("up to 10692; the largest trained distance is 8191"), "{notes}");
}

#[test]
fn defaults_follow_from_window_and_context() {
    for (spec, l, n, want) in [
        // (16384 - 1024) / (4096 - 1024) = 5, and 8 is the next divisor.
        ("self-extend", 8192, 16384, "window=1024,group=8,log-scale=false,original=8192"),
        ("self-extend", 8192, 8192, "window=1024,group=1,log-scale=false,original=8192"),
        // 15872 / 1536 = 10.3; 32256 / 1536 = 21.
        ("self-extend", 4096, 16384, "window=512,group=16,log-scale=false,original=4096"),
        ("self-extend", 4096, 32768, "window=512,group=32,log-scale=false,original=4096"),
        ("self-extend:window=96", 1000, 4000, "window=96,group=12,log-scale=false,original=1000"),
        ("lm-infinite", 8192, 16384, "window=8192,global=10,evict=false,original=8192"),
        ("dca", 8192, 16384, "chunk=6144,local=1024,mscale=1,original=8192"),
        ("dca", 4096, 16384, "chunk=3072,local=512,mscale=1,original=4096"),
        ("streaming", 8192, 16384, "sinks=4,window=8188,original=8192"),
        ("streaming:sinks=1", 4096, 100, "sinks=1,window=4095,original=4096"),
        ("string", 8192, 8192, "shifted-offset=2730,local-value=128,mscale=1,original=8192"),
        ("string", 131_072, 16384, "shifted-offset=43690,local-value=128,mscale=1,original=131072"),
        ("string", 30, 30, "shifted-offset=10,local-value=9,mscale=1,original=30"),
        ("rerope", 4096, 16384, "window=512,original=4096"),
        ("rerope:leak=16", 4096, 16384, "window=512,leak=16,original=4096"),
    ] {
        let name = spec.split(':').next().unwrap_or_default();
        let found = plan(spec, &model(1e5, 64, l), n).expect(spec).spec.to_string();
        assert_eq!(found, format!("{name}:{want}"), "{spec}, trained for {l}, at {n}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    for (spec, words) in [
        ("self-extend:window=1024,group=30", &["divisor of window 1024", "found 30", "nearest is 32"][..]),
        // 8 from 16 and from 32: the smaller one.
        ("self-extend:window=1024,group=24", &["nearest is 16"]),
        ("self-extend:window=4,group=9", &["nearest is 4"]),
        // A large prime: the divisors must not be looked for one by one.
        ("self-extend:window=1073741789,group=2", &["nearest is 1"]),
        ("self-extend:log-scale=true,original=1", &["log-scale", "original"]),
        ("self-extend:evict=true", &["unknown parameter `evict`", "window, group, log-scale"]),
        ("self-extend:window=0", &["window", "whole number from 1"]),
        ("dca:chunk=100,local=100", &["local", "below chunk 100", "found 100"]),
        ("dca:evict=true", &["unknown parameter `evict`"]),
        ("lm-infinite:window=0", &["window"]),
        ("lm-infinite:original=2000000000", &["window", "its default: original"]),
        ("streaming:evict=true", &["unknown parameter `evict`"]),
        ("self-extend+dca", &["self-extend and dca are both attention methods"]),
    ] {
        let e = refusal(spec, &smol(), 16384);
        assert!(words.iter().all(|w| e.contains(w)) && e.lines().count() == 1, "{spec}: {e}");
    }
    // Not given, it is a part of the chunk, or nothing would be left of it.
    for (spec, local) in [("dca:chunk=60", 10), ("dca:chunk=2", 1), ("dca", 1024), ("dca:chunk=8000", 1024)] {
        let found = plan(spec, &smol(), 16384).expect("a plan");
        assert_eq!(found.spec.parts()[0].get("local"), Some(&Value::Count(local)), "{spec}");
    }
    // As many far tokens share a position as must, whatever the window.
    for (window, group) in [(1024, 8), (4096, 4), (6144, 6)] {
        let found = plan(&format!("self-extend:window={window}"), &smol(), 16384).expect("a plan");
        assert_eq!(found.spec.parts()[0].get("group"), Some(&Value::Count(group)), "{window}");
    }
    let prime = plan("self-extend:window=1021", &smol(), 16384).expect("a plan");
    assert!(prime.notes.iter().any(|note| note.contains("a window with more divisors")), "{:?}", prime.notes);
    // A window of more than the trained length is acted on, but no method of the reach axis can be combined
    // with it.
    let sliding = |window| {
        let attention = vec![LayerAttention { window: Some(window), ..smol().attention.remove(0) }];
        Hparams { attention, ..smol() }
    };
    for m in METHODS {
        let found = plan(m.name, &sliding(10_000), 16384);
        match m.axis {
            Axis::Reach => {
                let e = found.expect_err(m.name).to_string();
                assert!(e.contains("attention.sliding_window 10000") && e.contains(m.name), "{e}");
            }
            // longrope has nothing to take its factors from here.
            Axis::Frequency => assert!(found.is_ok() || m.name == "longrope", "{found:?}"),
        }
        // Within a window of no more than the trained length nothing is ever too far away.
        let found = plan(m.name, &sliding(8192), 16384);
        if m.name == "plain" {
            assert!(found.is_ok(), "{found:?}");
        } else {
            let e = found.expect_err(m.name).to_string();
            assert!(e.contains("attention.sliding_window 8192") && e.contains("change nothing"), "{e}");
        }
    }
    let plan = plan("self-extend:group=1", &sliding(10_000), 16384).expect("nothing is changed there");
    assert_eq!((plan.layer(0).distance(9999, 0), plan.layer(0).distance(10_000, 0)), (Some(9999.0), None));
}

#[test]
fn notes_say_how_far_it_goes() {
    let notes = |spec: &str, n| plan(spec, &smol(), n).expect(spec).notes.join("\n");
    assert!(notes("self-extend:window=1024,group=8", 16384).contains("up to 58368 tokens"));
    let beyond = notes("self-extend:window=1024,group=2", 32768);
    assert!(beyond.contains("up to 15360 tokens") && beyond.contains("a larger group"), "{beyond}");
    let never = notes("self-extend:window=2,group=2", 32768);
    assert!(never.contains("up to 16382 tokens") && never.contains("no group"), "{never}");
    // A window beyond the trained one shows distances that no group can bring back.
    let wide = notes("self-extend:window=16384,group=2", 16384);
    assert!(wide.contains("16384") && wide.contains("8192") && !wide.contains("up to"), "{wide}");
    assert!(notes("lm-infinite:window=9000", 16384).contains("longer than the original context of 8192"));
    assert!(notes("dca:chunk=8192", 16384).contains("beyond the original context"));
    assert!(notes("streaming:window=8192", 16384).contains("8196 tokens are more"));
}

#[test]
fn one_method_of_each_axis() {
    let hp = smol();
    let both = plan("sba:factor=4+self-extend:window=1024,group=8", &hp, 32768).expect("a plan");
    let alone = plan("self-extend:window=1024,group=8", &hp, 32768).expect("a plan");
    assert_eq!(both.layer(0).freqs.theta, theta("sba:factor=4", &hp, 32768));
    assert_eq!(both.layer(0).branches, alone.layer(0).branches);
    assert_eq!(alone.layer(0).freqs.theta, theta("plain", &hp, 8192));
    assert_eq!(
        both.spec.to_string(),
        "sba:factor=4,original=8192+self-extend:window=1024,group=8,log-scale=false,original=8192"
    );
    // Defaults know nothing of the other axis: each stretches to the whole context.
    let full = plan("yarn+self-extend", &hp, 16384).expect("a plan").spec.to_string();
    assert!(
        full.starts_with("yarn:factor=2,") && full.contains("+self-extend:window=1024,group=8,"),
        "{full}"
    );
    // The order written changes nothing, though both axes have a magnitude here.
    for (a, b) in [
        ("yarn:factor=2", "dca:mscale=1.05"),
        ("pi:factor=2", "streaming"),
        ("harpe:bases=uniform", "lm-infinite"),
    ] {
        let (x, y) = (plan(&format!("{a}+{b}"), &hp, 16384), plan(&format!("{b}+{a}"), &hp, 16384));
        let (x, y) = (x.expect(a), y.expect(a));
        assert_eq!(x.kinds(), y.kinds());
    }
    let magnitude = plan("dca:mscale=1.05+yarn:factor=2", &hp, 16384).expect("a plan").layer(0).mscale;
    assert!((magnitude - 1.05 * (0.1 * 2f64.ln() + 1.0)).abs() < 1e-12, "{magnitude}");
    // Llama-2's 32 key-value heads keep their own bases under a reach method.
    let heads = plan("harpe:bases=table2+dca", &llama2(), 32768).expect("a plan");
    assert_eq!((heads.layer(0).freqs.n_tables, heads.layer(0).branches.len()), (32, 3));
}

/// Branches as (pairs, shown, largest), then largest distance, most keys and the cache's bound.
#[track_caller]
fn inspected(
    spec: &str,
    n_ctx: usize,
    branches: &[(&str, &str, Option<i32>)],
    totals: (i32, usize, Option<usize>),
) {
    let mut inspection = view(spec, &smol(), n_ctx);
    let reach = inspection.kinds.remove(0).reach;
    let found: Vec<_> =
        reach.branches.iter().map(|b| (b.pairs.as_str(), b.shown.as_str(), b.largest)).collect();
    assert_eq!(found, branches, "{spec}");
    assert_eq!(
        (reach.largest_distance, reach.most_keys, inspection.n_held),
        (Some(totals.0), Some(totals.1), totals.2)
    );
}

#[test]
fn inspection_says_what_a_query_sees() {
    inspected("yarn:factor=2", 16384, &[("all keys", "as it is", Some(16383))], (16383, 16384, None));
    inspected(
        "plain",
        i32::MAX as usize,
        &[("all keys", "as it is", Some(i32::MAX - 1))],
        (i32::MAX - 1, i32::MAX as usize, None),
    );
    let self_extend = [
        ("distance 0..1023", "as it is", Some(1023)),
        ("distance 1024..", "floor(i/8) + 896 - floor(j/8)", Some(2943)),
    ];
    inspected("self-extend", 16384, &self_extend, (2943, 16384, None));
    let lm_infinite =
        |largest| [("distance 0..5", "as it is", Some(5)), ("keys 0..1, distance 6..", "always 6", largest)];
    inspected("lm-infinite:window=6,global=2", 100, &lm_infinite(Some(6)), (6, 8, None));
    inspected("lm-infinite:window=6,global=2,evict=true", 6, &lm_infinite(None), (5, 6, Some(8)));
    let dca = [
        ("keys of the query's own chunk of 6", "as it is", Some(5)),
        ("keys of the chunk of 6 before", "min((i mod 6) + 6, 8) - (j mod 6)", Some(8)),
        ("keys 2 or more chunks of 6 back", "8 - (j mod 6)", Some(8)),
    ];
    inspected("dca:chunk=8,local=2", 40, &dca, (8, 40, None));
    let streaming = [("keys 1.., distance 0..2", "as it is", Some(2)), ("keys 0", "min(i, 3) - j", Some(3))];
    inspected("streaming:sinks=1,window=3", 50, &streaming, (3, 4, Some(4)));
    let string = [("distance 0..5", "as it is", Some(5)), ("distance 6..", "i - j - 4", Some(15))];
    inspected("string:shifted-offset=6,local-value=2", 20, &string, (15, 20, None));
    let rerope = [("distance 0..5", "as it is", Some(5)), ("distance 6..", "always 6", Some(6))];
    inspected("rerope:window=6", 20, &rerope, (6, 20, None));
    // 6 + (19 - 6)/4 is 9.25, and the next whole distance 10.
    let leaky = [("distance 0..5", "as it is", Some(5)), ("distance 6..", "(i + 18)/4 - j/4", Some(10))];
    inspected("rerope:window=6,leak=4", 20, &leaky, (10, 20, None));
    // Counting queries has an end; the rest is still told.
    let long = view("dca", &smol(), i32::MAX as usize).kinds.remove(0).reach;
    assert_eq!((long.largest_distance, long.most_keys, long.branches.len()), (None, None, 3));
}

#[test]
fn pairs_are_judged_by_the_distances_shown() {
    for (spec, unseen) in [
        ("plain", true),
        ("self-extend", false),
        ("lm-infinite", false),
        ("dca", false),
        ("streaming", false),
        ("string:shifted-offset=8192,local-value=0", false),
        ("string:shifted-offset=9000", true),
        ("rerope", false),
        ("rerope:window=5000,leak=4", false),
        ("rerope:window=8000,leak=4", true),
    ] {
        let pairs = view(spec, &smol(), 16384).kinds.remove(0).tables.remove(0).pairs;
        assert_eq!(pairs.iter().any(|p| p.unseen), unseen, "{spec}");
        assert_eq!(pairs.iter().all(|p| p.kind == PairKind::Unchanged), !unseen, "{spec}");
    }
    let dca = view("dca", &smol(), 16384);
    assert!((dca.kinds[0].tables[0].pairs[0].turns_target - 6145.0 / TAU).abs() < 1e-9);
}

#[test]
fn the_largest_distance_is_found_without_looking_at_every_key() {
    let hp = smol();
    for spec in [
        "self-extend:window=12,group=3",
        "lm-infinite:window=9,global=3",
        "dca:chunk=17,local=4",
        "streaming:sinks=3,window=7",
        "string:shifted-offset=9,local-value=2",
        "rerope:window=9",
        "rerope:window=9,leak=4",
    ] {
        let plan = plan(spec, &hp, 100).expect(spec);
        for b in &plan.layer(0).branches {
            for i in 0..100 {
                for from in (0..100).step_by(3) {
                    for end in [from, from + 1, from + 5, from + 40] {
                        let slow =
                            (from..end).filter_map(|j| b.distance(i, j)).map(|d| d.ceil() as i32).max();
                        assert_eq!(b.largest(i, from..end), slow, "{spec}: query {i}, keys {from}..{end}");
                    }
                }
            }
        }
    }
}
