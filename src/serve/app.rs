//! The state that every handler shares, and the server's settings.

use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{post, MethodRouter};
use axum::Extension;
use serde_json::Value;
use tokio::sync::{watch, Semaphore};

use crate::answer::Head;
use crate::backend::{Backend, Fault, FaultKind, PlanCard};
use crate::error::Refusal;
use crate::fields::{short, Fields};
use crate::metrics::Metrics;

ropewalk_core::setters! {
    /// Settings of a server.
    #[derive(Clone)]
    pub struct Options {
        /// Keys, of which each request needs one. Without any, only programs on this machine are answered.
        pub keys: Vec<String>,
        /// Origins of web pages that may ask, such as `https://chat.example.org`.
        pub origin: Vec<String>,
        /// Bytes of a request's body. All bodies that are read at a time may have four times as many: their JSON takes much more
        /// memory than they do.
        pub max_body: usize,
        /// Connections at a time; more wait.
        pub max_connections: usize,
        /// Time between signs of life in a stream.
        pub ping: Duration,
        /// Time for a request's head, and for a connection without requests.
        pub head_timeout: Duration,
        /// Time for a request's body.
        pub body_timeout: Duration,
        /// Time in which a client must read something.
        pub write_timeout: Duration,
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            keys: Vec::new(),
            origin: Vec::new(),
            max_body: 16 << 20,
            // Half of the files that a program usually may open: chat templates need some too.
            max_connections: 512,
            ping: Duration::from_secs(5),
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(60),
        }
    }
}

/// Which key a request came with. Caches are apart by key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Caller(pub(crate) usize);

/// The state of a server.
pub(crate) struct App {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: Options,
    pub(crate) metrics: Metrics,
    /// Bytes that bodies may still have together.
    pub(crate) bodies: Arc<Semaphore>,
    /// For work with slots, one at a time.
    pub(crate) slots: Arc<Semaphore>,
    /// For self-tests, one at a time.
    pub(crate) selftest: Arc<Semaphore>,
    /// The last result of a self-test under each plan that was tested.
    pub(crate) tested: Mutex<BTreeMap<usize, Value>>,
    /// Becomes true when answers are cut off.
    pub(crate) ending: watch::Receiver<bool>,
}

impl App {
    /// A handler's result as a response.
    pub(crate) fn respond(&self, result: Result<Response, Fault>) -> Response {
        result.unwrap_or_else(|fault| Refusal::of(&fault, self.backend.card()).into_response())
    }

    /// Resolves when answers are cut off.
    pub(crate) fn ending(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(told(self.ending.clone()))
    }

    /// The model that a request names, by its number, and the plan, if it names one: in `rope`, or in the model's name after
    /// an `@`.
    pub(crate) fn plan(
        &self,
        model: Option<&str>,
        rope: Option<&str>,
    ) -> Result<(usize, Option<usize>), Fault> {
        let card = self.backend.card();
        let asked = model.filter(|model| !model.is_empty()).unwrap_or(&card.id);
        let find = |plans: &[PlanCard], name: &str| {
            plans.iter().position(|plan| plan.name == name || plan.spec == name)
        };
        let found = card.models().enumerate().find_map(|(i, (name, plans))| {
            let rest = asked.strip_prefix(name)?;
            match rest.strip_prefix('@') {
                None if !rest.is_empty() => None,
                None | Some("auto") => Some((i, plans, None)),
                Some(plan) => find(plans, plan).map(|plan| (i, plans, Some(plan))),
            }
        });
        let Some((i, plans, named)) = found else {
            let what = format!("model: expected {}, found {}", self.models(), short(asked));
            return Err(Fault { param: Some("model".into()), ..Fault::new(FaultKind::NotFound, what) });
        };
        let plan = match rope.filter(|rope| *rope != "auto") {
            None => named,
            Some(rope) => {
                let plan = find(plans, rope).ok_or_else(|| {
                    let names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
                    let what = format!("rope: expected auto, {}, found {}", names.join(", "), short(rope));
                    Fault::invalid("rope", what)
                })?;
                if named.is_some_and(|named| named != plan) {
                    let what = "rope: expected the plan that model names, or none, found another";
                    return Err(Fault::invalid("rope", what));
                }
                Some(plan)
            }
        };
        Ok((i, plan.map(|plan| i * plans.len() + plan)))
    }

    /// The model and the plan of a request that asks for adapters by their numbers: one of them at most, at the scale that
    /// it was loaded with. The model that it names may be the same adapter, or the model without one.
    pub(crate) fn under(
        &self,
        model: usize,
        plan: Option<usize>,
        lora: &[(usize, f32)],
    ) -> Result<(usize, Option<usize>), Fault> {
        let (card, n) = (self.backend.card(), self.backend.card().adapters.len());
        let refused = |what: String| Err(Fault::invalid("lora", format_args!("lora: expected {what}")));
        if let Some((id, _)) = lora.iter().find(|(id, _)| *id >= n) {
            return refused(format!("numbers of the {n} adapters, from 0, found {id}"));
        }
        let on: Vec<(usize, f32)> = lora.iter().copied().filter(|(_, scale)| *scale != 0.0).collect();
        let asked = match on[..] {
            [] => 0,
            [(id, scale)] => {
                let loaded = card.scales.get(id).copied().unwrap_or(1.0);
                if scale != loaded {
                    let what = format!("the scale {loaded} that adapter {id} was loaded with, or 0");
                    return refused(format!("{what}, found {scale}"));
                }
                id + 1
            }
            _ => return refused(format!("one adapter at a time, found {}", on.len())),
        };
        if model != 0 && model != asked {
            return refused("the adapter that model names, or none, found another".to_owned());
        }
        let each = card.plans.len() / (1 + n);
        Ok((asked, plan.map(|plan| asked * each + plan % each)))
    }

    /// The plan that a query is about, and its number of tokens. It is the one that a request of this length would get, or
    /// else the longest, if the query names none.
    pub(crate) fn asked(&self, fields: &mut Fields) -> Result<(usize, Option<usize>), Fault> {
        let (model, named) = self.plan(fields.text("model")?.as_deref(), fields.text("rope")?.as_deref())?;
        let n = fields.int("n", 1..=i64::from(i32::MAX))?.map(|n| n as usize);
        let plans = &self.backend.card().plans;
        let first = || self.first(model, n.unwrap_or(1));
        let longest = || self.of_model(model).max_by_key(|&i| plans[i].n_max).unwrap_or(0);
        Ok((named.or_else(first).unwrap_or_else(longest), n))
    }

    /// The plan that a request of a model gets that names none, if so many tokens have room.
    pub(crate) fn first(&self, model: usize, n: usize) -> Option<usize> {
        let plans = &self.backend.card().plans;
        self.of_model(model).find(|&i| n <= plans[i].n_max)
    }

    /// The plans of a model.
    pub(crate) fn of_model(&self, model: usize) -> Range<usize> {
        let card = self.backend.card();
        let each = card.plans.len() / (1 + card.adapters.len());
        model * each..(model + 1) * each
    }

    /// The names of the model, as text.
    fn models(&self) -> String {
        let mut names = Vec::new();
        for (name, plans) in self.backend.card().models() {
            names.push(name.to_owned());
            names.extend(plans.iter().map(|plan| format!("{name}@{}", plan.name)));
        }
        names.join(", ")
    }

    /// The beginning of an answer under a new id.
    pub(crate) fn head(&self, model: Option<&str>, chat: bool) -> Head {
        let card = self.backend.card();
        Head {
            id: new_id(if chat { "chatcmpl-" } else { "cmpl-" }),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            model: model.filter(|model| !model.is_empty()).unwrap_or(&card.id).to_owned(),
            fingerprint: card.fingerprint.clone(),
            chat,
        }
    }

    /// The salt of a request's prefixes. It is the same after a restart with other keys: what is on disk stays its caller's.
    pub(crate) fn salt(&self, caller: Caller, salt: &[u8]) -> Vec<u8> {
        let key = self.options.keys.get(caller.0).map_or(&[][..], String::as_bytes);
        [(key.len() as u64).to_le_bytes().as_slice(), key, salt].concat()
    }
}

/// An id that nobody guesses: it is seeded by the system.
pub(crate) fn new_id(kind: &str) -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{kind}{:016x}{:016x}", random(), random())
}

/// Resolves when a flag is true, or when nobody is left to set it.
pub(crate) async fn told(mut flag: watch::Receiver<bool>) {
    let _ = flag.wait_for(|flag| *flag).await;
}

/// Reads a request.
type Read<W> = fn(&Arc<App>, Caller, &[u8]) -> Result<W, Fault>;

/// Answers requests: `work` reads one on a thread that may block, and `run` does what it asks for.
pub(crate) fn answered<W: Send + 'static, F: Future<Output = Result<Response, Fault>> + Send + 'static>(
    work: Read<W>,
    run: fn(Arc<App>, W) -> F,
) -> MethodRouter<Arc<App>> {
    post(move |State(app): State<Arc<App>>, Extension(caller): Extension<Caller>, body: Bytes| async move {
        let for_work = Arc::clone(&app);
        let result = match blocking(move || work(&for_work, caller, &body)).await {
            Ok(work) => run(Arc::clone(&app), work).await,
            Err(fault) => Err(fault),
        };
        app.respond(result)
    })
}

/// Runs what may take long on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let panicked = |_| Err(Fault::new(FaultKind::Server, "the thread that read the request panicked"));
    tokio::task::spawn_blocking(work).await.unwrap_or_else(panicked)
}
