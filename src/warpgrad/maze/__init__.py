"""The maze of App. I, agents that walk it, and whole episodes as one forward pass.

| file             | what it is                                                                        |
|------------------|-----------------------------------------------------------------------------------|
| `rules.py`       | the maze and many episodes in step, as arrays: the one place where its rules are  |
| `environment.py` | the same as a `gymnasium.vector.VectorEnv` and a `gymnasium.Env`, rendered        |
| `random.py`      | random numbers as a function of (episode seed, role, time step)                   |
| `agents.py`      | RNN, Warp-RNN, HyperRNN, T-Nets-RNN, and an agent without memory                  |
| `plasticity.py`  | Hebbian plasticity, simple and retroactive modulation                             |
| `tapes.py`       | roll-outs with their backward pass written out                                    |
| `catalogue.py`   | the agents by name, split into θ and φ                                            |
| `roll_out.py`    | an agent and the maze as one module; walks that need no learning, for comparison  |

Training uses `rules.py` directly; gymnasium is needed for `environment.py` alone.
"""

from warpgrad.maze.agents import Agent, MemorylessAgent, RNNAgent, TNetsAgent, WarpAgent
from warpgrad.maze.catalogue import AGENTS, WARPED, AgentOptions, build_learner, task_parameters, warp_parameters
from warpgrad.maze.plasticity import HebbianAgent, RetroactiveModulationAgent, SimpleModulationAgent
from warpgrad.maze.roll_out import MazeRollOut, random_moves, returns_of, wandering
from warpgrad.maze.rules import Maze, MazeEpisodes

__all__ = [
    "AGENTS",
    "WARPED",
    "Agent",
    "AgentOptions",
    "HebbianAgent",
    "Maze",
    "MazeEpisodes",
    "MazeRollOut",
    "MemorylessAgent",
    "RNNAgent",
    "RetroactiveModulationAgent",
    "SimpleModulationAgent",
    "TNetsAgent",
    "WarpAgent",
    "build_learner",
    "random_moves",
    "returns_of",
    "task_parameters",
    "wandering",
    "warp_parameters",
]
