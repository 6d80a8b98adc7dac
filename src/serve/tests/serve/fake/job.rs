//! How the model answers a job.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use ropewalk_serve::{Done, Event, Job, Reason, Scored};
use tokio::sync::mpsc::UnboundedSender;

use super::{answer, bytes, expected, scored, State, EOS};

pub(super) fn run(
    job: &Job,
    room: usize,
    events: &UnboundedSender<Event>,
    shared: &(Mutex<State>, Condvar),
    over: &AtomicBool,
) {
    let reason = make(job, room, events, shared, over);
    if let Ok((reason, n_made)) = reason {
        // Over before the last event, so that dropping the ticket after it counts for nothing. If nobody received an event, the
        // ticket is about to be dropped, and that counts.
        over.store(true, Ordering::SeqCst);
        let (n_prompt, time) = (job.prompt.len(), Duration::from_millis(2));
        let done = Done {
            reason,
            n_prompt,
            n_cached: 0,
            n_restored: 0,
            n_made,
            queue: time,
            prefill: time,
            decode: time,
            preempted: 0,
        };
        let _ = events.send(Event::Done(done));
    }
    shared.0.lock().unwrap().running -= 1;
    shared.1.notify_all();
}

/// Makes the answer; an error if the job has failed or was cancelled.
fn make(
    job: &Job,
    room: usize,
    events: &UnboundedSender<Event>,
    shared: &(Mutex<State>, Condvar),
    over: &AtomicBool,
) -> Result<(Reason, usize), ()> {
    let send = |event| events.send(event).map_err(drop);
    let total = job.prompt.len();
    send(Event::Started { n_cached: 0, differs_at: Some(3), because: Some("differs") })?;
    for done in (1..=4).map(|quarter| total * quarter / 4) {
        send(Event::Progress { done, total })?;
    }
    if let Some(n_top) = job.echo {
        let score = |w: &[i32]| scored(w[0], w[1], expected(w[0]), n_top);
        // In parts, as a prompt is read.
        let scores: Vec<Scored> = job.prompt.windows(2).map(score).collect();
        for part in scores.chunks(3) {
            send(Event::Scores(part.to_vec()))?;
        }
    }
    let (mut before, mut pending) = (job.prompt[total - 1], String::new());
    let limit = job.max_tokens.unwrap_or(usize::MAX).min(room - total);
    let (script, pace) = {
        let state = shared.0.lock().unwrap();
        (state.script.clone(), state.pace.max(1))
    };
    let said: Option<Vec<i32>> = script.map(|text| text.bytes().map(i32::from).chain([EOS]).collect());
    let (scripted, mut bytes_held) = (said.is_some(), Vec::new());
    let mut rule = said.unwrap_or_else(|| answer(&job.prompt)).into_iter();
    for n_made in 0.. {
        if n_made == limit {
            send(Event::Text(pending))?;
            return Ok((
                if Some(limit) == job.max_tokens { Reason::Length } else { Reason::Context },
                n_made,
            ));
        }
        let free = |s: &mut State| s.allowed == Some(0) && !over.load(Ordering::SeqCst);
        let mut state = shared.1.wait_while(shared.0.lock().unwrap(), free).unwrap();
        if over.load(Ordering::SeqCst) {
            return Err(());
        }
        state.allowed = state.allowed.map(|n| n - 1);
        let fails = state.fails == Some(n_made);
        drop(state);
        if fails {
            over.store(true, Ordering::SeqCst);
            send(Event::Failed("the device is gone".into()))?;
            return Err(());
        }
        let token = rule.next().unwrap_or(i32::from(b'.'));
        if token == EOS && !job.ignore_eos {
            send(Event::Text(pending))?;
            return Ok((Reason::End, n_made));
        }
        if token < 256 || job.special {
            bytes_held.extend(bytes(token));
            // A script has whole characters.
            if !scripted || std::str::from_utf8(&bytes_held).is_ok() {
                pending += &String::from_utf8_lossy(&std::mem::take(&mut bytes_held));
            }
        }
        let found = job.stop.iter().filter_map(|stop| pending.find(stop.as_str())).min();
        let starts = |n: &usize| {
            job.stop.iter().any(|stop| stop.as_bytes().starts_with(&pending.as_bytes()[pending.len() - n..]))
        };
        let ready =
            found.unwrap_or_else(|| pending.len() - (0..=pending.len()).rev().find(starts).unwrap_or(0));
        let ready = if found.is_some() || (n_made + 1).is_multiple_of(pace) { ready } else { 0 };
        let score = job.n_top.map(|n_top| scored(before, token, token, n_top));
        let rest = pending.split_off(ready);
        send(Event::Token { token, text: std::mem::replace(&mut pending, rest), score })?;
        if found.is_some() {
            return Ok((Reason::Stop, n_made + 1));
        }
        before = token;
    }
    unreachable!("a limit comes first")
}
