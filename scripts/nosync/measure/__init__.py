"""A/B timing, host-sync counts and equivalence of two trees, and what is written about them.

This package knows trees, workloads and numbers; it knows no project. A workload is a script that runs in a process of
its own and writes JSON lines (see `nosync.measure.writing`). Only the standard library is needed here, so that
``python -m nosync.measure`` runs on a GPU host that has nothing but the workload's own packages.
"""
