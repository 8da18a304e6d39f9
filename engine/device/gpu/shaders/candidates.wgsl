// The likeliest tokens of a row of logits, and what the others weigh together, so that a token drawn takes some KiB to the host. Logits
// fall into bins by their distance from the largest, in temperatures; of these as many as hold MOST tokens are taken, whole. None are
// where a logit is not a number: the host then looks at all of them.
//
// Constants in front: N_VOCAB, MOST.

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> temperatures: array<f32>;
// For each row: number of candidates, weight of all others, largest logit, least logit of a candidate; ids and logits, in no order.
@group(0) @binding(2) var<storage, read_write> found: array<u32>;

const THREADS = 256u;
const BINS = 256u;
const STRIDE = 4u + 2u * MOST;
const LEAST = -3.0e38;

var<workgroup> reduced: array<f32, THREADS>;
var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> n_bins: u32;
var<workgroup> n_found: atomic<u32>;
var<workgroup> n_nan: atomic<u32>;

// By its bits: a comparison may be compiled as if there were no NaN.
fn is_nan(logit: f32) -> bool {
    return (bitcast<u32>(logit) & 0x7fffffffu) > 0x7f800000u;
}

// The bin of a logit; one that is no number or far away has none.
fn bin_of(logit: f32, most: f32, temperature: f32) -> u32 {
    let distance = (most - logit) / temperature * 8.0;
    return select(BINS, u32(min(distance, f32(BINS))), distance >= 0.0);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.y * N_VOCAB;
    let out = group.y * STRIDE;
    let temperature = temperatures[group.y];
    var most = LEAST;
    var n_own_nan = 0u;
    for (var i = thread; i < N_VOCAB; i += THREADS) {
        let logit = logits[first + i];
        most = select(most, logit, logit > most);
        n_own_nan += u32(is_nan(logit));
    }
    reduced[thread] = most;
    atomicStore(&bins[thread], 0u);
    if (thread == 0u) {
        atomicStore(&n_found, 0u);
        atomicStore(&n_nan, 0u);
    }
    workgroupBarrier();
    if (n_own_nan > 0u) {
        atomicAdd(&n_nan, n_own_nan);
    }
    for (var n = THREADS / 2u; n > 0u; n = n >> 1u) {
        if (thread < n) {
            reduced[thread] = max(reduced[thread], reduced[thread + n]);
        }
        workgroupBarrier();
    }
    most = reduced[0];
    for (var i = thread; i < N_VOCAB; i += THREADS) {
        let bin = bin_of(logits[first + i], most, temperature);
        if (bin < BINS) {
            atomicAdd(&bins[bin], 1u);
        }
    }
    workgroupBarrier();
    if (thread == 0u) {
        var n = 0u;
        var bin = 0u;
        while (bin < BINS && n + atomicLoad(&bins[bin]) <= MOST) {
            n += atomicLoad(&bins[bin]);
            bin += 1u;
        }
        n_bins = bin;
    }
    workgroupBarrier();
    var rest = 0.0;
    var least = -LEAST;
    for (var i = thread; i < N_VOCAB; i += THREADS) {
        let logit = logits[first + i];
        if (bin_of(logit, most, temperature) < n_bins) {
            let at = out + 4u + 2u * atomicAdd(&n_found, 1u);
            found[at] = i;
            found[at + 1u] = bitcast<u32>(logit);
            least = min(least, logit);
        } else if (logit <= most) {
            rest += exp((logit - most) / temperature);
        }
    }
    reduced[thread] = rest;
    workgroupBarrier();
    for (var n = THREADS / 2u; n > 0u; n = n >> 1u) {
        if (thread < n) {
            reduced[thread] += reduced[thread + n];
        }
        workgroupBarrier();
    }
    rest = reduced[0];
    workgroupBarrier();
    reduced[thread] = least;
    workgroupBarrier();
    for (var n = THREADS / 2u; n > 0u; n = n >> 1u) {
        if (thread < n) {
            reduced[thread] = min(reduced[thread], reduced[thread + n]);
        }
        workgroupBarrier();
    }
    if (thread == 0u) {
        found[out] = select(atomicLoad(&n_found), 0u, atomicLoad(&n_nan) > 0u);
        found[out + 1u] = bitcast<u32>(rest);
        found[out + 2u] = bitcast<u32>(most);
        found[out + 3u] = bitcast<u32>(reduced[0]);
    }
}
