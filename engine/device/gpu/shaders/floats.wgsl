// Units of matrices that are not coded: 32 floats in eight, sixteen-bit ones in four vectors.

// Four numbers of a panel's unit `p`, the `j`th of output `own`.
fn four_of(scheme: u32, first: u32, p: u32, own: u32, j: u32) -> vec4<f32> {
    if (scheme == F32) {
        return bitcast<vec4<f32>>(codes[first + (p * 8u + j) * 16u + own]);
    }
    let both = codes[first + (p * 4u + j / 2u) * 16u + own];
    let two = select(both.xy, both.zw, (j & 1u) == 1u);
    if (scheme == F16) {
        return vec4<f32>(unpack2x16float(two.x), unpack2x16float(two.y));
    }
    return bitcast<vec4<f32>>(vec4<u32>(two.x << 16u, two.x & 0xffff0000u, two.y << 16u, two.y & 0xffff0000u));
}

fn four_in(segment: Segment, p: u32, own: u32, j: u32) -> vec4<f32> {
    if (OTHER != SCHEME && segment.is_other == 1u) {
        return four_of(OTHER, segment.codes, p, own, j);
    }
    return four_of(SCHEME, segment.codes, p, own, j);
}

@group(0) @binding(5) var<storage, read> x: array<vec4<f32>>;

// First vector of a row.
fn place_of(row: u32, head: u32) -> u32 {
    return row * params.x_stride + params.x_first + head * params.each_x;
}

// Four numbers of a row's unit, before its norm, and zeros behind its end.
fn plain_four(place: u32, u: u32, j: u32) -> vec4<f32> {
    if (u * 32u + j * 4u < K) {
        return x[place + u * 8u + j];
    }
    return vec4<f32>(0.0);
}

// What they are multiplied by in a norm.
fn norm_four(u: u32, j: u32) -> vec4<f32> {
    let w = params.norm + u * 32u + j * 4u;
    return vec4<f32>(vectors[w], vectors[w + 1u], vectors[w + 2u], vectors[w + 3u]);
}

fn add_four(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
