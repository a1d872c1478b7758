"""The learner: any `nn.Module` as a pure function of θ, φ and buffers."""
