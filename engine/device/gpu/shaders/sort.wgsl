// Sorts the slots of all rows by expert, those of one expert by row: tiles of 64 read a matrix once. Written are the number of tiles; of each
// its expert, the place of its first slot and the number of its slots; then the slots. One workgroup.
//
// Constants in front: N_SLOTS of a row, N_PARTS (experts, and what every row goes through beside them).

@group(0) @binding(0) var<uniform> pass_: Pass;
// The expert of each slot, and a weight.
@group(0) @binding(1) var<storage, read> sent: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read_write> sorted: array<u32>;

const AT_A_TIME = 1024u;

var<workgroup> counts: array<u32, N_PARTS>;
var<workgroup> experts: array<u32, AT_A_TIME>;

fn stage(first: u32, n: u32, thread: u32) {
    workgroupBarrier();
    for (var i = thread; i < min(AT_A_TIME, n - first); i += 256u) {
        experts[i] = sent[first + i].x;
    }
    workgroupBarrier();
}

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32) {
    let n = pass_.n_rows * N_SLOTS;
    for (var own = thread; own < N_PARTS; own += 256u) {
        counts[own] = 0u;
    }
    for (var first = 0u; first < n; first += AT_A_TIME) {
        stage(first, n, thread);
        for (var own = thread; own < N_PARTS; own += 256u) {
            for (var i = 0u; i < min(AT_A_TIME, n - first); i++) {
                counts[own] += u32(experts[i] == own);
            }
        }
    }
    workgroupBarrier();
    // Behind the most tiles that there can be.
    let slots = 1u + 3u * ((n + 63u) / 64u + N_PARTS);
    for (var round = 0u; round * 256u < N_PARTS; round++) {
        let own = round * 256u + thread;
        var tile = 0u;
        var at = slots;
        if (own < N_PARTS) {
            for (var other = 0u; other < own; other++) {
                tile += (counts[other] + 63u) / 64u;
                at += counts[other];
            }
            for (var done = 0u; done < counts[own]; done += 64u) {
                sorted[1u + 3u * tile] = own;
                sorted[2u + 3u * tile] = at + done;
                sorted[3u + 3u * tile] = min(64u, counts[own] - done);
                tile += 1u;
            }
            if (own == N_PARTS - 1u) {
                sorted[0] = tile;
            }
        }
        for (var first = 0u; first < n; first += AT_A_TIME) {
            stage(first, n, thread);
            if (own < N_PARTS) {
                for (var i = 0u; i < min(AT_A_TIME, n - first); i++) {
                    if (experts[i] == own) {
                        sorted[at] = first + i;
                        at += 1u;
                    }
                }
            }
        }
    }
}
