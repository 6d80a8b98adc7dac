//! The draws are those that CPython and NumPy gave; `tests/reference/draws.py` recorded them.

use std::fmt::Debug;

use ropewalk_tasks::internals::draws::{Mt19937, Random, RandomState};
use serde::de::DeserializeOwned;
use serde_json::Value;

fn recorded() -> Value {
    serde_json::from_str(include_str!("../fixtures/random/draws.json")).expect("draws.json")
}

fn get<T: DeserializeOwned>(draws: &Value, name: &str) -> T {
    serde_json::from_value(draws[name].clone()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The number that `float.hex` wrote.
fn from_hex(text: &str) -> f64 {
    let (mantissa, exponent) = text.strip_prefix("0x").and_then(|t| t.split_once('p')).expect("float.hex");
    let (whole, digits) = mantissa.split_once('.').expect("float.hex");
    assert!(whole == "1" && digits.len() == 13, "{text}");
    let mantissa = (1u64 << 52) | u64::from_str_radix(digits, 16).expect("float.hex");
    mantissa as f64 * 2f64.powi(exponent.parse::<i32>().expect("float.hex") - 52)
}

fn same<T: Debug + PartialEq>(found: T, expected: T, what: &str, seed: u64) {
    assert_eq!(found, expected, "{what}, seed {seed}");
}

#[test]
fn python() {
    let recorded = recorded();
    for draws in recorded["python"].as_array().expect("python") {
        let seed: u64 = get(draws, "seed");
        let mut rng = Random::new(seed);
        for text in get::<Vec<String>>(draws, "random") {
            same(rng.random(), from_hex(&text), "random", seed);
        }
        for (bits, value) in get::<Vec<(u32, String)>>(draws, "getrandbits") {
            same(rng.getrandbits(bits).to_string(), value, "getrandbits", seed);
        }
        for (first, last, value) in get::<Vec<(usize, usize, usize)>>(draws, "randint") {
            same(rng.randint(first, last), value, "randint", seed);
        }
        let lower: Vec<char> = ('a'..='z').collect();
        for letter in get::<Vec<char>>(draws, "choice") {
            same(*rng.choice(&lower), letter, "choice", seed);
        }
        let upper: Vec<char> = ('A'..='Z').collect();
        for letters in get::<Vec<String>>(draws, "choices") {
            same(rng.choices(&upper, letters.len()).into_iter().collect(), letters, "choices", seed);
        }
        for (n, k, values) in get::<Vec<(usize, usize, Vec<usize>)>>(draws, "sample") {
            let population: Vec<usize> = (0..n).collect();
            same(rng.sample(&population, k), values, "sample", seed);
        }
        let mut shuffled: Vec<usize> = (0..100).collect();
        rng.shuffle(&mut shuffled);
        same(shuffled, get(draws, "shuffle"), "shuffle", seed);
        for text in get::<Vec<String>>(draws, "uuid4") {
            same(rng.uuid4(), text, "uuid4", seed);
        }
        let sum = (0..10_000).map(|_| rng.getrandbits(32)).sum::<u128>();
        same(sum as u64, get(draws, "sum_of_10000_words"), "10000 words", seed);
        same(rng.random(), from_hex(&get::<String>(draws, "last")), "last", seed);
    }
}

#[test]
fn numpy() {
    let recorded = recorded();
    for draws in recorded["numpy"].as_array().expect("numpy") {
        let seed: u32 = get(draws, "seed");
        let mut rng = RandomState::new(seed);
        for (low, high, value) in get::<Vec<(u32, u32, u32)>>(draws, "randint") {
            same(rng.randint(low, high), value, "randint", seed.into());
        }
    }
}

/// The first word of the reference code for its own seed, `init_by_array({0x123, 0x234, 0x345, 0x456})`.
#[test]
fn reference_output() {
    let mut rng = Mt19937::from_words(&[0x123, 0x234, 0x345, 0x456]);
    assert_eq!(rng.next_u32(), 1_067_595_299);
    assert_eq!(rng.next_u32(), 955_945_823);
}
