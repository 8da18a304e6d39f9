// What the first step found of a row.

@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> temperatures: array<f32>;
@group(0) @binding(2) var<storage, read> surveys: array<Survey>;

fn most_of_row(row: u32, thread: u32) -> f32 {
    var most = LEAST;
    for (var i = thread; i < PIECES; i += THREADS) {
        most = max(most, surveys[row * PIECES + i].most);
    }
    return most_of_all(most, thread);
}
