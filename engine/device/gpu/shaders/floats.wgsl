// Units of matrices that are not coded: 32 floats in eight, sixteen-bit ones in four vectors.

fn four_of(scheme: u32, first: u32, i: u32, j: u32) -> vec4<f32> {
    if (scheme == F32) {
        return bitcast<vec4<f32>>(codes[first + i * 8u + j]);
    }
    let both = codes[first + i * 4u + j / 2u];
    let two = select(both.xy, both.zw, (j & 1u) == 1u);
    if (scheme == F16) {
        return vec4<f32>(unpack2x16float(two.x), unpack2x16float(two.y));
    }
    return bitcast<vec4<f32>>(vec4<u32>(two.x << 16u, two.x & 0xffff0000u, two.y << 16u, two.y & 0xffff0000u));
}

// Adds a unit's products with the staged rows to a lane's sums.
fn add_unit(segment: Segment, index: u32, i: u32, sums: ptr<function, array<f32, R>>) {
    for (var j = 0u; j < 8u; j++) {
        var w: vec4<f32>;
        if (OTHER != SCHEME && segment.is_other == 1u) {
            w = four_of(OTHER, segment.codes, index, j);
        } else {
            w = four_of(SCHEME, segment.codes, index, j);
        }
        for (var r = 0u; r < R; r++) {
            let at = (r * 32u + j * 4u) * CHUNK + i;
            var s = (*sums)[r];
            s = fma(w.x, bitcast<f32>(staged[at]), s);
            s = fma(w.y, bitcast<f32>(staged[at + CHUNK]), s);
            s = fma(w.z, bitcast<f32>(staged[at + 2u * CHUNK]), s);
            s = fma(w.w, bitcast<f32>(staged[at + 3u * CHUNK]), s);
            (*sums)[r] = s;
        }
    }
}
