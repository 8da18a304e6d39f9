// Adds up what the slots of each row gave, weighed, in order: the sums of product.wgsl. A workgroup takes 16 rows and 16 columns.
//
// Constants in front: those of results.wgsl.

@group(0) @binding(5) var<storage, read> given: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y * 16u + thread / OUTS;
    let column = group.x * OUTS + thread % OUTS;
    let is_there = row < pass_.n_rows;
    var value = 0.0;
    if (is_there) {
        var result = params.zero;
        for (var slot = 0u; slot < N_SLOTS; slot++) {
            let at = row * N_SLOTS + slot;
            result = fma(bitcast<f32>(table[2u * at + 1u]), given[at * params.y_stride + column], result);
        }
        value = put(result, row, column);
    }
    if (CODES) {
        code(value, row, column - thread % OUTS, thread, is_there);
    }
}
