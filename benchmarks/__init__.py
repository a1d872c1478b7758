"""Benchmarks of the library's cost. `python -m benchmarks` makes the record of docs/cost.md; `__main__.py` says how.

| files                                                          | what they hold                                      |
|----------------------------------------------------------------|-----------------------------------------------------|
| steps, peers, ranks, growth, estimates, memory, replay         | the rows of the record, by their names there        |
| workloads, bare, library                                       | what is timed, and what it is compared with         |
| timing, fresh_process, worker_pool                             | how time and memory are measured                    |
| tables                                                         | the record for a reader                             |

Every other file is a measurement by itself: `python -m benchmarks.omniglot_step` and so on, from the project's folder.
The package may import any part of the library, and no part of the library imports it.
"""
