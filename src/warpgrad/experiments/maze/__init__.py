"""Meta-reinforcement learning in a maze (§4.3, App. I)."""
