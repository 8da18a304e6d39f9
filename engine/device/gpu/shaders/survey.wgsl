// First step: the largest logit of a piece (likely.wgsl). The first workgroup of a row empties its bins.

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> surveys: array<Survey>;
@group(0) @binding(2) var<storage, read_write> bins: array<u32>;
@group(0) @binding(3) var<storage, read_write> found: array<u32>;

var<workgroup> n_nan: atomic<u32>;

// By its bits: a comparison may be compiled as if there were no NaN.
fn is_nan(logit: f32) -> bool {
    return (bitcast<u32>(logit) & 0x7fffffffu) > 0x7f800000u;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.y * N_VOCAB;
    if (thread == 0u) {
        atomicStore(&n_nan, 0u);
    }
    var most = LEAST;
    var n_own_nan = 0u;
    let end = min((group.x + 1u) * PIECE, N_VOCAB);
    for (var i = group.x * PIECE + thread; i < end; i += THREADS) {
        let logit = logits[first + i];
        most = select(most, logit, logit > most);
        n_own_nan += u32(is_nan(logit));
    }
    most = most_of_all(most, thread);
    if (n_own_nan > 0u) {
        atomicAdd(&n_nan, n_own_nan);
    }
    workgroupBarrier();
    if (thread == 0u) {
        surveys[group.y * PIECES + group.x] = Survey(most, atomicLoad(&n_nan));
    }
    if (group.x == 0u) {
        bins[group.y * BINS + thread] = 0u;
        if (thread < 4u) {
            found[group.y * STRIDE + thread] = 0u;
        }
    }
}
