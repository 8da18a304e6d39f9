// Inputs of the convolution before the end of a sealed state: from the log into the state. A thread takes a word.
//
// Constants in front: N_INPUTS, CHANNELS, LOG_WORDS, STATE_WORDS.

// Of each state that is kept: its end among the places, and its slot.
@group(0) @binding(0) var<storage, read> kept: array<vec2<u32>>;
@group(0) @binding(1) var<storage, read> places: array<u32>;
@group(0) @binding(2) var<storage, read> log_: array<u32>;
@group(0) @binding(3) var<storage, read_write> sealed: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let i = group.x * 64u + thread;
    if (i >= N_INPUTS * CHANNELS / 2u) {
        return;
    }
    let state = kept[group.y];
    let place = places[state.x - N_INPUTS + i / (CHANNELS / 2u)];
    var word = 0u;
    if (place != NONE) {
        word = log_[place * LOG_WORDS + i % (CHANNELS / 2u)];
    }
    sealed[state.y * STATE_WORDS + i] = word;
}
