//! Time of the processor's kernels, one by one.

use super::lab::Bench;
use super::report::{Figure, Figures};
use super::sampling::microseconds;
use super::speed::at_least_one;
use greenroom_engine::fixtures::Dtype;
use greenroom_engine::{Isa, KvFormat, probes};

/// Time of single kernels, on one thread
///
/// Products with a feed-forward matrix (1 row: decoding, 4 and 8: small batches, 64: a chunk of a prompt),
/// attention of 1 and 16 rows with 4 query heads, and quantizing 256 rows of a head.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example: greenroom-lab bench kernels --repeat 5\n         \
    GREENROOM_ISA=avx2 greenroom-lab bench kernels")]
pub(super) struct Args {
    /// Calls of each measurement
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = at_least_one)]
    calls: usize,
    /// Width of the residual stream; the matrix is four times as high
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u16).range(256..))]
    width: u16,
    /// Rows of activations of the products
    #[arg(
        long, value_name = "N", value_delimiter = ',', default_values_t = [1, 4, 8, 64],
        value_parser = at_least_one
    )]
    rows: Vec<usize>,
    /// Tokens that attention reads
    #[arg(long, value_name = "N", default_value_t = 4096)]
    depth: usize,
}

impl Args {
    pub(super) fn run(&self, bench: &mut Bench) -> anyhow::Result<Figures> {
        let mut figures = Figures::default();
        let k = usize::from(self.width).next_multiple_of(256);
        // A mix has no kernel of its own.
        for dtype in Dtype::ALL.iter().filter(|dtype| **dtype != Dtype::Q4KM) {
            for n_rows in &self.rows {
                let probe = probes::product(*dtype, 4 * k, k, *n_rows)?;
                self.time(bench, ("product", dtype.word(), *n_rows), probe, &mut figures);
            }
        }
        for (word, kv) in [("f16", KvFormat::F16), ("q8", KvFormat::Q8), ("q4", KvFormat::Q4)] {
            for n_rows in [1, 16] {
                let probe = probes::attention(kv, self.depth, n_rows)?;
                self.time(bench, ("attention", word, n_rows), probe, &mut figures);
            }
        }
        for (bits, format) in [(4, "q4"), (8, "q8")] {
            self.time(bench, ("sealing", format, 256), probes::sealing(bits), &mut figures);
        }
        figures.notes.push(format!("Instruction set: {}.", Isa::detect().name()));
        Ok(figures)
    }

    fn time<T>(
        &self,
        bench: &Bench,
        (kernel, format, n_rows): (&str, &str, usize),
        mut probe: impl FnMut() -> T,
        figures: &mut Figures,
    ) {
        bench.show_activity(format!("{kernel}, {format}, {n_rows} rows"));
        let times = bench.repeats().map(|_| microseconds(self.calls, &mut probe)).collect();
        figures.rows.push(vec![
            ("kernel", Figure::Text(kernel.to_owned())),
            ("format", Figure::Text(format.to_owned())),
            ("rows", Figure::Count(n_rows)),
            ("us_per_call", Figure::Measured(times)),
        ]);
    }
}
