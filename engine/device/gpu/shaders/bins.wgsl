// Second step: how many logits of a row fall into each bin (likely.wgsl).

@group(0) @binding(3) var<storage, read_write> bins: array<atomic<u32>>;

var<workgroup> own_bins: array<atomic<u32>, BINS>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.y * N_VOCAB;
    let temperature = temperatures[group.y];
    atomicStore(&own_bins[thread], 0u);
    let most = most_of_row(group.y, thread);
    let end = min((group.x + 1u) * PIECE, N_VOCAB);
    for (var i = group.x * PIECE + thread; i < end; i += THREADS) {
        let bin = bin_of(logits[first + i], most, temperature);
        if (bin < BINS) {
            atomicAdd(&own_bins[bin], 1u);
        }
    }
    workgroupBarrier();
    let n = atomicLoad(&own_bins[thread]);
    if (n > 0u) {
        atomicAdd(&bins[group.y * BINS + thread], n);
    }
}
