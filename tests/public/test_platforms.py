"""Every module imports, a run is trained and resumed, and commands are carried out, with nothing but what Python has on
Windows and macOS too.

No such machine is at hand. What they lack is taken away before the library is imported: modules, signals, flags and
functions of the system.
"""

import subprocess
import sys

import pytest

LACKING = """
import asyncio, ctypes, importlib, multiprocessing, os, pkgutil, signal, subprocess, sys, sysconfig, tempfile
for name in ("torch", "torch._dynamo", "torch.distributed.run", "torch.utils.data", "matplotlib.pyplot", "optuna",
             "sqlalchemy", "gymnasium", "PIL.Image", "tyro", "rich.progress", "jinja2", "filelock", "transformers"):
    importlib.import_module(name)  # what others wrote knows where it is
sysconfig.get_config_vars()
import torch

platform = sys.argv[1]
if platform == "win32":
    blocked = {"fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog"}
    for name in "SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGPIPE pthread_sigmask".split():
        delattr(signal, name)
    for name in "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK fork geteuid getuid fchmod sched_getaffinity".split():
        delattr(os, name)
else:
    blocked = set()
    delattr(os, "sched_getaffinity")
for name in blocked:
    sys.modules[name] = None  # an import of it fails
sys.platform = platform
"""

IMPORTS = """
import warpgrad
failed = []
for module in pkgutil.walk_packages(warpgrad.__path__, "warpgrad."):
    if module.name.endswith("__main__"):
        continue
    try:
        __import__(module.name)
    except ImportError as error:
        failed.append(f"{module.name}: {error}")
assert not failed, failed
"""

TRAINS = """
from functools import partial
import torch.nn.functional as F
from torch import nn
import warpgrad as wg

x = torch.linspace(-1, 1, 8).reshape(8, 1)
task = wg.SupervisedTask(x, 2 * x, F.mse_loss)
for meta_steps in (2, 4):
    torch.manual_seed(0)
    learner = wg.Learner(nn.Sequential(nn.Linear(1, 4), nn.Tanh(), wg.Warp(nn.Linear(4, 4)), nn.Linear(4, 1)))
    records = wg.meta_train(
        wg.Method(learner, wg.SGD(0.1), wg.Exact(), wg.Leap()), wg.TaskList([task]), run="mine", meta_steps=meta_steps,
        algorithm=wg.Online(steps=3, tasks=1), optimiser=partial(torch.optim.Adam, lr=1e-2),
    )
assert len(records) == 4
wg.save("warp.safetensors", wg.Method(learner, wg.SGD(0.1), wg.Exact(), wg.Leap()))
"""


COMMANDS = """
import runpy
words = ["run", "synthetic", "--meta-steps", "2", "--steps", "3", "--starts", "2", "--test-surfaces", "3",
         "--test-starts", "2", "--out", "run", "--quiet"]
for sys.argv[1:] in (["--version"], ["list"], words, ["verify", "run"], ["report", "run"]):
    try:
        runpy.run_module("warpgrad", run_name="__main__")
    except SystemExit as stop:
        assert stop.code == 0, sys.argv
"""


@pytest.mark.parametrize("platform", ["win32", "darwin"])
@pytest.mark.parametrize("program", [IMPORTS, TRAINS, COMMANDS], ids=["imports", "trains", "commands"])
def test_without_what_other_systems_lack(platform, program, tmp_path):
    command = [sys.executable, "-c", LACKING + program, platform]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
