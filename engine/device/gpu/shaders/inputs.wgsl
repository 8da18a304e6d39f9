// Each layer's own input: the norm of what is projected from the embedding, and the table's numbers, which have their place already, by the
// root of 2. A workgroup takes a layer's input of a row.
//
// Constants in front: THREADS (64), WIDTH (of a layer's input), N_LAYERS, EPS.

// First of the norm's weights among the vectors.
@group(0) @binding(0) var<storage, read> params: array<u32>;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;
@group(0) @binding(2) var<storage, read> projected: array<f32>;
@group(0) @binding(3) var<storage, read_write> inputs: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = (group.y * N_LAYERS + group.x) * WIDTH;
    var square = 0.0;
    for (var i = thread; i < WIDTH; i += THREADS) {
        square = fma(projected[first + i], projected[first + i], square);
    }
    let inverse = inverseSqrt(sum_of_all(square, thread) / f32(WIDTH) + EPS);
    for (var i = thread; i < WIDTH; i += THREADS) {
        inputs[first + i] = (inputs[first + i] + projected[first + i] * inverse * vectors[params[0] + i]) * 0.70710678;
    }
}
