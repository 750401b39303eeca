//! Starts training programs, watches them, stops them before memory runs out, and starts them again. Nothing else starts or
//! signals processes.

mod attempt;
mod brief;
mod channel;
pub mod checkpoint;
mod config;
mod fence;
mod guard;
mod history;
mod launch;
mod live;
mod method;
mod policy;
mod recorder;
mod resume;
mod saves;
mod signals;
mod state;
mod steps;
mod supervisor;
mod terminal;
mod watch;

pub use attempt::{Attempt, Outcome, Skipped, Summary, Troubles};
pub use brief::{Brief, run_briefly};
pub use channel::{Channel, Command, ENVIRONMENT, Message};
pub use config::{Error, GuardConfig, Observer, OnLimit, OnWarning, Remark};
pub use fence::Fence;
pub use history::History;
pub use launch::{
    Ending, Launch, Launched, Notice, OutputMode, become_program, begin_anew, command_of, launch, own_program,
    start_in_background,
};
pub use live::{Happening, Live};
pub use method::forward_warning;
pub use recorder::Recorder;
pub use signals::{REQUEUE, Stop, Warning, ask_to_end, end_now, leave_on_warnings, listen_for_stops, pass_stop_on};
pub use state::{StateFolder, Told, is_stopped, read_state, supervisor_of, unguarded};
pub use supervisor::{RESUME, origin, supervise};
pub use watch::Watch;
