// What all kernels share: figures of a pass, and halves in words.

struct Pass {
    // Rows of the pass.
    n_rows: u32,
    // Rows whose logits are wanted.
    n_wanted: u32,
    // 1 if each block that a query sees has a workgroup of its own, 0 if one takes them all in turn.
    split: u32,
    // Partial contexts of a query, at most.
    n_partials: u32,
    // Tiles of rows that attend together, and blocks that are completed, each once for a part of the layers.
    n_tiles: u32,
    n_sealed: u32,
}

const NONE = 0xffffffffu;

// The half at an even or odd place of a word.
fn half_of(word: u32, place: u32) -> f32 {
    let both = unpack2x16float(word);
    return select(both.x, both.y, (place & 1u) == 1u);
}

// Two halves, each at most as large as halves are.
fn halves(a: f32, b: f32) -> u32 {
    return pack2x16float(clamp(vec2<f32>(a, b), vec2<f32>(-65504.0), vec2<f32>(65504.0)));
}

// The float that an 8-bit scale stands for: 2^(e - 20) (1 + m / 8).
fn scale_of(byte: u32) -> f32 {
    return bitcast<f32>((byte << 20u) + (107u << 23u));
}
