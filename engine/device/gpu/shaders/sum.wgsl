// Sums over the threads of a workgroup, which meet in a tree.
//
// Constants in front: THREADS, a power of two.

var<workgroup> sums: array<f32, THREADS>;

fn sum_of_all(own: f32, thread: u32) -> f32 {
    workgroupBarrier();
    sums[thread] = own;
    workgroupBarrier();
    for (var n = THREADS / 2u; n > 0u; n = n >> 1u) {
        if (thread < n) {
            sums[thread] += sums[thread + n];
        }
        workgroupBarrier();
    }
    return sums[0];
}
