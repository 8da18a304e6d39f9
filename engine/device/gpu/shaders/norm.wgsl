// Norms what comes out of attention or feed-forward and adds it to the residual stream, which is scaled then. A workgroup takes a row.
//
// Constants in front: THREADS (256), D_MODEL, EPS.

// First of the norm's weights among the vectors; the scale, as bits.
@group(0) @binding(0) var<storage, read> params: array<u32>;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;
@group(0) @binding(2) var<storage, read> y: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

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
}
