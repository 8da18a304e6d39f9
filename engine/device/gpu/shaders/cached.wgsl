// Eight neighbouring columns of a cached key or value, as `kv/format.rs` lays them: a sealed block, a session's exact first rows, or the
// open rows.

struct Eight {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn levels_of(codes: u32) -> vec4<f32> {
    var out: vec4<f32>;
    for (var j = 0u; j < 4u; j++) {
        let code = (codes >> (8u * j)) & 15u;
        out[j] = f32(i32(((LEVELS[code / 4u] >> (8u * (code % 4u))) & 255u) << 24u) >> 24u);
    }
    return out;
}

fn bytes_of(word: u32) -> vec4<f32> {
    let codes = vec4<u32>(word, word >> 8u, word >> 16u, word >> 24u) & vec4<u32>(255u);
    return vec4<f32>(codes) - vec4<f32>(128.0);
}

fn four_halves(low: u32, high: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(low), unpack2x16float(high));
}

fn byte_at(first: u32, i: u32) -> u32 {
    return (blocks[first + i / 4u] >> (8u * (i & 3u))) & 255u;
}

fn scaled(eight: Eight, scale: f32) -> Eight {
    return Eight(eight.low * scale, eight.high * scale);
}

// Of open rows, whose words begin at `first`.
fn open_eight(first: u32, chunk: u32) -> Eight {
    let at = first + 4u * chunk;
    return Eight(four_halves(rows[at], rows[at + 1u]), four_halves(rows[at + 2u], rows[at + 3u]));
}

// Of exact rows, `[heads, 4, dim]` from a word on.
fn exact_eight(first: u32, own: u32, token: u32, dim: u32, chunk: u32) -> Eight {
    let at = first + (own * 4u + token) * dim / 2u + 4u * chunk;
    return Eight(four_halves(exact[at], exact[at + 1u]), four_halves(exact[at + 2u], exact[at + 3u]));
}

fn key_eight(block: u32, own: u32, token: u32, chunk: u32) -> Eight {
    if (K_BITS == 0u) {
        // [16, heads, dim, 16] halves.
        var out: array<f32, 8>;
        let at = (token / 16u * N_KV_HEADS + own) * K_DIM + 8u * chunk;
        for (var j = 0u; j < 8u; j++) {
            out[j] = half_of(blocks[block + K_CODES + (at + j) * 8u + token % 16u / 2u], token);
        }
        return Eight(vec4<f32>(out[0], out[1], out[2], out[3]), vec4<f32>(out[4], out[5], out[6], out[7]));
    }
    let scale = scale_of(byte_at(block + K_SCALES, (own * K_GROUPS + chunk / 8u) * 256u + token));
    let at = block + K_CODES + (own * 16u + token / 16u) * K_WORDS * 16u + token % 16u;
    var found: Eight;
    if (K_BITS == 4u) {
        let word = blocks[at + chunk * 16u];
        found = Eight(levels_of(word), levels_of(word >> 4u));
    } else {
        found = Eight(bytes_of(blocks[at + 2u * chunk * 16u]), bytes_of(blocks[at + (2u * chunk + 1u) * 16u]));
    }
    found = scaled(found, scale);
    if (CENTERED) {
        let mean = block + K_MEANS + own * K_DIM / 2u + 4u * chunk;
        found.low += four_halves(blocks[mean], blocks[mean + 1u]);
        found.high += four_halves(blocks[mean + 2u], blocks[mean + 3u]);
    }
    return found;
}

fn value_eight(block: u32, own: u32, token: u32, chunk: u32) -> Eight {
    if (SHARED) {
        return key_eight(block, own, token, chunk);
    }
    if (V_BITS == 0u) {
        let at = block + V_CODES + (token * N_KV_HEADS + own) * V_DIM / 2u + 4u * chunk;
        return Eight(four_halves(blocks[at], blocks[at + 1u]), four_halves(blocks[at + 2u], blocks[at + 3u]));
    }
    let scale = scale_of(byte_at(block + V_SCALES, (own * V_GROUPS + chunk / 8u) * 256u + token));
    let at = block + V_CODES + (own * 256u + token) * V_WORDS;
    if (V_BITS == 4u) {
        // 16 bytes for 32 columns, the first 16 of them in the low halves.
        let word = at + chunk / 4u * 4u + (chunk & 1u) * 2u;
        let shift = select(0u, 4u, (chunk & 2u) != 0u);
        return scaled(Eight(levels_of(blocks[word] >> shift), levels_of(blocks[word + 1u] >> shift)), scale);
    }
    return scaled(Eight(bytes_of(blocks[at + 2u * chunk]), bytes_of(blocks[at + 2u * chunk + 1u])), scale);
}
