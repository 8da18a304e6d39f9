// Products of rows with matrices: y[row, out] = Σ w[out, k] x[row, k], in the types of GGUF files.
//
// Eight threads share an output: lane l sums the units (32 numbers) l, l + 8, …, in order, and the eight sums meet in a tree. So a row's
// arithmetic is the same for any number R of rows that a workgroup takes, and for any split of rows over workgroups. Coded matrices meet
// rows in 8 bits, whose products are exact integers.
//
// Constants in front: R, CHUNK (units that are staged at a time, a multiple of 8), CODED, NORM, PAIR, EPILOGUE, ROWS_OF, N_SEGMENTS; SCHEME
// and OTHER, the types of the segments; of experts N_EXPERTS, N_USED, N_SLOTS (they, and what every row goes through beside them), MIXED,
// GATED (what every row goes through is multiplied by the sigmoid of a score of its own); FACTOR of results, and their soft CAP (0: none).

// A matrix or a part of one; or the first one of a tensor of several (heads, experts).
struct Segment {
    // First words of up to three planes of side data, first vector of codes.
    planes: vec3<u32>,
    codes: u32,
    n_out: u32,
    // Units of a row, and from one matrix to the next.
    row_units: u32,
    each_units: u32,
    // First of its biases among the vectors, or NONE; from one matrix's to the next.
    bias: u32,
    each_bias: u32,
    // Column of its first output in a row of y.
    y_first: u32,
    // First workgroup.
    first_group: u32,
    // 1 if its type is OTHER.
    is_other: u32,
}

struct Params {
    // Numbers of a row of x, and units.
    k: u32,
    units: u32,
    // Vectors of four from one row of x to the next; numbers from one row of y to the next.
    x_stride: u32,
    y_stride: u32,
    // Norm of the rows: its weights among the vectors.
    norm: u32,
    eps: f32,
    // For each matrix by head: vectors of x, columns of y.
    each_x: u32,
    each_y: u32,
    // What is added to scores where experts are selected, among the vectors.
    expert_bias: u32,
    // Factors of experts' weights among the vectors, or NONE.
    expert_scales: u32,
    // First column of x, in vectors of four.
    x_first: u32,
    unused_3: u32,
    segments: array<Segment, 4>,
}

@group(0) @binding(0) var<uniform> pass_: Pass;
@group(0) @binding(1) var<storage, read> params: Params;
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> planes: array<u32>;
@group(0) @binding(4) var<storage, read> vectors: array<f32>;
@group(0) @binding(5) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
// Rows that are wanted; or the scores of each row's experts.
@group(0) @binding(7) var<storage, read> table: array<u32>;

const ADD = 1u;
const GATE = 2u;
const ACTIVATE = 3u;

const LANES = 8u;
const OUTS = 32u;
const THREADS = LANES * OUTS;

// Rows in 8 bits, [R][8][CHUNK] words; or as they are, [R][32][CHUNK].
var<workgroup> staged: array<u32, R * WORDS * CHUNK>;
var<workgroup> row_scales: array<f32, R * CHUNK>;
// Sums of a unit's codes, first and second half.
var<workgroup> row_sums: array<vec2<f32>, R * CHUNK>;
var<workgroup> squares: array<f32, R * CHUNK>;
var<workgroup> lane_squares: array<f32, R * LANES>;
var<workgroup> lane_sums: array<f32, 8u * THREADS>;

// The row of x that row `row` meets in a slot.
fn row_of_x(row: u32, slot: u32) -> u32 {
    if (ROWS_OF == WANTED) {
        return table[row];
    }
    if (ROWS_OF == EXPERTS) {
        return select(row / N_SLOTS, row * N_SLOTS + slot, MIXED);
    }
    return row;
}

// What a row's shared experts are multiplied by: its score follows those of the experts.
fn gate_of(row: u32) -> f32 {
    return sigmoid(bitcast<f32>(table[row * SCORES + N_EXPERTS]));
}

fn n_rows() -> u32 {
    if (ROWS_OF == WANTED) {
        return pass_.n_wanted;
    }
    return pass_.n_rows * select(1u, N_SLOTS, ROWS_OF == EXPERTS && !MIXED);
}

// Takes units first .. first + CHUNK of the rows from `first_row` on, which begin at column `column` of x.
fn stage(thread: u32, first_row: u32, slot: u32, first: u32, column: u32) {
    for (var at = thread; at < R * CHUNK; at += THREADS) {
        let r = at / CHUNK;
        let i = at % CHUNK;
        let unit = first + i;
        var numbers: array<vec4<f32>, 8>;
        var square = 0.0;
        if (first_row + r < n_rows() && unit < params.units) {
            let from_ = column + row_of_x(first_row + r, slot) * params.x_stride + unit * 8u;
            for (var j = 0u; j < 8u; j++) {
                let k = unit * 32u + j * 4u;
                if (k < params.k) {
                    var four = x[from_ + j];
                    if (NORM) {
                        square = fma(four.x, four.x, square);
                        square = fma(four.y, four.y, square);
                        square = fma(four.z, four.z, square);
                        square = fma(four.w, four.w, square);
                        let w = params.norm + k;
                        four *= vec4<f32>(vectors[w], vectors[w + 1u], vectors[w + 2u], vectors[w + 3u]);
                    }
                    numbers[j] = four;
                }
            }
        }
        squares[at] = square;
        if (CODED) {
            var most = vec4<f32>(0.0);
            for (var j = 0u; j < 8u; j++) {
                most = max(most, abs(numbers[j]));
            }
            let largest = max(max(most.x, most.y), max(most.z, most.w));
            let inverse = select(0.0, 127.0 / largest, largest > 0.0);
            var sums = vec2<i32>(0);
            for (var j = 0u; j < 8u; j++) {
                let levels = clamp(vec4<i32>(round(numbers[j] * inverse)), vec4<i32>(-127), vec4<i32>(127));
                staged[(r * 8u + j) * CHUNK + i] = pack4xI8(levels);
                let sum = levels.x + levels.y + levels.z + levels.w;
                if (j < 4u) {
                    sums.x += sum;
                } else {
                    sums.y += sum;
                }
            }
            row_scales[at] = largest / 127.0;
            row_sums[at] = vec2<f32>(sums);
        } else {
            for (var j = 0u; j < 8u; j++) {
                for (var c = 0u; c < 4u; c++) {
                    staged[(r * 32u + j * 4u + c) * CHUNK + i] = bitcast<u32>(numbers[j][c]);
                }
            }
        }
    }
}

fn tree(a: f32, b: f32, c: f32, d: f32, e: f32, f: f32, g: f32, h: f32) -> f32 {
    return ((a + b) + (c + d)) + ((e + f) + (g + h));
}

// The sums of eight lanes, for the row `round * 8 + lane` and this thread's output.
fn met(sums: ptr<function, array<f32, R>>, round: u32, lane: u32, out: u32) -> f32 {
    workgroupBarrier();
    for (var r = 0u; r < 8u; r++) {
        if (round * 8u + r < R) {
            lane_sums[(r * LANES + lane) * OUTS + out] = (*sums)[round * 8u + r];
        }
    }
    workgroupBarrier();
    let at = lane * LANES * OUTS + out;
    return tree(
        lane_sums[at], lane_sums[at + OUTS], lane_sums[at + 2u * OUTS], lane_sums[at + 3u * OUTS],
        lane_sums[at + 4u * OUTS], lane_sums[at + 5u * OUTS], lane_sums[at + 6u * OUTS], lane_sums[at + 7u * OUTS],
    );
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let lane = thread % LANES;
    let own = thread / LANES;
    let first_row = group.y * R;
    var s = 0u;
    while (s + 1u < N_SEGMENTS && group.x >= params.segments[s + 1u].first_group) {
        s += 1u;
    }
    let out = (group.x - params.segments[s].first_group) * OUTS + own;
    let is_out = out < params.segments[s].n_out;
    if (ROWS_OF == EXPERTS) {
        choose(select(first_row / N_SLOTS, first_row, MIXED), params.expert_bias, thread);
    }
    var results: array<f32, ROUNDS>;
    // All slots of a row, whose results are added up in order; else one.
    for (var turn = 0u; turn < select(1u, N_SLOTS, MIXED); turn++) {
        var each = group.z;
        var weight = 1.0;
        var slot = 0u;
        if (ROWS_OF == EXPERTS) {
            slot = select(first_row % N_SLOTS, turn, MIXED);
            if (slot < N_USED) {
                each = chosen[slot];
                weight = weights[slot];
                if (params.expert_scales != NONE) {
                    weight *= vectors[params.expert_scales + each];
                }
            } else {
                each = slot - N_USED;
                s = select(1u, 2u, PAIR);
                if (GATED) {
                    weight = gate_of(first_row);
                }
            }
        }
        let here = params.segments[s];
        let there = params.segments[select(s, s + 1u, PAIR)];
        let unit = each * here.each_units + out * here.row_units;
        let unit_there = each * there.each_units + out * there.row_units;
        var sums: array<f32, R>;
        var others: array<f32, R>;
        var square = 0.0;
        for (var first = 0u; first < params.units; first += CHUNK) {
            stage(thread, first_row, slot, first, params.x_first + group.z * params.each_x);
            workgroupBarrier();
            let n = min(CHUNK, params.units - first);
            if (is_out) {
                for (var i = lane; i < n; i += LANES) {
                    add_unit(here, unit + first + i, i, &sums);
                    if (PAIR) {
                        add_unit(there, unit_there + first + i, i, &others);
                    }
                }
            }
            if (NORM && thread < R * LANES) {
                for (var i = thread % LANES; i < n; i += LANES) {
                    square += squares[(thread / LANES) * CHUNK + i];
                }
            }
            workgroupBarrier();
        }
        if (NORM && thread < R * LANES) {
            lane_squares[thread] = square;
        }
        for (var round = 0u; round < ROUNDS; round++) {
            var found = met(&sums, round, lane, own);
            var second = 0.0;
            if (PAIR) {
                second = met(&others, round, lane, own);
            }
            let r = round * 8u + lane;
            if (is_out && r < R) {
                if (NORM) {
                    let at = r * LANES;
                    let all = tree(
                        lane_squares[at], lane_squares[at + 1u], lane_squares[at + 2u], lane_squares[at + 3u],
                        lane_squares[at + 4u], lane_squares[at + 5u], lane_squares[at + 6u], lane_squares[at + 7u],
                    );
                    let inverse = inverseSqrt(all / f32(params.k) + params.eps);
                    found *= inverse;
                    second *= inverse;
                }
                if (here.bias != NONE) {
                    found += vectors[here.bias + each * here.each_bias + out];
                }
                if (PAIR) {
                    if (there.bias != NONE) {
                        second += vectors[there.bias + each * there.each_bias + out];
                    }
                    found = gated(found, second);
                }
                if (MIXED) {
                    found = fma(weight, found, results[round]);
                }
                results[round] = found;
            }
        }
    }
    for (var round = 0u; round < ROUNDS; round++) {
        let r = round * 8u + lane;
        if (is_out && r < R && first_row + r < n_rows()) {
            let at = (first_row + r) * params.y_stride + params.segments[s].y_first + group.z * params.each_y + out;
            var result = results[round];
            if (GATED && !MIXED) {
                result *= gate_of(first_row + r);
            }
            if (FACTOR != 1.0) {
                result *= FACTOR;
            }
            if (CAP > 0.0) {
                result = CAP * tanh(clamp(result / CAP, -15.0, 15.0));
            }
            if (EPILOGUE == ADD) {
                y[at] += result;
            } else if (EPILOGUE == GATE) {
                y[at] = gated(result, y[at]);
            } else if (EPILOGUE == ACTIVATE) {
                y[at] = activated(result);
            } else {
                y[at] = result;
            }
        }
    }
}
