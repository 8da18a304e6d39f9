// The experts that a row is sent to, with their weights: the best by score, of equal ones the first, ordered by index, so that they are
// added up in an order of their own. A workgroup takes a row.
//
// Constants in front: N_EXPERTS, N_USED, SOFTMAX_FIRST, NORMED, EXPERT_SCALE.

@group(0) @binding(0) var<uniform> pass_: Pass;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
// Experts, [n_rows, N_USED]; then weights.
@group(0) @binding(2) var<storage, read_write> table: array<u32>;

var<workgroup> score: array<f32, N_EXPERTS>;
var<workgroup> is_used: array<u32, N_EXPERTS>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y;
    for (var i = thread; i < N_EXPERTS; i += 64u) {
        score[i] = scores[row * N_EXPERTS + i];
    }
    workgroupBarrier();
    // An expert is used if fewer than N_USED are better.
    for (var i = thread; i < N_EXPERTS; i += 64u) {
        var n_better = 0u;
        for (var j = 0u; j < N_EXPERTS; j++) {
            n_better += u32(score[j] > score[i] || (score[j] == score[i] && j < i));
        }
        is_used[i] = u32(n_better < N_USED);
    }
    workgroupBarrier();
    if (thread > 0u) {
        return;
    }
    var most = score[0];
    for (var i = 1u; i < N_EXPERTS; i++) {
        most = max(most, score[i]);
    }
    var all = 0.0;
    var used = 0.0;
    for (var i = 0u; i < N_EXPERTS; i++) {
        let weight = exp(score[i] - most);
        all += weight;
        used += select(0.0, weight, is_used[i] == 1u);
    }
    let divisor = select(used, all, SOFTMAX_FIRST);
    // As DeepSeek's own code has it: never by less than the smallest normal half.
    let sum = select(1.0, max(used / divisor, 6.1035156e-5), NORMED);
    var n = row * N_USED;
    for (var i = 0u; i < N_EXPERTS; i++) {
        if (is_used[i] == 1u && n < (row + 1u) * N_USED) {
            table[n] = i;
            table[pass_.n_rows * N_USED + n] = bitcast<u32>(exp(score[i] - most) / divisor / sum * EXPERT_SCALE);
            n += 1u;
        }
    }
}
