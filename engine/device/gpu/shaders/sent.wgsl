// The expert of each slot of a row, and what its results are multiplied by. A workgroup takes a row.

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    choose(group.y, params.expert_bias, thread);
    if (thread < N_SLOTS) {
        let sent = sent_to(group.y, thread);
        coded[(group.y * N_SLOTS + thread) * 2u] = sent.x;
        coded[(group.y * N_SLOTS + thread) * 2u + 1u] = sent.y;
    }
}
