// Products of many rows with matrices, in tiles of 64 rows and 64 outputs (PAIR: 32 of either matrix) that a workgroup stages unit by unit. A
// thread has four rows and four outputs. Its sums are those of product.wgsl, to the bit: lane by lane, one after the other.
//
// Constants in front: those of results.wgsl; SCHEME and OTHER, the types of the segments; STEP, units that are staged at a time; DOT (false:
// products of codes are of floats, which are exact too). If rows are sent to experts, a tile has rows of one (sort.wgsl), each for a slot.

const PANELS = select(4u, 2u, PAIR);

var<workgroup> inverses: array<f32, 64>;

// What a workgroup takes of the matrices: for its panel `j` (of 4) the segment and the panel in it.
struct Taken {
    here: Segment,
    there: Segment,
    first_panel: u32,
    // The matrix of several, and its first units.
    each: u32,
    unit: u32,
    unit_there: u32,
    // First row, and number of them from there on; of rows that are sorted the place of the first.
    row: u32,
    n: u32,
    head: u32,
}

// The row of y that row `r` of the tile is; of rows that are not there, the last one.
fn row_of_y(taken: Taken, r: u32) -> u32 {
    let at = taken.row + min(r, taken.n - 1u);
    if (ROWS_OF == EXPERTS) {
        return table[at];
    }
    return at;
}

// First vector of what it meets.
fn place_in(taken: Taken, r: u32) -> u32 {
    let row = row_of_y(taken, r);
    if (ROWS_OF == EXPERTS) {
        return place_of(select(row / N_SLOTS, row, MIXED), 0u);
    }
    return place_of(row_of_x(row, 0u), taken.head);
}

fn segment_of(taken: Taken, j: u32) -> Segment {
    if (PAIR && j >= PANELS) {
        return taken.there;
    }
    return taken.here;
}

// Unit `u` of panel `j`, counted from the first of its matrix.
fn unit_at(taken: Taken, j: u32, u: u32) -> u32 {
    if (PAIR && j >= PANELS) {
        return taken.unit_there + (taken.first_panel + j - PANELS) * taken.there.row_units + u;
    }
    return taken.unit + (taken.first_panel + j) * taken.here.row_units + u;
}

fn is_panel(taken: Taken, j: u32) -> bool {
    return (taken.first_panel + j % PANELS) * OUTS < taken.here.n_out;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let own = thread % OUTS;
    let lane = thread / OUTS;
    var s = 0u;
    while (s + 1u < N_SEGMENTS && group.x >= params.segments[s + 1u].first_group) {
        s += 1u;
    }
    var taken: Taken;
    taken.first_panel = (group.x - params.segments[s].first_group) * PANELS;
    taken.head = group.z;
    taken.each = group.z;
    taken.row = group.y * 64u;
    taken.n = n_rows() - taken.row;
    if (ROWS_OF == EXPERTS) {
        if (group.y >= table[0]) {
            return;
        }
        let tile = 1u + 3u * group.y;
        taken.each = table[tile];
        taken.row = table[tile + 1u];
        taken.n = table[tile + 2u];
        if (taken.each >= N_EXPERTS) {
            taken.each -= N_EXPERTS;
            s = select(1u, 2u, PAIR);
        }
    }
    taken.here = params.segments[s];
    taken.there = params.segments[select(s, s + 1u, PAIR)];
    taken.unit = taken.each * taken.here.each_units;
    taken.unit_there = taken.each * taken.there.each_units;
    var sums: array<f32, 16>;
    var totals: array<f32, 16>;
    for (var i = 0u; i < 16u; i++) {
        sums[i] = params.zero;
    }
    for (var first = 0u; first < UNITS; first += STEP) {
        workgroupBarrier();
        stage(taken, first, thread);
        workgroupBarrier();
        for (var step = 0u; step < STEP; step++) {
            let u = first + step;
            if (u < UNITS) {
                add_step(step, own, lane, &sums);
                if ((u + 1u) % SHARE == 0u || u + 1u == UNITS) {
                    for (var i = 0u; i < 16u; i++) {
                        totals[i] += sums[i];
                        sums[i] = params.zero;
                    }
                }
            }
        }
    }
    if (NORM) {
        find_inverses(taken, thread);
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let r = i * 16u + lane;
        let row = row_of_y(taken, r);
        for (var j = 0u; j < PANELS; j++) {
            let out = (taken.first_panel + j) * OUTS + own;
            let column = taken.here.y_first + group.z * params.each_y + out;
            let is_there = out < taken.here.n_out && r < taken.n;
            var value = 0.0;
            if (is_there) {
                let inverse = select(1.0, inverses[r], NORM);
                let second = select(0.0, totals[i * 4u + (j + 2u) % 4u], PAIR);
                value = put(result_of(totals[i * 4u + j], second, inverse, taken.here, taken.there, taken.each, out), row, column);
            }
            if (CODES) {
                code(value, row, column - own, thread, is_there);
            }
        }
    }
}
