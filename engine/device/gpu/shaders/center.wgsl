// Rows less their mean: the norm of these is the rows' norm around it. A workgroup takes a row.
//
// Constants in front: THREADS (256), D_MODEL.

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> centered: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.y * D_MODEL;
    var sum = 0.0;
    for (var i = thread; i < D_MODEL; i += THREADS) {
        sum += x[first + i];
    }
    let mean = sum_of_all(sum, thread) / f32(D_MODEL);
    for (var i = thread; i < D_MODEL; i += THREADS) {
        centered[first + i] = x[first + i] - mean;
    }
}
