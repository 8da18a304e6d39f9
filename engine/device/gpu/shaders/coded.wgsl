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
