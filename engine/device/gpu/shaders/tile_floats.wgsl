// Tiles of matrices that are not coded, and of rows as they are: a unit at a time, by four numbers.

var<workgroup> w_fours: array<vec4<f32>, 512>;
var<workgroup> x_fours: array<vec4<f32>, 512>;

fn stage(taken: Taken, first: u32, thread: u32) {
    for (var at = thread; at < 512u; at += THREADS) {
        let four = at / 64u;
        let j = at % 64u / OUTS;
        if (is_panel(taken, j)) {
            w_fours[at] = four_in(segment_of(taken, j), unit_at(taken, j, first), at % OUTS, four);
        }
        // Neighbouring threads take neighbouring numbers of a row.
        let row = at / 8u;
        var numbers = plain_four(place_in(taken, row), first, at % 8u);
        if (NORM) {
            numbers *= norm_four(first, at % 8u);
        }
        x_fours[at % 8u * 64u + row] = numbers;
    }
}

fn add_step(step: u32, own: u32, lane: u32, sums: ptr<function, array<f32, 16>>) {
    for (var four = 0u; four < 8u; four++) {
        var w: array<vec4<f32>, 4>;
        for (var j = 0u; j < 4u; j++) {
            w[j] = w_fours[four * 64u + own + 16u * j];
        }
        for (var i = 0u; i < 4u; i++) {
            let numbers = x_fours[four * 64u + lane + 16u * i];
            for (var j = 0u; j < 4u; j++) {
                (*sums)[i * 4u + j] = add_four((*sums)[i * 4u + j], w[j], numbers);
            }
        }
    }
}

fn find_inverses(taken: Taken, thread: u32) {
    if (thread < 64u) {
        let place = place_in(taken, thread);
        var total = 0.0;
        for (var first = 0u; first < UNITS; first += SHARE) {
            var square = params.zero;
            for (var u = first; u < min(first + SHARE, UNITS); u++) {
                for (var j = 0u; j < 8u; j++) {
                    let four = plain_four(place, u, j);
                    square = add_four(square, four, four);
                }
            }
            total += square;
        }
        inverses[thread] = inverse_norm(total);
    }
}
