//! Settings that are lists: one value is as good as a list of one, in recipes and on the command line.

/// Datasets: a text, or a list of texts.
pub(crate) mod paths {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        One(PathBuf),
        Several(Vec<PathBuf>),
    }

    /// One is written as a text, as it always was.
    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        match paths {
            [] => Path::new("").serialize(serializer),
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
        let given = Given::deserialize(deserializer)
            .map_err(|_| serde::de::Error::custom("expected a path, or a list of paths"))?;
        Ok(match given {
            Given::One(path) if path.as_os_str().is_empty() => Vec::new(),
            Given::One(path) => vec![path],
            Given::Several(paths) => paths,
        })
    }
}

/// Numbers: one, a list, or a text with commas between them.
pub(super) mod numbers {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given<T> {
        None(()),
        One(T),
        Several(Vec<T>),
        Written(String),
    }

    pub fn serialize<T: Serialize, S: Serializer>(numbers: &Option<Vec<T>>, serializer: S) -> Result<S::Ok, S::Error> {
        match numbers.as_deref() {
            Some([one]) => one.serialize(serializer),
            numbers => numbers.serialize(serializer),
        }
    }

    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
    where
        T: Deserialize<'de> + FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let wrong = |_| serde::de::Error::custom("expected one number, or several with commas between them");
        match Given::deserialize(deserializer).map_err(wrong)? {
            Given::None(()) => Ok(None),
            Given::One(one) => Ok(Some(vec![one])),
            Given::Several(numbers) => Ok(Some(numbers)),
            Given::Written(text) => {
                let wrong = |number: &str, error: T::Err| serde::de::Error::custom(format!("`{number}`: {error}"));
                let numbers = text.split(',').map(str::trim);
                let numbers = numbers.map(|number| number.parse().map_err(|error| wrong(number, error)));
                numbers.collect::<Result<Vec<T>, D::Error>>().map(Some)
            }
        }
    }
}
