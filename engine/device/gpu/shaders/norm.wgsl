// Norms what comes out of attention or feed-forward and adds it to the residual stream, which is scaled then. A workgroup takes a row.
//
// Constants in front: THREADS (256), D_MODEL, EPS, CODES (what stands in the stream then is coded for the product that reads it).

// First of the norm's weights among the vectors; the scale, as bits; the norm that the coded row is for, or NONE.
@group(0) @binding(0) var<storage, read> params: array<u32>;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;
@group(0) @binding(2) var<storage, read> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> coded: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.y * D_MODEL;
    var square = 0.0;
    for (var i = thread; i < D_MODEL; i += THREADS) {
        square = fma(y[first + i], y[first + i], square);
    }
    let inverse = inverseSqrt(sum_of_all(square, thread) / f32(D_MODEL) + EPS);
    for (var i = thread; i < D_MODEL; i += THREADS) {
        x[first + i] = (x[first + i] + y[first + i] * inverse * vectors[params[0] + i]) * bitcast<f32>(params[1]);
    }
    if (CODES) {
        storageBarrier();
        for (var half = thread; half < D_MODEL / 16u; half += THREADS) {
            var numbers: array<vec4<f32>, 4>;
            for (var j = 0u; j < 4u; j++) {
                let i = first + half * 16u + j * 4u;
                numbers[j] = vec4<f32>(x[i], x[i + 1u], x[i + 2u], x[i + 3u]);
            }
            code_sixteen(numbers, group.y, D_MODEL / 32u, half, params[2]);
        }
    }
}
