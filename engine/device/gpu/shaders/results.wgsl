// What becomes of the sums of a product: norm, bias, gate; added to what stands there, or stored; and coded for the product that reads them
// (coded.wgsl). A workgroup of 256 threads has the results of 16 rows, in 16 columns, at a time.
//
// Matrices lie in panels of 16 outputs: of each unit first the codes of all outputs. Sums have one order, whatever the number of rows: a row's
// units are shared out to at most 16 lanes, which take SHARE units each, one after the other, and are added up from the first to the last.
//
// Constants in front: UNITS and K of a row, NORM, EPILOGUE, ROWS_OF, PAIR, N_SEGMENTS, CODES; of coded rows ROW_UNITS, FIRST_UNIT and
// HEAD_UNITS (units of a row, the first one that is read, and those from one head to the next); of experts N_EXPERTS, N_USED,
// N_SLOTS (they, and what every row goes through beside them), MIXED, GATED (what every row goes through is multiplied by the sigmoid of a
// score of its own); FACTOR of results, and their soft CAP (0: none).

// A matrix or a part of one; or the first one of a tensor of several (heads, experts).
struct Segment {
    // First words of up to three planes of side data, first vector of codes.
    planes: vec3<u32>,
    codes: u32,
    n_out: u32,
    // Units of a panel, and from one matrix to the next.
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
    // Vectors of four from one row of x to the next; numbers from one row of y to the next.
    x_stride: u32,
    y_stride: u32,
    // Norm of the rows: its weights among the vectors; of coded rows they are in the codes.
    norm: u32,
    eps: f32,
    // For each matrix by head: vectors of x, columns of y.
    each_x: u32,
    each_y: u32,
    // First column of x, in vectors of four.
    x_first: u32,
    // What is added to scores where experts are selected, among the vectors; factors of experts' weights there, or NONE.
    expert_bias: u32,
    expert_scales: u32,
    // Norm that the coded results are for, or NONE.
    code_norm: u32,
    // 0, but no compiler knows it: sums begin with it, for one that knows may change the order of what follows.
    zero: f32,
    unused: u32,
    segments: array<Segment, 4>,
}

@group(0) @binding(0) var<uniform> pass_: Pass;
@group(0) @binding(1) var<storage, read> params: Params;
@group(0) @binding(2) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> planes: array<u32>;
@group(0) @binding(4) var<storage, read> vectors: array<f32>;
@group(0) @binding(6) var<storage, read_write> y: array<f32>;
// Rows that are wanted; or the scores of experts, each slot's expert and weight (sent.wgsl), or the slots sorted by expert.
@group(0) @binding(7) var<storage, read> table: array<u32>;
@group(0) @binding(8) var<storage, read_write> coded: array<u32>;

const ADD = 1u;
const GATE = 2u;
const ACTIVATE = 3u;

const LANES = 16u;
const OUTS = 16u;
const THREADS = LANES * OUTS;
const SHARE = (UNITS + LANES - 1u) / LANES;
const USED_LANES = (UNITS + SHARE - 1u) / SHARE;

var<workgroup> values: array<f32, THREADS>;
var<workgroup> levels: array<i32, THREADS>;

fn n_rows() -> u32 {
    if (ROWS_OF == WANTED) {
        return pass_.n_wanted;
    }
    return pass_.n_rows * select(1u, N_SLOTS, ROWS_OF == EXPERTS && !MIXED);
}

// The row of x that a row meets in a slot. Of rows that are not there, the last one.
fn row_of_x(row: u32, slot: u32) -> u32 {
    let own = min(row, n_rows() - 1u);
    if (ROWS_OF == WANTED) {
        return table[own];
    }
    if (ROWS_OF == EXPERTS) {
        return select(own / N_SLOTS, own * N_SLOTS + slot, MIXED);
    }
    return own;
}

fn inverse_norm(square: f32) -> f32 {
    return inverseSqrt(square / f32(K) + params.eps);
}

// The result of a sum, and of a second one it is gated by; each is multiplied by the inverse of the row's norm.
fn result_of(sum: f32, second: f32, inverse: f32, here: Segment, there: Segment, each: u32, out: u32) -> f32 {
    var bias = 0.0;
    if (here.bias != NONE) {
        bias = vectors[here.bias + each * here.each_bias + out];
    }
    let found = fma(sum, inverse, bias);
    if (!PAIR) {
        return found;
    }
    var bias_there = 0.0;
    if (there.bias != NONE) {
        bias_there = vectors[there.bias + each * there.each_bias + out];
    }
    return gated(found, fma(second, inverse, bias_there));
}

// Puts a row's result in its place; what stands there then.
fn put(found: f32, row: u32, column: u32) -> f32 {
    let at = row * params.y_stride + column;
    var result = found;
    if (GATED && ROWS_OF != EXPERTS) {
        result *= sigmoid(bitcast<f32>(table[row * SCORES + N_EXPERTS]));
    }
    if (FACTOR != 1.0 && EPILOGUE != ADD) {
        result *= FACTOR;
    }
    if (CAP > 0.0) {
        result = CAP * tanh(clamp(result / CAP, -15.0, 15.0));
    }
    if (EPILOGUE == ADD) {
        result = fma(result, FACTOR, y[at]);
    } else if (EPILOGUE == GATE) {
        result = gated(result, y[at]);
    } else if (EPILOGUE == ACTIVATE) {
        result = activated(result);
    }
    y[at] = result;
    return result;
}

// Codes what stands in 16 rows, in the 16 columns from `column` on: this thread has the value of row `thread / 16` among them, which is row
// `row` of y, in column `thread % 16`.
fn code(value: f32, row: u32, column: u32, thread: u32, is_there: bool) {
    let own = thread % OUTS;
    let first = thread - own;
    let units = params.y_stride / 32u;
    values[thread] = value;
    workgroupBarrier();
    var largest = 0.0;
    var square = 0.0;
    var weighed = value;
    for (var j = 0u; j < OUTS; j++) {
        var x = values[first + j];
        square = fma(x, x, square);
        if (params.code_norm != NONE) {
            x *= vectors[params.code_norm + column + j];
        }
        largest = max(largest, abs(x));
        weighed = select(weighed, x, j == own);
    }
    levels[thread] = level_of(weighed, inverse_of(largest));
    workgroupBarrier();
    let half = column / 16u;
    if (is_there && own < 4u) {
        let l = first + 4u * own;
        let four = vec4<i32>(levels[l], levels[l + 1u], levels[l + 2u], levels[l + 3u]);
        coded[codes_of_half(row, units, half) + own] = pack4xI8(four);
    } else if (is_there && own == 4u) {
        var sum = 0;
        for (var j = 0u; j < OUTS; j++) {
            sum += levels[first + j];
        }
        put_scale(row, units, half, largest, sum, square);
    }
}
