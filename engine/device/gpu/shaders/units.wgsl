// Units of coded matrices: 32 numbers, `scale · code + bias` by halves. The codes of 4 bits lie in a vector, the first half in the low
// halves of its bytes; further planes as `weights.rs` lays them.

struct Unit {
    low: array<u32, 4>,
    high: array<u32, 4>,
    scale: vec2<f32>,
    bias: vec2<f32>,
}

fn plane_half(plane: u32, i: u32) -> f32 {
    return half_of(planes[plane + i / 2u], i);
}

fn nibbles(four: vec4<u32>) -> Unit {
    var unit: Unit;
    for (var j = 0u; j < 4u; j++) {
        unit.low[j] = four[j] & 0x0f0f0f0fu;
        unit.high[j] = (four[j] >> 4u) & 0x0f0f0f0fu;
    }
    return unit;
}

// Adds a fifth bit to each code.
fn fifth(unit: ptr<function, Unit>, bits: u32) {
    for (var j = 0u; j < 4u; j++) {
        let a = (bits >> (4u * j)) & 15u;
        let b = (bits >> (16u + 4u * j)) & 15u;
        (*unit).low[j] |= (a & 1u) << 4u | (a & 2u) << 11u | (a & 4u) << 18u | (a & 8u) << 25u;
        (*unit).high[j] |= (b & 1u) << 4u | (b & 2u) << 11u | (b & 4u) << 18u | (b & 8u) << 25u;
    }
}

fn same(unit: ptr<function, Unit>, scale: f32, bias: f32) {
    (*unit).scale = vec2<f32>(scale);
    (*unit).bias = vec2<f32>(bias);
}

fn byte_of(words: vec3<u32>, i: u32) -> u32 {
    return (words[i / 4u] >> (8u * (i % 4u))) & 255u;
}

// Scale and bias of unit `i` of a super-block of Q4_K or Q5_K, whose head starts at a word.
fn k_scale(head: u32, i: u32) -> vec2<f32> {
    let all = unpack2x16float(planes[head]);
    let bytes = vec3<u32>(planes[head + 1u], planes[head + 2u], planes[head + 3u]);
    var scale = 0u;
    var least = 0u;
    if (i < 4u) {
        scale = byte_of(bytes, i) & 63u;
        least = byte_of(bytes, i + 4u) & 63u;
    } else {
        scale = (byte_of(bytes, i + 4u) & 15u) | (byte_of(bytes, i - 4u) >> 6u) << 4u;
        least = (byte_of(bytes, i + 4u) >> 4u) | (byte_of(bytes, i) >> 6u) << 4u;
    }
    return vec2<f32>(all.x * f32(scale), -all.y * f32(least));
}

// Numbers that four codes (bytes below 16) of IQ4_NL or MXFP4 stand for, as bytes.
fn looked_up(scheme: u32, codes: u32) -> u32 {
    var out = 0u;
    for (var j = 0u; j < 4u; j++) {
        let code = (codes >> (8u * j)) & 15u;
        let four = select(MXFP4_LEVELS[code / 4u], IQ4_NL_LEVELS[code / 4u], scheme == IQ4_NL);
        out |= ((four >> (8u * (code % 4u))) & 255u) << (8u * j);
    }
    return out;
}

fn unit_of(scheme: u32, first: u32, at: vec3<u32>, i: u32) -> Unit {
    var unit: Unit;
    if (scheme == Q8_0) {
        let low = codes[first + 2u * i];
        let high = codes[first + 2u * i + 1u];
        unit.low = array<u32, 4>(low.x, low.y, low.z, low.w);
        unit.high = array<u32, 4>(high.x, high.y, high.z, high.w);
        same(&unit, plane_half(at.x, i), 0.0);
        return unit;
    }
    unit = nibbles(codes[first + i]);
    switch scheme {
        case Q4_0: {
            let d = plane_half(at.x, i);
            same(&unit, d, -8.0 * d);
        }
        case Q4_1: {
            let d = unpack2x16float(planes[at.x + i]);
            same(&unit, d.x, d.y);
        }
        case Q5_0: {
            fifth(&unit, planes[at.x + i]);
            let d = plane_half(at.y, i);
            same(&unit, d, -16.0 * d);
        }
        case Q5_1: {
            fifth(&unit, planes[at.x + i]);
            let d = unpack2x16float(planes[at.y + i]);
            same(&unit, d.x, d.y);
        }
        case Q4_K: {
            let d = k_scale(at.x + i / 8u * 4u, i % 8u);
            same(&unit, d.x, d.y);
        }
        case Q5_K: {
            fifth(&unit, planes[at.x + i]);
            let d = k_scale(at.y + i / 8u * 4u, i % 8u);
            same(&unit, d.x, d.y);
        }
        case Q6_K: {
            for (var j = 0u; j < 4u; j++) {
                let a = (planes[at.x + 2u * i] >> (8u * j)) & 255u;
                let b = (planes[at.x + 2u * i + 1u] >> (8u * j)) & 255u;
                unit.low[j] |= (a & 3u) << 4u | (a & 12u) << 10u | (a & 48u) << 16u | (a & 192u) << 22u;
                unit.high[j] |= (b & 3u) << 4u | (b & 12u) << 10u | (b & 48u) << 16u | (b & 192u) << 22u;
            }
            let both = planes[at.y + i / 2u] >> (16u * (i & 1u));
            let d = plane_half(at.z, i / 8u);
            let levels = vec2<f32>(vec2<i32>(i32(both << 24u) >> 24u, i32(both << 16u) >> 24u));
            unit.scale = d * levels;
            unit.bias = -32.0 * unit.scale;
        }
        default: {
            for (var j = 0u; j < 4u; j++) {
                unit.low[j] = looked_up(scheme, unit.low[j]);
                unit.high[j] = looked_up(scheme, unit.high[j]);
            }
            if (scheme == IQ4_NL) {
                same(&unit, plane_half(at.x, i), 0.0);
            } else {
                // MXFP4: an exponent; its table is doubled.
                let e = (planes[at.x + i / 4u] >> (8u * (i & 3u))) & 255u;
                same(&unit, bitcast<f32>(select((e - 1u) << 23u, 0x00200000u << e, e < 2u)), 0.0);
            }
        }
    }
    return unit;
}

// Adds a unit's products with the staged rows to a lane's sums.
fn add_unit(segment: Segment, index: u32, i: u32, sums: ptr<function, array<f32, R>>) {
    var w: Unit;
    if (OTHER != SCHEME && segment.is_other == 1u) {
        w = unit_of(OTHER, segment.codes, segment.planes, index);
    } else {
        w = unit_of(SCHEME, segment.codes, segment.planes, index);
    }
    for (var r = 0u; r < R; r++) {
        var low = 0;
        var high = 0;
        for (var j = 0u; j < 4u; j++) {
            low += dot4I8Packed(w.low[j], staged[(r * 8u + j) * CHUNK + i]);
            high += dot4I8Packed(w.high[j], staged[(r * 8u + 4u + j) * CHUNK + i]);
        }
        let scale = row_scales[r * CHUNK + i];
        var s = (*sums)[r];
        s = fma(w.scale.x * scale, f32(low), s);
        s = fma(w.scale.y * scale, f32(high), s);
        if (BIASED) {
            let sum = row_sums[r * CHUNK + i];
            s = fma(w.bias.x * scale, sum.x, s);
            s = fma(w.bias.y * scale, sum.y, s);
        }
        (*sums)[r] = s;
    }
}
