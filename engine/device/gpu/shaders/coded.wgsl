// Rows in 8 bits, as products with coded matrices read them. Sixteen numbers share a scale. A row is, for each unit (32 numbers), two
// vectors of codes and one of the halves' scales and of the sums of their codes times these; then, for each half, the sum of the squares
// that a norm needs.

// Vectors of four words from one coded row to the next.
fn coded_stride(units: u32) -> u32 {
    return 3u * units + (units + 1u) / 2u;
}

fn level_of(x: f32, inverse: f32) -> i32 {
    return clamp(i32(round(x * inverse)), -127, 127);
}

// What numbers are multiplied by to be levels.
fn inverse_of(largest: f32) -> f32 {
    return select(0.0, 127.0 / largest, largest > 0.0);
}

// First word of the codes of a row's half.
fn codes_of_half(row: u32, units: u32, half: u32) -> u32 {
    return row * coded_stride(units) * 4u + half / 2u * 12u + half % 2u * 4u;
}

// Puts what belongs to a half beside its codes: its scale, the sum of its codes times that, and its square.
fn put_scale(row: u32, units: u32, half: u32, largest: f32, sum: i32, square: f32) {
    let first = row * coded_stride(units) * 4u;
    let unit = first + half / 2u * 12u;
    let scale = largest / 127.0;
    coded[unit + 8u + half % 2u] = bitcast<u32>(scale);
    coded[unit + 10u + half % 2u] = bitcast<u32>(scale * f32(sum));
    coded[first + 12u * units + half] = bitcast<u32>(square);
}
