"""Output types that are made of output types: joined for both engines, and read back part by part."""
