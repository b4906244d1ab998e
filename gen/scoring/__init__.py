"""How likely texts are to a model: `gen.score` and `gen.classify`."""
