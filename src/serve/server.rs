//! The server: a socket, its connections, and how they end.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::{pin, Pin};
use std::sync::{Arc, Mutex};
use std::task::{ready, Context, Poll};
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, MethodRouter};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{watch, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, Sleep};

use crate::app::{answered, told, App, Options};
use crate::backend::Backend;
use crate::metrics::Metrics;
use crate::{chat, completions, guard, models, page, responses, score, selftest, slots, stream, tokens};

/// Bytes of a request's head.
const MAX_HEAD: usize = 64 << 10;
/// Threads that read requests: as many templates and tokenizers run at a time.
const N_BLOCKING: usize = 8;
/// Time without a byte after which the system asks whether a client is still there, and then between two of these questions.
const ALIVE: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(10)];
/// Time between two looks at whether the server is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two looks at whether a client that has sent more is still there.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Time for the last words of answers that are cut off.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A server that listens, but does not answer yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    ending: watch::Sender<bool>,
}

impl Server {
    /// Listens at an address; port 0 is any free one.
    ///
    /// # Errors
    /// Returns an error if the address is not a loopback one and there is no key, if a key is empty or there twice, or if
    /// the system refuses the address.
    pub fn bind(address: SocketAddr, options: Options, backend: Arc<dyn Backend>) -> io::Result<Server> {
        let invalid = |what: String| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if options.keys.is_empty() && !address.ip().is_loopback() {
            return invalid(format!("{address}: expected a key or a loopback address, found neither"));
        }
        if options.keys.iter().any(String::is_empty) {
            return invalid("keys: expected texts, found an empty one".to_owned());
        }
        // Callers are told apart by the number of their key.
        if (1..options.keys.len()).any(|i| options.keys[..i].contains(&options.keys[i])) {
            return invalid("keys: expected each once, found one again".to_owned());
        }
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (ending, receiver) = watch::channel(false);
        let bodies = options.max_body.saturating_mul(4).min(Semaphore::MAX_PERMITS);
        let bodies = Arc::new(Semaphore::new(bodies));
        let one = || Arc::new(Semaphore::new(1));
        let app = Arc::new(App {
            backend,
            options,
            metrics: Metrics::default(),
            bodies,
            slots: one(),
            selftest: one(),
            tested: Mutex::default(),
            ending: receiver,
        });
        Ok(Server { listener, address, app, ending })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop` returns true. Answers that are under way then may take `grace` to end; the others are cut off
    /// with an error.
    ///
    /// # Errors
    /// Returns the errors of the system when the server starts.
    pub fn run(self, stop: impl Fn() -> bool, grace: Duration) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(N_BLOCKING)
            .thread_name("serve")
            .build()?;
        let result = runtime.block_on(self.answer(stop, grace));
        runtime.shutdown_timeout(LAST_WORDS);
        result
    }

    async fn answer(self, stop: impl Fn() -> bool, grace: Duration) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let router = router(&self.app);
        let (stopping, stops) = watch::channel(false);
        let mut connections = JoinSet::new();
        while !stop() {
            while connections.try_join_next().is_some() {}
            if connections.len() >= self.app.options.max_connections {
                let _ = timeout(LOOK, connections.join_next()).await;
                continue;
            }
            match timeout(LOOK, listener.accept()).await {
                Err(_) => {}
                Ok(Ok((stream, _))) => {
                    let (router, app) = (router.clone(), Arc::clone(&self.app));
                    connections.spawn(connection(stream, app, router, stops.clone()));
                }
                // Out of files: those of others will be free again.
                Ok(Err(_)) => sleep(LOOK).await,
            }
        }
        drop(listener);
        stopping.send_replace(true);
        let _ = timeout(grace, ended(&mut connections)).await;
        self.ending.send_replace(true);
        let _ = timeout(LAST_WORDS, ended(&mut connections)).await;
        Ok(())
    }
}

async fn ended(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// A path, and what answers it.
type Route = (&'static str, fn() -> MethodRouter<Arc<App>>);

/// Next to the files of the page.
const GET: &[Route] = &[
    ("/map", || get(page::map)),
    ("/openapi.json", || get(models::openapi)),
    ("/health", || get(models::health)),
    ("/v1/health", || get(models::health)),
    ("/metrics", || get(models::metrics)),
    ("/v1/models", || get(models::models)),
    ("/v1/models/{*id}", || get(models::model)),
    ("/props", || get(models::props)),
    ("/plan", || get(models::plan_for)),
    ("/slots", || get(slots::slots)),
    ("/tokenizer_info", || get(tokens::tokenizer_info)),
];

const POST: &[Route] = &[
    ("/slots/{id}", || post(slots::change)),
    ("/tokenize", || post(tokens::tokenize)),
    ("/detokenize", || post(tokens::detokenize)),
    ("/apply-template", || post(tokens::apply_template)),
    ("/v1/completions", || answered(completions::work, stream::run)),
    ("/v1/chat/completions", || answered(chat::work, stream::run)),
    ("/v1/chat/completions/input_tokens", || post(tokens::input_tokens)),
    ("/v1/responses", || answered(responses::work, responses::run)),
    ("/v1/responses/input_tokens", || post(responses::input_tokens)),
    ("/v1/score", || answered(score::work, score::run)),
    ("/selftest", || post(selftest::selftest)),
];

/// Every path that is answered, after its method. Braces in it stand for any text.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    let files = page::FILES.iter().map(|file| ("GET", file.path));
    let of = |method: &'static str, list: &'static [Route]| list.iter().map(move |(path, _)| (method, *path));
    files.chain(of("GET", GET)).chain(of("POST", POST))
}

fn router(app: &Arc<App>) -> Router {
    let files = page::FILES.iter().fold(Router::new(), |router: Router<Arc<App>>, file| {
        router.route(file.path, get(move || async move { file.response() }))
    });
    let routes = GET.iter().chain(POST);
    routes
        .fold(files, |router, (path, handler)| router.route(path, handler()))
        .fallback(models::missing)
        .method_not_allowed_fallback(models::wrong_method)
        // The guard has read the body already, up to its own limit.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(app), guard::guard))
        .with_state(Arc::clone(app))
}

async fn connection(stream: TcpStream, app: Arc<App>, router: Router, stops: watch::Receiver<bool>) {
    // Events are small, and each is waited for.
    let _ = stream.set_nodelay(true);
    // A client that vanished without a word would have its place, and its answer, for good.
    let [first, next] = ALIVE;
    let asks = TcpKeepalive::new().with_time(first).with_interval(next);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&asks);
    let stream = Arc::new(stream);
    let io =
        TokioIo::new(Timed { stream: Arc::clone(&stream), limit: app.options.write_timeout, waits: None });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.options.head_timeout)
        .max_header_size(MAX_HEAD)
        .serve_connection(io, TowerToHyperService::new(router));
    let mut served = pin!(served);
    tokio::select! {
        biased;
        _ = served.as_mut() => return,
        () = gone(&stream) => return,
        () = told(stops) => {}
    }
    served.as_mut().graceful_shutdown();
    tokio::select! {
        biased;
        _ = served => {}
        () = gone(&stream) => {}
    }
}

/// Resolves when the client has closed the connection. Hyper does not look for that while an answer is made, if the client
/// has sent more than the request.
async fn gone(stream: &TcpStream) {
    while stream.ready(Interest::READABLE).await.is_ok_and(|ready| !ready.is_read_closed()) {
        sleep(BETWEEN_LOOKS).await;
    }
}

/// A stream whose client must read something within a time.
struct Timed {
    stream: Arc<TcpStream>,
    limit: Duration,
    waits: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    fn written(
        &mut self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while self.stream.poll_write_ready(cx)?.is_ready() {
            match write(&self.stream) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.waits = None;
                    return Poll::Ready(written);
                }
            }
        }
        let limit = self.limit;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(limit)));
        waits.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Timed {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            match self.stream.try_read(buf.initialize_unfilled()) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|n| buf.advance(n))),
            }
        }
    }
}

impl AsyncWrite for Timed {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().written(cx, |stream| stream.try_write(buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().written(cx, |stream| stream.try_write_vectored(bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// The connection ends when its stream is dropped.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
