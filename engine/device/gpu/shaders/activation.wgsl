// Activation of a gated feed-forward: act(gate) · up.

const SILU = 0u;
const GELU = 1u;
const CLAMPED = 2u;

// Of a feed-forward without a gate: relu(x)².
fn activated(x: f32) -> f32 {
    let positive = max(x, 0.0);
    return positive * positive;
}

fn gated(gate: f32, up: f32) -> f32 {
    if (ACTIVATION == GELU) {
        // The tanh form (Hendrycks & Gimpel 2016); a larger argument gives 1.
        let inner = 0.7978845608 * fma(0.044715 * gate * gate, gate, gate);
        return 0.5 * gate * (1.0 + tanh(clamp(inner, -15.0, 15.0))) * up;
    }
    if (ACTIVATION == CLAMPED) {
        let g = min(gate, 7.0);
        let u = clamp(up, -7.0, 7.0);
        return g / (1.0 + exp(-1.702 * g)) * (u + 1.0);
    }
    return gate / (1.0 + exp(-gate)) * up;
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}
