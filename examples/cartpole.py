"""CartPole whose physics differ from task to task: Algorithm 1 (online), the approximate objective and FOMAML.

Every task is a cart with a pole of its own length and mass, pushed with a force of its own. The policy is a small
network written without this library; its middle layer becomes the warp φ, the others are θ and adapt by a few steps of
A2C.

    pip install 'warpgrad[paper]'          # for gymnasium
    python examples/cartpole.py
"""

from functools import partial
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

import warpgrad as wg
from warpgrad.keys import fold, generator
from warpgrad.tasks.reinforcement import ActorCritic

SEED = 0
STEPS = 3  # K
HELD_OUT = 10
EPISODES = 16
LENGTH = 100
OBJECTIVE = ActorCritic(discount=0.95, value=0.01, entropy=0.01)
RULE = wg.Clip(wg.SGD(lr=0.1), norm=1.0)


class Policy(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.middle = nn.Linear(width, width)
        self.actions = nn.Linear(width, 2)
        self.value = nn.Linear(width, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.middle(torch.tanh(self.first(seen))))
        return self.actions(hidden), self.value(hidden).squeeze(-1)


def cart(length: float, mass: float, force: float) -> Any:
    """One cart with this pole (half its length in metres, its mass in kilograms) and this push in newtons."""
    environment: Any = gymnasium.make("CartPole-v1")
    physics = environment.unwrapped
    physics.length, physics.masspole, physics.force_mag = length, mass, force
    physics.total_mass, physics.polemass_length = mass + physics.masscart, mass * length
    return environment


def cart_task(seed: int) -> wg.EnvironmentTask:
    """Half-lengths from 0.25 to 1.5, masses from 0.05 to 0.5, forces from 5 to 15."""
    draw = generator(seed, "cart")
    length, mass, force = torch.rand(3, generator=draw).tolist()
    make = partial(cart, 0.25 + 1.25 * length, 0.05 + 0.45 * mass, 5 + 10 * force)
    return wg.EnvironmentTask(
        lambda: gymnasium.vector.SyncVectorEnv([make] * EPISODES),
        length=LENGTH,
        objective=OBJECTIVE,
        seed=seed,
        name=f"cart {seed}",
    )


def main(meta_steps: int = 40) -> dict[str, float]:
    torch.manual_seed(SEED)
    model = Policy()
    # Step sizes and the number of meta-steps were chosen on other carts, those of fold(SEED, "held out", index).
    new_tasks = [cart_task(fold(SEED, "reported", index)) for index in range(HELD_OUT)]
    score = partial(wg.score, tasks=new_tasks, rule=RULE, steps=STEPS)
    learner = wg.Learner(model, warp="middle")
    before = score(learner)
    wg.meta_train(
        learner,
        wg.FunctionFamily(cart_task),
        algorithm=wg.Online(steps=STEPS, tasks=4),
        rule=RULE,
        objective=wg.Approximate(),
        initialiser=wg.FOMAML(),
        optimiser=partial(torch.optim.Adam, lr=1e-2),
        meta_steps=meta_steps,
        seed=SEED,
    )
    after = score(learner)
    print(f"{HELD_OUT} new carts, {STEPS} steps of {EPISODES} episodes")
    for name, scores in {"before meta-training": before, "after meta-training": after}.items():
        print(f"{name:<30} ", "  ".join(f"{key} {value:.3f}" for key, value in scores.items()))
    return {"before": before["return"], "after": after["return"]}


if __name__ == "__main__":
    main()
