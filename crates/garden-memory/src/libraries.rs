//! The libraries that the processes of a run have loaded, and the kinds that causes need: a program that never loaded an
//! image decoder keeps no decoded images.

use std::collections::BTreeSet;

/// Most names kept; a process of a large framework has about a hundred.
const MOST_NAMES: usize = 1000;

/// The programs, packages and shared libraries whose code some process of a run has mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Libraries {
    /// Not recorded.
    #[default]
    Unknown,
    /// Everything that was seen: `PIL`, `torch`, `libcuda`, `python3.12`.
    Known(BTreeSet<String>),
    /// Some process could not be read, so no library can be called missing.
    Incomplete,
}

impl Libraries {
    /// Adds names; beyond `MOST_NAMES` the set becomes incomplete.
    pub fn add(&mut self, seen: impl IntoIterator<Item = String>) {
        let names = match self {
            Libraries::Incomplete => return,
            Libraries::Known(names) => names,
            Libraries::Unknown => {
                *self = Libraries::Known(BTreeSet::new());
                return self.add(seen);
            }
        };
        names.extend(seen);
        if names.len() > MOST_NAMES {
            *self = Libraries::Incomplete;
        }
    }

    /// Looks for a kind of library: `Some(Some(name))` if loaded, `Some(None)` if not, `None` if unknown.
    pub(crate) fn find(&self, library: Library) -> Option<Option<&str>> {
        let Libraries::Known(names) = self else { return None };
        let found = || names.iter().map(String::as_str).filter(|name| library.is(name));
        Some(found().find(|name| !is_folder(name)).or_else(|| found().next()))
    }
}

/// Whether a name is only the folder of a library, which says less than the library's own name.
fn is_folder(name: &str) -> bool {
    name == "lib-dynload" || name == "site-packages" || name.ends_with(".libs") || name.ends_with("-linux-gnu")
}

/// A kind of library that some causes need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    ImageDecoder,
    GpuDriver,
    DeepLearning,
    Tokenizer,
    Tables,
    Python,
}

impl Library {
    /// The kind in words.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Library::ImageDecoder => "image decoder",
            Library::GpuDriver => "GPU driver",
            Library::DeepLearning => "deep-learning framework",
            Library::Tokenizer => "tokenizer",
            Library::Tables => "Arrow or Parquet library",
            Library::Python => "Python interpreter",
        }
    }

    /// Whether a name is of this kind. Errs on the side of yes, since conclusions are drawn only from missing libraries.
    fn is(self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let (parts, names): (&[&str], &[&str]) = match self {
            Library::ImageDecoder => (
                &[
                    "avif",
                    "codec",
                    "decord",
                    "freeimage",
                    "gdal",
                    "gdk_pixbuf",
                    "heif",
                    "imag",
                    "itk",
                    "jpeg",
                    "magick",
                    "mxnet",
                    "opencv",
                    "paddle",
                    "pillow",
                    "png",
                    "qt5gui",
                    "qt6gui",
                    "tensorflow",
                    "tiff",
                    "turbojpeg",
                    "video",
                    "vips",
                    "webp",
                ],
                &["av", "av.libs", "cv2", "libdali", "pil", "pygame", "rasterio", "torchvision"],
            ),
            Library::GpuDriver => (&[], &["libcuda", "libamdhip64", "libhsa-runtime64", "libze_loader"]),
            Library::DeepLearning => (
                &[
                    "dnnl",
                    "jax",
                    "mindspore",
                    "mkldnn",
                    "mxnet",
                    "onnxruntime",
                    "openvino",
                    "paddle",
                    "tensorflow",
                    "torch",
                ],
                &["mlx", "tinygrad"],
            ),
            Library::Tokenizer => (&["sentencepiece", "tiktoken", "tokenizer"], &[]),
            Library::Tables => (&["arrow", "cudf", "duckdb", "parquet", "polars"], &[]),
            Library::Python => (&["python", "pypy"], &["lib-dynload"]),
        };
        parts.iter().any(|part| name.contains(part)) || names.contains(&name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(names: &[&str]) -> Libraries {
        let mut libraries = Libraries::default();
        libraries.add(names.iter().map(ToString::to_string));
        libraries
    }

    #[test]
    fn libraries_are_known_by_their_names() {
        let training = known(&["PIL", "libc", "libcuda", "libtorch_python", "pyarrow", "python3.12", "tokenizers"]);
        use Library::{DeepLearning, GpuDriver, ImageDecoder, Python, Tables, Tokenizer};
        for library in [DeepLearning, GpuDriver, ImageDecoder, Python, Tables, Tokenizer] {
            assert!(training.find(library).flatten().is_some(), "{library:?}");
        }
        let plain = known(&["ld-linux-x86-64", "lib-dynload", "libc", "libcudart", "libz"]);
        assert_eq!((plain.find(ImageDecoder), plain.find(GpuDriver)), (Some(None), Some(None)));
        assert_eq!(Libraries::Unknown.find(Python), None);
    }

    #[test]
    fn what_is_incomplete_stays_so() {
        let mut many = known(&[]);
        many.add((0..=MOST_NAMES).map(|number| number.to_string()));
        assert_eq!(many, Libraries::Incomplete);
        many.add(["PIL".to_string()]);
        assert_eq!(many.find(Library::ImageDecoder), None);
    }
}
