// Takes the matrices of a sequence's state through tokens, one after another: each changes them and is read (kernels/recurrence.rs has the
// formulas). A workgroup takes 16 columns of one head of one sequence; 16 threads share a column, of which each holds every 16th row, and
// their sums meet in a tree. So neither the other sequences nor the number of tokens of a pass matters.
//
// Tokens that are certain change the matrices; those after them (guesses) are computed beside these, and forgotten. Where a state is
// sealed it goes on from what it was rounded to.
//
// Constants in front: MIXER, N_HEADS, N_KEY_HEADS, GROUPED (consecutive heads share a head of keys, else
// every N_KEY_HEADS-th), K_DIM, V_DIM, ROWS (of a thread), CHANNELS, INNER; QUERIES, KEYS, VALUES (first column of each in a row of mixed
// tokens); FORMAT of sealed matrices; STATE_WORDS of a sealed layer, ELEMENTS and SCALES (words before these).

struct Sequence {
    // Slot of its matrices.
    slot: u32,
    // Sealed state that they are taken from: else they are in their slot (HERE), or zeros (NONE).
    origin: u32,
    // First walked token, and numbers of them: all, those that are certain, and those before the pass.
    first: u32,
    n: u32,
    n_certain: u32,
    n_before: u32,
    // First row of the pass.
    row: u32,
    first_seal: u32,
    n_seals: u32,
}

@group(0) @binding(0) var<storage, read> sequences: array<Sequence>;
// After how many tokens a state is sealed, and the slot that it is kept in, or NONE.
@group(0) @binding(1) var<storage, read> seals: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> mixed: array<f32>;
@group(0) @binding(3) var<storage, read_write> matrices: array<f32>;
@group(0) @binding(4) var<storage, read_write> sealed: array<u32>;
// What the tokens of the pass read, [rows, INNER].
@group(0) @binding(5) var<storage, read_write> read_: array<f32>;

const HERE = 0xfffffffeu;
const COLUMNS = 16u;
const SLICES = 16u;
const THREADS = COLUMNS * SLICES;
const MIXED_WIDTH = CHANNELS + 2u * N_HEADS;
const F32 = 0u;
const F16 = 1u;

// What meets in a sum: of what the matrix has at the key, then of what is read; either twice, for every other token, so that where one
// writes, none reads any more.
var<workgroup> parts: array<f32, 4u * THREADS>;
const READ = 2u * THREADS;

// This thread's rows: slice, slice + 16, …
var<private> own: array<f32, ROWS>;

// The sum of a column.
fn tree(at: u32) -> f32 {
    var sum: array<f32, 8>;
    for (var i = 0u; i < 8u; i++) {
        sum[i] = parts[at + 2u * i * COLUMNS] + parts[at + (2u * i + 1u) * COLUMNS];
    }
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

// Matrices from sealed state `slot`; `first`: of this tile's elements; `scale`: of this column's.
fn unseal(slot: u32, first: u32, scale: u32, column: u32, slice: u32) {
    let elements = slot * STATE_WORDS + ELEMENTS;
    for (var j = 0u; j < ROWS; j++) {
        let row = slice + j * SLICES;
        if (row < K_DIM) {
            let at = first + row * COLUMNS + column;
            if (FORMAT == F32) {
                own[j] = bitcast<f32>(sealed[elements + at]);
            } else if (FORMAT == F16) {
                own[j] = half_of(sealed[elements + at / 2u], at);
            } else {
                let code = extractBits(bitcast<i32>(sealed[elements + at / 4u]), (at % 4u) * 8u, 8u);
                own[j] = f32(code) * bitcast<f32>(sealed[slot * STATE_WORDS + SCALES + scale]);
            }
        }
    }
}

// Rounds matrices to what they are sealed as, and puts that into `slot`, unless it is NONE.
fn seal(slot: u32, first: u32, scale_at: u32, column: u32, slice: u32) {
    let thread = slice * COLUMNS + column;
    let elements = slot * STATE_WORDS + ELEMENTS;
    var scale = 1.0;
    if (FORMAT > F16) {
        var most = 0.0;
        for (var j = 0u; j < ROWS; j++) {
            most = max(most, abs(own[j]));
        }
        workgroupBarrier();
        parts[thread] = most;
        workgroupBarrier();
        for (var i = 0u; i < SLICES; i++) {
            most = max(most, parts[i * COLUMNS + column]);
        }
        // A column of zeros has any scale but 0.
        scale = max(most * 0.007874016, 1.17549435e-38);
        if (slot != NONE && slice == 0u) {
            sealed[slot * STATE_WORDS + SCALES + scale_at] = bitcast<u32>(scale);
        }
    }
    for (var j = 0u; j < ROWS; j++) {
        let row = slice + j * SLICES;
        let at = first + row * COLUMNS + column;
        if (FORMAT == F32) {
            if (slot != NONE && row < K_DIM) {
                sealed[elements + at] = bitcast<u32>(own[j]);
            }
            continue;
        }
        var code = own[j];
        if (FORMAT == F16) {
            code = half_of(halves(own[j], 0.0), 0u);
            own[j] = code;
        } else {
            code = clamp(round(own[j] / scale), -127.0, 127.0);
            own[j] = code * scale;
        }
        // Neighbours share a word.
        workgroupBarrier();
        parts[thread] = code;
        workgroupBarrier();
        if (slot == NONE || row >= K_DIM) {
            continue;
        }
        if (FORMAT == F16 && column % 2u == 0u) {
            sealed[elements + at / 2u] = halves(code, parts[thread + 1u]);
        } else if (FORMAT > F16 && column % 4u == 0u) {
            let codes = vec4<f32>(code, parts[thread + 1u], parts[thread + 2u], parts[thread + 3u]);
            sealed[elements + at / 4u] = pack4xI8(vec4<i32>(codes));
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let sequence = sequences[group.y];
    let tile = group.x;
    let head = tile * COLUMNS / V_DIM;
    let column = thread % COLUMNS;
    let slice = thread / COLUMNS;
    let first = tile * COLUMNS * K_DIM;
    let value = tile * COLUMNS + column;
    let key_head = select(head % N_KEY_HEADS, head / (N_HEADS / N_KEY_HEADS), GROUPED) * K_DIM;
    let here = sequence.slot * (INNER * K_DIM) + first;
    if (sequence.origin == HERE) {
        for (var j = 0u; j < ROWS; j++) {
            let row = slice + j * SLICES;
            if (row < K_DIM) {
                own[j] = matrices[here + row * COLUMNS + column];
            }
        }
    } else if (sequence.origin != NONE) {
        unseal(sequence.origin, first, value, column, slice);
    }
    var next = 0u;
    for (var t = 0u; t <= sequence.n; t++) {
        if (next < sequence.n_seals && seals[sequence.first_seal + next].x == t) {
            seal(seals[sequence.first_seal + next].y, first, value, column, slice);
            next += 1u;
        }
        if (t == sequence.n_certain) {
            for (var j = 0u; j < ROWS; j++) {
                let row = slice + j * SLICES;
                if (row < K_DIM) {
                    matrices[here + row * COLUMNS + column] = own[j];
                }
            }
        }
        if (t == sequence.n) {
            break;
        }
        let token = (sequence.first + t) * MIXED_WIDTH;
        let decay = mixed[token + CHANNELS + 2u * head];
        let strength = mixed[token + CHANNELS + 2u * head + 1u];
        let turn = (t & 1u) * THREADS;
        var change = mixed[token + VALUES + value];
        var keys: array<f32, ROWS>;
        var has = 0.0;
        for (var j = 0u; j < ROWS; j++) {
            let row = slice + j * SLICES;
            if (row < K_DIM) {
                keys[j] = mixed[token + KEYS + key_head + row];
                own[j] *= decay;
                has = fma(own[j], keys[j], has);
            }
        }
        if (MIXER == DELTA) {
            parts[turn + thread] = has;
            workgroupBarrier();
            change -= tree(turn + column);
        }
        change *= strength;
        var sum = 0.0;
        for (var j = 0u; j < ROWS; j++) {
            let row = slice + j * SLICES;
            if (row < K_DIM) {
                own[j] = fma(change, keys[j], own[j]);
                sum = fma(own[j], mixed[token + QUERIES + key_head + row], sum);
            }
        }
        if (t >= sequence.n_before) {
            parts[READ + turn + thread] = sum;
            workgroupBarrier();
            if (slice == 0u) {
                read_[(sequence.row + t - sequence.n_before) * INNER + value] = tree(READ + turn + column);
            }
        }
    }
}
