"""Executors, which have a job's workers: processes of this machine, or actors of a Ray cluster; under one loop."""
