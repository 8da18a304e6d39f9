//! GGUF files: metadata and tensors, read in place from a memory map; a model may be split into several.
//!
//! Every count and offset is checked against the file before it is used. A tensor of an unknown type does not
//! spoil the file; asking for it is an error that names it. Format: ggml's `docs/gguf.md`, versions 2 and 3.

use super::hash::{Stamp, blake3_of};
pub(crate) use super::texts::Texts;
use crate::files::{Links, Unopened, open};
use crate::{Error, ModelSource, Result};
pub(crate) use greenroom_kernels::ggml::TensorType;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::SystemTime;

/// An opened model: a GGUF file, or all parts of one that was split.
pub(crate) struct Gguf {
    /// File name or the bundled model's name, for messages.
    pub(crate) name: String,
    parts: Vec<FilePart>,
    /// That of the first part.
    metadata: HashMap<String, Value>,
    tensors: HashMap<String, TensorInfo>,
}

/// A file.
struct FilePart {
    bytes: FileBytes,
    /// Where its tensors begin.
    data_start: usize,
}

/// The file's bytes: mapped, part of the program, or in memory.
pub(crate) enum FileBytes {
    /// With the file's stamp, if it has one.
    Mapped(memmap2::Mmap, Option<Stamp>),
    Held(Cow<'static, [u8]>),
}

/// A metadata value.
#[derive(Clone, PartialEq)]
pub(crate) enum Value {
    Int(i128),
    Float(f64),
    Bool(bool),
    Str(String),
    Array(Vec<Value>),
    /// An array of texts.
    Texts(Texts),
}

/// Form for messages: of what is long, the beginning or the length.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(n) => write!(f, "{n}"),
            Self::Float(x) => write!(f, "{x:?}"),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::Str(text) => write!(f, "{:?}", text.chars().take(80).collect::<String>()),
            Self::Array(values) => write!(f, "an array of {}", values.len()),
            Self::Texts(texts) => write!(f, "an array of {}", texts.len()),
        }
    }
}

/// Place, shape and number format of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct TensorInfo {
    /// Row-major: `[.., n_out, k]`, the reverse of the file's order.
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: TensorType,
    /// Number of the file.
    part: usize,
    offset: u64,
}

impl TensorInfo {
    /// Number of its elements; a tensor of an unknown type may claim any shape.
    pub(crate) fn n_elements(&self) -> u64 {
        self.shape.iter().fold(1, |n: u64, side| n.saturating_mul(*side as u64))
    }
}

impl Gguf {
    /// Opens a model file or a model compiled into the program.
    pub(crate) fn open(source: &ModelSource) -> Result<Self> {
        match source {
            ModelSource::Path(path) => Self::map(path, Arrays::All)?.with_other_parts(path, Arrays::All),
            ModelSource::Bundled(name, bytes) => {
                Self::parse((*name).to_owned(), FileBytes::Held(Cow::Borrowed(bytes)))
            }
        }
    }

    /// Opens a model file without its vocabulary, in a fraction of the time: arrays that are longer than
    /// [`MAX_SHORT`] are empty.
    pub(crate) fn open_header(path: &Path) -> Result<Self> {
        Self::map(path, Arrays::Short)?.with_other_parts(path, Arrays::Short)
    }

    /// The model with the tensors of its other files, if it was split (`split.count`).
    fn with_other_parts(mut self, path: &Path, arrays: Arrays) -> Result<Self> {
        let n = self.int::<u16>("split.count")?.unwrap_or(1);
        if n <= 1 {
            return Ok(self);
        }
        let place = |gguf: &Self| gguf.int::<u16>("split.no");
        let of = |no: u16| format!("-{:05}-of-{n:05}.gguf", no + 1);
        let prefix = self.name.strip_suffix(&of(0)).filter(|_| place(&self).is_ok_and(|no| no == Some(0)));
        let Some(prefix) = prefix.map(str::to_owned) else {
            let (no, first) = (place(&self)?.unwrap_or(0).saturating_add(1), of(0));
            return Err(self.error(format!(
                "it is part {no} of {n} of a model; give the first one, whose name ends in `{first}`"
            )));
        };
        for no in 1..n {
            let other = Self::map(&path.with_file_name(format!("{prefix}{}", of(no))), arrays)?;
            if place(&other)? != Some(no) || other.int::<u16>("split.count")? != Some(n) {
                return Err(other.error(format!("it is not part {} of {n} of a model", no + 1)));
            }
            for (name, info) in other.tensors {
                let info = TensorInfo { part: no.into(), ..info };
                if self.tensors.insert(name.clone(), info).is_some() {
                    return Err(self.error(format!("tensor `{name}` is given in two parts")));
                }
            }
            self.parts.extend(other.parts);
        }
        let (found, expected) = (self.tensors.len(), self.int::<usize>("split.tensors.count")?);
        match expected.filter(|expected| *expected != found) {
            Some(expected) => {
                Err(self.error(format!("its {n} parts have {found} tensors; expected {expected}")))
            }
            None => Ok(self),
        }
    }

    #[allow(unsafe_code)] // the memory map
    fn map(path: &Path, arrays: Arrays) -> Result<Self> {
        let wrong = |what: &str, e: std::io::Error| {
            Error::model(format!("can't {what} the model file {}: {e}", path.display())).with_source(e)
        };
        // Hubs store models behind links.
        let (file, _) = open(path, Links::Follow, OpenOptions::new().read(true)).map_err(|e| match e {
            Unopened::Failed(e) => wrong("open", e),
            Unopened::Foreign(kind) => {
                Error::model(format!("{} is {kind}, not a file; give the path of a .gguf", path.display()))
            }
        })?;
        let stamp = file.metadata().ok().as_ref().and_then(Stamp::of);
        // SAFETY: the map is read-only. Another process could still truncate or change the file under us,
        // as with every mapped model file; that is the one case in which reads of it could fault.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| wrong("map", e))?;
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into());
        Self::read(name, FileBytes::Mapped(map, stamp), arrays)
    }

    /// Reads the header; `name` is what messages call the file.
    ///
    /// # Errors
    /// It is not a GGUF file, or its header or a tensor reaches past its end.
    pub(crate) fn parse(name: String, bytes: FileBytes) -> Result<Self> {
        Self::read(name, bytes, Arrays::All)
    }

    fn read(name: String, bytes: FileBytes, arrays: Arrays) -> Result<Self> {
        let mut reader = HeaderReader { name: &name, bytes: bytes.as_slice(), at: 0, n_elements: 0, arrays };
        if reader.take(4, "magic")? != b"GGUF" {
            return Err(reader.broken("it does not begin with \"GGUF\"; expected a GGUF file"));
        }
        let version = reader.u32("version")?;
        if !(2..=3).contains(&version) {
            let found =
                format!("found GGUF version {version}; expected 2 or 3 (big-endian files are not supported)");
            return Err(reader.broken(&found));
        }
        let n_tensors = reader.u64("tensor count")?;
        let n_values = reader.u64("metadata count")?;
        if n_tensors > MAX_ENTRIES || n_values > MAX_ENTRIES {
            return Err(reader.broken(&format!(
                "it announces {n_values} values and {n_tensors} tensors; expected at most {MAX_ENTRIES} of each"
            )));
        }
        let mut metadata = HashMap::new();
        for _ in 0..n_values {
            let key = reader.string("metadata key")?;
            let kind = reader.u32(key)?;
            let value = reader.value(kind, key, 0)?;
            metadata.insert(key.to_owned(), value);
        }
        let mut tensors = HashMap::new();
        for _ in 0..n_tensors {
            let (key, info) = reader.tensor_info()?;
            if tensors.insert(key.clone(), info).is_some() {
                return Err(reader.broken(&format!("tensor `{key}` is given twice")));
            }
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(Value::Int(n)) if (1..=1 << 20).contains(n) && n % 8 == 0 => *n as usize,
            Some(other) => return Err(reader.broken(&format!("general.alignment is {other:?}"))),
        };
        let data_start = reader.at.next_multiple_of(alignment);
        let gguf = Self { parts: vec![FilePart { bytes, data_start }], metadata, tensors, name };
        for name in gguf.tensors.keys() {
            if gguf.tensors[name].kind.row().is_some() {
                gguf.tensor(name)?;
            }
        }
        gguf.ends()?;
        Ok(gguf)
    }

    /// Checks that little follows the last tensor: the whole file is read, to identify its content.
    fn ends(&self) -> Result<()> {
        const SLACK: u64 = 16 << 20;
        let end = |info: &TensorInfo| {
            // Of a type that is not known: no number has more than eight bytes.
            let (per_block, bytes) = info.kind.row().map_or((1, 8), |row| (row.2 as u64, row.3 as u64));
            info.offset.saturating_add((info.n_elements() / per_block).saturating_mul(bytes))
        };
        let start = self.parts[0].data_start as u64;
        let end = self.tensors.values().map(end).max().unwrap_or(0).saturating_add(start);
        let len = self.n_bytes();
        if len > end.saturating_add(SLACK) {
            return Err(self.error(format!(
                "it continues for {} bytes after its last tensor; expected a file with a model only",
                len - end
            )));
        }
        Ok(())
    }

    /// Bytes of all files.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.as_slice().len() as u64).sum()
    }

    /// An error about this file.
    pub(crate) fn error(&self, detail: impl fmt::Display) -> Error {
        Error::model(format!("{}: {detail}", self.name))
    }

    /// Shapes of all tensors.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, info)| (name.as_str(), info))
    }

    /// Tells whether the file has a tensor.
    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Checks that all tensors are of known types.
    ///
    /// # Errors
    /// One is not: the first by name.
    pub(crate) fn knows_types(&self) -> Result<()> {
        let unknown = self.tensors.iter().filter(|(_, info)| info.kind.row().is_none());
        unknown.map(|(name, _)| name).min().map_or(Ok(()), |name| self.tensor(name).map(drop))
    }

    /// A tensor's description and bytes.
    ///
    /// # Errors
    /// Missing, of an unknown type, or reaching past the end of the file.
    pub(crate) fn tensor(&self, name: &str) -> Result<(&TensorInfo, &[u8])> {
        let info = self.tensors.get(name).ok_or_else(|| self.error(format!("tensor `{name}` is missing")))?;
        let Some(&(_, kind, per_block, block_bytes)) = info.kind.row() else {
            let (known, found) = (TensorType::known().collect::<Vec<_>>().join(", "), info.kind);
            return Err(self.error(format!(
                "tensor `{name}` has the ggml type {found}; expected one of {known}; quantize the model \
                 again, e.g. to Q4_K_M"
            )));
        };
        let n = info.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
        let row = info.shape.last().copied().unwrap_or(0);
        let bytes = n.filter(|_| row % per_block == 0).and_then(|n| (n / per_block).checked_mul(block_bytes));
        let bytes = bytes.ok_or_else(|| {
            self.error(format!("tensor `{name}`: shape {:?} is not possible in {kind}", info.shape))
        })?;
        let range = usize::try_from(info.offset).ok().and_then(|offset| {
            let start = self.parts[info.part].data_start.checked_add(offset)?;
            Some(start..start.checked_add(bytes)?)
        });
        let file = self.parts[info.part].bytes.as_slice();
        let data = range.and_then(|range| file.get(range)).ok_or_else(|| {
            self.error(format!(
                "tensor `{name}` ({bytes} bytes at {}) reaches past the end of the file ({} bytes); the \
                 download may be incomplete",
                info.offset,
                file.len()
            ))
        })?;
        Ok((info, data))
    }

    /// A metadata value, if there.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// Keys of the metadata.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.keys().map(String::as_str)
    }

    /// blake3 (hex) of the whole file, or of all parts one after another. No more of it stays in memory than was
    /// there.
    pub(crate) fn hash(&self) -> String {
        let parts: Vec<&[u8]> = self.parts.iter().map(|part| part.bytes.as_slice()).collect();
        blake3_of(&parts, |piece| self.release(piece))
    }

    /// What its files are known by as long as nobody writes to them; `None` if that can't be told `now`.
    pub(crate) fn stamp(&self, now: SystemTime) -> Option<String> {
        let stamp = |part: &FilePart| match &part.bytes {
            FileBytes::Mapped(_, stamp) => stamp.as_ref()?.at(now),
            FileBytes::Held(_) => None,
        };
        self.parts.iter().map(stamp).collect::<Option<Vec<String>>>().map(|stamps| stamps.join("\n"))
    }

    /// Gives the memory of a tensor's bytes back; they can be read again. Only Unix takes such advice.
    #[allow(unsafe_code)] // the advice
    #[cfg_attr(not(unix), allow(unused_variables))]
    pub(crate) fn release(&self, bytes: &[u8]) {
        #[cfg(unix)]
        for part in &self.parts {
            let FileBytes::Mapped(map, _) = &part.bytes else { continue };
            let all = map.as_ptr_range();
            if !all.contains(&bytes.as_ptr()) {
                continue;
            }
            let at = bytes.as_ptr().addr() - map.as_ptr().addr();
            // SAFETY: the pages of a read-only map of a file come back unchanged when they are touched again.
            let advised =
                unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at, bytes.len()) };
            if let Err(e) = advised {
                tracing::debug!("can't release pages of {}: {e}", self.name);
            }
        }
    }

    /// A whole number of the metadata; `None` if the key is missing.
    ///
    /// # Errors
    /// The value is something else, or does not fit.
    pub(crate) fn int<T: TryFrom<i128>>(&self, key: &str) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Int(n)) => match T::try_from(*n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(self.error(format!("`{key}` is {n}, which is out of range"))),
            },
            Some(other) => Err(self.error(format!("`{key}` is {other:?}; expected a whole number"))),
        }
    }

    /// A number of the metadata; `None` if the key is missing.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f32>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(x)) => Ok(Some(*x as f32)),
            Some(other) => Err(self.error(format!("`{key}` is {other:?}; expected a float"))),
        }
    }

    /// A text of the metadata; `None` if the key is missing or holds something else.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key) {
            Some(Value::Str(text)) => Some(text),
            _ => None,
        }
    }

    /// An array of texts of the metadata; `None` if the key is missing or holds something else.
    pub(crate) fn texts(&self, key: &str) -> Option<&Texts> {
        match self.get(key) {
            Some(Value::Texts(texts)) => Some(texts),
            _ => None,
        }
    }

    /// An array of the metadata, not of texts; `None` if the key is missing or holds something else.
    pub(crate) fn array(&self, key: &str) -> Option<&[Value]> {
        match self.get(key) {
            Some(Value::Array(values)) => Some(values),
            _ => None,
        }
    }
}

impl FileBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(map, _) => map,
            Self::Held(bytes) => bytes,
        }
    }
}

/// Reads the header front to back; every error names the place.
struct HeaderReader<'a> {
    name: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Elements of all arrays so far.
    n_elements: u64,
    arrays: Arrays,
}

/// Arrays of the metadata that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrays {
    All,
    /// Those of at most [`MAX_SHORT`] elements; others are empty.
    Short,
}

/// Maximum number of elements of an array that has one for each layer; those of vocabularies are longer.
const MAX_SHORT: u64 = 4096;
/// Maximum number of values, and of tensors: far above any model's. A sparse file can announce more than can
/// be counted in a day.
const MAX_ENTRIES: u64 = 1 << 20;
/// Maximum number of elements of all arrays together: far above any vocabulary.
const MAX_ELEMENTS: u64 = 1 << 23;
/// Arrays of arrays deeper than this are not metadata of any model.
const MAX_DEPTH: usize = 4;

impl<'a> HeaderReader<'a> {
    fn broken(&self, what: &str) -> Error {
        Error::model(format!("{} is not a readable GGUF file: {what} (at byte {})", self.name, self.at))
    }

    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            return Err(self.broken(&format!("it ends inside {what} ({n} bytes expected)")));
        };
        let piece = &self.bytes[self.at..end];
        self.at = end;
        Ok(piece)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        Ok(self.take(N, what)?.try_into().expect("N bytes were taken"))
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn string(&mut self, what: &str) -> Result<&'a str> {
        let n = usize::try_from(self.u64(what)?).unwrap_or(usize::MAX);
        let bytes = self.take(n, what)?;
        std::str::from_utf8(bytes).map_err(|_| self.broken(&format!("{what} is not UTF-8")))
    }

    fn value(&mut self, kind: u32, key: &str, depth: usize) -> Result<Value> {
        Ok(match kind {
            0 => Value::Int(i128::from(self.array::<1>(key)?[0])),
            1 => Value::Int(i128::from(i8::from_le_bytes(self.array(key)?))),
            2 => Value::Int(i128::from(u16::from_le_bytes(self.array(key)?))),
            3 => Value::Int(i128::from(i16::from_le_bytes(self.array(key)?))),
            4 => Value::Int(i128::from(self.u32(key)?)),
            5 => Value::Int(i128::from(i32::from_le_bytes(self.array(key)?))),
            6 => Value::Float(f64::from(f32::from_le_bytes(self.array(key)?))),
            7 => Value::Bool(self.array::<1>(key)?[0] != 0),
            8 => Value::Str(self.string(key)?.to_owned()),
            9 if depth < MAX_DEPTH => {
                let inner = self.u32(key)?;
                let n = self.u64(key)?;
                self.n_elements = self.n_elements.saturating_add(n);
                if self.n_elements > MAX_ELEMENTS {
                    return Err(self.broken(&format!(
                        "`{key}` is an array of {n}; all arrays together may have at most {MAX_ELEMENTS} \
                         elements"
                    )));
                }
                if self.arrays == Arrays::Short && n > MAX_SHORT {
                    for _ in 0..n {
                        self.skip(inner, key, depth + 1)?;
                    }
                    return Ok(Value::Array(Vec::new()));
                }
                // No reservation: a hostile count meets the end of the file before it meets the allocator.
                if inner == 8 {
                    let mut texts = Texts::default();
                    for _ in 0..n {
                        texts.push(self.string(key)?);
                    }
                    return Ok(Value::Texts(texts));
                }
                let mut values = Vec::new();
                for _ in 0..n {
                    values.push(self.value(inner, key, depth + 1)?);
                }
                Value::Array(values)
            }
            10 => Value::Int(i128::from(self.u64(key)?)),
            11 => Value::Int(i128::from(i64::from_le_bytes(self.array(key)?))),
            12 => Value::Float(f64::from_le_bytes(self.array(key)?)),
            other => return Err(self.broken(&format!("`{key}` has the unknown value type {other}"))),
        })
    }

    /// Passes over an element of an array.
    fn skip(&mut self, kind: u32, key: &str, depth: usize) -> Result<()> {
        if kind != 8 {
            return self.value(kind, key, depth).map(drop);
        }
        let n = usize::try_from(self.u64(key)?).unwrap_or(usize::MAX);
        self.take(n, key).map(drop)
    }

    fn tensor_info(&mut self) -> Result<(String, TensorInfo)> {
        let name = self.string("tensor name")?.to_owned();
        let n_dims = self.u32(&name)?;
        if n_dims > 4 {
            return Err(self.broken(&format!("tensor `{name}` has {n_dims} dimensions; expected at most 4")));
        }
        let mut shape = Vec::new();
        for _ in 0..n_dims {
            let dim = self.u64(&name)?;
            shape.push(
                usize::try_from(dim)
                    .map_err(|_| self.broken(&format!("tensor `{name}` has a side of {dim}")))?,
            );
        }
        shape.reverse();
        let kind = TensorType(self.u32(&name)?);
        let offset = self.u64(&name)?;
        Ok((name, TensorInfo { shape, kind, part: 0, offset }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::RandomModel;
    use std::path::PathBuf;

    fn open(path: &Path) -> Result<Gguf> {
        Gguf::open(&ModelSource::Path(path.to_owned()))
    }

    #[test]
    fn a_split_model_is_whole() {
        let (model, folder) = (RandomModel::tiny(1), tempfile::tempdir().unwrap());
        let whole = folder.path().join("model.gguf");
        std::fs::write(&whole, model.bytes()).unwrap();
        let path = |no: usize| folder.path().join(format!("m-{:05}-of-00003.gguf", no + 1));
        let parts = model.parts(3);
        let write = |no: usize| std::fs::write(path(no), &parts[no]).unwrap();
        (0..3).for_each(write);
        let (whole, split) = (open(&whole).unwrap(), open(&path(0)).unwrap());
        assert_eq!(whole.tensors().count(), split.tensors().count());
        for (name, _) in whole.tensors() {
            assert_eq!(whole.tensor(name).unwrap().1, split.tensor(name).unwrap().1, "{name}");
        }
        assert_eq!(split.n_bytes(), parts.iter().map(|part| part.len() as u64).sum::<u64>());
        // One file at a time is wrong.
        let refused = |path: PathBuf| open(&path).err().expect("it is refused").to_string();
        assert!(
            refused(path(1)).contains("part 2 of 3 of a model; give the first one"),
            "{}",
            refused(path(1))
        );
        std::fs::copy(path(2), path(1)).unwrap();
        assert!(refused(path(0)).contains("it is not part 2 of 3"), "{}", refused(path(0)));
        std::fs::remove_file(path(1)).unwrap();
        assert!(refused(path(0)).contains("m-00002-of-00003.gguf"), "{}", refused(path(0)));
        let other = folder.path().join("other.gguf");
        std::fs::copy(path(0), &other).unwrap();
        assert!(refused(other).contains("-00001-of-00003.gguf"));
    }
}
