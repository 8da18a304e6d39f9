// Products of a few rows with matrices: y[row, out] = Σ w[out, k] x[row, k], in the types of GGUF files. A workgroup takes R rows (16 at most)
// and a panel; a thread an output, and of each row its lane's share. Nothing is staged, and no thread waits before all have their sums.
//
// Coded matrices meet rows in 8 bits, whose products are exact integers.
//
// Constants in front: R; those of results.wgsl; SCHEME and OTHER, the types of the segments.

var<workgroup> lane_sums: array<f32, R * THREADS>;

// The sums of all lanes, for row `lane` and this thread's output.
fn met(sums: ptr<function, array<f32, R>>, lane: u32, own: u32) -> f32 {
    workgroupBarrier();
    for (var r = 0u; r < R; r++) {
        lane_sums[(r * LANES + lane) * OUTS + own] = (*sums)[r];
    }
    workgroupBarrier();
    var total = 0.0;
    if (lane < R) {
        for (var l = 0u; l < USED_LANES; l++) {
            total += lane_sums[(lane * LANES + l) * OUTS + own];
        }
    }
    return total;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let own = thread % OUTS;
    let lane = thread / OUTS;
    let first_row = group.y * R;
    var s = 0u;
    while (s + 1u < N_SEGMENTS && group.x >= params.segments[s + 1u].first_group) {
        s += 1u;
    }
    let panel = group.x - params.segments[s].first_group;
    let out = panel * OUTS + own;
    var result = params.zero;
    // All slots of a row, whose results are added up in order; else one.
    for (var turn = 0u; turn < select(1u, N_SLOTS, MIXED); turn++) {
        var each = group.z;
        var weight = 1.0;
        var slot = 0u;
        if (ROWS_OF == EXPERTS) {
            slot = select(first_row % N_SLOTS, turn, MIXED);
            let at = 2u * select(first_row, first_row * N_SLOTS + slot, MIXED);
            each = table[at];
            weight = bitcast<f32>(table[at + 1u]);
            if (each >= N_EXPERTS) {
                each -= N_EXPERTS;
                s = select(1u, 2u, PAIR);
            }
        }
        let here = params.segments[s];
        let there = params.segments[select(s, s + 1u, PAIR)];
        let unit = each * here.each_units + panel * here.row_units;
        let unit_there = each * there.each_units + panel * there.row_units;
        var rows: array<u32, R>;
        for (var r = 0u; r < R; r++) {
            rows[r] = place_of(row_of_x(first_row + r, slot), group.z);
        }
        var sums: array<f32, R>;
        var others: array<f32, R>;
        var squares: array<f32, R>;
        for (var r = 0u; r < R; r++) {
            sums[r] = params.zero;
            others[r] = params.zero;
            squares[r] = params.zero;
        }
        let end = min((lane + 1u) * SHARE, UNITS);
        for (var u = lane * SHARE; u < end; u++) {
            add_unit(here, unit + u, own, u, &rows, &sums);
            if (PAIR) {
                add_unit(there, unit_there + u, own, u, &rows, &others);
            }
            add_squares(u, &rows, &squares);
        }
        let sum = met(&sums, lane, own);
        var second = 0.0;
        if (PAIR) {
            second = met(&others, lane, own);
        }
        var inverse = 1.0;
        if (NORM) {
            inverse = inverse_norm(met_squares(&rows, &squares, lane, own));
        }
        let found = result_of(sum, second, inverse, here, there, each, out);
        if (MIXED) {
            result = fma(weight, found, result);
        } else {
            result = found;
        }
    }
    let row = first_row + lane;
    let column = params.segments[s].y_first + group.z * params.each_y + out;
    let is_there = out < params.segments[s].n_out && lane < R && row < n_rows();
    var value = 0.0;
    if (is_there) {
        value = put(result, row, column);
    }
    if (CODES) {
        code(value, row, column - own, thread, is_there);
    }
}
