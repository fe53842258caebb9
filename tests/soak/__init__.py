"""A soak: three nodes, a fault a second, eight threads that use everything, and books that are balanced at the end.

``python -m tests.soak --duration 3600 --seed 7`` runs it for an hour. The seed fixes which faults are chosen, in which order, and
what each thread chooses to do; what of it meets what is up to the scheduler, so that a seed replays a run as far as threads allow.
"""
