// Seals blocks: 256 tokens' rows of one head become codes, scales, means and exact rows, as `kv/format.rs` lays them. A workgroup takes the
// keys or the values of one head of one block; a thread is a token.
//
// Constants in front: the layout of a block, SHAPED (codes of keys make up for each other's errors), OUTERMOST_LEVEL.

struct Sealed {
    // Slot of the rows, of the block, and of its exact rows, or NONE.
    rows: u32,
    block: u32,
    exact: u32,
}

struct Params {
    // Part that the layer belongs to.
    part: u32,
    block_words: u32,
    exact_words: u32,
    row_words: u32,
    // First of the feedback matrices among the vectors, [heads, dim, dim].
    feedback: u32,
}

@group(0) @binding(0) var<uniform> pass_: Pass;
@group(0) @binding(1) var<storage, read> params: Params;
@group(0) @binding(2) var<storage, read> sealed: array<Sealed>;
@group(0) @binding(3) var<storage, read> vectors: array<f32>;
@group(0) @binding(4) var<storage, read> rows: array<u32>;
@group(0) @binding(5) var<storage, read_write> blocks: array<u32>;
@group(0) @binding(6) var<storage, read_write> exact: array<u32>;

const MOST_DIM = max(K_DIM, V_DIM);
var<workgroup> means: array<f32, MOST_DIM>;
var<workgroup> scale_bytes: array<u32, 256>;

fn number(first: u32, i: u32) -> f32 {
    return half_of(rows[first + i / 2u], i);
}

// The scale nearest to a number, and the smallest that is not below it.
fn nearest_scale(x: f32) -> u32 {
    return rounded_scale(bitcast<u32>(x) + 0x80000u);
}

fn scale_at_least(x: f32) -> u32 {
    return rounded_scale(bitcast<u32>(x) + 0xfffffu);
}

fn rounded_scale(bits: u32) -> u32 {
    let base = 107u << 23u;
    return min(select(0u, (bits - base) >> 20u, bits > base), 255u);
}

// Index of the positive level nearest to a size.
fn level_index(size: f32) -> u32 {
    var index = 0u;
    for (var i = 0u; i < 7u; i++) {
        index += u32(size > 0.5 * (POSITIVE[i] + POSITIVE[i + 1u]));
    }
    return index;
}

// The 4-bit code nearest to a number in units of the scale.
fn code_of(x: f32) -> u32 {
    let index = level_index(abs(x));
    return select(7u - index, 8u + index, x > 0.0);
}

fn level_of(code: u32) -> f32 {
    return select(-POSITIVE[7u - min(code, 7u)], POSITIVE[max(code, 8u) - 8u], code > 7u);
}

// Squared error of a group in a scale.
fn error_of(x: ptr<function, array<f32, 64>>, n: u32, scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    var error = 0.0;
    for (var i = 0u; i < n; i++) {
        let size = abs((*x)[i]);
        let off = fma(-POSITIVE[level_index(size * inverse)], scale, size);
        error = fma(off, off, error);
    }
    return error;
}

// The scale of a group: in 8 bits the smallest that reaches its largest number; in 4 bits, around that of a Gaussian, the one of least
// squared error.
fn fit(x: ptr<function, array<f32, 64>>, n: u32, bits: u32) -> u32 {
    if (bits == 8u) {
        var largest = 0.0;
        for (var i = 0u; i < n; i++) {
            largest = max(largest, abs((*x)[i]));
        }
        return scale_at_least(largest / 127.0);
    }
    var square = 0.0;
    for (var i = 0u; i < n; i++) {
        square = fma((*x)[i], (*x)[i], square);
    }
    let middle = nearest_scale(sqrt(square / f32(n)) * (OUTERMOST_LEVEL / 63.0));
    var best = middle;
    var least = 3.0e38;
    for (var s = max(middle, 3u) - 3u; s <= 255u; s++) {
        let error = error_of(x, n, scale_of(s));
        if (error < least) {
            best = s;
            least = error;
        } else if (s > middle + 3u) {
            break;
        }
    }
    return best;
}

struct Side {
    is_key: bool,
    dim: u32,
    bits: u32,
    groups: u32,
    // Words of a token's codes.
    words: u32,
    // Places in the block, in words.
    codes: u32,
    scales: u32,
}

// Rows that are not coded.
fn keep(side: Side, own: u32, token: u32, from_: u32, block: u32) {
    if (!side.is_key) {
        let to = block + side.codes + (token * N_KV_HEADS + own) * side.dim / 2u;
        for (var i = 0u; i < side.dim / 2u; i++) {
            blocks[to + i] = rows[from_ + i];
        }
    } else if (token % 2u == 0u) {
        // Two tokens share a word.
        let to = block + side.codes + (token / 16u * N_KV_HEADS + own) * side.dim * 8u + token % 16u / 2u;
        for (var i = 0u; i < side.dim; i++) {
            let next = from_ + params.row_words;
            let pair = vec2<u32>(rows[from_ + i / 2u], rows[next + i / 2u]) >> vec2<u32>(16u * (i & 1u));
            blocks[to + i * 8u] = (pair.x & 0xffffu) | (pair.y << 16u);
        }
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) token: u32) {
    let which = sealed[params.part * pass_.n_sealed + group.x];
    let own = group.y;
    var side = Side(true, K_DIM, K_BITS, K_GROUPS, K_WORDS, K_CODES, K_SCALES);
    if (group.z == 1u) {
        side = Side(false, V_DIM, V_BITS, V_GROUPS, V_WORDS, V_CODES, V_SCALES);
    }
    let column = select(N_KV_HEADS * K_DIM, 0u, side.is_key) + own * side.dim;
    let from_ = (which.rows * 256u + token) * params.row_words + column / 2u;
    let block = which.block * params.block_words;
    if (side.bits == 0u) {
        keep(side, own, token, from_, block);
        return;
    }
    let keeps_exact = which.exact != NONE && select(V_EXACT, K_EXACT, side.is_key);
    let n_exact = select(0u, 4u, keeps_exact);
    for (var i = token; i < side.dim; i += 256u) {
        var mean = 0.0;
        if (side.is_key && CENTERED) {
            var sum = 0.0;
            for (var t = n_exact; t < 256u; t++) {
                sum += number((which.rows * 256u + t) * params.row_words + column / 2u, i);
            }
            mean = unpack2x16float(halves(sum / f32(256u - n_exact), 0.0)).x;
        }
        means[i] = mean;
    }
    workgroupBarrier();
    if (side.is_key && CENTERED) {
        for (var i = token; i < side.dim / 2u; i += 256u) {
            blocks[block + K_MEANS + own * side.dim / 2u + i] = halves(means[2u * i], means[2u * i + 1u]);
        }
    }
    if (token < n_exact) {
        var to = which.exact * params.exact_words + (own * 4u + token) * side.dim / 2u;
        if (!side.is_key && K_EXACT) {
            to += N_KV_HEADS * 4u * K_DIM / 2u;
        }
        for (var i = 0u; i < side.dim / 2u; i++) {
            exact[to + i] = rows[from_ + i];
        }
    }
    var codes_at = block + side.codes + (own * 256u + token) * side.words;
    var apart = 1u;
    if (side.is_key) {
        codes_at = block + side.codes + (own * 16u + token / 16u) * side.words * 16u + token % 16u;
        apart = 16u;
    }
    var errors: array<f32, ERRORS>;
    var word: array<u32, 4>;
    for (var g = 0u; g < side.groups; g++) {
        let first = g * 64u;
        let n = min(64u, side.dim - first);
        var x: array<f32, 64>;
        for (var i = 0u; i < n; i++) {
            x[i] = number(from_, first + i) - means[first + i];
        }
        let byte = fit(&x, n, side.bits);
        let scale = scale_of(byte);
        for (var i = 0u; i < n; i++) {
            let column = first + i;
            var wanted = x[i];
            if (SHAPED && side.is_key) {
                let shares = params.feedback + (own * K_DIM + column) * K_DIM;
                for (var j = 0u; j < column; j++) {
                    wanted = fma(-vectors[shares + j], errors[j], wanted);
                }
            }
            wanted = wanted / scale;
            if (side.bits == 8u) {
                let code = u32(i32(round(clamp(wanted, -127.0, 127.0))) + 128);
                word[0] |= code << (8u * (column % 4u));
                if (column % 4u == 3u) {
                    blocks[codes_at + column / 4u * apart] = word[0];
                    word[0] = 0u;
                }
            } else {
                let code = code_of(wanted);
                if (SHAPED && side.is_key) {
                    errors[column] = fma(level_of(code), scale, -x[i]);
                }
                if (side.is_key) {
                    word[0] |= code << (8u * (column % 4u) + select(0u, 4u, column % 8u > 3u));
                    if (column % 8u == 7u) {
                        blocks[codes_at + column / 8u * apart] = word[0];
                        word[0] = 0u;
                    }
                } else {
                    // Of 32 columns the first 16 lie in the low halves of bytes.
                    word[column % 16u / 4u] |= code << (8u * (column % 4u) + select(0u, 4u, column % 32u > 15u));
                    if (column % 32u == 31u || column + 1u == side.dim) {
                        for (var w = 0u; w < 4u; w++) {
                            blocks[codes_at + column / 32u * 4u + w] = word[w];
                            word[w] = 0u;
                        }
                    }
                }
            }
        }
        // Exact tokens have the scale 1.
        scale_bytes[token] = select(byte, 160u, token < n_exact);
        workgroupBarrier();
        if (token < 64u) {
            let b = 4u * token;
            blocks[block + side.scales + ((own * side.groups + g) * 256u) / 4u + token] =
                scale_bytes[b] | scale_bytes[b + 1u] << 8u | scale_bytes[b + 2u] << 16u | scale_bytes[b + 3u] << 24u;
        }
        workgroupBarrier();
    }
}
