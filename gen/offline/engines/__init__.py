"""Engines, which hand a job's shards to workers: processes of this machine, or Ray."""
