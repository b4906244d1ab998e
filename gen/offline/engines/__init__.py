"""What hands a job's shards to workers: processes of this machine, or Ray."""
