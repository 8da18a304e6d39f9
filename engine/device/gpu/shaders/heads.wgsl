// From the products of a layer to its queries and to rows of the cache: norms of heads, positions, scales, rotation. A workgroup takes
// one head of one row: first those of queries, then of keys, then of values.
//
// Constants in front: THREADS (64), N_HEADS, N_KV_HEADS, K_DIM, V_DIM, N_ROT (0: positions turn nothing), ROPE_FIRST, HALVES (pairs lie half a head
// apart), NORMED, WHOLE_ROW (one norm over all heads), NORM_LAST (after positions), TEMPERED (queries are scaled by their position),
// SHAPED, VALUES_OF_KEYS (values are made of keys' products), NORMED_V, ROTATED_K, ROTATED_V, LATENT (keys and values are one latent), RANK, NOPE, WIDTH (of a row of products), EPS.

struct Params {
    // Norms of queries and keys (LATENT: of the latent, twice) among the vectors; factors of keys and of queries there.
    q_norm: u32,
    k_norm: u32,
    k_scales: u32,
    q_scales: u32,
    // Elements that turn by the rotary tables before the one to use, [n_rows, N_ROT] each.
    rope: u32,
    // Words of a token's rows in the cache.
    row_words: u32,
    // As `rope`, for the factors of queries, [n_rows].
    temperature: u32,
    // Norm of values among the vectors.
    v_norm: u32,
}

struct Row {
    // Slot of its cached rows, and token in it.
    slot: u32,
    token: u32,
}

@group(0) @binding(0) var<uniform> pass_: Pass;
@group(0) @binding(1) var<storage, read> params: Params;
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
@group(0) @binding(3) var<storage, read> products: array<f32>;
// Queries brought to the latent, [n_rows, N_HEADS, RANK].
@group(0) @binding(4) var<storage, read> absorbed: array<f32>;
@group(0) @binding(5) var<storage, read> ropes: array<f32>;
@group(0) @binding(6) var<storage, read> row_table: array<Row>;
@group(0) @binding(7) var<storage, read_write> queries: array<f32>;
@group(0) @binding(8) var<storage, read_write> rows: array<u32>;

const HEAD_THREADS = 64u;
var<workgroup> head: array<f32, K_DIM>;

// Norms the first `width` numbers of the head; of WHOLE_ROW by the `n_heads` heads from product `first` on.
fn norm(width: u32, weights: u32, first: u32, n_heads: u32, thread: u32) {
    var square = 0.0;
    let n_squared = select(width, n_heads * width, WHOLE_ROW);
    for (var i = thread; i < n_squared; i += HEAD_THREADS) {
        let x = select(head[i % width], products[first + i], WHOLE_ROW);
        square = fma(x, x, square);
    }
    let inverse = inverseSqrt(sum_of_all(square, thread) / f32(n_squared) + EPS);
    for (var i = thread; i < width; i += HEAD_THREADS) {
        head[i] = head[i] * inverse * vectors[weights + i];
    }
    workgroupBarrier();
}

// Turns pairs of the head by a row's position (Su et al. 2021).
fn rope(row: u32, thread: u32) {
    for (var i = thread; i < N_ROT / 2u; i += HEAD_THREADS) {
        let table = params.rope * pass_.n_rows + row * N_ROT + i;
        let cosine = ropes[table];
        let sine = ropes[table + N_ROT / 2u];
        let left = ROPE_FIRST + select(2u * i, i, HALVES);
        let right = left + select(1u, N_ROT / 2u, HALVES);
        let a = head[left];
        let b = head[right];
        head[left] = fma(a, cosine, -(b * sine));
        head[right] = fma(a, sine, b * cosine);
    }
    workgroupBarrier();
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let is_query = group.x < N_HEADS;
    let is_key = !is_query && group.x < N_HEADS + N_KV_HEADS;
    var own = group.x;
    if (is_key) {
        own -= N_HEADS;
    } else if (!is_query) {
        own -= N_HEADS + N_KV_HEADS;
    }
    let dim = select(V_DIM, K_DIM, is_query || is_key);
    let products_of_row = row * WIDTH;
    for (var i = thread; i < dim; i += HEAD_THREADS) {
        if (LATENT) {
            if (!is_query) {
                head[i] = products[products_of_row + N_HEADS * (NOPE + N_ROT) + i];
            } else if (i < RANK) {
                head[i] = absorbed[(row * N_HEADS + own) * RANK + i];
            } else {
                head[i] = products[products_of_row + own * (NOPE + N_ROT) + NOPE + i - RANK];
            }
        } else {
            // The heads of queries, keys and values stand one behind the other, all of one width.
            let at = group.x - select(0u, N_KV_HEADS, VALUES_OF_KEYS && !is_query && !is_key);
            head[i] = products[products_of_row + at * K_DIM + i];
        }
    }
    workgroupBarrier();
    if (is_query || is_key) {
        let first = products_of_row + select(N_HEADS * K_DIM, 0u, is_query);
        let n_heads = select(N_KV_HEADS, N_HEADS, is_query);
        let weights = select(params.k_norm, params.q_norm, is_query) + select(0u, own * K_DIM, WHOLE_ROW);
        if (LATENT && is_key) {
            norm(RANK, params.k_norm, 0u, 1u, thread);
        } else if (NORMED && !NORM_LAST && !LATENT) {
            norm(K_DIM, weights, first, n_heads, thread);
        }
        if (N_ROT > 0u) {
            rope(row, thread);
        }
        if (NORMED && NORM_LAST && !LATENT) {
            norm(K_DIM, weights, first, n_heads, thread);
        }
        if (TEMPERED && is_query) {
            let factor = ropes[params.temperature * pass_.n_rows + row];
            for (var i = thread; i < K_DIM; i += HEAD_THREADS) {
                head[i] *= factor;
            }
            workgroupBarrier();
        }
        if (SHAPED) {
            let scales = select(params.k_scales, params.q_scales, is_query);
            let kv_head = select(own, own / (N_HEADS / N_KV_HEADS), is_query);
            for (var i = thread; i < K_DIM; i += HEAD_THREADS) {
                head[i] *= vectors[scales + kv_head * K_DIM + i];
            }
        }
        if (ROTATED_K) {
            if (LATENT) {
                hadamard(0u, RANK, thread);
                hadamard(RANK, K_DIM - RANK, thread);
            } else {
                hadamard(0u, K_DIM, thread);
            }
        }} else {
        if (NORMED_V) {
            norm(V_DIM, params.v_norm, 0u, 1u, thread);
        }
        if (ROTATED_V) {
            hadamard(0u, V_DIM, thread);
        }
    }
    if (is_query) {
        for (var i = thread; i < K_DIM; i += HEAD_THREADS) {
            queries[(row * N_HEADS + own) * K_DIM + i] = head[i];
        }
        return;
    }
    let at = row_table[row];
    var first = (at.slot * 256u + at.token) * params.row_words + own * dim / 2u;
    if (!is_key) {
        first += N_KV_HEADS * K_DIM / 2u;
    }
    for (var i = thread; i < dim / 2u; i += HEAD_THREADS) {
        rows[first + i] = halves(head[2u * i], head[2u * i + 1u]);
    }
}
