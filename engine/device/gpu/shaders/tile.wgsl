// Products of many rows with matrices, in tiles of 64 rows and 64 outputs (PAIR: 32 of either matrix) that a workgroup stages unit by unit. A
// thread has four rows and four outputs. Its sums are those of product.wgsl, to the bit: lane by lane, one after the other.
//
// Constants in front: those of results.wgsl; SCHEME and OTHER, the types of the segments; STEP, units that are staged at a time; DOT (false:
// products of codes are of floats, which are exact too).

const PANELS = select(4u, 2u, PAIR);

var<workgroup> inverses: array<f32, 64>;

// What a workgroup takes of the matrices: for its panel `j` (of 4) the segment and the panel in it.
struct Taken {
    here: Segment,
    there: Segment,
    first_panel: u32,
    // First unit of the matrices by head.
    unit: u32,
    unit_there: u32,
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
    let first_row = group.y * 64u;
    var s = 0u;
    while (s + 1u < N_SEGMENTS && group.x >= params.segments[s + 1u].first_group) {
        s += 1u;
    }
    var taken: Taken;
    taken.here = params.segments[s];
    taken.there = params.segments[select(s, s + 1u, PAIR)];
    taken.first_panel = (group.x - taken.here.first_group) * PANELS;
    taken.unit = group.z * taken.here.each_units;
    taken.unit_there = group.z * taken.there.each_units;
    var sums: array<f32, 16>;
    var totals: array<f32, 16>;
    for (var first = 0u; first < UNITS; first += STEP) {
        workgroupBarrier();
        stage(taken, first_row, group.z, first, thread);
        workgroupBarrier();
        for (var step = 0u; step < STEP; step++) {
            let u = first + step;
            if (u < UNITS) {
                add_step(step, own, lane, &sums);
                if ((u + 1u) % SHARE == 0u || u + 1u == UNITS) {
                    for (var i = 0u; i < 16u; i++) {
                        totals[i] += sums[i];
                        sums[i] = 0.0;
                    }
                }
            }
        }
    }
    if (NORM) {
        find_inverses(first_row, group.z, thread);
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i++) {
        let row = first_row + i * 16u + lane;
        for (var j = 0u; j < PANELS; j++) {
            let out = (taken.first_panel + j) * OUTS + own;
            let column = taken.here.y_first + group.z * params.each_y + out;
            let is_there = out < taken.here.n_out && row < n_rows();
            var value = 0.0;
            if (is_there) {
                let inverse = select(1.0, inverses[i * 16u + lane], NORM);
                let second = select(0.0, totals[i * 4u + (j + 2u) % 4u], PAIR);
                value = put(result_of(totals[i * 4u + j], second, inverse, taken.here, taken.there, group.z, out), row, column);
            }
            if (CODES) {
                code(value, row, column - own, thread, is_there);
            }
        }
    }
}
