// Units of coded matrices by coded rows, a few at a time.

fn add_unit(
    segment: Segment, p: u32, own: u32, u: u32, rows: ptr<function, array<u32, R>>, sums: ptr<function, array<f32, R>>,
) {
    let w = unit_in(segment, p, own);
    let by = vec4<f32>(w.scale, w.bias);
    for (var r = 0u; r < R; r++) {
        let at = (*rows)[r] + 3u * u;
        let a = x[at];
        let b = x[at + 1u];
        let low = dot4I8Packed(w.low.x, a.x) + dot4I8Packed(w.low.y, a.y) + dot4I8Packed(w.low.z, a.z) + dot4I8Packed(w.low.w, a.w);
        let high = dot4I8Packed(w.high.x, b.x) + dot4I8Packed(w.high.y, b.y) + dot4I8Packed(w.high.z, b.z) + dot4I8Packed(w.high.w, b.w);
        (*sums)[r] = scaled((*sums)[r], vec2<f32>(f32(low), f32(high)), by, bitcast<vec4<f32>>(x[at + 2u]));
    }
}

// The squares lie with the codes.
fn add_squares(u: u32, rows: ptr<function, array<u32, R>>, squares: ptr<function, array<f32, R>>) {}

fn met_squares(
    rows: ptr<function, array<u32, R>>, squares: ptr<function, array<f32, R>>, lane: u32, own: u32,
) -> f32 {
    return square_of_row((*rows)[min(lane, R - 1u)], lane * OUTS + own);
}
