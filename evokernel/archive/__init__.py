"""The innovation archive: tasks, kernels, verdicts, lineage and runs in one SQLite file. See store.Archive."""
