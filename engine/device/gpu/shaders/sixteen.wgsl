// Codes sixteen numbers, half `half` of a row of `units` (coded.wgsl), for a norm whose first weight among the vectors is `norm`, or NONE.
fn code_sixteen(plain: array<vec4<f32>, 4>, row: u32, units: u32, half: u32, norm: u32) {
    var numbers = plain;
    var square = 0.0;
    var most = vec4<f32>(0.0);
    for (var j = 0u; j < 4u; j++) {
        let four = numbers[j];
        square = fma(four.x, four.x, square);
        square = fma(four.y, four.y, square);
        square = fma(four.z, four.z, square);
        square = fma(four.w, four.w, square);
        if (norm != NONE) {
            let w = norm + half * 16u + j * 4u;
            numbers[j] *= vec4<f32>(vectors[w], vectors[w + 1u], vectors[w + 2u], vectors[w + 3u]);
        }
        most = max(most, abs(numbers[j]));
    }
    let largest = max(max(most.x, most.y), max(most.z, most.w));
    let inverse = inverse_of(largest);
    let first = codes_of_half(row, units, half);
    var sum = 0;
    for (var j = 0u; j < 4u; j++) {
        let four = numbers[j];
        let levels = vec4<i32>(
            level_of(four.x, inverse), level_of(four.y, inverse), level_of(four.z, inverse), level_of(four.w, inverse),
        );
        coded[first + j] = pack4xI8(levels);
        sum += levels.x + levels.y + levels.z + levels.w;
    }
    put_scale(row, units, half, largest, sum, square);
}
