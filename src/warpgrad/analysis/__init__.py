"""The geometry of warped gradient descent (Eqs. 6-10), made explicit.

Training never needs anything here: backpropagation through warp-layers does it all. These functions show what it
does, for an explicit warp Ω or for the warp-layers of a model.

Warning: Jacobians are dense. Use float64 and few parameters, layers and examples.
"""

from warpgrad.analysis.geometry import (
    Inverse,
    NativeLoss,
    Omega,
    PushForward,
    as_vector,
    condition_number,
    from_vector,
    ideal_step,
    invert,
    is_positive_definite,
    jacobian,
    linear_omega,
    metric_inverse,
    pushed_forward,
    taylor_error,
)
from warpgrad.analysis.warp_jacobians import warp_jacobians, warp_jacobians_along, warp_layers

__all__ = [
    "Inverse",
    "NativeLoss",
    "Omega",
    "PushForward",
    "as_vector",
    "condition_number",
    "from_vector",
    "ideal_step",
    "invert",
    "is_positive_definite",
    "jacobian",
    "linear_omega",
    "metric_inverse",
    "pushed_forward",
    "taylor_error",
    "warp_jacobians",
    "warp_jacobians_along",
    "warp_layers",
]
