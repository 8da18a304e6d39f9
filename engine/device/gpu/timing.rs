//! Time of each dispatch of a pass, by the GPU's own clock.

use super::Gpu;
use super::cache::BoundPlan;
use super::context::Context;
use super::outline::GpuStep;
use super::steps::{Dispatch, GpuPass};
use super::tables::Tables;
use crate::{Error, Result};
use std::sync::PoisonError;
use std::time::Duration;
use wgpu::{ComputePassTimestampWrites, QuerySet, QuerySetDescriptor, QueryType};

/// Timestamps before and after each step.
struct Timer {
    queries: QuerySet,
    resolved: wgpu::Buffer,
    n_steps: usize,
}

impl Timer {
    fn new(context: &Context, n_steps: usize) -> Result<Self> {
        if !context.device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            let name = &context.info.name;
            return Err(Error::device(format!("{name} has no timestamps; steps can be counted, not timed")));
        }
        let count = 2 * n_steps as u32;
        let descriptor = QuerySetDescriptor { label: None, ty: QueryType::Timestamp, count };
        let queries = context.device.create_query_set(&descriptor);
        let resolved = context.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: 8 * u64::from(count),
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        Ok(Self { queries, resolved, n_steps })
    }
}

impl Gpu {
    /// Runs passes and returns the steps of the last one, with their times.
    ///
    /// # Errors
    /// The device has no timestamps; what `run` returns.
    pub(crate) fn timed(&self, pass: GpuPass, run: impl FnOnce() -> Result<()>) -> Result<Vec<GpuStep>> {
        let steps =
            |steps| std::mem::replace(&mut *self.timed.lock().unwrap_or_else(PoisonError::into_inner), steps);
        steps(Some((pass, Vec::new())));
        let ran = run();
        let found = steps(None);
        ran.map(|()| found.map(|(_, steps)| steps).unwrap_or_default())
    }

    /// Runs the steps of a pass and keeps their times, if they are to be timed.
    ///
    /// # Errors
    /// The device has no timestamps; a pass fails.
    pub(super) fn run_timed(&self, bound: &BoundPlan, tables: &Tables) -> Result<bool> {
        if self.timed.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Ok(false);
        }
        let mut encoder = self.context.encoder();
        let timer = self.encode_timed(&mut encoder, bound, tables)?;
        self.context.read("a pass", encoder, &[])?;
        self.keep_times(&timer, &bound.plan.steps, tables)?;
        Ok(true)
    }

    /// Encodes all steps of a bound plan, each between two timestamps.
    fn encode_timed(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        bound: &BoundPlan,
        tables: &Tables,
    ) -> Result<Timer> {
        let n_steps = bound.plan.steps.len();
        let timer = Timer::new(&self.context, n_steps)?;
        for i in 0..n_steps {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(ComputePassTimestampWrites {
                    query_set: &timer.queries,
                    beginning_of_pass_write_index: Some(2 * i as u32),
                    end_of_pass_write_index: Some(2 * i as u32 + 1),
                }),
            });
            bound.dispatch(&mut pass, i, tables.groups(&bound.plan.steps[i]));
        }
        encoder.resolve_query_set(&timer.queries, 0..2 * n_steps as u32, &timer.resolved, 0);
        Ok(timer)
    }

    /// Takes in the times of a pass that has run.
    fn keep_times(&self, timer: &Timer, steps: &[Dispatch], tables: &Tables) -> Result<()> {
        let n_bytes = 16 * timer.n_steps as u64;
        let stamps =
            self.context.read("reading times", self.context.encoder(), &[(&timer.resolved, 0, n_bytes)])?;
        let stamps: Vec<u64> = bytemuck::pod_collect_to_vec(&stamps);
        let tick = f64::from(self.context.queue.get_timestamp_period());
        let mut timed = self.timed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((pass, kept)) = timed.as_mut() else { return Ok(()) };
        let time =
            |stamps: &[u64]| Duration::from_nanos((stamps[1].saturating_sub(stamps[0]) as f64 * tick) as u64);
        let all = steps.iter().zip(stamps.chunks_exact(2));
        *kept = all
            .filter_map(|(step, stamps)| {
                Some(GpuStep { time: Some(time(stamps)), ..GpuStep::of(step, tables, *pass)? })
            })
            .collect();
        Ok(())
    }
}
