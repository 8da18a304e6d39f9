// Attention of queries to cached keys and values: softmax block by block, packed codes read as they lie. A workgroup takes up to Q queries
// that read one KV head: some rows of a block, some heads of a group. Of a block each thread has the scores of one token; then eight
// columns of the values in a slice of the tokens, read once for all queries. Slices are added up in order, and blocks merged in
// order, here or in `combine`, by the same steps.
//
// Constants in front: TILE_ROWS, TILE_HEADS, Q (their product), N_HEADS, GROUP (heads that read a KV head), SLICES, SCALE and CAP (0: none) of
// the scores, the layout of a block.

struct Tile {
    // First row of the pass, number of rows, position of the first.
    row: u32,
    n: u32,
    position: u32,
    // Slot of the rows of their own block.
    rows: u32,
    // First of the sequence's slots in the table, for the part of this layer; slot of its exact rows, or NONE.
    blocks: u32,
    exact: u32,
}

struct Params {
    // Part that the layer belongs to.
    part: u32,
    // Words of a block, of exact rows, of a token's open rows.
    block_words: u32,
    exact_words: u32,
    row_words: u32,
}

@group(0) @binding(0) var<uniform> pass_: Pass;
@group(0) @binding(1) var<storage, read> params: Params;
@group(0) @binding(2) var<storage, read> tiles: array<Tile>;
@group(0) @binding(3) var<storage, read> table: array<u32>;
@group(0) @binding(4) var<storage, read> queries: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> rows: array<u32>;
@group(0) @binding(6) var<storage, read> blocks: array<u32>;
@group(0) @binding(7) var<storage, read> exact: array<u32>;
// For each row, head and piece: its context, [V_DIM], largest score, sum, two that are not used.
@group(0) @binding(8) var<storage, read_write> partials: array<f32>;

const THREADS = 256u;
const K_CHUNKS = K_DIM / 8u;
const V_CHUNKS = V_DIM / 8u;
// Tokens of a slice.
const SLICE = 256u / SLICES;
// Columns of a query's context that a thread adds up.
const OWNED = (V_DIM + THREADS - 1u) / THREADS;

var<workgroup> asked: array<vec4<f32>, Q * K_DIM / 4u>;
// Weights of the block's tokens; then a query's sums of slices.
var<workgroup> weights: array<f32, select(SLICES * V_DIM, Q * 256u, Q * 256u > SLICES * V_DIM)>;
var<workgroup> reduced: array<f32, Q * 32u>;
var<workgroup> most: array<f32, Q>;
var<workgroup> sum: array<f32, Q>;
var<workgroup> block_most: array<f32, Q>;
var<workgroup> block_sum: array<f32, Q>;

fn key(tile: Tile, block: u32, is_open: bool, is_exact: bool, own: u32, token: u32, chunk: u32) -> Eight {
    if (is_open) {
        return open_eight((tile.rows * 256u + token) * params.row_words + own * K_DIM / 2u, chunk);
    }
    if (is_exact && token < 4u && K_EXACT) {
        return exact_eight(tile.exact * params.exact_words, own, token, K_DIM, chunk);
    }
    return key_eight(block, own, token, chunk);
}

fn value(tile: Tile, block: u32, is_open: bool, is_exact: bool, own: u32, token: u32, chunk: u32) -> Eight {
    if (is_open) {
        let first = (tile.rows * 256u + token) * params.row_words;
        let values = select(N_KV_HEADS * K_DIM / 2u + own * V_DIM / 2u, own * K_DIM / 2u, SHARED);
        return open_eight(first + values, chunk);
    }
    if (is_exact && token < 4u && V_EXACT) {
        let values = select(0u, N_KV_HEADS * 4u * K_DIM / 2u, K_EXACT);
        return exact_eight(tile.exact * params.exact_words + values, own, token, V_DIM, chunk);
    }
    return value_eight(block, own, token, chunk);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let tile = tiles[params.part * pass_.n_tiles + group.x];
    const HEAD_TILES = (GROUP + TILE_HEADS - 1u) / TILE_HEADS;
    let own = group.y / HEAD_TILES;
    let first_head = group.y % HEAD_TILES * TILE_HEADS;
    let last = tile.position / 256u;
    var oldest = 0u;
    if (WINDOW > 0u && tile.position + 1u > WINDOW) {
        oldest = (tile.position + 1u - WINDOW) / 256u;
    }
    var piece = 0u;
    var end = last + 1u;
    if (pass_.split == 1u) {
        piece = group.z;
        oldest += piece;
        end = min(end, oldest + 1u);
        if (oldest > last) {
            return;
        }
    }
    for (var i = thread; i < Q * K_DIM / 4u; i += THREADS) {
        let q = i / (K_DIM / 4u);
        let r = q / TILE_HEADS;
        let h = first_head + q % TILE_HEADS;
        if (r < tile.n && h < GROUP) {
            asked[i] = queries[((tile.row + r) * N_HEADS + own * GROUP + h) * (K_DIM / 4u) + i % (K_DIM / 4u)];
        }
    }
    if (thread < Q) {
        most[thread] = LEAST;
        sum[thread] = 0.0;
    }
    var contexts: array<f32, Q * OWNED>;
    workgroupBarrier();
    for (var index = oldest; index < end; index++) {
        let is_open = index == last;
        let is_exact = index == 0u;
        let block = table[tile.blocks + index] * params.block_words;
        let token = thread;
        let at = index * 256u + token;
        var scores: array<f32, Q>;
        // What no row of the tile sees may not have been written.
        if (at < tile.position + tile.n) {
            for (var chunk = 0u; chunk < K_CHUNKS; chunk++) {
                let k = key(tile, block, is_open, is_exact, own, token, chunk);
                for (var q = 0u; q < Q; q++) {
                    let low = asked[q * (K_DIM / 4u) + 2u * chunk];
                    let high = asked[q * (K_DIM / 4u) + 2u * chunk + 1u];
                    var s = scores[q];
                    s = fma(k.low.x, low.x, s);
                    s = fma(k.low.y, low.y, s);
                    s = fma(k.low.z, low.z, s);
                    s = fma(k.low.w, low.w, s);
                    s = fma(k.high.x, high.x, s);
                    s = fma(k.high.y, high.y, s);
                    s = fma(k.high.z, high.z, s);
                    s = fma(k.high.w, high.w, s);
                    scores[q] = s;
                }
            }
        }
        for (var q = 0u; q < Q; q++) {
            let position = tile.position + q / TILE_HEADS;
            let sees = at <= position && (WINDOW == 0u || position < at + WINDOW);
            var score = scores[q] * SCALE;
            if (CAP > 0.0) {
                score = CAP * tanh(clamp(score / CAP, -15.0, 15.0));
            }
            scores[q] = select(LEAST, score, sees);
            weights[q * 256u + token] = scores[q];
        }
        workgroupBarrier();
        if (thread < Q * 32u) {
            let first = thread / 32u * 256u + thread % 32u;
            var m = weights[first];
            for (var i = 1u; i < 8u; i++) {
                m = max(m, weights[first + 32u * i]);
            }
            reduced[thread] = m;
        }
        workgroupBarrier();
        if (thread < Q) {
            var m = reduced[thread * 32u];
            for (var i = 1u; i < 32u; i++) {
                m = max(m, reduced[thread * 32u + i]);
            }
            block_most[thread] = m;
        }
        workgroupBarrier();
        for (var q = 0u; q < Q; q++) {
            let sees = scores[q] > LEAST;
            weights[q * 256u + token] = select(0.0, exp(scores[q] - block_most[q]), sees);
        }
        workgroupBarrier();
        if (thread < Q * 32u) {
            let first = thread / 32u * 256u + thread % 32u;
            var s = weights[first];
            for (var i = 1u; i < 8u; i++) {
                s += weights[first + 32u * i];
            }
            reduced[thread] = s;
        }
        workgroupBarrier();
        if (thread < Q) {
            var s = reduced[thread * 32u];
            for (var i = 1u; i < 32u; i++) {
                s += reduced[thread * 32u + i];
            }
            block_sum[thread] = s;
        }
        var found: array<Eight, Q>;
        let slice = thread / V_CHUNKS;
        let chunk = thread % V_CHUNKS;
        if (slice < SLICES) {
            let seen = min(256u, tile.position + tile.n - index * 256u);
            let to = min(seen, (slice + 1u) * SLICE);
            for (var t = slice * SLICE; t < to; t++) {
                let v = value(tile, block, is_open, is_exact, own, t, chunk);
                for (var q = 0u; q < Q; q++) {
                    let w = vec4<f32>(weights[q * 256u + t]);
                    found[q].low = fma(v.low, w, found[q].low);
                    found[q].high = fma(v.high, w, found[q].high);
                }
            }
        }
        for (var q = 0u; q < Q; q++) {
            workgroupBarrier();
            if (slice < SLICES) {
                let at = slice * V_DIM + chunk * 8u;
                for (var j = 0u; j < 4u; j++) {
                    weights[at + j] = found[q].low[j];
                    weights[at + 4u + j] = found[q].high[j];
                }
            }
            workgroupBarrier();
            let f = factors(most[q], block_most[q]);
            for (var n = 0u; n < OWNED; n++) {
                let column = n * THREADS + thread;
                if (column < V_DIM) {
                    var total = weights[column];
                    for (var i = 1u; i < SLICES; i++) {
                        total += weights[i * V_DIM + column];
                    }
                    contexts[q * OWNED + n] = fma(total, f.y, contexts[q * OWNED + n] * f.x);
                }
            }
        }
        workgroupBarrier();
        if (thread < Q) {
            let f = factors(most[thread], block_most[thread]);
            sum[thread] = fma(block_sum[thread], f.y, sum[thread] * f.x);
            most[thread] = max(most[thread], block_most[thread]);
        }
        workgroupBarrier();
    }
    const STRIDE = V_DIM + 4u;
    for (var q = 0u; q < Q; q++) {
        let r = q / TILE_HEADS;
        let h = first_head + q % TILE_HEADS;
        if (r < tile.n && h < GROUP) {
            let of_head = (tile.row + r) * N_HEADS + own * GROUP + h;
            let first = (of_head * pass_.n_partials + piece) * STRIDE;
            for (var n = 0u; n < OWNED; n++) {
                let column = n * THREADS + thread;
                if (column < V_DIM) {
                    partials[first + column] = contexts[q * OWNED + n];
                }
            }
            if (thread == 0u) {
                partials[first + V_DIM] = most[q];
                partials[first + V_DIM + 1u] = sum[q];
            }
        }
    }
}
