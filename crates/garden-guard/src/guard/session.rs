//! What lasts over all starts of a program: its config, who is told, its checkpoints, and what is known of its pace.

use std::fs;
use std::path::Path;
use std::sync::mpsc::SyncSender;

use crate::channel::Channel;
use crate::config::{GuardConfig, Observer};
use crate::launch::Notice;
use crate::policy::Pace;
use crate::saves::Saves;
use crate::signals::Stop;

/// What lasts over all starts of a program.
pub(crate) struct GuardSession<'a> {
    pub config: &'a GuardConfig,
    pub observer: &'a mut dyn Observer,
    pub notices: SyncSender<Notice>,
    pub channel: Option<Channel>,
    pub saves: Option<Saves>,
    pub pace: Pace,
    /// How somebody first asked for the end of it all.
    pub asked: Option<Stop>,
    /// Whether somebody asked again, for an end at once.
    pub is_hurried: bool,
    /// Whether a warning was passed on to the program.
    pub was_forwarded: bool,
}

impl GuardSession<'_> {
    /// Begins to watch a folder of checkpoints.
    pub(crate) fn watch_saves(&mut self, folder: &Path) {
        self.saves = Some(Saves::of(folder, self.notices.clone()));
    }

    /// Takes in that the program told of a checkpoint: its folder is watched, unless another one was asked for, and it is ours.
    pub(super) fn learn_checkpoint(&mut self, checkpoint: &Path) {
        let Some(folder) = checkpoint.parent() else { return };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let same = |a: &Path, b: &Path| {
            a == b || fs::canonicalize(a).ok().is_some_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b))
        };
        let is_watched = self.saves.as_ref().is_some_and(|saves| same(saves.folder(), folder));
        if is_watched || (self.saves.is_some() && self.config.is_folder_given) {
            return;
        }
        self.watch_saves(folder);
        if let Some(saves) = &mut self.saves {
            saves.claim(checkpoint);
        }
    }

    pub(super) fn is_saving(&self) -> bool {
        self.saves.as_ref().is_some_and(Saves::is_saving)
    }
}
