// Tiles of coded matrices and coded rows. Of each staged unit: its codes, as words of bytes or as floats, in halves; scales and biases, or
// scales and sums.

const STAGED = 64u * STEP;
// Vectors of a half: four bytes a word, or four floats each.
const PER_HALF = select(4u, 1u, DOT);

var<workgroup> w_low: array<vec4<u32>, STAGED * PER_HALF>;
var<workgroup> w_high: array<vec4<u32>, STAGED * PER_HALF>;
var<workgroup> w_by: array<vec4<f32>, STAGED>;
var<workgroup> x_low: array<vec4<u32>, STAGED * PER_HALF>;
var<workgroup> x_high: array<vec4<u32>, STAGED * PER_HALF>;
var<workgroup> x_by: array<vec4<f32>, STAGED>;

fn floats_of(word: u32) -> vec4<u32> {
    return bitcast<vec4<u32>>(vec4<f32>(unpack4xI8(word)));
}

fn stage(taken: Taken, first: u32, thread: u32) {
    for (var at = thread; at < STAGED; at += THREADS) {
        let u = first + at / 64u;
        let j = at % 64u / OUTS;
        if (u < UNITS && is_panel(taken, j)) {
            let w = unit_in(segment_of(taken, j), unit_at(taken, j, u), at % OUTS);
            if (DOT) {
                w_low[at] = w.low;
                w_high[at] = w.high;
            } else {
                for (var c = 0u; c < 4u; c++) {
                    w_low[c * STAGED + at] = floats_of(w.low[c]);
                    w_high[c * STAGED + at] = floats_of(w.high[c]);
                }
            }
            w_by[at] = vec4<f32>(w.scale, w.bias);
        }
    }
    // Neighbouring threads take neighbouring units of a row.
    for (var i = (thread + THREADS - STAGED % THREADS) % THREADS; i < STAGED; i += THREADS) {
        let row = i / STEP;
        let u = first + i % STEP;
        let at = i % STEP * 64u + row;
        if (u < UNITS) {
            let from_ = place_in(taken, row) + 3u * u;
            let low = x[from_];
            let high = x[from_ + 1u];
            if (DOT) {
                x_low[at] = low;
                x_high[at] = high;
            } else {
                for (var c = 0u; c < 4u; c++) {
                    x_low[c * STAGED + at] = floats_of(low[c]);
                    x_high[c * STAGED + at] = floats_of(high[c]);
                }
            }
            x_by[at] = bitcast<vec4<f32>>(x[from_ + 2u]);
        }
    }
}

// Four words of bytes, multiplied and added up.
fn bytes_by(a: vec4<u32>, b: vec4<u32>) -> f32 {
    return f32(dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w));
}

// Adds the products of four floats; of integers that are small enough in any order the same.
fn floats_by(sum: f32, a: vec4<u32>, b: vec4<u32>) -> f32 {
    return sum + dot(bitcast<vec4<f32>>(a), bitcast<vec4<f32>>(b));
}

fn add_step(step: u32, own: u32, lane: u32, sums: ptr<function, array<f32, 16>>) {
    let w = step * 64u + own;
    let r = step * 64u + lane;
    var halves_: array<vec2<f32>, 16>;
    for (var c = 0u; c < PER_HALF; c++) {
        let at = c * STAGED;
        var low: array<vec4<u32>, 4>;
        var high: array<vec4<u32>, 4>;
        for (var j = 0u; j < 4u; j++) {
            low[j] = w_low[at + w + 16u * j];
            high[j] = w_high[at + w + 16u * j];
        }
        for (var i = 0u; i < 4u; i++) {
            let a = x_low[at + r + 16u * i];
            let b = x_high[at + r + 16u * i];
            for (var j = 0u; j < 4u; j++) {
                let n = i * 4u + j;
                if (DOT) {
                    halves_[n] = vec2<f32>(bytes_by(low[j], a), bytes_by(high[j], b));
                } else {
                    halves_[n] = vec2<f32>(floats_by(halves_[n].x, low[j], a), floats_by(halves_[n].y, high[j], b));
                }
            }
        }
    }
    for (var i = 0u; i < 4u; i++) {
        let of_row = x_by[r + 16u * i];
        for (var j = 0u; j < 4u; j++) {
            let n = i * 4u + j;
            (*sums)[n] = scaled((*sums)[n], halves_[n], w_by[w + 16u * j], of_row);
        }
    }
}

fn find_inverses(taken: Taken, thread: u32) {
    for (var i = 0u; i < 4u; i++) {
        let row = i * 16u + thread / OUTS;
        let square = square_of_row(place_in(taken, row), thread);
        if (thread % OUTS == 0u) {
            inverses[row] = inverse_norm(square);
        }
    }
}
