//! `model-garden serve`: jobs, files and models behind the API that clients of OpenAI's fine-tuning already speak.
//!
//! The server itself does little: it keeps what clients send ([`store`], `disk.rs`), decides which job runs (`queue.rs`), and reads what the
//! processes that do the work leave in their folders ([`job`]). Each job is a process of its own that outlives the server, and whatever has to read a file of
//! a client is one, too. So a broken picture or a trace of a gigabyte cannot take the server with it, and its memory after a job is what it was before.

mod answer;
mod asked;
pub mod backup;
mod body;
mod catalogue;
mod connections;
mod disk;
mod environment;
mod error;
pub mod fetch;
mod files;
mod follow;
mod form;
mod gate;
mod id;
pub mod job;
mod jobs;
mod live;
mod meter;
mod models;
pub mod openapi;
mod ours;
mod places;
mod queue;
mod retention;
mod routes;
mod scheduling;
mod send;
mod stock;
pub mod store;
mod stream;
mod tools;
mod turns;
mod wire;
mod workers;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, io};

use garden_memory::Bytes;
use garden_train::{DeviceChoice, Gpu, GpuLook};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use connections::{Connections, Moving, WRITE_TIMEOUT};

use disk::Disk;
pub use disk::FolderError;
use error::ApiError;
use gate::{Keys, Peer, Rates};
use job::JobRecord;
use stock::{Stock, finish_deletions, take_stock};
use store::{Store, StoreError};
pub use tools::{NO_EPOCHS, TRACE_FACTS, ToolRefusal};
use workers::{Kind, Workers};

/// The environment variable with keys. Jobs do not get it.
pub const KEYS_VARIABLE: &str = "MODEL_GARDEN_API_KEYS";

/// How long the first line of a request may take.
const HEADERS: Duration = Duration::from_secs(15);
/// Bytes of a request without its body, and of an answer that a connection holds until its client takes them.
const LONGEST_HEAD: usize = 16 << 10;
/// Names of unknown things that are shown at most.
const SHOWN: usize = 5;
/// How long requests that are answered may take when the server is to end.
const FAREWELL: Duration = Duration::from_secs(10);
/// Threads that answer, and those that send and receive files and wait for our own program.
const THREADS: usize = 2;
const BLOCKING: usize = 16;

/// How a server is set up.
pub struct Settings {
    /// Where it listens.
    pub host: IpAddr,
    /// The port; 0 for any.
    pub port: u16,
    /// Its folder.
    pub data_dir: PathBuf,
    /// Folders of base models.
    pub models: Vec<PathBuf>,
    /// Folders of datasets.
    pub datasets: Vec<PathBuf>,
    /// Other names of base models.
    pub aliases: BTreeMap<String, String>,
    /// Names by which it may be called.
    pub allowed_hosts: Vec<String>,
    /// Keys that open it; none for everybody.
    pub keys: Vec<String>,
    /// Whether pictures that rows name by address are fetched, and from which addresses of a private network.
    pub fetch: Option<Vec<IpAddr>>,
    /// Whether commands are jobs.
    pub allow_commands: bool,
    /// Jobs at the same time.
    pub slots: usize,
    /// Where jobs compute.
    pub device: DeviceChoice,
    /// Memory that all jobs may use together.
    pub memory_limit: Option<Bytes>,
    /// Bytes of the largest file.
    pub max_file_bytes: u64,
    /// Bytes that files, jobs and models may take together.
    pub quota_bytes: u64,
    /// How long jobs that are over are kept; always without it.
    pub keep: Option<Duration>,
    /// Variables of the environment that jobs get besides the usual ones.
    pub pass_env: Vec<String>,
    /// Requests of an address in a second.
    pub rate: u32,
    /// How long work may take before others come first; 20 s unless a test has no time.
    pub patience: Duration,
    /// Whether what its folder holds and its database does not know is moved aside at the start.
    pub sets_unknown_aside: bool,
    /// Our own program.
    pub program: PathBuf,
    /// Who is told what an operator should know.
    pub say: Box<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the keys.
        f.debug_struct("Settings").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// Why a server cannot run.
#[derive(Debug)]
pub enum Error {
    /// Its folder cannot be used.
    Folder(PathBuf, FolderError),
    /// Its database cannot be used.
    Database(PathBuf, StoreError),
    /// It cannot listen.
    Listen(SocketAddr, io::Error),
    /// An address that others reach, without a key.
    NoKey(IpAddr),
    /// Base models or their aliases.
    Models(String),
    /// Threads cannot be started.
    Threads(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Folder(path, error) => {
                let path = path.display();
                match error {
                    FolderError::Io(error) => write!(f, "cannot use the folder `{path}`: {error}"),
                    FolderError::InUse => write!(f, "another server uses the folder `{path}`"),
                    FolderError::NoLinks(error) => {
                        write!(f, "files in `{path}` cannot have several names (hard links): {error}")
                    }
                    FolderError::Empty => write!(f, "`{path}` is empty: no server has used it"),
                    FolderError::Foreign(held) => {
                        write!(
                            f,
                            "`{path}` is not a folder of `model-garden serve`: it holds {}",
                            some_of(held, held.len())
                        )
                    }
                    FolderError::NoDatabase => write!(
                        f,
                        "`{path}` looks like a folder of model-garden 0.1.0, and its database `garden.db` is missing or empty"
                    ),
                    FolderError::Newer(format) => {
                        write!(f, "`{path}` was written by a newer version of model-garden (format {format})")
                    }
                    FolderError::KnowsLess { unknown, later } if unknown.is_empty() => write!(
                        f,
                        "the database `{path}/garden.db` is older than the folder, which has seen {later} more change{}",
                        if *later == 1 { "" } else { "s" }
                    ),
                    FolderError::KnowsLess { unknown, .. } => write!(
                        f,
                        "the database `{path}/garden.db` does not know what the folder holds: {}; an older or an empty one may be in its place",
                        some_of(unknown, unknown.len())
                    ),
                }
            }
            Error::Database(path, error) => write!(f, "cannot use the database `{}`: {error}", path.display()),
            Error::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Error::Models(problem) => f.write_str(problem),
            Error::NoKey(host) => write!(f, "`{host}` can be reached from other machines, and no API key is set"),
            Error::Threads(error) => write!(f, "cannot start: {error}"),
        }
    }
}

impl std::error::Error for Error {}

/// Some names of many.
fn some_of(names: &[String], count: usize) -> String {
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    match count.saturating_sub(shown.len()) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Server {
    settings: Settings,
    store: Store,
    disk: Disk,
    keys: Keys,
    rates: Rates,
    /// Bytes that are coming and not known to the store.
    coming: AtomicU64,
    meter: meter::Meter,
    connections: Connections,
    /// Milliseconds after the start when the queue ended its last round.
    beat: AtomicU64,
    /// A number that grows whenever something about a job changes.
    changes: watch::Sender<u64>,
    wakes: SyncSender<()>,
    /// Turns of our own program, and of putting parts of uploads together.
    turns: turns::Turns,
    joining: Arc<Semaphore>,
    /// Threads that read and write for requests.
    quick: Workers,
    long: Workers,
    /// Viewers of jobs at the same time.
    viewers: Arc<Semaphore>,
    live: follow::Live,
    gpu: OnceLock<GpuLook>,
    began: Instant,
    is_ending: AtomicBool,
}

impl Server {
    /// Seconds since 1970.
    fn now(&self) -> i64 {
        now()
    }

    fn say(&self, words: &str) {
        (self.settings.say)(words);
    }

    /// Wakes the queue.
    fn wake(&self) {
        // One that is full is awake.
        let _ = self.wakes.try_send(());
    }

    /// Tells everybody who looks that something changed.
    fn changed(&self) {
        self.changes.send_modify(|number| *number += 1);
    }

    /// The queue has ended a round.
    fn queue_beat(&self) {
        self.beat.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// How long ago that was.
    fn since_beat(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.beat.load(Ordering::Relaxed)))
    }

    /// A job has waited for its turn.
    fn queue_waited(&self, seconds: i64) {
        self.meter.count_wait(seconds.unsigned_abs());
    }

    /// A change that makes room, so a full disk must not be in its way.
    fn change_even_if_full<T>(&self, mut change: impl FnMut(&Store) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.disk.even_if_full(|| change(&self.store))
    }

    /// Whether something may be taken that needs space; an error says that there is none.
    fn check_space(&self) -> Result<(), ApiError> {
        match self.disk.free_bytes() < disk::LEAST_FREE {
            true => Err(ApiError::no_space("the server's disk is full")),
            false => Ok(()),
        }
    }

    fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// The memory that all jobs together may use.
    fn memory(&self) -> Option<Bytes> {
        self.settings.memory_limit.into_iter().chain(garden_probe::memory_limit()).min()
    }

    /// The GPU that jobs use, once it was looked for.
    fn gpu(&self) -> Option<&Gpu> {
        match self.gpu.get() {
            Some(GpuLook::Usable(gpu)) => Some(gpu),
            _ => None,
        }
    }

    /// Whether that is not known yet.
    fn is_looking_for_gpu(&self) -> bool {
        self.gpu.get().is_none()
    }

    fn gpu_memory(&self) -> Option<u64> {
        Some(self.gpu()?.total_bytes)
    }

    /// Does something quick that waits for the disk, beside the threads that answer, for the client that is being answered.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.quick.run(&workers::owner(), work).await
    }

    /// Does something longer that changes nothing.
    async fn reading<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.long.run(&workers::owner(), work).await
    }

    /// Does something that takes seconds or minutes. What does it has turns of its own.
    async fn blocking_for_long<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => Err(ApiError::internal("the request could not be worked on", &error)),
        }
    }

    /// Asks the store.
    async fn with_store<T: Send + 'static>(
        self: &Arc<Server>,
        work: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let server = Arc::clone(self);
        self.blocking(move || Ok(work(&server.store)?)).await
    }

    /// A job by its name.
    async fn job(self: &Arc<Server>, id: String) -> Result<JobRecord, ApiError> {
        let server = Arc::clone(self);
        self.blocking(move || server.find_job(&id)).await
    }

    fn find_job(&self, id: &str) -> Result<JobRecord, ApiError> {
        match self.store.job(id) {
            Ok(Some(job)) => Ok(job),
            Ok(None) => Err(ApiError::missing("fine-tuning job", id)),
            // Shown as such.
            Err(StoreError::Unreadable(broken)) => Ok(jobs::unreadable(&broken)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Runs a server until it is told to end. `ready` is told where it listens.
pub fn serve(settings: Settings, ready: impl FnOnce(SocketAddr)) -> Result<(), Error> {
    if !settings.host.is_loopback() && settings.keys.is_empty() {
        return Err(Error::NoKey(settings.host));
    }
    let descriptors = raise_descriptors();
    catalogue::check_models(&settings.models, &settings.aliases).map_err(Error::Models)?;
    let folder = settings.data_dir.clone();
    let broken = |error| Error::Folder(folder.clone(), error);
    let disk = Disk::take(&settings.data_dir).map_err(broken)?;
    let database = disk.database();
    // The index of its journal is made anew, and needs space.
    let opened = disk.even_if_full(|| Store::open(&database));
    let store = opened.map_err(|error| Error::Database(database.clone(), error))?;
    let news = take_stock(&disk, &store, settings.sets_unknown_aside).map_err(|error| match error {
        Stock::Folder(error) => broken(error),
        Stock::Store(error) => Error::Database(database.clone(), error),
    })?;
    finish_deletions(&disk, &store).map_err(|error| match error {
        Stock::Folder(error) => broken(error),
        Stock::Store(error) => Error::Database(database.clone(), error),
    })?;
    disk.clear().map_err(|error| broken(error.into()))?;
    let (wakes, woken) = sync_channel(1);
    let server = Arc::new(Server {
        keys: Keys::new(&settings.keys),
        store,
        disk,
        rates: Rates::default(),
        coming: AtomicU64::new(0),
        meter: meter::Meter::default(),
        connections: Connections::new(descriptors),
        beat: AtomicU64::new(0),
        changes: watch::Sender::new(0),
        wakes,
        turns: turns::Turns::new(settings.patience),
        joining: Arc::new(Semaphore::new(1)),
        quick: Workers::start(Kind::Quick).map_err(Error::Threads)?,
        long: Workers::start(Kind::Long).map_err(Error::Threads)?,
        viewers: Arc::new(Semaphore::new(live::VIEWERS)),
        live: follow::Live::default(),
        gpu: OnceLock::new(),
        began: Instant::now(),
        is_ending: AtomicBool::new(false),
        settings,
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING)
        // Also those that send files: what they do is a moment's work, too.
        .on_thread_start(scheduling::comes_soon)
        .enable_all()
        .build()
        .map_err(Error::Threads)?;
    let queue = queue::Queue::new(Arc::clone(&server));
    let queue =
        std::thread::Builder::new().name("queue".into()).spawn(move || queue.run(&woken)).map_err(Error::Threads)?;
    let served = runtime.block_on(listen(Arc::clone(&server), |address| {
        ready(address);
        if let Some(news) = news {
            (server.settings.say)(&news);
        }
        server.wake();
    }));
    server.is_ending.store(true, Ordering::Relaxed);
    server.wake();
    // Jobs go on without us; the next server finds them.
    drop(queue.join());
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

/// As many file descriptors as the system lets us have; how many that are.
fn raise_descriptors() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limits = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limits.maximum, maximum: limits.maximum };
    // With fewer of them there are fewer connections.
    let _ = setrlimit(Resource::Nofile, wanted);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Seconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

async fn listen(server: Arc<Server>, ready: impl FnOnce(SocketAddr)) -> Result<(), Error> {
    let asked = SocketAddr::new(server.settings.host, server.settings.port);
    let listener = TcpListener::bind(asked).await.map_err(|error| Error::Listen(asked, error))?;
    let address = listener.local_addr().map_err(|error| Error::Listen(asked, error))?;
    find_gpu(&server);
    let signals = Signals::new().map_err(Error::Threads)?;
    ready(address);
    // On the threads that answer: from this one each connection would have to be handed over to them.
    let accepting = tokio::spawn(accept(server, listener, signals));
    accepting.await.map_err(|error| Error::Threads(io::Error::other(error)))
}

/// Answers connections until the server is told to end.
async fn accept(server: Arc<Server>, listener: TcpListener, mut signals: Signals) {
    let router = routes::router(Arc::clone(&server));
    let farewell = GracefulShutdown::new();
    let mut number = 0;
    loop {
        let next = async {
            loop {
                match listener.accept().await {
                    Ok(accepted) => return accepted,
                    // Out of file descriptors, say: those who are here will leave some.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        let (stream, peer) = tokio::select! {
            accepted = next => accepted,
            () = signals.next() => break,
        };
        number += 1;
        let address = peer.ip().to_canonical();
        // All of them are at work: this one has to come again.
        let Some(known) = server.connections.admit(number, address) else { continue };
        let stream = Moving::new(stream, known.clone(), WRITE_TIMEOUT);
        let (answering, of_request) = (TowerToHyperService::new(router.clone()), known.clone());
        let answering = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            let extensions = request.extensions_mut();
            extensions.insert(Peer(address));
            extensions.insert(of_request.clone());
            hyper::service::Service::call(&answering, request)
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS)
            .max_buf_size(LONGEST_HEAD)
            .serve_connection(TokioIo::new(stream), answering);
        let connection = farewell.watch(connection);
        let connections = server.connections.clone();
        tokio::spawn(async move {
            // A client that went away is nobody's mistake.
            tokio::select! {
                ended = connection => drop(ended),
                () = known.closed() => {}
            }
            connections.leave(&known);
        });
    }
    drop(listener);
    server.is_ending.store(true, Ordering::Relaxed);
    server.changed();
    drop(tokio::time::timeout(FAREWELL, farewell.shutdown()).await);
}

/// Looks for a GPU in a process of its own, since whoever opens one holds memory of it.
fn find_gpu(server: &Arc<Server>) {
    let server = Arc::clone(server);
    if server.settings.device == DeviceChoice::Cpu {
        let (problem, hint) = ("jobs use the CPU here".to_string(), String::new());
        drop(server.gpu.set(GpuLook::Absent { problem, hint }));
        return;
    }
    tokio::spawn(async move {
        let said = server.tool("", &["devices", "--json"], tools::Input::None).await;
        let found = said.ok().and_then(|said| serde_json::from_str(&said.output).ok());
        let (problem, hint) = ("the look for a GPU gave no answer".to_string(), String::new());
        drop(server.gpu.set(found.unwrap_or(GpuLook::Absent { problem, hint })));
    });
}

/// Ctrl-C and SIGTERM.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
