// From what a recurrent layer's tokens read to what its last matrix is multiplied with: norms and gates. A workgroup takes numbers of one
// row that are normed together.
//
// Constants in front: THREADS (256), MIXER, GROUP (numbers that are normed together), CHANNELS, N_HEADS, V_DIM, INNER, VALUES (first column
// of values in a row of mixed tokens), OUTER (first column of gates in a row of products), WIDTH (of such a row), OUT_WIDTH, NORMED, SKIPS, EPS,
// CODES (what is given is coded for the product that reads it).

// Norm and factors of values among the vectors; the norm that coded rows are for, or NONE.
@group(0) @binding(0) var<storage, read> params: array<u32>;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;
@group(0) @binding(2) var<storage, read> row_table: array<vec2<u32>>;
@group(0) @binding(3) var<storage, read> products: array<f32>;
@group(0) @binding(4) var<storage, read> mixed: array<f32>;
@group(0) @binding(5) var<storage, read> read_: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
@group(0) @binding(7) var<storage, read_write> coded: array<u32>;

const MIXED_WIDTH = CHANNELS + 2u * N_HEADS;

fn silu(x: f32) -> f32 {
    return x / (1.0 + exp(-x));
}

// A number before its norm: that of Mamba-2 follows the gates.
fn ungated(row: u32, i: u32) -> f32 {
    let y = read_[row * INNER + i];
    if (MIXER != MAMBA) {
        return y;
    }
    var skipped = 0.0;
    if (SKIPS) {
        skipped = mixed[row_table[row].y * MIXED_WIDTH + VALUES + i] * vectors[params[1] + i / V_DIM];
    }
    return (y + skipped) * silu(products[row * WIDTH + OUTER + i]);
}

fn gated_and_normed(row: u32, first: u32, thread: u32) {
    var inverse = 1.0;
    if (NORMED) {
        var square = 0.0;
        for (var i = thread; i < GROUP; i += THREADS) {
            let y = ungated(row, first + i);
            square = fma(y, y, square);
        }
        inverse = inverseSqrt(sum_of_all(square, thread) / f32(GROUP) + EPS);
    }
    for (var i = thread; i < GROUP; i += THREADS) {
        var y = ungated(row, first + i);
        if (NORMED) {
            // The delta rule has one norm for all heads.
            y *= inverse * vectors[params[0] + select(first, 0u, MIXER == DELTA) + i];
        }
        if (MIXER == DELTA) {
            y *= silu(products[row * WIDTH + OUTER + first + i]);
        }
        out[row * OUT_WIDTH + first + i] = y;
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let first = group.x * GROUP;
    if (MIXER == CONVOLUTION) {
        for (var i = first + thread; i < first + GROUP; i += THREADS) {
            out[row * OUT_WIDTH + i] = mixed[row_table[row].y * MIXED_WIDTH + i] * products[row * WIDTH + OUTER + i];
        }
    } else {
        gated_and_normed(row, first, thread);
    }
    if (CODES) {
        storageBarrier();
        for (var half = thread; half < GROUP / 16u; half += THREADS) {
            var numbers: array<vec4<f32>, 4>;
            for (var j = 0u; j < 4u; j++) {
                let i = row * OUT_WIDTH + first + half * 16u + j * 4u;
                numbers[j] = vec4<f32>(out[i], out[i + 1u], out[i + 2u], out[i + 3u]);
            }
            code_sixteen(numbers, row, OUT_WIDTH / 32u, first / 16u + half, params[2]);
        }
    }
}
