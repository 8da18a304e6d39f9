//! `cargo bench -p greenroom-engine`: the kernels one by one, on one thread, in weights or scores a second.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use greenroom_engine::KvFormat;
use greenroom_engine::fixtures::Dtype;
use greenroom_engine::probes;

/// A feed-forward matrix of the 1b shape: decode (1 row), a small batch (4), a chunk of a prompt (64).
fn products(c: &mut Criterion) {
    let (n_out, k) = (8192, 2048);
    let formats = Dtype::ALL.iter().copied().filter(|dtype| *dtype != Dtype::Q4KM);
    for n_rows in [1, 4, 64] {
        let mut group = c.benchmark_group(format!("product, {n_rows} rows"));
        group.sample_size(10).throughput(Throughput::Elements((n_out * k * n_rows) as u64));
        for dtype in formats.clone() {
            let mut probe = probes::product(dtype, n_out, k, n_rows).expect("memory");
            group.bench_function(BenchmarkId::from_parameter(dtype.word()), |b| b.iter(&mut probe));
        }
    }
}

/// One KV head with four query heads at depth 4096: a decoded token, and sixteen rows of a prompt.
fn attention(c: &mut Criterion) {
    for n_rows in [1, 16] {
        let mut group = c.benchmark_group(format!("attention at depth 4096, {n_rows} rows"));
        group.throughput(Throughput::Elements((4096 * 4 * n_rows) as u64));
        for kv in [KvFormat::F16, KvFormat::Q8, KvFormat::Q4] {
            let mut probe = probes::attention(kv, 4096, n_rows).expect("a probe");
            group.bench_function(BenchmarkId::from_parameter(format!("{kv:?}")), |b| b.iter(&mut probe));
        }
    }
}

/// A block's rows of one head.
fn sealing(c: &mut Criterion) {
    let mut group = c.benchmark_group("sealing 256 rows of 64");
    group.throughput(Throughput::Elements(256 * 64));
    for bits in [4, 8] {
        let mut probe = probes::sealing(bits);
        group.bench_function(BenchmarkId::from_parameter(format!("{bits} bits")), |b| b.iter(&mut probe));
    }
}

criterion_group!(benches, products, attention, sealing);
criterion_main!(benches);
