//! What clients are not told: where things are on the server's disk, and flags of a command line that they do not have.

use std::fs;
use std::path::Path;

use garden_server::job::{JobFolder, ROWS, Work};
use serde_json::Value;

/// The largest file of a result that is looked through.
const LARGEST: u64 = 16 << 20;
/// How names of files end that are texts and describe a result. The trace and the log are read by viewers while they grow: they name places from the job's folder on.
const TEXTS: [&str; 4] = ["json", "toml", "md", "html"];

/// Places on the server's disk, and what clients know them by.
#[derive(Debug)]
pub struct Hidden(Vec<(String, String)>);

impl Hidden {
    /// The places of a job, as its order has them: from its folder on, in which we are. Where those lead to is hidden, too: a reader of files may name that.
    pub fn of(folder: &JobFolder, work: &Work) -> Hidden {
        let own = folder.0.display().to_string();
        let mut places = vec![
            (format!("{}/", folder.all_rows().display()), String::new()),
            (format!("{own}/"), String::new()),
            (own, "the job's folder".to_string()),
        ];
        let program = garden_guard::own_program().ok().map(|program| program.display().to_string());
        places.extend(program.map(|program| (program, "model-garden".to_string())));
        if let Work::Training { recipe } = work {
            let base = Path::new(&recipe.base_model);
            let mut hide = |path: &Path, known: String| {
                let led = fs::read_link(path).ok().into_iter().chain(path.canonicalize().ok());
                places.extend(led.map(|path| (path.display().to_string(), known.clone())));
                places.push((path.display().to_string(), known));
            };
            hide(base, name_of(base));
            for dataset in recipe.datasets.iter().chain(&recipe.eval_dataset) {
                let is_sent = dataset.starts_with(ROWS);
                hide(dataset, if is_sent { name_of(dataset) } else { format!("dataset:{}", name_of(dataset)) });
                if let Some(within) = dataset.parent().filter(|_| !is_sent) {
                    hide(within, "datasets".to_string());
                }
            }
        }
        // A path may begin with another one.
        places.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        places.retain(|(path, _)| path.len() > 1);
        Hidden(places)
    }

    /// The same for these places.
    pub fn these(places: Vec<(String, String)>) -> Hidden {
        Hidden(places)
    }

    /// A text without these places.
    pub fn paths(&self, text: &str) -> String {
        self.0.iter().fold(text.to_string(), |text, (path, known)| text.replace(path, known))
    }

    /// A text for clients: settings have the names that the API gives them.
    pub fn text(&self, text: &str) -> String {
        let text = self.paths(text);
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(at) = rest.find("--") {
            let (before, flag) = rest.split_at(at);
            out.push_str(before);
            let name: String =
                flag[2..].chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '-').collect();
            let is_flag = name.starts_with(|letter: char| letter.is_ascii_lowercase())
                && before.chars().next_back().is_none_or(|letter| letter.is_whitespace() || "`(".contains(letter));
            match is_flag {
                true => out.push_str(&name.replace('-', "_")),
                false => out.push_str(&flag[..2 + name.len()]),
            }
            rest = &flag[2 + name.len()..];
        }
        out.push_str(rest);
        out
    }

    /// The same in every text of a value.
    pub fn value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, self.value(value))).collect(),
            other => other,
        }
    }

    /// Texts of a result that clients can download name the base model as clients know it. One that cannot be changed stays: the result is worth more.
    pub fn in_result(&self, folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_text = path.extension().and_then(|end| end.to_str()).is_some_and(|end| TEXTS.contains(&end));
            let is_shown = !entry.file_name().to_string_lossy().starts_with('.');
            if !is_text || !is_shown || entry.metadata().map_or(true, |found| found.len() > LARGEST) {
                continue;
            }
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let clean = self.paths(&text);
            if clean != text {
                drop(garden_files::replace(&path, clean));
            }
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.display().to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_places_have_the_names_that_clients_know() {
        let hidden = Hidden(vec![("/srv/models/base".into(), "base".into())]);
        let text = "`/srv/models/base/config.json`: use `--max-length 512` with --on-long-row shrink -- or a--b";
        assert_eq!(hidden.text(text), "`base/config.json`: use `max_length 512` with on_long_row shrink -- or a--b");
    }
}
