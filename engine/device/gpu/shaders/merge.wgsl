// Online softmax (Milakov & Gimelshein 2018): contexts of pieces of what a query sees, merged in order.

// The score of nothing.
const LEAST = -3.0e38;

// Factors of what stands so far and of what is added, whose largest scores these are.
fn factors(most: f32, added: f32) -> vec2<f32> {
    let larger = max(most, added);
    return vec2<f32>(exp(most - larger), exp(added - larger));
}
