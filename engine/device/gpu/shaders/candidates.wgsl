// Third step: the logits of a row in the first bins, and what the others weigh (likely.wgsl).

@group(0) @binding(3) var<storage, read> bins: array<u32>;
@group(0) @binding(4) var<storage, read_write> found: array<atomic<u32>>;

var<workgroup> n_bins: u32;
var<workgroup> sums: array<f32, THREADS>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.y * N_VOCAB;
    let out = group.y * STRIDE;
    let temperature = temperatures[group.y];
    let most = most_of_row(group.y, thread);
    if (thread == 0u) {
        var n = 0u;
        var bin = 0u;
        while (bin < BINS && n + bins[group.y * BINS + bin] <= MOST) {
            n += bins[group.y * BINS + bin];
            bin += 1u;
        }
        n_bins = bin;
    }
    workgroupBarrier();
    var rest = 0.0;
    var least = -LEAST;
    let end = min((group.x + 1u) * PIECE, N_VOCAB);
    for (var i = group.x * PIECE + thread; i < end; i += THREADS) {
        let logit = logits[first + i];
        if (bin_of(logit, most, temperature) < n_bins) {
            let at = out + 4u + 2u * atomicAdd(&found[out], 1u);
            atomicStore(&found[at], i);
            atomicStore(&found[at + 1u], bitcast<u32>(logit));
            least = min(least, logit);
        } else if (logit <= most) {
            rest += exp((logit - most) / temperature);
        }
    }
    least = -most_of_all(-least, thread);
    sums[thread] = rest;
    workgroupBarrier();
    for (var n = THREADS / 2u; n > 0u; n = n >> 1u) {
        if (thread < n) {
            sums[thread] += sums[thread + n];
        }
        workgroupBarrier();
    }
    if (thread == 0u) {
        let piece = out + 4u + 2u * MOST + 2u * group.x;
        atomicStore(&found[piece], bitcast<u32>(sums[0]));
        atomicStore(&found[piece + 1u], bitcast<u32>(least));
        atomicAdd(&found[out + 1u], surveys[group.y * PIECES + group.x].n_nan);
        if (group.x == 0u) {
            atomicStore(&found[out + 2u], bitcast<u32>(most));
        }
    }
}
