// Codes rows in 8 bits (coded.wgsl), where what wrote them could not. A thread takes sixteen numbers.
//
// Constants in front: HEADS of a row, UNITS of a head.

struct Params {
    // First column, distance of rows and of heads, in vectors of four.
    x_first: u32,
    x_stride: u32,
    each_x: u32,
    // First of a norm's weights among the vectors, or NONE.
    norm: u32,
}

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> vectors: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> coded: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let half = group.x * 64u + thread;
    if (half >= 2u * UNITS) {
        return;
    }
    let from_ = group.y * params.x_stride + params.x_first + group.z * params.each_x + half * 4u;
    var numbers: array<vec4<f32>, 4>;
    for (var j = 0u; j < 4u; j++) {
        numbers[j] = x[from_ + j];
    }
    code_sixteen(numbers, group.y, HEADS * UNITS, group.z * 2u * UNITS + half, params.norm);
}
