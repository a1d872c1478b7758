"""The task-learner: any `nn.Module` as a pure function of θ, φ and buffers.

The module keeps its class, its names and its weights. Its parameters are the meta-learned values: θ0 in
the task group, φ in the warp group. Adaptation never writes to them; it calls the module with other
tensors in their place and gets back outputs and new buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from typing_extensions import TypeVar

from warpgrad.errors import WarpgradError, choice, expect, flag, mapping, require
from warpgrad.keys import fold, isolated_rng, seed_global
from warpgrad.model.forward_pass import (
    Again,
    ModuleTree,
    RecomputedUnder,
    Surroundings,
    Swapper,
    copyable,
    refuse_rewriting,
)
from warpgrad.model.normalisation import (
    POLICIES,
    TRACKING,
    BatchNormPolicy,
    Modes,
    corrected_statistics,
    reset_statistics,
    without_statistics,
)
from warpgrad.model.partition import (
    Selector,
    StartPolicy,
    owners_of,
    partition,
    plain_names,
    start_policies,
    unmark,
    unwrapped,
)
from warpgrad.model.second_order import SecondOrderKernels
from warpgrad.model.second_order.plain_forms import silently_wrong
from warpgrad.tensors import Tensors, detached, laid_channels_last, select

M_co = TypeVar("M_co", bound=nn.Module, default=nn.Module, covariant=True)
"""The class of the user's module."""


@dataclass(frozen=True)
class Order:
    """How a forward pass will be differentiated."""

    twice: bool = False
    mapped: bool = False
    """Whether it is mapped over a stack of tasks."""
    theta: bool = False
    """Whether the second derivative is taken for θ too, not for φ alone."""


FIRST_ORDER = Order()
_SHOWN = 6
"""Parameter names in each line of a learner's `repr`."""


class Forward:
    """A learner bound to θ, φ and buffers: a pure function that is called like the module.

    Buffers pass from call to call within one loss and are read from `buffers` afterwards; the tensors
    that were bound are never written to. With a key, the n-th call always draws the same dropout masks.

    Example:
        >>> forward = learner.bind(learner.theta0, learner.buffers())
        >>> torch.equal(forward(x), model(x))
        True
    """

    def __init__(
        self,
        learner: Learner,
        theta: Mapping[str, Tensor],
        phi: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        key: int | None,
        training: bool,
    ) -> None:
        self.learner = learner
        self.buffers: Tensors = dict(buffers)
        self.theta, self.phi = theta, phi
        self._weights = {**theta, **phi}
        self._key = key
        self._training = training
        self._calls = 0

    def at(self, theta: Mapping[str, Tensor] | None = None, *, phi: Mapping[str, Tensor] | None = None) -> Forward:
        """Return the same model, with the same masks, at another θ or φ."""
        return Forward(
            self.learner,
            self.theta if theta is None else theta,
            self.phi if phi is None else phi,
            self.buffers,
            self._key,
            self._training,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        learner, before = self.learner, self.buffers
        if self._training and self._key is not None:
            seed_global(learner.device, fold(self._key, self._calls))
        self._calls += 1
        tensors = self._tensors(before)
        again = partial(self._again, before, learner._order)
        with self._running(tensors, again):
            output = learner.module(*args, **kwargs)
        self.buffers = detached({name: tensors[name] for name in before})
        return output

    def _tensors(self, buffers: Mapping[str, Tensor]) -> Tensors:
        # Normalisation layers write to the buffers they are given, so they are given copies.
        return {**self._weights, **{name: buffer.clone() for name, buffer in buffers.items()}}

    @contextmanager
    def _running(self, tensors: Tensors, again: Again) -> Iterator[None]:
        """Put these tensors into the module inside the block, in the right mode and with the right operations."""
        learner = self.learner
        learner._modes.apply(self._training)
        surroundings = learner._surroundings
        kernels = learner._kernels(self.theta)
        # Autocast keeps a low-precision copy of every weight until its outermost block ends. Around meta-training that
        # would be one copy for all meta-steps, whatever became of φ. Within a pass copies are still shared.
        torch.clear_autocast_cache()
        try:
            with learner._swapper.holding(tensors), RecomputedUnder(again):
                if kernels is None and surroundings.harmless():
                    yield
                    return
                with kernels or nullcontext(), surroundings.set_right():
                    yield
        finally:
            torch.clear_autocast_cache()

    @contextmanager
    def _again(self, before: Mapping[str, Tensor], order: Order) -> Iterator[None]:
        """Restore the beginning of the pass, for a recomputation in the backward pass; its statistics are discarded."""
        with (
            self.learner._in_order(order),
            self._running(self._tensors(before), partial(self._again, before, order)),
        ):
            yield


class Learner(Generic[M_co]):
    """An `nn.Module` split into task parameters θ and warp parameters φ.

        Learner(model)                                   # modules marked by Warp(...) are the warp
        Learner(resnet, warp="layer*.conv2")             # by name; the rest is θ
        Learner(model, task=lambda name, module: isinstance(module, nn.Linear))

    Warning: the module is used, not copied, and its parameters are updated by meta-training. Use
    `adapted(...)` (or `warpgrad.adapt`) for a separate module.

    Example:
        >>> learner = wg.Learner(model, warp="2", start={"3": "zero"})
        >>> sorted(learner.phi), learner.starts["3.weight"]
        (['2.bias', '2.weight'], 'zero')
    """

    def __init__(
        self,
        module: M_co,
        *,
        warp: Selector | None = None,
        task: Selector | None = None,
        constant: Selector | None = None,
        start: Mapping[str, StartPolicy] | None = None,
        batch_norm: BatchNormPolicy = "corrected",
        allow_unused: bool = False,
        channels_last: bool = False,
    ) -> None:
        """
        Args:
            module: The model. Any forward signature.
            warp: Which parameters are φ: a pattern, several, or a predicate of (name, owner module).
            task: Which parameters are θ, in the same way. Where only one of the two is given, the rest is the other.
            constant: Parameters that never change, besides those with `requires_grad=False`.
            start: Start policies by pattern, the last match wins; `learned` where none matches.
            batch_norm: What normalisation layers use, see `warpgrad.model.normalisation`.
            allow_unused: Give a parameter that a loss does not touch a zero gradient instead of an error.
            channels_last: Keep the weights of 2-D convolutions, and so their outputs, channels-last, which is faster
                on CPUs; converts the module's own.
        """
        expect(module, nn.Module, "module", "nn.Linear(3, 2)", hint=_hint(module))
        choice(batch_norm, "batch_norm", POLICIES)
        if start is not None:
            mapping(start, "start", '{"head": "zero"}')
        flag(allow_unused, "allow_unused")
        module = cast(M_co, unwrapped(module))
        if flag(channels_last, "channels_last"):
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.module: M_co = module
        self.channels_last = channels_last
        self.batch_norm = batch_norm
        self.allow_unused = allow_unused
        self.partition = partition(module, task, warp, constant)
        parameters = dict(module.named_parameters())
        self.theta0: Tensors = select(parameters, self.partition.task)
        self.phi: Tensors = select(parameters, self.partition.warp)
        self.constants: Tensors = select(parameters, self.partition.constant)
        refuse_rewriting(module, self.partition.constant)
        self.starts = start_policies(self.partition.task, start or {}, plain_names(module))
        self.learned = tuple(name for name, policy in self.starts.items() if policy == "learned")
        self._fresh = owners_of(module, [name for name, policy in self.starts.items() if policy == "fresh"])
        self._tree = ModuleTree(module)
        self._modes = Modes(module, batch_norm)
        self._swapper = Swapper(self.module)
        self._order = FIRST_ORDER
        self._recurrent = any(isinstance(child, nn.RNNBase) for child in module.modules())
        self._wrong_twice = silently_wrong(module)
        self._surroundings = Surroundings(module)
        self._trainable = {name: parameter.requires_grad for name, parameter in parameters.items()}
        self._substituted = False

    @property
    def device(self) -> torch.device:
        return next(iter(self.theta0.values())).device

    @property
    def learned_theta0(self) -> Tensors:
        """The part of θ0 that is meta-learned."""
        return select(self.theta0, self.learned)

    def start(self, key: int) -> Tensors:
        """Return θ at the beginning of the task with this key, by each parameter's start policy."""
        self.check_module()
        theta = detached(self.theta0)
        if "zero" in self.starts.values():
            zeros = (name for name, policy in self.starts.items() if policy == "zero")
            theta.update({name: torch.zeros_like(theta[name]) for name in zeros})
        for path, fresh in self._fresh.items():
            with isolated_rng(self.device):
                seed_global(self.device, fold(key, "fresh", path))
                drawn = fresh.drawn()
            theta.update({f"{path}.{local}" if path else local: value for local, value in drawn.items()})
        return theta

    def buffers(self) -> Tensors:
        """Return the buffers that a task starts with."""
        buffers = detached(self._tree.tensors("_buffers"))
        return reset_statistics(self._tree.modules(), buffers) if self.batch_norm in TRACKING else buffers

    def bind(
        self,
        theta: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor],
        *,
        phi: Mapping[str, Tensor] | None = None,
        key: int | None = None,
        training: bool = True,
    ) -> Forward:
        """Return the model at θ, φ and buffers, to be called like the module itself.

        With a key, dropout masks are functions of it, drawn by seeding torch's global generator; without one they
        come from that generator as it is.
        """
        if self.channels_last:
            # Updates and the replay buffer may have lost the layout.
            theta = {name: laid_channels_last(value) for name, value in theta.items()}
        if not training:
            buffers = self.test_buffers(buffers)
        return Forward(self, theta, self.phi if phi is None else phi, buffers, key, training)

    def adapted(self, theta: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> M_co:
        """Return a plain module of the user's own class with θ and buffers in it, in eval mode, free of this library.

        Warning: under `batch_norm="batch"` it has no running statistics, so its state dict lacks those entries.
        """
        with copyable(self.module):
            module = copy.deepcopy(self.module)
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, value in {**theta, **self.test_buffers(buffers)}.items():
                state[name].copy_(value)
        if self.batch_norm == "batch":
            without_statistics(module)
        for parameter in module.parameters():
            parameter.grad = None
        return unmark(module).eval()

    def check_module(self) -> None:
        """Raise if the module's parameters were replaced after the split: others would be learned than are used."""
        if self._substituted:
            return
        now = self._tree.tensors("_parameters")
        for name, own in {**self.theta0, **self.phi, **self.constants}.items():
            found = now.get(name)
            if found is not own:
                done = "is gone from" if found is None else "was replaced in"
                raise WarpgradError(
                    f"parameter '{name}' {done} the module after Learner(...): load_state_dict without assign=True, "
                    "or build the Learner again after the change."
                )
            if found.requires_grad is not self._trainable[name]:
                raise WarpgradError(
                    f"requires_grad of parameter '{name}' was changed to {found.requires_grad} after Learner(...), "
                    "which has already assigned it to a group: build the Learner again after the change."
                )

    def state_dict(self) -> Tensors:
        """Return the module's own `state_dict`: θ0, φ, constants and buffers under the module's names."""
        return dict(self.module.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy values into θ0, φ, constants and buffers; names and shapes must be the module's own."""
        mapping(state, "state", 'torch.load("learner.pt")')
        own = self.module.state_dict()
        for name, value in own.items():
            require(name in state, f"the state has no '{name}', which the learner's {self._kind} has.")
            if isinstance(value, Tensor) and value.shape != state[name].shape:
                shapes = f"{tuple(state[name].shape)} in the state but {tuple(value.shape)} in the learner"
                raise WarpgradError(f"'{name}' has the shape {shapes}: the state belongs to another model.")
        for name in state:
            require(name in own, f"the state has '{name}', which the learner's {self._kind} does not have.")
        self.module.load_state_dict(dict(state))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the module as `nn.Module.to` does, in place, and return the learner.

        Warning: the batches of tasks have to be on the learner's device, so the tasks have to move too.
        """
        self.module.to(*args, **kwargs)
        self.check_module()
        return self

    @property
    def _kind(self) -> str:
        return type(self.module).__name__

    def __repr__(self) -> str:
        lines = [f"Learner({self._kind}, batch_norm={self.batch_norm!r})"]
        groups = (("θ task", self.theta0), ("φ warp", self.phi), ("constant", self.constants))
        for title, tensors in groups:
            count, names = sum(value.numel() for value in tensors.values()), list(tensors)
            shown = ", ".join(names[:_SHOWN]) + (f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
            lines.append(f"  {title:<8} {count:>12,} in {len(names):>3}  {shown}".rstrip())
        return "\n".join(lines)

    def test_buffers(self, buffers: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the buffers that a task is tested with, given those that its adaptation ended with."""
        return corrected_statistics(self._tree.modules(), buffers) if self.batch_norm == "corrected" else buffers

    @contextmanager
    def substituted(self, phi: Tensors, constants: Tensors) -> Iterator[None]:
        """Replace φ and the constants by these tensors inside the block."""
        own, self.phi = self.phi, phi
        within, self._substituted = self._substituted, True
        try:
            with self._swapper.holding(dict(constants)):
                yield
        finally:
            self.phi, self._substituted = own, within

    @contextmanager
    def modes_kept(self) -> Iterator[None]:
        """Leave every submodule in the training or eval mode in which it was found."""
        flags = [(child, child.training) for child in self.module.modules()]
        try:
            yield
        finally:
            for child, flag in flags:
                child.training = flag

    @contextmanager
    def second_order(self, *, mapped: bool = False, theta: bool = False) -> Iterator[None]:
        """Prepare the forward passes inside the block for being differentiated twice.

        Fused attention has no second derivative, nor have cuDNN's recurrent kernels: their plain forms are used. Other
        operations get a cheaper one, see `warpgrad.model.second_order`, unless they are mapped over a stack of tasks.
        The second derivative is for φ, and with `theta` for θ too.
        """
        with self._in_order(Order(twice=True, mapped=mapped, theta=theta)):
            yield

    @contextmanager
    def _in_order(self, order: Order) -> Iterator[None]:
        with ExitStack() as stack:
            if order.twice:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
                if self._recurrent and self.device.type == "cuda":
                    stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            before, self._order = self._order, order
            try:
                yield
            finally:
                self._order = before

    def _kernels(self, theta: Mapping[str, Tensor]) -> AbstractContextManager[Any] | None:
        """Return the operations that a forward pass with this θ runs under; None for PyTorch's own."""
        order = self._order
        if not order.twice or (order.mapped and not self._wrong_twice):
            return None
        return SecondOrderKernels(constant=() if order.theta else theta.values(), cheaper=not order.mapped)


def _hint(module: Any) -> str:
    if callable(module) and not isinstance(module, type):
        return "; a plain function has no parameters to adapt"
    return ""
