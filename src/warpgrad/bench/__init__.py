"""`warpgrad bench`: what the library costs, every figure a ratio taken in one run. Begin at `benchmark.run`."""
