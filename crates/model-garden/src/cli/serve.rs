//! Arguments of `serve`.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use garden_memory::Bytes;

use super::duration;

pub const SERVE_HELP: &str = "\
Listens on 127.0.0.1 unless told otherwise; other addresses need an API key (--api-key-file, or the variable MODEL_GARDEN_API_KEYS with one or more keys
separated by commas). Jobs go on when the server ends; a server that is started again in the same folder finds them.

Exit codes: 0 ended by Ctrl-C or SIGTERM; 2 an error.

Examples:
  model-garden serve --models ~/models
  model-garden serve --models ~/models --alias gpt-4o-2024-08-06=Qwen2.5-VL-3B-Instruct
  model-garden serve --host 0.0.0.0 --api-key-file keys.txt --models /srv/models --data-dir /srv/garden
  model-garden serve backup garden.tar --data-dir /srv/garden
  model-garden serve restore garden.tar --data-dir /srv/elsewhere
  OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none python finetune.py";

/// Arguments of `model-garden serve`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Serve {
    /// What to do with the data folder instead of serving from it.
    #[command(subcommand)]
    pub action: Option<ServeAction>,

    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,

    /// Port to listen on; 0 picks a free one.
    #[arg(long, default_value_t = 8000)]
    pub port: u16,

    /// Folder for files, jobs and the database [default: $XDG_DATA_HOME/model-garden/server].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,

    /// Move what the data folder holds and its database does not know to `unknown` in it. Without this it is named and left, and a database that does not know
    /// jobs that have run is refused.
    #[arg(long)]
    pub set_unknown_aside: bool,

    /// Model folder, or a folder of model folders; repeat for more.
    #[arg(long, value_name = "DIR", num_args = 1..)]
    pub models: Vec<PathBuf>,

    /// Folder whose datasets jobs may name as `dataset:NAME`; repeat for more.
    #[arg(long, value_name = "DIR", num_args = 1..)]
    pub datasets: Vec<PathBuf>,

    /// Another name for a model, such as gpt-4o-2024-08-06=qwen2.5-vl-3b; repeat for more.
    #[arg(long, value_name = "NAME=MODEL", value_parser = alias)]
    pub alias: Vec<(String, String)>,

    /// File with API keys, one a line.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Host name by which clients may call this server; addresses and `localhost` need none.
    #[arg(long, value_name = "NAME")]
    pub allow_host: Vec<String>,

    /// Fetch images that rows name by http(s) address, from public addresses only.
    #[arg(long)]
    pub fetch_images: bool,

    /// Address of a private network from which images may be fetched too; repeat for more. Implies --fetch-images.
    #[arg(long, value_name = "IP")]
    pub fetch_images_from: Vec<IpAddr>,

    /// Let clients run any command as a job, as the user who runs the server.
    #[arg(long)]
    pub allow_commands: bool,

    /// Jobs that run at the same time, if their memory plans fit beside each other.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub slots: u16,

    /// Device that jobs use: auto, cpu or cuda.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ["auto", "cpu", "cuda"])]
    pub device: String,

    /// Memory for all jobs together [default: this machine's or its control group's].
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<Bytes>,

    /// Largest file that a client may send.
    #[arg(long, value_name = "SIZE", default_value = "16GiB")]
    pub max_file_size: Bytes,

    /// Disk space for all that clients cause: files, jobs with their checkpoints, models, the database.
    #[arg(long, value_name = "SIZE", default_value = "200GiB")]
    pub quota: Bytes,

    /// Delete jobs this long after their end, such as 30d; fine-tuned models stay until they are deleted by name [default: keep everything].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub keep: Option<Duration>,

    /// Environment variable that jobs get besides the usual ones (PATH, HOME, LANG, CUDA_VISIBLE_DEVICES, ...); repeat for more.
    #[arg(long, value_name = "NAME")]
    pub pass_env: Vec<String>,

    /// Requests per second that one address may send.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate_limit: u32,

    /// How long work may take before others come first. For tests: what users are told is 20 s.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "20s", hide = true)]
    pub patience: Duration,
}

/// What can be done with a data folder.
#[derive(Debug, Subcommand)]
pub enum ServeAction {
    /// Write the data folder into a tar file, also while the server and its jobs run.
    Backup(ServeBackup),
    /// Put a backup into a new or empty data folder.
    Restore(ServeBackup),
}

/// Arguments of `model-garden serve backup` and `restore`.
#[derive(Debug, Args)]
pub struct ServeBackup {
    /// The tar file; - for standard output or input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// The server's data folder [default: $XDG_DATA_HOME/model-garden/server].
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

fn alias(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, model)) if !name.is_empty() && !model.is_empty() => Ok((name.to_string(), model.to_string())),
        _ => Err("an alias is NAME=MODEL".to_string()),
    }
}

/// Arguments of a process that answers for a request.
#[derive(Debug, Args)]
pub struct ServeTool {
    /// The words of `diagnose` or `check`.
    #[arg(value_name = "WORD", trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

/// Arguments of the process of a job.
#[derive(Debug, Args)]
pub struct ServeJob {
    /// The job's folder.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,

    /// Only look at its files and its memory.
    #[arg(long)]
    pub look: bool,
}
