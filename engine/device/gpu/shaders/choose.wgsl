// The experts that a row is sent to, with their weights: the best by rank, of equal ones the first, ordered by index, so that they are
// added up in an order of their own.
//
// Constants in front: N_EXPERTS, N_USED, SCORES (numbers of a row of scores), GATING, RANKED (a bias is added where experts are selected),
// N_GROUPS, USED_GROUPS, NORMED, EXPERT_SCALE.

// What a row's shared experts are multiplied by: its score follows those of the experts.
fn gate_of(row: u32) -> f32 {
    return sigmoid(bitcast<f32>(table[row * SCORES + N_EXPERTS]));
}

const SOFTMAX_FIRST = 0u;
const SIGMOID = 2u;
const LOWEST = -3e38;

var<workgroup> scores: array<f32, N_EXPERTS>;
var<workgroup> ranks: array<f32, N_EXPERTS>;
var<workgroup> is_used: array<u32, N_EXPERTS>;
var<workgroup> worths: array<f32, N_GROUPS>;
var<workgroup> chosen: array<u32, N_USED>;
var<workgroup> weights: array<f32, N_USED>;

// `bias` of the first expert among the vectors.
fn choose(row: u32, bias: u32, thread: u32) {
    for (var i = thread; i < N_EXPERTS; i += THREADS) {
        scores[i] = bitcast<f32>(table[row * SCORES + i]);
        ranks[i] = scores[i];
    }
    workgroupBarrier();
    var most = scores[0];
    for (var i = 1u; i < N_EXPERTS; i++) {
        most = max(most, scores[i]);
    }
    workgroupBarrier();
    for (var i = thread; i < N_EXPERTS; i += THREADS) {
        scores[i] = select(exp(scores[i] - most), sigmoid(scores[i]), GATING == SIGMOID);
    }
    workgroupBarrier();
    var all = 0.0;
    for (var i = 0u; i < N_EXPERTS; i++) {
        all += scores[i];
    }
    if (RANKED) {
        for (var i = thread; i < N_EXPERTS; i += THREADS) {
            ranks[i] = scores[i] / select(1.0, all, GATING == SOFTMAX_FIRST) + vectors[bias + i];
        }
    } else if (GATING == SIGMOID) {
        for (var i = thread; i < N_EXPERTS; i += THREADS) {
            ranks[i] = scores[i];
        }
    }
    workgroupBarrier();
    if (N_GROUPS > USED_GROUPS) {
        const SIZE = N_EXPERTS / N_GROUPS;
        for (var g = thread; g < N_GROUPS; g += THREADS) {
            var best = vec2<f32>(LOWEST);
            for (var i = g * SIZE; i < (g + 1u) * SIZE; i++) {
                best = vec2<f32>(max(best.x, ranks[i]), max(best.y, min(best.x, ranks[i])));
            }
            worths[g] = best.x + best.y;
        }
        workgroupBarrier();
        for (var i = thread; i < N_EXPERTS; i += THREADS) {
            let own = i / SIZE;
            var n_better = 0u;
            for (var g = 0u; g < N_GROUPS; g++) {
                n_better += u32(worths[g] > worths[own] || (worths[g] == worths[own] && g < own));
            }
            ranks[i] = select(LOWEST, ranks[i], n_better < USED_GROUPS);
        }
        workgroupBarrier();
    }
    // An expert is used if fewer than N_USED are better.
    for (var i = thread; i < N_EXPERTS; i += THREADS) {
        var n_better = 0u;
        for (var j = 0u; j < N_EXPERTS; j++) {
            n_better += u32(ranks[j] > ranks[i] || (ranks[j] == ranks[i] && j < i));
        }
        is_used[i] = u32(n_better < N_USED);
    }
    workgroupBarrier();
    if (thread == 0u) {
        var used = 0.0;
        for (var i = 0u; i < N_EXPERTS; i++) {
            used += select(0.0, scores[i], is_used[i] == 1u);
        }
        let divisor = select(select(used, all, GATING == SOFTMAX_FIRST), 1.0, GATING == SIGMOID);
        // As DeepSeek's own code has it: never by less than the smallest normal half.
        let sum = select(1.0, max(used / divisor, 6.1035156e-5), NORMED);
        var n = 0u;
        for (var i = 0u; i < N_EXPERTS; i++) {
            if (is_used[i] == 1u && n < N_USED) {
                chosen[n] = i;
                weights[n] = scores[i] / divisor / sum * EXPERT_SCALE;
                n += 1u;
            }
        }
        // Where scores are no numbers.
        for (; n < N_USED; n++) {
            chosen[n] = 0u;
            weights[n] = 0.0;
        }
    }
    workgroupBarrier();
}

// What the results of the row's slot are multiplied by, and which expert they are of; after the experts come the parts of what every row
// goes through.
fn sent_to(row: u32, slot: u32) -> vec2<u32> {
    if (slot >= N_USED) {
        return vec2<u32>(N_EXPERTS + slot - N_USED, bitcast<u32>(select(1.0, gate_of(row), GATED)));
    }
    var weight = weights[slot];
    if (params.expert_scales != NONE) {
        weight *= vectors[params.expert_scales + chosen[slot]];
    }
    return vec2<u32>(chosen[slot], bitcast<u32>(weight));
}
