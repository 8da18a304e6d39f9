// Units of matrices that are not coded by rows as they are, a few at a time.

fn add_unit(
    segment: Segment, p: u32, own: u32, u: u32, rows: ptr<function, array<u32, R>>, sums: ptr<function, array<f32, R>>,
) {
    for (var j = 0u; j < 8u; j++) {
        let w = four_in(segment, p, own, j);
        for (var r = 0u; r < R; r++) {
            var four = plain_four((*rows)[r], u, j);
            if (NORM) {
                four *= norm_four(u, j);
            }
            (*sums)[r] = add_four((*sums)[r], w, four);
        }
    }
}

fn add_squares(u: u32, rows: ptr<function, array<u32, R>>, squares: ptr<function, array<f32, R>>) {
    if (NORM) {
        for (var r = 0u; r < R; r++) {
            for (var j = 0u; j < 8u; j++) {
                let four = plain_four((*rows)[r], u, j);
                (*squares)[r] = add_four((*squares)[r], four, four);
            }
        }
    }
}

fn met_squares(
    rows: ptr<function, array<u32, R>>, squares: ptr<function, array<f32, R>>, lane: u32, own: u32,
) -> f32 {
    return met(squares, lane, own);
}
