// Kinds of recurrent layers.

const DELTA = 0u;
const MAMBA = 1u;
const CONVOLUTION = 2u;
