//! AMX (Xeons since 2023): products of whole matrices of bytes, in registers of their own called tiles.
//!
//! A step of a panel is a tile as it is: 8 quads of 16 outputs, four k to a word. With 16 rows of activations one
//! instruction makes 256 products of 32 k each, exact integers as everywhere. Rust's intrinsics are not stable
//! yet, hence inline assembly; no compiler keeps anything in tiles, so what is in them stays from one piece of
//! assembly to the next.
//!
//! Linux gives a process the tiles when it asks for them, once; each task configures them and releases them in
//! the end, so that threads are switched without saving them.

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;

/// Words of a tile of sums.
pub(crate) const TILE_WORDS: usize = TILE_ROWS * crate::LANES;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use linux::{Configured, Tiles};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) use nowhere::{Configured, Tiles};

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod linux {
    use super::{TILE_ROWS, TILE_WORDS};
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::marker::PhantomData;
    use std::sync::OnceLock;

    /// The right to use tiles: this machine has them, and this process was given them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Tiles(());

    impl Tiles {
        /// Asks the machine and the operating system, once.
        pub(crate) fn detect() -> Option<Self> {
            static FOUND: OnceLock<bool> = OnceLock::new();
            FOUND.get_or_init(|| has_tiles() && may_use_tiles()).then_some(Self(()))
        }

        /// Configures this thread's tiles for products of `n_rows` rows (at most [`TILE_ROWS`]) and `n_quads`
        /// quads of four k (at most 16).
        pub(crate) fn configure(self, n_rows: usize, n_quads: usize) -> Configured {
            assert!(
                (1..=TILE_ROWS).contains(&n_rows) && (1..=16).contains(&n_quads),
                "a tile is 16 × 64 bytes"
            );
            let mut config =
                Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
            let shapes = [SUMS, SUMS, ROWS, QUADS, QUADS, SUMS, SUMS, ROWS].map(|kind| match kind {
                SUMS => (n_rows, 64),
                ROWS => (n_rows, 4 * n_quads),
                _ => (n_quads, 64),
            });
            for (tile, (rows, bytes)) in shapes.into_iter().enumerate() {
                (config.rows[tile], config.row_bytes[tile]) = (rows as u8, bytes as u16);
            }
            // SAFETY: the machine has tiles and this process may use them, or there were no `self`; the
            // configuration is 64 bytes, and of a shape that the processor has.
            unsafe {
                asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags, readonly))
            };
            Configured { here: PhantomData }
        }
    }

    /// Kinds of tiles: sums, rows of activations, quads of weights.
    const SUMS: u8 = 0;
    const ROWS: u8 = 1;
    const QUADS: u8 = 2;

    /// What `ldtilecfg` reads.
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    /// Tiles of this thread, configured; dropped, they are released.
    pub(crate) struct Configured {
        /// Not to be sent to another thread.
        here: PhantomData<*mut ()>,
    }

    impl Drop for Configured {
        fn drop(&mut self) {
            // SAFETY: they were configured.
            unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
        }
    }

    /// One product: tiles of sums 0 and 1, of rows, and of quads, by their numbers.
    macro_rules! products {
        ($sums:literal, $more_sums:literal, $rows:literal, $x:expr, $weights:expr, $sums_at:expr) => {
            asm!(
                concat!("tileloadd tmm", $rows, ", [{x} + 1*{x_stride}]"),
                "tileloadd tmm3, [{first} + 1*{line}]",
                concat!("tilezero tmm", $sums),
                "tileloadd tmm4, [{last} + 1*{line}]",
                concat!("tilezero tmm", $more_sums),
                concat!("tdpbssd tmm", $sums, ", tmm", $rows, ", tmm3"),
                concat!("tdpbssd tmm", $more_sums, ", tmm", $rows, ", tmm4"),
                concat!("tilestored [{sums} + 1*{line}], tmm", $sums),
                concat!("tilestored [{sums} + 1*{line} + 1024], tmm", $more_sums),
                x = in(reg) $x.0,
                x_stride = in(reg) $x.1,
                first = in(reg) $weights[0],
                last = in(reg) $weights[1],
                line = in(reg) 64usize,
                sums = in(reg) $sums_at,
                out("tmm3") _, out("tmm4") _,
                options(nostack, preserves_flags),
            )
        };
    }

    impl Configured {
        /// Products of rows of activations with the quads of two panels, `[2, 16, 16]` words into `sums`. Which of
        /// two sets of tiles is used depends on `turn`, so that a product need not wait for the one before.
        ///
        /// # Safety
        /// For the `n_rows` and `n_quads` of the configuration, `x.0` is the first of `n_rows` rows of `4 *
        /// n_quads` signed bytes, `x.1` bytes apart; each of `weights` is `64 * n_quads` signed bytes; `sums` has
        /// room for `2 * TILE_WORDS` words.
        #[inline(always)]
        pub(crate) unsafe fn products(
            &self,
            turn: usize,
            x: (*const i8, usize),
            weights: [*const u8; 2],
            sums: *mut i32,
        ) {
            const { assert!(TILE_WORDS * 4 == 1024, "the distance in the assembly") };
            // SAFETY: the caller's; nothing else uses tiles.
            unsafe {
                if turn % 2 == 0 {
                    products!("0", "1", "2", x, weights, sums);
                } else {
                    products!("5", "6", "7", x, weights, sums);
                }
            }
        }
    }

    /// Tells whether the processor has tiles of 8-bit integers, and the system saves them.
    fn has_tiles() -> bool {
        if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
            return false;
        }
        let features = __cpuid_count(7, 0).edx;
        let (low, _high): (u32, u32);
        // SAFETY: OSXSAVE says that there is `xgetbv`.
        unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high, options(nomem, nostack)) };
        features & AMX == AMX && low & TILE_STATE == TILE_STATE
    }

    /// Leaf 1, ECX: the system has switched `xgetbv` on.
    const OSXSAVE: u32 = 1 << 27;
    /// Leaf 7, EDX: tiles, and their products of 8-bit integers.
    const AMX: u32 = 1 << 24 | 1 << 25;
    /// XCR0: the tiles' configuration and what is in them.
    const TILE_STATE: u32 = 1 << 17 | 1 << XFEATURE_TILE_DATA;
    const XFEATURE_TILE_DATA: libc::c_long = 18;
    /// `arch_prctl`: asks for a feature whose state is large.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;

    /// Asks Linux (5.16 and later) for the tiles: it gives them to all threads of the process.
    fn may_use_tiles() -> bool {
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0 }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod nowhere {
    /// The right to use tiles, which nobody has here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Tiles {}

    /// Tiles, configured.
    pub(crate) struct Configured(std::convert::Infallible);

    impl Tiles {
        pub(crate) fn configure(self, _n_rows: usize, _n_quads: usize) -> Configured {
            match self {}
        }
    }

    impl Configured {
        /// # Safety
        /// It can't be called.
        pub(crate) unsafe fn products(
            &self,
            _: usize,
            _: (*const i8, usize),
            _: [*const u8; 2],
            _: *mut i32,
        ) {
            match self.0 {}
        }
    }
}
