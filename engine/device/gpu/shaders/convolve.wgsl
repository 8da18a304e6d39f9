// Causal convolution of each channel over logged tokens; heads of queries and keys are normed where the rule has them so; the tokens'
// gates follow. A workgroup takes a head of queries or keys, or 64 other channels, of one token.
//
// Constants in front: THREADS (64), MIXER, TAPS, CHANNELS, N_HEADS, K_DIM, N_QUERIES (heads that are normed as queries), N_NORMED (these,
// and those of keys; the first of the channels), BIASED, LOG_WORDS, EPS.

// Weights, the oldest input's first, and biases among the vectors.
@group(0) @binding(0) var<storage, read> params: array<u32>;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;
// For each walked token its entry among the places.
@group(0) @binding(2) var<storage, read> walked: array<u32>;
// Places in the log of each sequence's tokens, in order; those before the first one are NONE.
@group(0) @binding(3) var<storage, read> places: array<u32>;
@group(0) @binding(4) var<storage, read> log_: array<u32>;
// [walked tokens, CHANNELS + 2 N_HEADS]
@group(0) @binding(5) var<storage, read_write> mixed: array<f32>;

const MIXED_WIDTH = CHANNELS + 2u * N_HEADS;

fn convolved(entry: u32, channel: u32) -> f32 {
    var sum = 0.0;
    if (BIASED) {
        sum = vectors[params[1] + channel];
    }
    for (var tap = 0u; tap < TAPS; tap++) {
        let place = places[entry + tap + 1u - TAPS];
        if (place != NONE) {
            let input = half_of(log_[place * LOG_WORDS + channel / 2u], channel);
            sum = fma(input, vectors[params[0] + tap * CHANNELS + channel], sum);
        }
    }
    if (MIXER == CONVOLUTION) {
        return sum;
    }
    return sum / (1.0 + exp(-sum));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let entry = walked[group.y];
    let row = group.y * MIXED_WIDTH;
    if (group.x < N_NORMED) {
        let first = group.x * K_DIM;
        var square = 0.0;
        for (var i = thread; i < K_DIM; i += THREADS) {
            let x = convolved(entry, first + i);
            mixed[row + first + i] = x;
            square = fma(x, x, square);
        }
        // Each head is as long as 1, and queries are shorter by the root of their width.
        let inverse = inverseSqrt(sum_of_all(square, thread) + EPS);
        let factor = select(1.0, 1.0 / sqrt(f32(K_DIM)), group.x < N_QUERIES) * inverse;
        for (var i = thread; i < K_DIM; i += THREADS) {
            mixed[row + first + i] *= factor;
        }
        return;
    }
    let i = N_NORMED * K_DIM + (group.x - N_NORMED) * THREADS + thread;
    if (i < CHANNELS) {
        mixed[row + i] = convolved(entry, i);
    } else if (i < MIXED_WIDTH) {
        mixed[row + i] = bitcast<f32>(log_[places[entry] * LOG_WORDS + CHANNELS / 2u + i - CHANNELS]);
    }
}
