// What a token adds to a recurrent layer's state, from the products of the layer: the inputs of its convolution in halves, a decay and a
// strength for each head. It goes to the token's place in the log. A thread takes a word of inputs or a head of one row.
//
// Constants in front: MIXER, CHANNELS, N_HEADS, INNER (width of all heads' values), WIDTH (of a row of products), LOG_WORDS.

// Biases and slopes of the heads among the vectors.
@group(0) @binding(0) var<storage, read> params: array<u32>;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;
@group(0) @binding(2) var<storage, read> products: array<f32>;
// For each row its place in the log, and which of the walked tokens it is.
@group(0) @binding(3) var<storage, read> row_table: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read_write> log_: array<u32>;

fn input(row: u32, channel: u32) -> f32 {
    let first = row * WIDTH + channel;
    if (MIXER == CONVOLUTION) {
        return products[first] * products[first + 2u * CHANNELS];
    }
    return products[first + select(0u, INNER, MIXER == MAMBA)];
}

// ln(1 + exp(x)); beyond 20 it is x.
fn softplus(x: f32) -> f32 {
    let e = exp(min(x, 20.0));
    // Near 1 a logarithm loses what the sum has lost.
    let small = e * (1.0 - e * (0.5 - e * (0.33333334 - e * 0.25)));
    return select(select(log(1.0 + e), small, e < 0.03), x, x > 20.0);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let first = row_table[row].x * LOG_WORDS;
    let i = group.x * 64u + thread;
    if (i < CHANNELS / 2u) {
        log_[first + i] = halves(input(row, 2u * i), input(row, 2u * i + 1u));
        return;
    }
    let head = i - CHANNELS / 2u;
    if (head >= N_HEADS) {
        return;
    }
    // Strengths and decays of the delta rule, steps of Mamba-2.
    let own = row * WIDTH + CHANNELS + INNER + head;
    let step = softplus(products[own + select(N_HEADS, 0u, MIXER == MAMBA)] + vectors[params[0] + head]);
    let strength = select(1.0 / (1.0 + exp(-products[own])), step, MIXER == MAMBA);
    let gates = first + CHANNELS / 2u + 2u * head;
    log_[gates] = bitcast<u32>(exp(step * vectors[params[1] + head]));
    log_[gates + 1u] = bitcast<u32>(strength);
}
