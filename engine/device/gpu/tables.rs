//! What a pass tells the GPU of its tokens: figures, positions, slots, tiles of rows that attend together;
//! and how much memory it takes.

use super::Gpu;
use super::cache::GpuCache;
use super::plan::{LOGITS_OF_PIECE, candidate_words};
#[cfg(any(test, feature = "fixtures"))]
use super::steps::GpuPass;
use super::steps::{BufferRef, Dispatch, Extent, PassBuffer, PassShape, Plan, TILE_ROWS};
use crate::Result;
use crate::device::{Pass, PassSpan};
use crate::kv::layout::{BLOCK, Part};
use crate::kv::table::Parts;
use crate::model::spec::{AttentionSpec, ExpertSpec, FeedForwardSpec, LatentSpec, RecurrenceSpec};

/// What a pass tells the GPU of its tokens.
pub(super) struct Tables {
    pub(super) n_rows: usize,
    pub(super) n_wanted: usize,
    n_tiles: usize,
    n_sealed: usize,
    pub(super) n_pieces: usize,
    n_walked: usize,
    n_sequences: usize,
    n_kept: usize,
    /// The stream, and each layer's own input.
    pub(super) rows: [(PassBuffer, Vec<u8>); 2],
    pub(super) bytes: Vec<(PassBuffer, Vec<u8>)>,
}

/// No slot.
const NONE: u32 = u32::MAX;

/// Bytes of words, as they go over.
fn words(words: &[u32]) -> Vec<u8> {
    bytemuck::cast_slice(words).to_vec()
}

impl Gpu {
    /// What a pass tells of its tokens; places for what it writes are taken.
    pub(super) fn tables(&self, pass: &Pass, shape: PassShape, cache: &mut GpuCache) -> Result<Tables> {
        let layout = cache.layout.clone();
        let tile_rows = self.planner(&layout, shape).tile_rows();
        let (mut places, mut tiles, mut slots, mut sealed) =
            (vec![], [vec![], vec![]], vec![], [vec![], vec![]]);
        let mut first_row = 0;
        let mut n_pieces = 1;
        for span in &pass.spans {
            let rows = self.place_span(span, cache);
            let table = |part: Part, cache: &GpuCache| {
                let of = |parts: &Parts| {
                    let id = parts[part as usize];
                    id.and_then(|id| cache.slots_of(id)).unwrap_or((0, None))
                };
                span.sealed.iter().chain(&span.completed).map(of).collect::<Vec<_>>()
            };
            let tables = Part::OF_BLOCKS.map(|part| table(part, cache));
            let firsts = tables.each_ref().map(|table| {
                let first = slots.len() as u32;
                slots.extend(table.iter().map(|(slot, _)| *slot));
                first
            });
            for (i, blocks) in (span.sealed.len()..span.sealed.len() + span.completed.len()).enumerate() {
                for part in Part::OF_BLOCKS {
                    let (slot, exact) = tables[part as usize][blocks];
                    sealed[part as usize].extend([rows[i], slot, exact.unwrap_or(NONE)]);
                }
            }
            let mut done = 0;
            while done < span.n {
                let position = span.start + done;
                let n = (tile_rows - position % tile_rows).min(span.n - done);
                let own = rows[position / BLOCK - span.sealed.len()];
                for part in Part::OF_BLOCKS {
                    let exact = tables[part as usize].first().and_then(|(_, exact)| *exact).unwrap_or(NONE);
                    let row = (first_row + done) as u32;
                    let first = firsts[part as usize];
                    tiles[part as usize].extend([row, n as u32, position as u32, own, first, exact]);
                }
                for position in position..position + n {
                    let own = rows[position / BLOCK - span.sealed.len()];
                    places.extend([own, (position % BLOCK) as u32]);
                }
                n_pieces = n_pieces.max(position / BLOCK + 1);
                done += n;
            }
            first_row += span.n;
        }
        for seal in pass.spans.iter().filter_map(|span| span.state.as_ref()).flat_map(|of| &of.seals) {
            seal.to.into_iter().for_each(|id| cache.place_block(id, Part::State, false));
        }
        let states = cache.log_tokens(pass);
        cache.grow()?;
        let (n_tiles, n_sealed) = (tiles[0].len() / 6, sealed[0].len() / 3);
        let split = shape.lone && n_pieces > 1;
        let n_pieces = if split { n_pieces } else { 1 };
        let n_wanted = pass.wanted.len();
        let figures = [first_row, n_wanted, usize::from(split), n_pieces, n_tiles, n_sealed, 0, 0];
        let ropes = self.spec.ropes.iter().flat_map(|rope| pass.positions().flat_map(|at| rope.table(at)));
        let temperature = self.spec.layers.iter().find_map(|layer| layer.attention?.temperature);
        let factors = temperature.into_iter().flat_map(|t| pass.positions().map(move |at| t.factor(at)));
        let ropes: Vec<f32> = ropes.chain(factors).collect();
        let mut stream = self.weights.embedding.rows(&pass.ids)?;
        let scale = self.spec.embedding_scale;
        if scale != 1.0 {
            stream.iter_mut().for_each(|x| *x *= scale);
        }
        let mut inputs = match &self.weights.per_layer {
            Some(per_layer) => per_layer.embedding.rows(&pass.ids)?,
            None => Vec::new(),
        };
        let root = (self.spec.d_per_layer as f64).sqrt() as f32;
        inputs.iter_mut().for_each(|x| *x *= root);
        let floats = |floats: &[f32]| bytemuck::cast_slice(floats).to_vec();
        // Where the likeliest token alone counts, any distance will do.
        let temperatures = pass.best.iter().flatten().map(|t| if *t > 0.0 { *t } else { 1.0 });
        let temperatures: Vec<f32> = temperatures.collect();
        let positions: Vec<u32> = pass.positions().map(|at| at as u32).collect();
        let wanted: Vec<u32> = pass.wanted.iter().map(|row| *row as u32).collect();
        let rows = [(PassBuffer::Stream, floats(&stream)), (PassBuffer::Inputs, floats(&inputs))];
        let bytes = vec![
            (PassBuffer::Pass, words(&figures.map(|n| n as u32))),
            (PassBuffer::Ropes, floats(&ropes)),
            (PassBuffer::Places, words(&places)),
            (PassBuffer::Positions, words(&positions)),
            (PassBuffer::Tiles, words(&tiles.concat())),
            (PassBuffer::Blocks, words(&slots)),
            (PassBuffer::Sealed, words(&sealed.concat())),
            (PassBuffer::Wanted, words(&wanted)),
            (PassBuffer::Temperatures, floats(&temperatures)),
            (PassBuffer::Logged, words(states.logged.as_flattened())),
            (PassBuffer::LogPlaces, words(&states.places)),
            (PassBuffer::Walked, words(&states.walked)),
            (PassBuffer::Sequences, words(states.sequences.as_flattened())),
            (PassBuffer::Seals, words(states.seals.as_flattened())),
            (PassBuffer::Kept, words(states.kept.as_flattened())),
        ];
        let [n_walked, n_sequences, n_kept] =
            [states.walked.len(), states.sequences.len(), states.kept.len()];
        let n_rows = first_row;
        Ok(Tables {
            n_rows,
            n_wanted,
            n_tiles,
            n_sealed,
            n_pieces,
            n_walked,
            n_sequences,
            n_kept,
            rows,
            bytes,
        })
    }

    /// Takes places for the rows and blocks that a span writes; slots of its rows.
    fn place_span(&self, span: &PassSpan, cache: &mut GpuCache) -> Vec<u32> {
        let end = span.start + span.n;
        let first = span.start / BLOCK;
        let rows = span.rows.iter().enumerate();
        let rows =
            rows.map(|(i, id)| cache.place_rows(*id, (end - (first + i) * BLOCK).min(BLOCK))).collect();
        for (i, parts) in span.completed.iter().enumerate() {
            for part in Part::OF_BLOCKS {
                if let Some(id) = parts[part as usize].filter(|id| cache.slots_of(*id).is_none()) {
                    cache.place_block(id, part, first + i == 0);
                }
            }
        }
        rows
    }

    /// Bytes of each memory of a pass.
    pub(super) fn scratch_bytes(&self, plan: &Plan, tables: &Tables) -> Vec<(BufferRef, u64)> {
        let (spec, rows) = (&self.spec, tables.n_rows);
        let attention = |of: &dyn Fn(&AttentionSpec) -> usize| {
            let attention = spec.layers.iter().filter_map(|layer| layer.attention.as_ref());
            rows * attention.map(of).max().unwrap_or(0)
        };
        let recurrence = |of: &dyn Fn(&RecurrenceSpec) -> usize| {
            spec.layers.iter().filter_map(|layer| layer.recurrence.as_ref()).map(of).max().unwrap_or(0)
        };
        let latent = |of: fn(LatentSpec) -> usize| {
            attention(&|own| own.latent.map_or(0, |latent| own.n_heads * of(latent)))
        };
        let input = |own: &AttentionSpec| match own.latent {
            None => {
                let gates = if spec.family.gated_attention { own.n_heads * own.v_dim } else { 0 };
                (own.n_heads + own.n_kv_heads) * own.k_dim + own.n_kv_heads * own.v_dim + gates
            }
            Some(LatentSpec { rank, nope, rope, .. }) => own.n_heads * (nope + rope) + rank + rope,
        };
        let experts = |of: fn(ExpertSpec) -> usize| {
            let experts = spec.layers.iter().filter_map(|layer| layer.feed_forward?.experts());
            rows * experts.map(of).max().unwrap_or(0)
        };
        let dense = spec.layers.iter().filter_map(|layer| layer.feed_forward).map(|it| match it {
            FeedForwardSpec::Dense(d_ff) => d_ff,
            FeedForwardSpec::Experts(experts) => experts.used * experts.d_ff + experts.shared_ff,
            FeedForwardSpec::Both(_, experts) => experts.used * experts.d_ff,
        });
        // Slots of rows that are sorted by expert.
        let sorted = |of: &dyn Fn(ExpertSpec, usize) -> usize| {
            let experts = spec.layers.iter().filter_map(|layer| layer.feed_forward?.experts());
            let of = |own: ExpertSpec| of(own, rows * (own.used + own.shared_ff / own.d_ff.max(1)));
            experts.map(of).max().unwrap_or(0)
        };
        let many = usize::from(rows > 16);
        let tiles = |own: ExpertSpec, slots: usize| slots.div_ceil(TILE_ROWS) + own.n + slots / rows.max(1);
        let beside = spec.layers.iter().filter_map(|layer| layer.feed_forward).map(|it| match it {
            FeedForwardSpec::Both(d_ff, _) => d_ff,
            FeedForwardSpec::Dense(_) | FeedForwardSpec::Experts(_) => 0,
        });
        let beside = rows * beside.max().unwrap_or(0);
        let q_rank = attention(&|own| own.latent.map_or(0, |latent| latent.q_rank));
        let floats = [
            (PassBuffer::Products, attention(&input).max(rows * recurrence(&RecurrenceSpec::products))),
            (PassBuffer::Convolved, tables.n_walked * recurrence(&RecurrenceSpec::mixed_width)),
            (PassBuffer::Read, rows * recurrence(&RecurrenceSpec::inner)),
            (PassBuffer::Recurred, rows * recurrence(&RecurrenceSpec::given)),
            (PassBuffer::Absorbed, latent(|latent| latent.rank)),
            (PassBuffer::Queries, attention(&|own| own.n_heads * own.k_dim)),
            (PassBuffer::Partials, attention(&|own| own.n_heads * tables.n_pieces * (own.v_dim + 4))),
            (PassBuffer::Contexts, attention(&|own| own.n_heads * own.v_dim)),
            (PassBuffer::Expanded, latent(|latent| latent.value)),
            (PassBuffer::Out, rows * spec.d_model),
            (PassBuffer::Centered, if spec.family.parallel { rows * spec.d_model } else { 0 }),
            (PassBuffer::Mixed, if beside > 0 { rows * spec.d_model } else { 0 }),
            (PassBuffer::Projected, rows * spec.layers.len() * spec.d_per_layer),
            (PassBuffer::Hidden, q_rank.max(rows * dense.max().unwrap_or(0))),
            (PassBuffer::Shared, beside.max(experts(|experts| experts.shared_ff))),
            (PassBuffer::Scores, experts(|experts| experts.n_scores())),
            (PassBuffer::Sent, sorted(&|_, slots| 2 * slots)),
            (PassBuffer::Sorted, many * sorted(&|own, slots| 1 + 3 * tiles(own, slots) + slots)),
            (PassBuffer::Given, many * sorted(&|own, slots| slots * own.d_latent.max(spec.d_model))),
            (PassBuffer::Latent, experts(|experts| experts.d_latent)),
            (PassBuffer::MixedLatent, experts(|experts| experts.d_latent)),
            (PassBuffer::Logits, tables.n_wanted * self.weights.n_vocab),
            (PassBuffer::Surveys, 2 * tables.n_wanted * self.weights.n_vocab.div_ceil(LOGITS_OF_PIECE)),
            (PassBuffer::Bins, 256 * tables.n_wanted),
            (PassBuffer::Candidates, tables.n_wanted * candidate_words(self.weights.n_vocab)),
        ];
        let floats = floats.into_iter().map(|(scratch, n)| (BufferRef::Scratch(scratch), 4 * n as u64));
        let uploads =
            tables.rows.iter().map(|(scratch, bytes)| (BufferRef::Scratch(*scratch), bytes.len() as u64));
        let coded = plan.coded_bytes.iter().map(|(x, n)| (BufferRef::Coded(*x), (rows * n) as u64));
        floats.chain(uploads).chain(coded).collect()
    }
}

impl Tables {
    /// The figures of a pass, without its tokens: tiles of `tile_rows` rows attend together.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) fn counted(pass: GpuPass, tile_rows: usize) -> Self {
        let (n_rows, n_wanted, n_sequences, start) = match pass {
            GpuPass::Decode { sequences, depth } => (sequences, sequences, sequences, depth),
            GpuPass::Prefill { tokens, depth } => (tokens, 1, 1, depth),
        };
        let n = n_rows / n_sequences;
        let n_tiles = n_sequences * ((start + n).div_ceil(tile_rows) - start / tile_rows);
        let n_sealed = n_sequences * ((start + n) / BLOCK - start / BLOCK);
        let n_pieces = if n == 1 { start / BLOCK + 1 } else { 1 };
        let (n_walked, n_kept, bytes) = (n_rows, n_sealed, Vec::new());
        let rows = [(PassBuffer::Stream, Vec::new()), (PassBuffer::Inputs, Vec::new())];
        Self { n_rows, n_wanted, n_tiles, n_sealed, n_pieces, n_walked, n_sequences, n_kept, rows, bytes }
    }

    /// Workgroups of a step in this pass.
    pub(super) fn groups(&self, step: &Dispatch) -> [u32; 3] {
        step.groups.map(|extent| self.extent(extent))
    }

    fn extent(&self, extent: Extent) -> u32 {
        let n = match extent {
            Extent::Fixed(n) => n,
            Extent::Rows(share) => self.n_rows.div_ceil(share),
            Extent::Wanted(share) => self.n_wanted.div_ceil(share),
            Extent::Slots(n) => self.n_rows * n,
            Extent::ExpertTiles(slots, parts) => (self.n_rows * slots).div_ceil(TILE_ROWS) + parts,
            Extent::Tiles => self.n_tiles,
            Extent::Pieces => self.n_pieces,
            Extent::Sealed => self.n_sealed,
            Extent::Walked => self.n_walked,
            Extent::Sequences => self.n_sequences,
            Extent::Kept => self.n_kept,
        };
        n as u32
    }
}
