//! The role of a process in a training run, judged by its command line.

use std::fmt;

/// The role of a process.
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
    /// The role of a process, given its command line and whether it was forked without `exec`.
    pub fn of(command: &str, is_fork: bool) -> Role {
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
        // A loader worker is a fork of the program, or was spawned and says so.
        let is_spawned = mentions("multiprocessing.spawn") || mentions("multiprocessing.forkserver");
        if is_spawned || is_fork {
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
            ("bash -c python3 train.py", false, Role::Wrapper),
            ("/home/a/.local/bin/uv run train.py", false, Role::Wrapper),
            ("/usr/bin/python3 /usr/bin/accelerate launch train.py", false, Role::Wrapper),
            ("/usr/bin/python3 -m torch.distributed.run train.py", false, Role::Wrapper),
            (script, false, Role::Training),
            (script, true, Role::Worker),
            ("pt_data_worker", true, Role::Worker),
            ("python3 -c from multiprocessing.spawn import spawn_main", false, Role::Worker),
            ("python3 /x/torch/_inductor/compile_worker/__main__.py --workers=8", false, Role::Compiler),
            ("/x/wandb/bin/wandb-core --port-filename /tmp/p", false, Role::Logger),
            ("sleep 5", false, Role::Other),
            ("", false, Role::Other),
        ];
        for (command, is_fork, role) in cases {
            assert_eq!(Role::of(command, is_fork), role, "{command}");
        }
    }
}
