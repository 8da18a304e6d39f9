// The context of one head of one row from its pieces: merged in order, divided by the sum of weights, rotated back, gated.
//
// Constants in front: N_HEADS, V_DIM, WINDOW, ROTATED_V, SINKS, GATED (by the sigmoid of products), GATES (the first column of these), WIDTH
// (of a row of products), CODES (contexts are coded for the product that reads them).

@group(0) @binding(0) var<uniform> pass_: Pass;
// First of the heads' sinks among the vectors; NONE: contexts are coded without a norm.
@group(0) @binding(1) var<storage, read> params: array<u32>;
@group(0) @binding(2) var<storage, read> vectors: array<f32>;
@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read> partials: array<f32>;
@group(0) @binding(5) var<storage, read> products: array<f32>;
@group(0) @binding(6) var<storage, read_write> contexts: array<f32>;
@group(0) @binding(7) var<storage, read_write> coded: array<u32>;

const HEAD_THREADS = 64u;
const STRIDE = V_DIM + 4u;
var<workgroup> head: array<f32, V_DIM>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    let of_head = row * N_HEADS + group.x;
    let position = positions[row];
    var n = 1u;
    if (pass_.split == 1u) {
        var oldest = 0u;
        if (WINDOW > 0u && position + 1u > WINDOW) {
            oldest = (position + 1u - WINDOW) / 256u;
        }
        n = position / 256u - oldest + 1u;
    }
    for (var i = thread; i < V_DIM; i += HEAD_THREADS) {
        var most = LEAST;
        var sum = 0.0;
        var context = 0.0;
        for (var piece = 0u; piece < n; piece++) {
            let first = (of_head * pass_.n_partials + piece) * STRIDE;
            let f = factors(most, partials[first + V_DIM]);
            context = fma(partials[first + i], f.y, context * f.x);
            sum = fma(partials[first + V_DIM + 1u], f.y, sum * f.x);
            most = max(most, partials[first + V_DIM]);
        }
        if (SINKS) {
            let sink = vectors[params[0] + group.x];
            let f = factors(most, sink);
            context *= f.x;
            sum = fma(sum, f.x, f.y);
        }
        head[i] = context / sum;
    }
    if (ROTATED_V) {
        hadamard(0u, V_DIM, thread);
    } else {
        workgroupBarrier();
    }
    for (var i = thread; i < V_DIM; i += HEAD_THREADS) {
        var context = head[i];
        if (GATED) {
            context /= 1.0 + exp(-products[row * WIDTH + GATES + group.x * V_DIM + i]);
        }
        contexts[of_head * V_DIM + i] = context;
        head[i] = context;
    }
    if (CODES) {
        workgroupBarrier();
        for (var own = thread; own < V_DIM / 16u; own += HEAD_THREADS) {
            var numbers: array<vec4<f32>, 4>;
            for (var j = 0u; j < 4u; j++) {
                let i = own * 16u + j * 4u;
                numbers[j] = vec4<f32>(head[i], head[i + 1u], head[i + 2u], head[i + 3u]);
            }
            code_sixteen(numbers, row, N_HEADS * V_DIM / 32u, group.x * V_DIM / 16u + own, params[1]);
        }
    }
}
