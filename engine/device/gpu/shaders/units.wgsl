// Units of coded matrices: 32 numbers, `scale · code + bias` by halves. The codes of 4 bits lie in a vector, the first half in the low
// halves of its bytes; further planes as `weights.rs` lays them.

struct Unit {
    low: vec4<u32>,
    high: vec4<u32>,
    scale: vec2<f32>,
    bias: vec2<f32>,
}

fn plane_half(plane: u32, i: u32) -> f32 {
    return half_of(planes[plane + i / 2u], i);
}

// Adds a fifth bit to each code.
fn fifth(unit: ptr<function, Unit>, bits: u32) {
    const PLACES = vec4<u32>(0u, 4u, 8u, 12u);
    let a = vec4<u32>(bits) >> PLACES;
    let b = vec4<u32>(bits >> 16u) >> PLACES;
    (*unit).low |= (a & vec4<u32>(1u)) << vec4<u32>(4u) | (a & vec4<u32>(2u)) << vec4<u32>(11u)
        | (a & vec4<u32>(4u)) << vec4<u32>(18u) | (a & vec4<u32>(8u)) << vec4<u32>(25u);
    (*unit).high |= (b & vec4<u32>(1u)) << vec4<u32>(4u) | (b & vec4<u32>(2u)) << vec4<u32>(11u)
        | (b & vec4<u32>(4u)) << vec4<u32>(18u) | (b & vec4<u32>(8u)) << vec4<u32>(25u);
}

// The fifth and sixth bits of sixteen codes, from two bits each.
fn sixth(bits: u32) -> vec4<u32> {
    let a = vec4<u32>(bits) >> vec4<u32>(0u, 8u, 16u, 24u);
    return (a & vec4<u32>(3u)) << vec4<u32>(4u) | (a & vec4<u32>(12u)) << vec4<u32>(10u)
        | (a & vec4<u32>(48u)) << vec4<u32>(16u) | (a & vec4<u32>(192u)) << vec4<u32>(22u);
}

fn same(unit: ptr<function, Unit>, scale: f32, bias: f32) {
    (*unit).scale = vec2<f32>(scale);
    (*unit).bias = vec2<f32>(bias);
}

fn byte_of(words: vec3<u32>, i: u32) -> u32 {
    return (words[i / 4u] >> (8u * (i % 4u))) & 255u;
}

// Scale and bias of unit `i` of a super-block of Q4_K or Q5_K, from the head of that.
fn k_scale(head: vec4<u32>, i: u32) -> vec2<f32> {
    let all = unpack2x16float(head.x);
    let bytes = head.yzw;
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

fn all_looked_up(scheme: u32, codes: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(
        looked_up(scheme, codes.x), looked_up(scheme, codes.y), looked_up(scheme, codes.z), looked_up(scheme, codes.w),
    );
}

// Of a panel's unit `p`, counted from the first of the matrix, output `own`.
fn unit_of(scheme: u32, first: u32, at: vec3<u32>, p: u32, own: u32) -> Unit {
    var unit: Unit;
    let i = p * 16u + own;
    if (scheme == Q8_0) {
        unit.low = codes[first + p * 32u + own];
        unit.high = codes[first + p * 32u + 16u + own];
        same(&unit, plane_half(at.x, i), 0.0);
        return unit;
    }
    let both_halves = codes[first + i];
    unit.low = both_halves & vec4<u32>(0x0f0f0f0fu);
    unit.high = (both_halves >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    let super_block = p / 8u * 16u + own;
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
            let d = k_scale(codes[at.x / 4u + super_block], p % 8u);
            same(&unit, d.x, d.y);
        }
        case Q5_K: {
            fifth(&unit, planes[at.x + i]);
            let d = k_scale(codes[at.y / 4u + super_block], p % 8u);
            same(&unit, d.x, d.y);
        }
        case Q6_K: {
            unit.low |= sixth(planes[at.x + 2u * i]);
            unit.high |= sixth(planes[at.x + 2u * i + 1u]);
            let both = planes[at.y + i / 2u] >> (16u * (i & 1u));
            let d = plane_half(at.z, super_block);
            let levels_ = vec2<f32>(vec2<i32>(i32(both << 24u) >> 24u, i32(both << 16u) >> 24u));
            unit.scale = d * levels_;
            unit.bias = -32.0 * unit.scale;
        }
        default: {
            unit.low = all_looked_up(scheme, unit.low);
            unit.high = all_looked_up(scheme, unit.high);
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

fn unit_in(segment: Segment, p: u32, own: u32) -> Unit {
    if (OTHER != SCHEME && segment.is_other == 1u) {
        return unit_of(OTHER, segment.codes, segment.planes, p, own);
    }
    return unit_of(SCHEME, segment.codes, segment.planes, p, own);
}

@group(0) @binding(5) var<storage, read> x: array<vec4<u32>>;

// First vector of what a head's matrix meets in a coded row.
fn place_of(row: u32, head: u32) -> u32 {
    return row * coded_stride(ROW_UNITS) + (FIRST_UNIT + head * HEAD_UNITS) * 3u;
}

// The sum of the squares of a row (of one head), which sixteen threads ask for together.
fn square_of_row(place: u32, thread: u32) -> f32 {
    let own = thread % OUTS;
    var square = 0.0;
    for (var i = own; i < 2u * UNITS; i += OUTS) {
        square += bitcast<f32>(x[place + 3u * UNITS + i / 4u][i % 4u]);
    }
    workgroupBarrier();
    values[thread] = square;
    workgroupBarrier();
    var total = 0.0;
    for (var j = 0u; j < OUTS; j++) {
        total += values[thread - own + j];
    }
    workgroupBarrier();
    return total;
}

// The products of a unit's halves, exact, and by their scales: added to `sum`. `by` is scales and biases of the matrix's, `own` scales and sums of
// the row's.
fn scaled(sum: f32, halves_: vec2<f32>, by: vec4<f32>, own: vec4<f32>) -> f32 {
    var s = fma(by.x * own.x, halves_.x, sum);
    s = fma(by.y * own.y, halves_.y, s);
    if (BIASED) {
        s = fma(by.z, own.z, s);
        s = fma(by.w, own.w, s);
    }
    return s;
}
