//! What a process of a training run is for, judged by its command line.

use std::fmt;

/// The part that a process plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Starts others and stays small: `uv run`, `accelerate launch`, `torchrun`, a shell.
    Wrapper,
    /// The training program itself.
    Training,
    /// Loads or prepares data for the training program.
    Worker,
    /// Compiles kernels (`torch.compile`, Inductor).
    Compiler,
    /// An experiment logger's own process.
    Logger,
    /// Anything else.
    Other,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Wrapper => "wrapper",
            Role::Training => "training",
            Role::Worker => "worker",
            Role::Compiler => "compiler",
            Role::Logger => "logger",
            Role::Other => "other",
        })
    }
}

const WRAPPERS: [&str; 18] = [
    "sh", "bash", "zsh", "dash", "fish", "uv", "uvx", "poetry", "conda", "mamba", "env", "time", "nohup", "sudo",
    "srun", "mpirun", "torchrun", "make",
];

impl Role {
    /// The role of a process, given its own command line and its parent's.
    pub fn of(command: &str, parent: Option<&str>) -> Role {
        let words: Vec<&str> = command.split(' ').collect();
        let program = words.first().map_or("", |word| word.rsplit('/').next().unwrap_or(word));
        let mentions = |text: &str| command.contains(text);
        if mentions("torch/_inductor/compile_worker") || mentions("torch._inductor.compile_worker") {
            return Role::Compiler;
        }
        if mentions("wandb-core") || mentions("wandb service") || mentions("mlflow server") || mentions("tensorboard") {
            return Role::Logger;
        }
        let launches = ["accelerate launch", "torch.distributed.run", "deepspeed --", "/torchrun "];
        if WRAPPERS.contains(&program) || launches.iter().any(|text| mentions(text)) {
            return Role::Wrapper;
        }
        // A forked loader worker has its parent's command line; a spawned one says so.
        let is_spawned = mentions("multiprocessing.spawn") || mentions("multiprocessing.forkserver");
        let is_forked = !command.is_empty() && parent == Some(command);
        if is_spawned || is_forked {
            return Role::Worker;
        }
        let is_interpreter = program.starts_with("python") || program == "model-garden";
        if is_interpreter { Role::Training } else { Role::Other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_processes_of_a_run_are_named() {
        let script = "/usr/bin/python3 train.py --epochs 3";
        let cases = [
            ("bash -c python3 train.py", None, Role::Wrapper),
            ("/home/a/.local/bin/uv run train.py", None, Role::Wrapper),
            ("/usr/bin/python3 /usr/bin/accelerate launch train.py", None, Role::Wrapper),
            ("/usr/bin/python3 -m torch.distributed.run train.py", None, Role::Wrapper),
            (script, Some("bash -c python3 train.py"), Role::Training),
            (script, Some(script), Role::Worker),
            ("python3 -c from multiprocessing.spawn import spawn_main", Some(script), Role::Worker),
            ("python3 /x/torch/_inductor/compile_worker/__main__.py --workers=8", Some(script), Role::Compiler),
            ("/x/wandb/bin/wandb-core --port-filename /tmp/p", Some(script), Role::Logger),
            ("sleep 5", Some("bash"), Role::Other),
            ("", None, Role::Other),
        ];
        for (command, parent, role) in cases {
            assert_eq!(Role::of(command, parent), role, "{command}");
        }
    }
}
