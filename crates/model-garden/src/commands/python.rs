//! Becoming Python, for experiments that have to run in it: it makes the runs, and then becomes this program again to judge them.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use garden_guard::become_program;

use crate::failure::Failure;

/// Runs a module of our package, and says what is missing if it is not there; `MODULE` stands for its name. A failure is code 2: Python's own 1 would
/// read as bad news about memory.
const START: &str = "\
import sys
try:
    import MODULE, runpy
    sys.argv[0] = 'MODULE'
    runpy.run_module('MODULE', run_name='__main__', alter_sys=True)
except Exception as error:
    if isinstance(error, ModuleNotFoundError) and (error.name or '').startswith('model_garden'):
        print('error: ' + sys.executable + ' does not have the package `model-garden`\\n\\nhint: pip install the wheel (`make wheel`), or choose another Python with --python', file=sys.stderr)
    else:
        import traceback
        traceback.print_exc()
    sys.exit(2)
";

/// The file of this program, for Python to become it again.
pub fn ourselves() -> Result<PathBuf, Failure> {
    env::current_exe().map_err(|error| Failure::new("cannot find this program's executable", &error, None))
}

/// Becomes Python with a module of our package and these words; returns why that failed.
pub fn become_python(named: Option<&Path>, module: &str, words: Vec<OsString>) -> Failure {
    let ourselves = match ourselves() {
        Ok(path) => path,
        Err(failure) => return failure,
    };
    let python = named.map_or_else(|| default_python(&ourselves), Path::to_path_buf);
    let mut all: Vec<OsString> = vec!["-c".into(), START.replace("MODULE", module).into()];
    all.extend(words);
    let error = become_program(python.as_os_str(), &all);
    let hint = "choose a Python with --python, or activate its environment";
    Failure::new(format!("cannot start Python as `{}`", python.display()), &error, Some(hint.into()))
}

/// The Python of the environment that is active, of the one that this program is installed in, or the system's.
pub fn default_python(ourselves: &Path) -> PathBuf {
    let active = env::var_os("VIRTUAL_ENV").map(|folder| Path::new(&folder).join("bin/python"));
    let beside = ourselves.parent().map(|folder| folder.join("python"));
    [active, beside].into_iter().flatten().find(|path| path.exists()).unwrap_or_else(|| "python3".into())
}
