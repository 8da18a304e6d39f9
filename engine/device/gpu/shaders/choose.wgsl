// The experts that a row is sent to, with their weights: the best by score, of equal ones the first, ordered by index, so that they are
// added up in an order of their own. Each workgroup finds those of its row by itself: a dispatch of its own would take longer.
//
// Constants in front: N_EXPERTS, N_USED, SOFTMAX_FIRST, NORMED, EXPERT_SCALE.

var<workgroup> scores: array<f32, N_EXPERTS>;
var<workgroup> is_used: array<u32, N_EXPERTS>;
var<workgroup> chosen: array<u32, N_USED>;
var<workgroup> weights: array<f32, N_USED>;

fn choose(row: u32, thread: u32) {
    for (var i = thread; i < N_EXPERTS; i += THREADS) {
        scores[i] = bitcast<f32>(table[row * N_EXPERTS + i]);
    }
    workgroupBarrier();
    // An expert is used if fewer than N_USED are better.
    for (var i = thread; i < N_EXPERTS; i += THREADS) {
        var n_better = 0u;
        for (var j = 0u; j < N_EXPERTS; j++) {
            n_better += u32(scores[j] > scores[i] || (scores[j] == scores[i] && j < i));
        }
        is_used[i] = u32(n_better < N_USED);
    }
    workgroupBarrier();
    var most = scores[0];
    for (var i = 1u; i < N_EXPERTS; i++) {
        most = max(most, scores[i]);
    }
    workgroupBarrier();
    for (var i = thread; i < N_EXPERTS; i += THREADS) {
        scores[i] = exp(scores[i] - most);
    }
    workgroupBarrier();
    if (thread == 0u) {
        var all = 0.0;
        var used = 0.0;
        for (var i = 0u; i < N_EXPERTS; i++) {
            all += scores[i];
            used += select(0.0, scores[i], is_used[i] == 1u);
        }
        let divisor = select(used, all, SOFTMAX_FIRST);
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
