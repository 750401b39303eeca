//! Connections: how many there may be, of one address and together, and which one goes when a new one comes and there are too many.
//!
//! A connection without a request, or whose client does not take its answer, goes first. So silent connections and unread downloads lock nobody out, wherever they
//! come from. A client that takes nothing of its answer for [`WRITE_TIMEOUT`] is gone in any case.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use hyper::body::Frame;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Sleep;

/// Connections at the same time, and those of one address: a proxy is one address, too.
pub(crate) const MOST: usize = 768;
pub(crate) const OF_ONE: usize = 512;
/// Descriptors of the server itself: the database, folders, and what it asks our own program.
const OWN_DESCRIPTORS: u64 = 128;
/// How long a client may take nothing of an answer.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
/// Milliseconds in which a new connection is expected to ask for something.
const NEW: u64 = 500;
/// How long, and how much, is taken of a client that was answered before it had said everything.
const FAREWELL: Duration = Duration::from_secs(2);
const FAREWELL_BYTES: u64 = 64 << 20;
/// Bytes of an answer that the system takes of us before it can send them: the memory of a client that reads nothing, beside our own. What is on its way to one that reads does not count.
const UNSENT: u32 = 32 << 10;
/// From when on an answer that nobody takes may go for others.
const STALLED: Duration = Duration::from_secs(2);

/// All connections.
#[derive(Clone, Debug)]
pub(crate) struct Connections {
    all: Arc<Mutex<HashMap<u64, Connection>>>,
    most: usize,
    of_one: usize,
}

/// One of them.
#[derive(Clone, Debug)]
pub(crate) struct Connection(Arc<Known>);

#[derive(Debug)]
struct Known {
    number: u64,
    address: IpAddr,
    opened: Instant,
    /// Requests that are worked on or being answered.
    busy: AtomicUsize,
    /// Milliseconds after `opened`: when bytes last moved, and since when a write waits (0: none does).
    moved: AtomicU64,
    stalled: AtomicU64,
    close: Notify,
}

/// What a connection is, as far as its place is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Nobody asks for anything, for so many milliseconds.
    Idle(u64),
    /// Its client has not taken anything of its answer for so many milliseconds.
    Stalled(u64),
    Busy,
}

impl Connection {
    fn state(&self, at: Instant) -> State {
        let known = &self.0;
        let now = known.at(at);
        let stalled = known.stalled.load(Ordering::Relaxed);
        if stalled > 0 && now - stalled.min(now) >= STALLED.as_millis() as u64 {
            return State::Stalled(now - stalled.min(now));
        }
        match known.busy.load(Ordering::Relaxed) {
            0 => State::Idle(now - known.moved.load(Ordering::Relaxed).min(now)),
            _ => State::Busy,
        }
    }

    /// Marks it as at work.
    pub fn busy(&self) -> Busy {
        self.0.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Waits until it has to go.
    pub async fn closed(&self) {
        self.0.close.notified().await;
    }
}

impl Known {
    fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    fn at(&self, moment: Instant) -> u64 {
        // 0 means never.
        moment.saturating_duration_since(self.opened).as_millis() as u64 + 1
    }
}

/// A connection is at work for as long as this lives.
#[derive(Debug)]
pub(crate) struct Busy(Connection);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.0.moved.store(self.0.0.now(), Ordering::Relaxed);
        self.0.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Busy {
    /// Until a body was sent.
    pub fn until_sent(self, body: Body) -> Body {
        Body::new(Sending { body, _busy: self })
    }
}

struct Sending {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Sending {
    type Data = <Body as hyper::body::Body>::Data;
    type Error = <Body as hyper::body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

impl Connections {
    /// As many as there may be with so many file descriptors: each takes one, and often one of a file. Without one for a new connection nothing could go for it.
    pub fn new(descriptors: u64) -> Connections {
        let most = usize::try_from(descriptors.saturating_sub(OWN_DESCRIPTORS) / 2).unwrap_or(MOST);
        let most = most.clamp(8, MOST);
        Connections { all: Arc::default(), most, of_one: most * OF_ONE / MOST }
    }

    /// A place for a new connection. Where there are too many, another one goes for it; nothing if all are at work.
    pub fn admit(&self, number: u64, address: IpAddr) -> Option<Connection> {
        let mut all = self.lock();
        let of_address = |address: IpAddr, all: &HashMap<u64, Connection>| {
            all.values().filter(|known| known.0.address == address).count()
        };
        let own = of_address(address, &all);
        if own >= self.of_one {
            remove(&mut all, |known| known.0.address == address)?;
        } else if all.len() >= self.most {
            remove(&mut all, |_| true).or_else(|| remove_of_largest(&mut all, own))?;
        }
        let known = Known {
            number,
            address,
            opened: Instant::now(),
            busy: AtomicUsize::new(0),
            moved: AtomicU64::new(1),
            stalled: AtomicU64::new(0),
            close: Notify::new(),
        };
        let connection = Connection(Arc::new(known));
        all.insert(number, connection.clone());
        Some(connection)
    }

    /// Forgets one that has ended.
    pub fn leave(&self, connection: &Connection) {
        self.lock().remove(&connection.0.number);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the connection that is missed least: the one that was idle longest, else the one whose answer nobody has taken for longest.
fn remove(all: &mut HashMap<u64, Connection>, among: impl Fn(&Connection) -> bool) -> Option<()> {
    let now = Instant::now();
    let states = all.values().filter(|known| among(known)).map(|known| (known.state(now), known.0.number));
    let (mut idle, mut stalled) = (None, None);
    for (state, number) in states {
        match state {
            // One that has just come has not had the time to ask.
            State::Idle(age) if age < NEW => {}
            State::Idle(age) => idle = idle.max(Some((age, number))),
            State::Stalled(age) => stalled = stalled.max(Some((age, number))),
            State::Busy => {}
        }
    }
    let (_, number) = idle.or(stalled)?;
    // Whoever waits for it hears it, or will at once: the permit is kept.
    all.remove(&number)?.0.close.notify_one();
    Some(())
}

/// Closes a connection that is at work, of the address that has most of them: the one on which nothing has moved for longest. Only for somebody who has fewer.
fn remove_of_largest(all: &mut HashMap<u64, Connection>, own: usize) -> Option<()> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    all.values().for_each(|known| *counts.entry(known.0.address).or_default() += 1);
    let (largest, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    if count <= own + 1 {
        return None;
    }
    let moved = |known: &Connection| known.0.now().saturating_sub(known.0.moved.load(Ordering::Relaxed));
    let of_largest = all.values().filter(|known| known.0.address == largest);
    let number = of_largest.max_by_key(|known| moved(known))?.0.number;
    all.remove(&number)?.0.close.notify_one();
    Some(())
}

/// A stream that tells its connection when bytes move, and gives up where they do not.
pub(crate) struct Moving {
    stream: TcpStream,
    connection: Connection,
    /// How long a write may wait, and how long one still may.
    write_timeout: Duration,
    patience: Option<Pin<Box<Sleep>>>,
    farewell: Option<Farewell>,
}

/// What is still taken of a client that was answered.
struct Farewell {
    left: u64,
    time: Pin<Box<Sleep>>,
}

impl Moving {
    pub fn new(stream: TcpStream, connection: Connection, write_timeout: Duration) -> Moving {
        let socket = SockRef::from(&stream);
        // Without these a connection is slower, or holds more memory.
        let _ = socket.set_tcp_nodelay(true);
        let _ = socket.set_tcp_notsent_lowat(UNSENT);
        Moving { stream, connection, write_timeout, patience: None, farewell: None }
    }

    fn moved(&self) {
        self.connection.0.moved.store(self.connection.0.now(), Ordering::Relaxed);
    }

    /// What a write came to: bytes went, or the time for that is over.
    fn wrote<T>(&mut self, context: &mut Context<'_>, wrote: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let known = Arc::clone(&self.connection.0);
        if wrote.is_ready() {
            self.patience = None;
            known.stalled.store(0, Ordering::Relaxed);
            self.moved();
            return wrote;
        }
        if known.stalled.load(Ordering::Relaxed) == 0 {
            known.stalled.store(known.now(), Ordering::Relaxed);
        }
        let time = self.write_timeout;
        let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        match patience.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Moving {
    fn drop(&mut self) {
        // The system would hold what its client does not take, for minutes.
        if self.connection.0.stalled.load(Ordering::Relaxed) > 0 {
            let _ = SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl AsyncRead for Moving {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.moved();
        }
        read
    }
}

impl AsyncWrite for Moving {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.wrote(context, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Says that nothing more comes, and takes what the client still sends for a moment: it would otherwise be told that the connection broke, and not why its
    /// request was refused.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.farewell.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
            self.farewell = Some(Farewell { left: FAREWELL_BYTES, time: Box::pin(tokio::time::sleep(FAREWELL)) });
        }
        let Moving { stream, farewell: Some(farewell), .. } = &mut *self else { return Poll::Ready(Ok(())) };
        let mut piece = [0; 8192];
        while farewell.left > 0 && farewell.time.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut piece);
            match ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    farewell.left = farewell.left.saturating_sub(buffer.filled().len() as u64);
                }
                _ => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    #[test]
    fn an_idle_connection_goes_for_a_new_one_and_a_busy_one_stays() {
        let all = Connections::new(u64::MAX);
        let busy: Vec<Busy> =
            (0..OF_ONE as u64 - 1).map(|number| all.admit(number, address(1)).unwrap().busy()).collect();
        let idle = all.admit(5000, address(1)).unwrap();
        assert!(all.admit(5001, address(1)).is_none(), "the others work, and this one has just come");
        std::thread::sleep(Duration::from_millis(NEW + 10));
        // One address is full: its idle one goes for its next one, and then nothing is left to go.
        let next = all.admit(5001, address(1)).unwrap().busy();
        assert_eq!(all.count(), OF_ONE);
        assert!(idle.closed().now_or_never().is_some(), "it is told");
        assert!(all.admit(5002, address(1)).is_none(), "all of them are at work");
        // Others come in up to the number of all.
        let others: Vec<Busy> =
            (0..(MOST - OF_ONE) as u64).map(|number| all.admit(6000 + number, address(2)).unwrap().busy()).collect();
        // All are at work: a stranger comes in for one of the address that has most; that address itself does not.
        let stranger = all.admit(7000, address(3)).unwrap().busy();
        assert!(all.admit(7001, address(1)).is_none(), "the one with most has no right to more");
        drop(next);
        std::thread::sleep(Duration::from_millis(NEW + 10));
        assert!(all.admit(7003, address(3)).is_some(), "one that has become idle goes");
        drop((busy, others, stranger));
        assert_eq!(all.count(), MOST);
    }

    #[test]
    fn there_are_no_more_connections_than_descriptors() {
        let bounds = |descriptors| {
            let Connections { most, of_one, .. } = Connections::new(descriptors);
            (most, of_one)
        };
        assert_eq!([bounds(u64::MAX), bounds(512), bounds(64)], [(MOST, OF_ONE), (192, 128), (8, 5)]);
    }

    /// An answer that its client does not take ends, with an error, and without what the system would keep of it; one that is taken, however late, goes on.
    #[test]
    fn a_write_that_waits_too_long_is_given_up() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, peer) = listener.accept().await.unwrap();
            let connection = Connections::new(u64::MAX).admit(1, peer.ip()).unwrap();
            let mut moving = Moving::new(stream, connection.clone(), Duration::from_millis(400));
            let piece = vec![0; 1 << 20];
            let late = async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                let mut taken = vec![0; 32 << 20];
                client.read_exact(&mut taken).await.unwrap();
                client
            };
            let sent = async {
                for _ in 0..32 {
                    moving.write_all(&piece).await.unwrap();
                }
            };
            let (client, ()) = tokio::join!(late, sent);
            let began = Instant::now();
            let given_up = loop {
                if let Err(error) = moving.write_all(&piece).await {
                    break error;
                }
            };
            assert_eq!(given_up.kind(), io::ErrorKind::TimedOut);
            assert!(
                (Duration::from_millis(400)..Duration::from_secs(30)).contains(&began.elapsed()),
                "{:?}",
                began.elapsed()
            );
            drop((client, moving));
        });
    }
}
