//! Which Python there is and what it has, asked in a process of its own that cannot keep us waiting.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ask::answer;

/// A Python that says nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Packages of those who train, by the name that they are installed by.
pub const PACKAGES: [&str; 8] =
    ["model-garden", "torch", "transformers", "peft", "datasets", "pillow", "accelerate", "bitsandbytes"];

/// Reads versions from the packages' metadata: importing them would take seconds and may start a GPU.
const QUESTION: &str = "\
import importlib.util, json, sys
try:
    from importlib.metadata import version
except ImportError:
    version = None
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except Exception:
        found[name] = None
# Ours can be used from its source, too.
if found['model-garden'] is None and importlib.util.find_spec('model_garden'):
    found['model-garden'] = '(from source)'
print(json.dumps({'executable': sys.executable, 'version': '.'.join(map(str, sys.version_info[:3])), 'packages': found}))
";

/// What Python says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Python {
    pub executable: String,
    pub version: String,
    /// Versions by name; absent ones are `None`.
    pub packages: BTreeMap<String, Option<String>>,
}

impl Python {
    /// Asks a Python; the error is why there is no answer.
    pub fn ask(program: &Path) -> Result<Python, String> {
        let name = program.display();
        let mut command = Command::new(program);
        // Nothing of the folder that we are in, which may be anybody's, is imported.
        command.args(["-P", "-c", QUESTION]).args(PACKAGES).stdin(Stdio::null()).stderr(Stdio::null());
        match answer(&mut command, PATIENCE)? {
            Some(answer) => Ok(answer),
            // Before 3.11 there is no -P; -I leaves more out, but never the packages of an environment.
            None => {
                let mut command = Command::new(program);
                command.args(["-I", "-c", QUESTION]).args(PACKAGES).stdin(Stdio::null()).stderr(Stdio::null());
                answer(&mut command, PATIENCE)?.ok_or_else(|| format!("`{name}` is no Python that works"))
            }
        }
    }
}
