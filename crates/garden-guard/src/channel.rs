//! The event channel: a Unix socket over which a program tells what it does, and is told to stop.
//!
//! JSON lines both ways; `docs/events.md` describes them. Whatever cannot be understood is ignored: a program must never fail
//! because of who watches it.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use garden_memory::{EventKind, RunFacts};
use garden_probe::Identity;
use serde::{Deserialize, Serialize};

use crate::launch::Notice;

/// The environment variable that names the socket.
pub const ENVIRONMENT: &str = "MODEL_GARDEN_EVENTS";

/// How the folders of our sockets are called: this, the process id and something random.
const PREFIX: &str = "model-garden-";

/// Programs that are heard at the same time; each takes two descriptors and a thread.
const MOST_PROGRAMS: usize = 128;
/// How long nobody is let in after that has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Longest line that is read; a longer one is not ours.
const LONGEST_LINE: u64 = 1 << 20;

/// What a program says about itself; every field may be missing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Message {
    /// The training step it is at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// The epoch, perhaps with a fraction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    /// Something that happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<EventKind>,
    /// Live tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensors: Option<u64>,
    /// Live tensors in host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensors_cpu: Option<u64>,
    /// Live tensors in GPU memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensors_gpu: Option<u64>,
    /// Live Python objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<u64>,
    /// Bytes of buffers that our own trainer holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arena: Option<u64>,
    /// The loss of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The learning rate of the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Whether a sample is to be taken now, whatever the interval.
    #[serde(skip_serializing_if = "is_false")]
    pub sample: bool,
    /// Whether it has found by itself that it holds too much: it saves, and ends.
    #[serde(skip_serializing_if = "is_false")]
    pub at_limit: bool,
    /// Something that a person should know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub say: Option<String>,
    /// Where a checkpoint was saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// What is known about the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub facts: Option<RunFacts>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// What the watcher says to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Save and end.
    Stop,
}

/// The watcher's end of the channel.
#[derive(Debug)]
pub struct Channel {
    path: PathBuf,
    /// The file that was made there: by the end it may be somebody else's.
    place: Option<(u64, u64)>,
    listeners: Arc<Mutex<Vec<UnixStream>>>,
}

impl Channel {
    /// Opens a socket in a folder that is ours alone; messages are sent to `notices`.
    pub fn open(notices: SyncSender<Notice>) -> io::Result<Channel> {
        let place = std::env::temp_dir();
        sweep(&place);
        // A name that nobody can know beforehand, so that nobody can have made it.
        let chance = RandomState::new().build_hasher().finish();
        let folder = place.join(format!("{PREFIX}{}-{chance:08x}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        Channel::open_at(&folder.join("events"), notices).inspect_err(|_| drop(fs::remove_dir(&folder)))
    }

    /// Opens a socket at this path.
    pub fn open_at(path: &Path, notices: SyncSender<Notice>) -> io::Result<Channel> {
        // A watcher that was killed may have left its socket behind; one that answers, or a file of another kind, is not ours to
        // remove.
        let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        match is_socket.then(|| UnixStream::connect(path)) {
            Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => drop(fs::remove_file(path)),
            Some(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process already listens there")),
            None => {}
        }
        let path = path.to_path_buf();
        let socket = UnixListener::bind(&path)?;
        let place = place_of(&path);
        let listeners = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&listeners);
        thread::spawn(move || {
            loop {
                let stream = match socket.accept() {
                    Ok((stream, _)) => stream,
                    // Descriptors may have run out, and whoever waits keeps waiting: asking again at once would take a whole processor.
                    Err(_) => {
                        thread::sleep(ACCEPT_PAUSE);
                        continue;
                    }
                };
                let Ok(back) = stream.try_clone() else { continue };
                let mut all = known.lock().unwrap_or_else(PoisonError::into_inner);
                if all.len() >= MOST_PROGRAMS {
                    continue;
                }
                let connection = back.as_raw_fd();
                all.push(back);
                drop(all);
                let (notices, known) = (notices.clone(), Arc::clone(&known));
                thread::spawn(move || {
                    listen(stream, &notices);
                    // It hung up: it can no longer be asked.
                    known.lock().unwrap_or_else(PoisonError::into_inner).retain(|back| back.as_raw_fd() != connection);
                });
            }
        });
        Ok(Channel { path, place, listeners })
    }

    /// The socket's path, for [`ENVIRONMENT`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a program is connected.
    pub fn is_connected(&self) -> bool {
        !self.listeners.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Asks every program that is connected to save a checkpoint and end; says how many heard it.
    pub fn ask_to_stop(&self) -> usize {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let line = serde_json::to_string(&Command::Stop).unwrap_or_default() + "\n";
        listeners.retain_mut(|stream| stream.write_all(line.as_bytes()).is_ok());
        listeners.len()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if place_of(&self.path) == self.place {
            drop(fs::remove_file(&self.path));
        }
        // The folder that was made for it; one with anything else in it stays.
        let is_ours =
            |folder: &&Path| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        if let Some(folder) = self.path.parent().filter(is_ours) {
            drop(fs::remove_dir(folder));
        }
    }
}

/// Which file a path leads to: device and number.
fn place_of(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Removes the sockets of watchers that were killed.
fn sweep(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| Identity::of(pid).is_none()) {
            // Those of other users cannot be removed, and are not ours to.
            drop(fs::remove_file(entry.path().join("events")));
            drop(fs::remove_dir(entry.path()));
        }
    }
}

fn listen(stream: UnixStream, notices: &SyncSender<Notice>) {
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                if let Ok(message) = serde_json::from_slice(&line)
                    && notices.send(Notice::Message(Box::new(message))).is_err()
                {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn messages_come_in_and_a_stop_goes_out() {
        let (sender, notices) = mpsc::sync_channel(64);
        let channel = Channel::open(sender).unwrap();
        let mut program = UnixStream::connect(channel.path()).unwrap();
        program.write_all(b"not json\n{\"step\":10,\"tensors\":6529,\"new\":1}\n{\"event\":\"epoch_end\"}\n").unwrap();
        let next = || match notices.recv_timeout(Duration::from_secs(10)).unwrap() {
            Notice::Message(message) => message,
            other => panic!("{other:?}"),
        };
        let first = next();
        assert_eq!((first.step, first.tensors), (Some(10.0), Some(6529)));
        assert_eq!(next().event, Some(EventKind::EpochEnd));
        assert_eq!(channel.ask_to_stop(), 1);
        let mut answer = String::new();
        BufReader::new(program).read_line(&mut answer).unwrap();
        assert_eq!(answer, "{\"command\":\"stop\"}\n");
        let path = channel.path().to_path_buf();
        drop(channel);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_answers_is_left_alone_and_a_dead_one_is_replaced() {
        let folder = std::env::temp_dir().join(format!("garden-channel-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("socket");
        let theirs = UnixListener::bind(&path).unwrap();
        let refused = Channel::open_at(&path, mpsc::sync_channel(1).0).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        assert!(UnixStream::connect(&path).is_ok(), "their socket is still there");
        drop(theirs);
        // Another test may have forked meanwhile: until its child becomes another program, it has this socket as well.
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        let ours = loop {
            match Channel::open_at(&path, mpsc::sync_channel(1).0) {
                Err(_) if std::time::Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
                opened => break opened.unwrap(),
            }
        };
        // Somebody took the name over: it is theirs when we end.
        fs::remove_file(&path).unwrap();
        let _theirs = UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(UnixStream::connect(&path).is_ok());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn programs_beyond_the_most_are_turned_away() {
        let (sender, _notices) = mpsc::sync_channel(64);
        let channel = Channel::open(sender).unwrap();
        let programs: Vec<UnixStream> =
            (0..MOST_PROGRAMS + 8).map(|_| UnixStream::connect(channel.path()).unwrap()).collect();
        // One that is turned away reads the end of its stream.
        let mut last = programs.last().unwrap();
        last.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(last.read(&mut [0]).unwrap(), 0);
        assert_eq!(channel.ask_to_stop(), MOST_PROGRAMS);
    }
}
