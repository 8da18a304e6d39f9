// Block-diagonal Hadamard rotation of a head in workgroup memory: its powers of two, the largest first, each by H / √n.

fn hadamard(first: u32, width: u32, thread: u32) {
    var at = first;
    for (var bit = 4096u; bit > 0u; bit = bit >> 1u) {
        if ((width & bit) != 0u) {
            for (var step = 1u; step < bit; step = step << 1u) {
                workgroupBarrier();
                for (var i = thread; i < bit / 2u; i += HEAD_THREADS) {
                    let a = at + (i / step) * 2u * step + i % step;
                    let left = head[a];
                    let right = head[a + step];
                    head[a] = left + right;
                    head[a + step] = left - right;
                }
            }
            workgroupBarrier();
            let shrink = inverseSqrt(f32(bit));
            for (var i = thread; i < bit; i += HEAD_THREADS) {
                head[at + i] *= shrink;
            }
            at += bit;
        }
    }
    workgroupBarrier();
}
