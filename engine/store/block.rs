//! A sealed block as a safetensors file: one tensor each for codes, scales, means and exact rows of a layer's
//! K and V.
//!
//! Names after the paper's appendix A: `L{layer}_B{block}_K.weights` (u32), `.scales` (u8), in a session's
//! first block `.exact`, and of keys `.means` (f16), as [`format`](crate::kv::format) has them; with an f16
//! cache one tensor `L{layer}_B{block}_K`. A state has `L{recurrent layer}_B{position}_S.inputs` (f16), `.weights`
//! and, in 8 bits, `.scales` (f32). The metadata hold the block's address and a blake3 over names,
//! types, sizes and data.

use super::found::Failure;
use super::source::{ByteSource, stretch, stretch_into};
use crate::kv::format::{BlockBytes, BlockFormat, BlockTensor, Number, Side, StateFormat};
use crate::kv::layout::{KvLayout, Part};
use crate::kv::table::{BlockHash, BlockKey};
use crate::{Error, Result};
use safetensors::tensor::{Dtype, Metadata, TensorView};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufWriter, Cursor, Read as _, SeekFrom, Write as _};

/// The tensors of a part of the block at an index, by their names, in the order in which they are summed.
fn tensors(part: Part, index: usize, layout: &KvLayout) -> (usize, Vec<(String, BlockTensor)>) {
    let mut named = Vec::new();
    if part == Part::State {
        let format = StateFormat::new(layout);
        for (layer, of) in format.layers.iter().enumerate() {
            let name = format!("L{layer}_B{index}_{STATE}");
            let tensors = of.tensors(format.sealed).into_iter();
            named.extend(tensors.map(|tensor| (format!("{name}{}", tensor.suffix), tensor)));
        }
        return (format.len(), named);
    }
    let format = BlockFormat::new(layout, part);
    for layer in &format.layers {
        for side in layer.sides() {
            let letter = if side.side == Side::Keys { "K" } else { "V" };
            let name = format!("L{}_B{index}_{letter}", layer.layer);
            let tensors = side.tensors(index == 0).into_iter();
            named.extend(tensors.map(|tensor| (format!("{name}{}", tensor.suffix), tensor)));
        }
    }
    (format.len(index == 0), named)
}

fn dtype(number: Number) -> Dtype {
    match number {
        Number::U32 => Dtype::U32,
        Number::U8 => Dtype::U8,
        Number::I8 => Dtype::I8,
        Number::F16 => Dtype::F16,
        Number::F32 => Dtype::F32,
    }
}

/// The file of a part of the block at an index.
pub(crate) fn encode(
    (hash, part): BlockKey,
    index: usize,
    block: &BlockBytes,
    layout: &KvLayout,
) -> Result<Vec<u8>> {
    let wrong = |e: safetensors::SafeTensorError| Error::store(format!("can't encode a block: {e}"));
    let (_, tensors) = tensors(part, index, layout);
    let view = |(name, tensor): (String, BlockTensor)| {
        let bytes = &block.as_bytes()[tensor.place];
        Ok((name, TensorView::new(dtype(tensor.number), tensor.shape, bytes).map_err(wrong)?))
    };
    let views = tensors.into_iter().map(view).collect::<Result<Vec<_>>>()?;
    let metadata = HashMap::from([
        ("block".to_owned(), hash.hex()),
        ("blake3".to_owned(), checksum(hash, views.iter().map(|(n, v)| (n.as_str(), v.data())))),
    ]);
    let image = safetensors::serialize(views, Some(metadata)).map_err(wrong)?;
    if image.len() as u64 > MAX_BLOCK_BYTES {
        return Err(Error::store(format!("a block of {} bytes is too large to be stored", image.len())));
    }
    Ok(image)
}

fn checksum<'a>(hash: BlockHash, tensors: impl Iterator<Item = (impl AsRef<str>, &'a [u8])>) -> String {
    // Many small pieces take it 1.8 times as long as few large ones.
    let mut pieces = BufWriter::with_capacity(1 << 17, blake3::Hasher::new_keyed(&hash.0));
    let mut add = |bytes: &[u8]| pieces.write_all(bytes).expect("a hasher takes all bytes");
    for (name, data) in tensors {
        add(name.as_ref().as_bytes());
        add(&(data.len() as u64).to_le_bytes());
        add(data);
    }
    pieces.into_inner().expect("a hasher takes all bytes").finalize().to_hex().to_string()
}

/// Maximum bytes of a block's image, whatever its model.
pub(super) const MAX_BLOCK_BYTES: u64 = 1 << 30;

/// Maximum bytes of the image of a part of a block.
pub(super) fn most(part: Part, layout: &KvLayout) -> u64 {
    let bytes = match part {
        Part::State => layout.state_bytes(),
        Part::Global | Part::Windowed => layout.block_bytes(part) + layout.exact_bytes(),
    };
    bytes + header_bytes(layout) as u64
}

/// Maximum bytes of an image's header: some hundred for each tensor.
fn header_bytes(layout: &KvLayout) -> usize {
    4096 + (layout.layers.len() + layout.states.len()) * 8 * 256
}

/// Reads a part of the block at an index from an image of `len` bytes that begins at `start`; the error is
/// the reason why it can't be trusted. A small image is read at once: some hundred tensors, one after
/// another, would take longer than their bytes.
pub(crate) fn read(
    source: &mut dyn ByteSource,
    (start, len): (u64, u64),
    key: BlockKey,
    index: usize,
    layout: &KvLayout,
    verify: bool,
) -> Result<BlockBytes, Failure> {
    thread_local! {
        static IMAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    if len > MAX_READ_BYTES {
        return read_tensors(source, (start, len), key, index, layout, verify);
    }
    IMAGE.with_borrow_mut(|image| {
        stretch_into(image, source, (start, len))?;
        read_tensors(&mut Cursor::new(&image[..]), (0, len), key, index, layout, verify)
    })
}

/// Maximum bytes of an image that is read at once: each thread that reads keeps room for one.
const MAX_READ_BYTES: u64 = 4 << 20;

/// Reads each tensor straight to its place.
fn read_tensors(
    source: &mut dyn ByteSource,
    (start, len): (u64, u64),
    (hash, part): BlockKey,
    index: usize,
    layout: &KvLayout,
    verify: bool,
) -> Result<BlockBytes, Failure> {
    let mut reader = ImageReader::open(source, start, len, header_bytes(layout) as u64)?;
    if verify && reader.entry("block") != Some(hash.hex()) {
        return Err("it contains a different block than its name says".into());
    }
    let (len, tensors) = tensors(part, index, layout);
    let mut block = BlockBytes::zeroed(len);
    for (name, tensor) in &tensors {
        let place = &mut block.as_bytes_mut()[tensor.place.clone()];
        reader.tensor(name, dtype(tensor.number), place)?;
    }
    if verify {
        let tensors = tensors.iter().map(|(name, tensor)| (name, &block.as_bytes()[tensor.place.clone()]));
        if reader.entry("blake3") != Some(checksum(hash, tensors)) {
            return Err("its checksum does not match".into());
        }
    }
    Ok(block)
}

/// A safetensors image, read tensor by tensor.
struct ImageReader<'a> {
    source: &'a mut dyn ByteSource,
    metadata: Metadata,
    /// Offsets at which the tensors' bytes begin and the image ends.
    data: u64,
    end: u64,
}

impl<'a> ImageReader<'a> {
    fn open(source: &'a mut dyn ByteSource, start: u64, len: u64, most: u64) -> Result<Self, Failure> {
        let mut size = [0; 8];
        let wrong = |e: io::Error| Failure::io("its header", &e);
        source.seek(SeekFrom::Start(start)).map_err(wrong)?;
        source.read_exact(&mut size).map_err(wrong)?;
        let size = u64::from_le_bytes(size);
        if size > most.min(len.saturating_sub(8)) {
            return Err(format!("its header of {size} bytes does not fit in its {len} bytes").into());
        }
        let header = stretch(source, (start + 8, size))?;
        let metadata = serde_json::from_slice(&header).map_err(|e| format!("its header is broken: {e}"))?;
        Ok(Self { source, metadata, data: start + 8 + size, end: start.saturating_add(len) })
    }

    fn entry(&self, key: &str) -> Option<String> {
        self.metadata.metadata().as_ref()?.get(key).cloned()
    }

    /// Reads the bytes of a tensor to their place.
    fn tensor(&mut self, name: &str, dtype: Dtype, place: &mut [u8]) -> Result<(), Failure> {
        let info = self.metadata.info(name).ok_or_else(|| format!("tensor {name} is missing"))?;
        let (first, last) = info.data_offsets;
        let inside = self.data.checked_add(last as u64).is_some_and(|end| end <= self.end);
        if info.dtype != dtype || last.checked_sub(first) != Some(place.len()) || !inside {
            return Err(format!(
                "tensor {name} is {:?} {:?}, which differs from the model",
                info.dtype, info.shape
            )
            .into());
        }
        let wrong = |e: io::Error| Failure::io(format_args!("tensor {name}"), &e);
        self.source.seek(SeekFrom::Start(self.data + first as u64)).map_err(wrong)?;
        self.source.read_exact(place).map_err(wrong)
    }
}

/// Checks an image by itself, a piece at a time: well-formed, of the block `hash`, its checksum right.
pub(crate) fn verify(
    source: &mut dyn ByteSource,
    (start, len): (u64, u64),
    hash: BlockHash,
) -> Result<(), Failure> {
    if len > MAX_BLOCK_BYTES {
        return Err(format!("it has {len} bytes; expected at most {MAX_BLOCK_BYTES}").into());
    }
    let reader = ImageReader::open(source, start, len, 16 << 20)?;
    if reader.entry("block") != Some(hash.hex()) {
        return Err("it contains a different block than its name says".into());
    }
    let tensors = reader.metadata.tensors();
    if reader.data.checked_add(reader.metadata.data_len() as u64) != Some(reader.end) {
        return Err("it does not end where its header says".into());
    }
    let layer_of = |name: &String| name.strip_prefix('L')?.split('_').next()?.parse::<usize>().ok();
    let layers: BTreeSet<usize> = tensors.keys().filter_map(layer_of).collect();
    let index = tensors.keys().next().and_then(|n| n.split('_').nth(1)).unwrap_or_default();
    let (mut hasher, mut seen) = (blake3::Hasher::new_keyed(&hash.0), 0);
    for l in layers {
        for (side, suffix) in
            ["K", "V", STATE].into_iter().flat_map(|side| SUFFIXES.map(|suffix| (side, suffix)))
        {
            let name = format!("L{l}_{index}_{side}{suffix}");
            let Some(info) = tensors.get(&name) else { continue };
            let (first, last) = info.data_offsets;
            let n = last.saturating_sub(first) as u64;
            hasher.update(name.as_bytes()).update(&n.to_le_bytes());
            let wrong = |e: io::Error| Failure::io(format_args!("tensor {name}"), &e);
            reader.source.seek(SeekFrom::Start(reader.data + first as u64)).map_err(wrong)?;
            hasher.update_reader((&mut *reader.source).take(n)).map_err(wrong)?;
            seen += 1;
        }
    }
    let found = hasher.finalize().to_hex().to_string();
    if seen != tensors.len() || reader.entry("blake3") != Some(found) {
        return Err("its checksum does not match".into());
    }
    Ok(())
}

/// Suffixes of tensors' names, in the order of [`BlockTensor::suffix`]; biases were in blocks of earlier
/// versions, which a folder may still hold.
const SUFFIXES: [&str; 7] = ["", ".inputs", ".weights", ".scales", ".biases", ".means", ".exact"];
/// What a state's tensors are called, as those of keys and values are called K and V.
const STATE: &str = "S";
