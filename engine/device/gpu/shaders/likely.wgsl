// The likeliest tokens of a row of logits, and what the others weigh together, so that a token drawn takes some KiB to the host. Logits
// fall into bins by their distance from the largest, in temperatures; of these as many as hold MOST tokens are taken, whole. A
// workgroup takes a piece of a row in each of three steps: the largest logit of the piece; how many fall into each bin; the candidates.
//
// Constants in front: N_VOCAB, MOST.

const THREADS = 256u;
const BINS = 256u;
// Logits of a piece, and pieces of a row.
const PIECE = 2048u;
const PIECES = (N_VOCAB + PIECE - 1u) / PIECE;
// Words of a row's candidates: their number, logits that are no numbers, the largest logit, one that is not used; ids and logits, in
// no order; of each piece the weight of what is left out, and the least logit that is not.
const STRIDE = 4u + 2u * MOST + 2u * PIECES;
const LEAST = -3.0e38;

// The largest logit of a piece, and how many are no numbers.
struct Survey {
    most: f32,
    n_nan: u32,
}

var<workgroup> reduced: array<f32, THREADS>;

fn most_of_all(own: f32, thread: u32) -> f32 {
    workgroupBarrier();
    reduced[thread] = own;
    workgroupBarrier();
    for (var n = THREADS / 2u; n > 0u; n = n >> 1u) {
        if (thread < n) {
            reduced[thread] = max(reduced[thread], reduced[thread + n]);
        }
        workgroupBarrier();
    }
    return reduced[0];
}

// The bin of a logit; one that is no number or far away has none.
fn bin_of(logit: f32, most: f32, temperature: f32) -> u32 {
    let distance = (most - logit) / temperature * 8.0;
    return select(BINS, u32(min(distance, f32(BINS))), distance >= 0.0);
}
