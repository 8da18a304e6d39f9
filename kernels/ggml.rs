//! ggml's types of tensors: one table for files, devices and random models.

use std::fmt;

/// A tensor's number format by ggml's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorType(
    /// The id.
    pub u32,
);

/// The types that are known: id, name, elements and bytes of a block.
macro_rules! types {
    ($($id:literal $name:ident $block:literal $bytes:literal,)*) => {
        const TYPES: &[(u32, &str, usize, usize)] = &[$(($id, stringify!($name), $block, $bytes)),*];

        #[allow(missing_docs)] // as ggml names them
        impl TensorType {
            $(pub const $name: Self = Self($id);)*
        }
    };
}

types! {
    0 F32 1 4,
    1 F16 1 2,
    2 Q4_0 32 18,
    3 Q4_1 32 20,
    6 Q5_0 32 22,
    7 Q5_1 32 24,
    8 Q8_0 32 34,
    9 Q8_1 32 36,
    10 Q2_K 256 84,
    11 Q3_K 256 110,
    12 Q4_K 256 144,
    13 Q5_K 256 176,
    14 Q6_K 256 210,
    15 Q8_K 256 292,
    20 IQ4_NL 32 18,
    23 IQ4_XS 256 136,
    24 I8 1 1,
    28 F64 1 8,
    30 BF16 1 2,
    39 MXFP4 32 17,
}

/// Names of ggml's other types: nothing is known of them but that.
const OTHERS: [(u32, &str); 13] = [
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
];

impl TensorType {
    /// Its id, name, and the elements and bytes of a block, if it is known.
    pub fn row(self) -> Option<&'static (u32, &'static str, usize, usize)> {
        TYPES.iter().find(|t| t.0 == self.0)
    }

    /// Names of the types that are known.
    pub fn known() -> impl Iterator<Item = &'static str> {
        TYPES.iter().map(|row| row.1)
    }

    /// Elements and bytes of a block of a known type.
    pub const fn block(self) -> (usize, usize) {
        let mut i = 0;
        while TYPES[i].0 != self.0 {
            i += 1;
        }
        (TYPES[i].2, TYPES[i].3)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row() {
            Some((_, name, ..)) => f.write_str(name),
            None => match OTHERS.iter().find(|(id, _)| *id == self.0) {
                Some((_, name)) => f.write_str(name),
                None => write!(f, "type {}", self.0),
            },
        }
    }
}
