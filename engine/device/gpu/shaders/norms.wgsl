// Norms what comes out of a dense feed-forward and of the experts beside it, adds them up, norms the sum and adds it to the residual
// stream, which is scaled then. A workgroup takes a row.
//
// Constants in front: THREADS (256), D_MODEL, EPS.

// First of each norm's weights among the vectors: of either, of the sum; the scale, as bits.
@group(0) @binding(0) var<storage, read> params: array<u32>;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;
@group(0) @binding(2) var<storage, read> dense: array<f32>;
@group(0) @binding(3) var<storage, read> mixed: array<f32>;
@group(0) @binding(4) var<storage, read_write> x: array<f32>;

var<workgroup> sum: array<f32, D_MODEL>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.y * D_MODEL;
    var square = vec2<f32>(0.0);
    for (var i = thread; i < D_MODEL; i += THREADS) {
        let both = vec2<f32>(dense[first + i], mixed[first + i]);
        square = fma(both, both, square);
    }
    let squares = vec2<f32>(sum_of_all(square.x, thread), sum_of_all(square.y, thread));
    let inverse = inverseSqrt(squares / f32(D_MODEL) + EPS);
    var of_sum = 0.0;
    for (var i = thread; i < D_MODEL; i += THREADS) {
        let of_dense = dense[first + i] * inverse.x * vectors[params[0] + i];
        let both = of_dense + mixed[first + i] * inverse.y * vectors[params[1] + i];
        sum[i] = both;
        of_sum = fma(both, both, of_sum);
    }
    let scale = inverseSqrt(sum_of_all(of_sum, thread) / f32(D_MODEL) + EPS);
    for (var i = thread; i < D_MODEL; i += THREADS) {
        x[first + i] = (x[first + i] + sum[i] * scale * vectors[params[2] + i]) * bitcast<f32>(params[3]);
    }
}
