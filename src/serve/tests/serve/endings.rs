//! Clients that go, clients that do not read, and the end of the server.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ropewalk_serve::Options;
use serde_json::{json, Value};

use crate::client::{Client, Site, JSON, LONG};

const PATH: &str = "/v1/completions";

/// Asks while no job may make a token, and waits until it runs.
fn held(site: &Site, body: &Value, n: usize) -> Client {
    site.fake.set(|state| state.allowed = Some(0));
    let mut client = site.client();
    client.send("POST", PATH, &[JSON], body.to_string().as_bytes());
    site.fake.wait(|state| state.running == n);
    client
}

#[test]
fn a_client_that_goes_cancels_its_answers() {
    let site = Site::new();
    for (n, stream) in [(1, false), (1, true), (3, false), (3, true)] {
        let client = held(&site, &json!({ "prompt": "abc", "stream": stream, "n": n }), n);
        let before = site.fake.state().cancelled;
        drop(client);
        site.fake.wait(|state| state.cancelled == before + n && state.running == 0);
    }
    assert!(site.get("/metrics").text().contains("ropewalk_cancelled_total 8\n"));
}

#[test]
fn a_client_that_goes_with_more_to_ask_cancels_its_answer_too() {
    let site = Site::new();
    let mut client = held(&site, &json!({ "prompt": "abc" }), 1);
    client.write(b"GET /health HTTP/1.1\r\n");
    drop(client);
    site.fake.wait(|state| state.cancelled == 1 && state.running == 0);
}

#[test]
fn a_client_that_goes_amid_a_stream_cancels_it() {
    let site = Site::new();
    let mut client = held(&site, &json!({ "prompt": "abc", "stream": true }), 1);
    site.fake.set(|state| state.allowed = Some(2));
    client.head().unwrap();
    assert!(client.data().unwrap().contains("\"c\""));
    drop(client);
    site.fake.wait(|state| state.cancelled == 1 && state.running == 0);
}

#[test]
fn an_answer_that_is_complete_is_not_cancelled() {
    let site = Site::new();
    site.expect(200, PATH, &json!({ "prompt": "abc", "n": 4 }));
    site.fake.wait(|state| state.running == 0);
    assert_eq!(site.fake.state().cancelled, 0);
}

#[test]
fn when_one_answer_fails_the_others_of_its_request_are_cancelled() {
    let site = Site::new();
    let mut client = held(&site, &json!({ "prompt": "abc", "n": 3 }), 3);
    site.fake.set(|state| {
        state.fails = Some(0);
        state.allowed = Some(1);
    });
    assert_eq!(client.answer().unwrap().status, 500);
    site.fake.wait(|state| state.cancelled == 2 && state.running == 0);
}

#[test]
fn no_request_copies_its_prompt_without_end() {
    let site = Site::new();
    site.fake.set(|state| state.allowed = Some(0));
    let body = json!({ "prompt": vec![1; 1 << 20], "n": 17 });
    assert_eq!(site.expect(400, PATH, &body)["error"]["param"], "n");
    // Those that were begun before it was too much.
    site.fake.wait(|state| state.cancelled == 16 && state.running == 0);
}

#[test]
fn a_client_that_never_reads_is_given_up() {
    let site = Site::with(Options::default().write_timeout(Duration::from_millis(200)), Duration::ZERO);
    // Six bytes for each character in JSON: more than sockets hold.
    let prompt = vec![1; 1 << 20];
    let body = json!({ "prompt": prompt, "n": 8, "echo": true, "stream": true });
    site.fake.set(|state| state.allowed = Some(0));
    let mut client = site.client();
    client.send("POST", PATH, &[JSON], body.to_string().as_bytes());
    site.fake.wait(|state| state.cancelled == 8 && state.running == 0);
}

#[test]
fn a_stream_may_end_within_the_grace() {
    let mut site = Site::with(Options::default(), LONG);
    let mut client = held(&site, &json!({ "prompt": "abc", "stream": true }), 1);
    client.head().unwrap();
    site.stop();
    // Nobody else is answered.
    let start = Instant::now();
    while TcpStream::connect(site.address).and_then(|mut s| s.write_all(b"x")).is_ok() {
        assert!(start.elapsed() < LONG, "the server still listens after five minutes");
        std::thread::sleep(Duration::from_millis(10));
    }
    site.fake.set(|state| state.allowed = None);
    let mut data = Vec::new();
    while let Some(next) = client.data() {
        data.push(next);
    }
    assert_eq!(data.last().unwrap(), "[DONE]");
    site.join();
    assert_eq!(site.fake.state().cancelled, 0);
}

#[test]
fn a_stream_beyond_the_grace_ends_with_an_error() {
    let mut site = Site::new();
    let mut client = held(&site, &json!({ "prompt": "abc", "stream": true }), 1);
    let mut whole = held(&site, &json!({ "prompt": "abc" }), 2);
    client.head().unwrap();
    site.join();
    let mut data = Vec::new();
    while let Some(next) = client.data() {
        data.push(next);
    }
    let error: Value = serde_json::from_str(data.last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "stopping");
    assert_eq!(whole.answer().unwrap().status, 503);
    site.fake.wait(|state| state.cancelled == 2 && state.running == 0);
}

#[test]
fn a_server_without_work_ends_at_once_also_with_open_connections() {
    let mut site = Site::with(Options::default(), Duration::from_secs(600));
    let mut client = site.client();
    assert_eq!(client.ask("GET", "/health", &[], b"").status, 200);
    site.join();
    assert!(client.answer().is_none());
}

#[test]
fn connections_beyond_the_limit_wait() {
    let site = Site::with(Options::default().max_connections(2), Duration::ZERO);
    let first = held(&site, &json!({ "prompt": "abc" }), 1);
    let second = held(&site, &json!({ "prompt": "abc" }), 2);
    let mut third = site.client();
    third.send("GET", "/health", &[], b"");
    // A place is free once a client has gone.
    drop(first);
    assert_eq!(third.answer().unwrap().status, 200);
    drop(second);
}

/// The system asks whether a silent client is still there: the table of connections shows the timer for it.
#[test]
#[cfg(target_os = "linux")]
fn clients_that_vanish_are_noticed() {
    let site = Site::new();
    let mut client = site.client();
    assert_eq!(client.ask("GET", "/health", &[], b"").status, 200);
    let ends = [site.address.port(), client.port()].map(|port| format!(":{port:04X}"));
    let begun = Instant::now();
    loop {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let own =
            |line: &&str| line.split_whitespace().skip(1).zip(&ends).all(|(end, own)| end.ends_with(own));
        let line = table.lines().find(own).expect("the server's end of the connection");
        // Before it, the timer of what was sent and not yet confirmed.
        if line.split_whitespace().nth(5).unwrap().starts_with("02:") {
            break;
        }
        assert!(begun.elapsed() < LONG, "{line}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
